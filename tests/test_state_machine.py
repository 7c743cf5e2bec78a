"""Whatever happens to a plan, in any order: its sandboxes are what a model says they are.

A plan of up to 40 steps, written by a random generator, over two directories, a git repository and
a database is run, fails, is resumed, mended, rolled back, corrected, undone, redone, pruned, edited
by hand and killed. `plan_model` says what must come of it and shares no code with the program.
CLEVERAGENTS_HEAVY=1 tries for about ten minutes, CLEVERAGENTS_SEED=n takes another way, and
CLEVERAGENTS_SHRINK=1 looks for the shortest way to a failure, which takes long.
"""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cleveragents.errors import AgentsError, CheckpointPruned, CorrectionRefused, NothingToUndo
from cleveragents.history.checkpoints import prune_plan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import DecisionKind, DecisionState
from cleveragents.model.journal import EntryState, undo_stack
from cleveragents.model.plan import State as PlanState
from cleveragents.model.plan import StepState
from cleveragents.model.tool import CallState
from cleveragents.testing import killed_at, look, require_same
from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests import plan_model as model
from tests.plan_model import DATABASE, FOLDERS, Deed, Moment, Run, Step, World

HEAVY = os.environ.get("CLEVERAGENTS_HEAVY") == "1"
EXAMPLES, OPERATIONS = (250, 40) if HEAVY else (12, 18)
EXAMPLES = int(os.environ.get("CLEVERAGENTS_EXAMPLES", EXAMPLES))
SHRINK = os.environ.get("CLEVERAGENTS_SHRINK") == "1"
SEED = int(os.environ.get("CLEVERAGENTS_SEED", "0"))
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
REACH = 10
Action = Callable[[PlanHandle, Workspace], object]

FILES = ("a", "b", "d/x", "d/y", "e/x", "d/s/z")
PLACES = (*FILES, "d", "e", "d/s", "n")
TEXTS = ("red", "green", "blue green", "red red")
WHERE = st.sampled_from(FOLDERS)


def _inputs(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.fixed_dictionaries(strategies).map(lambda found: tuple(found.items()))


BODIES = st.one_of(
    st.tuples(
        WHERE,
        st.just("file.write"),
        _inputs(path=st.sampled_from(FILES), content=st.sampled_from(TEXTS)),
    ),
    st.tuples(
        WHERE,
        st.just("file.write"),
        _inputs(path=st.sampled_from(FILES), content=st.sampled_from(TEXTS)),
    ),
    st.tuples(
        WHERE,
        st.just("file.edit"),
        _inputs(path=st.sampled_from(("a", "b")), old=st.just("green"), new=st.sampled_from(TEXTS)),
    ),
    st.tuples(
        WHERE,
        st.just("file.delete"),
        _inputs(path=st.sampled_from(PLACES), recursive=st.booleans()),
    ),
    st.tuples(
        WHERE,
        st.just("file.move"),
        _inputs(**{"from": st.sampled_from(PLACES), "to": st.sampled_from(PLACES)}),
    ),
    st.tuples(WHERE, st.just("file.mkdir"), _inputs(path=st.sampled_from(PLACES[4:]))),
    st.tuples(WHERE, st.just("flag"), _inputs(name=st.sampled_from(("flag-1", "flag-2")))),
    st.tuples(
        st.just(DATABASE),
        st.just("sql"),
        _inputs(
            script=st.builds(
                model.script,
                st.sampled_from(("insert", "append", "append", "drop")),
                st.integers(1, 6),
                st.sampled_from(("x", "y")),
            )
        ),
    ),
)


@st.composite
def steps(draw: st.DrawFn, count: int, start: int = 0) -> tuple[Step, ...]:
    """Steps that mostly do well: what would fail is tried again with another body, once."""
    found: list[Step] = []
    for number in range(start, start + count):
        on, tool, inputs = draw(BODIES)
        earlier = [step.id for step in found]
        one = Step(id=f"s{number}", on=on, tool=tool, inputs=inputs)
        found.append(_tied(draw, one, earlier))
    return tuple(found)


def _tied(draw: st.DrawFn, step: Step, earlier: list[str]) -> Step:
    if not earlier:
        return step
    how = draw(st.integers(0, 11))
    other = draw(st.sampled_from(earlier)) if how < 4 else ""
    return {
        0: replace(step, needs=(other,)),
        1: replace(step, influences=(other,)),
        2: replace(step, parent=other),
        3: replace(step, shares=other),
    }.get(how, step)


def make_template() -> Path:
    """The user's resources, once: each example has a copy."""
    home = Path(tempfile.mkdtemp(dir=MEMORY))
    for name in ("one", "app"):
        (home / name / "d").mkdir(parents=True)
        (home / name / "a").write_bytes(b"green")
        (home / name / "d/x").write_bytes(b"red")
    (home / "two").mkdir()
    with closing(sqlite3.connect(home / "db")) as db:
        db.executescript(
            "CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'x')"
        )
    for argv in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        subprocess.run(["git", *argv], cwd=home / "app", check=True)
    return home


FIRST: model.State = {
    "one": {"a": b"green", "d": None, "d/x": b"red"},
    "two": {},
    "app": {"a": b"green", "d": None, "d/x": b"red"},
    DATABASE: {1: "x"},
}


class Facts:
    """What the store says of the plan, read once after an operation."""

    def __init__(self, plan: PlanHandle, store: Any) -> None:
        plan_id = plan.plan_id
        self.plan = plan.plan
        rows = store.plans.steps(plan_id)
        self.order = [row.step_id for row in rows]
        self.done = frozenset(row.step_id for row in rows if row.done)
        self.running = [row.step_id for row in rows if row.state is StepState.PROCESSING]
        failure = self.plan.error
        no_sandbox = self.plan.head_group_id is None
        self.unsettled = bool(self.running or no_sandbox or (failure and failure.undo_to))
        """A step left something behind that the next command takes back."""
        self.decision_of = {row.step_id: row.decision_id for row in rows}
        self.decisions = store.plans.decisions(plan_id)
        self.groups: list[CheckpointGroup] = store.checkpoints.groups(plan_id)
        self.calls = store.calls.of_plan(plan_id)
        journal = store.journal.of_plan(plan_id)
        self.open = [entry for entry in journal if entry.state is EntryState.OPEN]
        self.stacks = undo_stack(journal, in_place=False)
        self.recent = {entry.entry_id for entry in journal[-REACH:]}
        self.sandboxes = plan.sandboxes


class Operation:
    """An operation with everything the model expects of it, for one world it may start in."""

    def __init__(self, world: World) -> None:
        self.start = world
        self.points = [world]
        """Where it may be found if it is killed; the last is its end."""
        self.run: Run | None = None
        self.restored: Moment | None = None
        """What a correction went back to, before its steps ran."""
        self.refused: tuple[type[AgentsError], ...] = ()
        self.unknown = False
        """It ends in what a dead step had left."""

    @property
    def end(self) -> World:
        return self.points[-1]


class Machine(RuleBasedStateMachine):
    template: Path
    used: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=MEMORY))
        self.work = self.home / "work"
        shutil.copytree(self.template, self.work, symlinks=True)
        self.flags: frozenset[str] = frozenset()
        self.known: dict[str, Moment | None] = {}
        """Group -> what it holds; None where the model cannot know."""
        self.wrote: dict[str, frozenset[tuple[str, str]]] = {}
        """Decision -> all that it ever wrote."""
        self.called: set[str] = set()
        self.hashes: dict[tuple[str, str], Any] = {}
        self.edits = 0
        self.seen = 0

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    # the plan

    @initialize(
        data=st.data(),
        count=st.integers(1, 40),
        policy=st.sampled_from(("rollback_step", "rollback_step", "rollback_plan")),
        limit=st.sampled_from((50, 50, 6, 20)),
        triggers=st.sampled_from((None, None, "all")),
        die=st.one_of(st.just(0), st.integers(0, 200)),
    )
    def use(
        self,
        data: st.DataObject,
        count: int,
        policy: str,
        limit: int,
        triggers: str | None,
        die: int,
    ) -> None:
        self.policy = {
            "on_failure": policy,
            "max_checkpoints_per_plan": limit,
            "max_retries_per_step": 0,
            "confine": "off",
        }
        if triggers == "all":
            names = "before_step after_step before_tool_execute after_tool_execute on_decision"
            self.policy["auto_create_on"] = [*names.split(), "on_error"]
        found = data.draw(steps(count))
        self.number = count
        self.write_plan(found)
        with open_workspace(str(self.home / "store")) as ws:
            self.plan_id = ws.use(str(self.work / "plan.yaml")).plan_id
        start = Moment(FIRST, found)
        self.world = World(start, start)
        self.facts = self.read()
        if die:
            self.die(data, die, "execute", lambda plan, _ws: plan.execute(), self.model_execute())
        else:
            self.operate("execute", lambda plan, _ws: plan.execute(), self.model_execute())

    def write_plan(self, found: tuple[Step, ...]) -> str:
        path = self.work / "plan.yaml"
        kinds = {
            "one": "fs-directory",
            "two": "fs-directory",
            "app": "git-checkout",
            "db": "sqlite",
        }
        plan = {
            "name": "machine",
            "resources": {name: {"kind": kind, "path": name} for name, kind in kinds.items()},
            "policy": self.policy,
            "steps": [step.written() for step in found],
        }
        path.write_text(yaml.safe_dump(plan))
        return str(path)

    def read(self) -> Facts:
        with open_workspace(str(self.home / "store")) as ws:
            return Facts(ws.find(self.plan_id), ws.ctx.store)

    # what the model says of each operation

    def model_execute(self, world: World | None = None) -> Operation:
        return self._ran(Operation(world or self.world), (world or self.world).now)

    def _ran(self, operation: Operation, start: Moment, before: Moment | None = None) -> Operation:
        """Run what is not done; `before`: what undo goes back to, if not to the start."""
        first = self.first(start)
        operation.run = model.run(start, first, self.flags, self.policy["on_failure"])
        world = operation.end
        operation.points += [world.did(before or start, point) for point in operation.run.points]
        return operation

    def first(self, default: Moment) -> Moment:
        """What the oldest group holds, as a rollback of the plan finds it."""
        oldest = self.facts.groups[0].group_id if self.facts.groups else None
        found = self.known.get(oldest) if oldest else None
        return found or default

    def model_resume(self, world: World, facts: Facts, file: tuple[Step, ...] = ()) -> Operation:
        operation = Operation(world)
        adopted = world.adopted()
        operation.points.append(adopted)
        now = adopted.now
        if file:
            old = {step.id: step for step in now.steps}
            new = {step.id: step for step in file}
            wrong = {name for name in now.done if new.get(name) != old[name]}
            if wrong:
                roots = {facts.decision_of[name] for name in wrong}
                return self._corrected(operation, facts, roots, file)
            now = replace(now, steps=file)
            operation.points.append(replace(adopted, now=now, head=now))
        complete = facts.plan.state is PlanState.COMPLETE
        if complete and now.done.issuperset(step.id for step in now.steps):
            return operation
        return self._ran(operation, now, before=adopted.now)

    def deeds(self, facts: Facts, now: Moment) -> list[Deed]:
        specs = {step.id: step for step in now.steps}
        found: list[Deed] = []
        for one in facts.decisions:
            mine = frozenset(s for s, d in facts.decision_of.items() if d == one.decision_id)
            if one.state is not DecisionState.ACTIVE:
                continue
            found.append(
                Deed(
                    id=one.decision_id,
                    parent=one.parent_id,
                    steps=mine,
                    needs=frozenset(n for s in mine for n in specs[s].needs),
                    influences=frozenset(
                        n for s in mine if not specs[s].shares for n in specs[s].influences
                    ),
                    wrote=self.wrote.get(one.decision_id, frozenset()),
                    is_record=one.kind in (DecisionKind.ROOT, DecisionKind.USER_INTERVENTION),
                )
            )
        return found

    def _corrected(
        self,
        operation: Operation,
        facts: Facts,
        roots: set[Any],
        file: tuple[Step, ...] = (),
        cascade: bool = False,
    ) -> Operation:
        """Take back what hangs on the roots and do it again."""
        world = operation.end
        now = world.now
        gone = model.hanging(self.deeds(facts, now), roots, cascade)
        paths = frozenset(path for name in gone for path in self.wrote.get(name, ()))
        state = now.state
        if paths:
            first = next(call for call in facts.calls if call.decision_id in gone)
            kept = {group.group_id for group in facts.groups}
            then = self.known.get(first.group_id)
            if first.group_id not in kept:
                operation.refused = (CorrectionRefused,)
                return operation
            assert then is not None, "a step ran on a state that the model does not know"
            state = model.taken_back(now.state, then.state, paths)
        again = {name for name, decision in facts.decision_of.items() if decision in gone}
        wanted = file or now.steps
        names = {step.id for step in wanted}
        back = Moment(state, wanted, (now.done - again) & names)
        operation.restored = back
        return self._ran(operation, back, before=now)

    # doing it

    def operate(
        self,
        name: str,
        action: Action,
        *operations: Operation,
    ) -> None:
        """Do it and compare with what the model says of each world it may have started in."""
        note(f"{name}: {len(self.facts.groups)} groups, done {sorted(self.world.now.done)}")
        Machine.used[name] += 1
        refused: AgentsError | None = None
        with open_workspace(str(self.home / "store")) as ws:
            try:
                action(ws.find(self.plan_id), ws)
            except (CorrectionRefused, CheckpointPruned, NothingToUndo) as error:
                refused = error
        self.conclude(name, refused, *operations)

    def conclude(self, name: str, refused: AgentsError | None, *operations: Operation) -> None:
        facts = self.read()
        allowed = [one for one in operations if refused is None or isinstance(refused, one.refused)]
        assert allowed, f"{name} was refused: {refused!r}"
        for one in allowed:
            if one.unknown:
                self.take_in(one, facts)
        found = [one for one in allowed if self.differs(one.end, facts, bool(refused)) == ""]
        if not found:
            raise AssertionError(f"{name}: {self.differs(allowed[0].end, facts, bool(refused))}")
        if refused is not None:
            Machine.used[f"{name} refused"] += 1
        self.reconcile(found[0], facts)

    def take_in(self, operation: Operation, facts: Facts) -> None:
        """Believe what is there: no model can know how far a tool got."""
        state = {name: self.look(facts, name) for name in FIRST}
        end = operation.end
        moment = replace(end.now, state=state, done=facts.done)
        redo = (*end.redo[:-1], replace(end.redo[-1], before=moment))
        operation.points[-1] = World(moment, moment, end.undo, redo)

    def differs(self, world: World, facts: Facts, refused: bool = False) -> str:
        now = world.now
        try:
            assert facts.order == [step.id for step in now.steps], "other steps"
            if not refused:
                require_same(sorted(facts.done), sorted(now.done), "steps done")
            for name in now.state:
                require_same(self.look(facts, name), dict(now.state[name]), f"in {name}")
            stacks = tuple(len(stack) for stack in facts.stacks)
            require_same(stacks, (len(world.undo), len(world.redo)), "operations to undo, redo")
        except AssertionError as error:
            return str(error)
        return ""

    def look(self, facts: Facts, name: str) -> dict[Any, Any]:
        where = facts.sandboxes[name]
        if name == DATABASE:
            with closing(sqlite3.connect(f"file:{where}?mode=ro", uri=True)) as db:
                return dict(db.execute("SELECT k, v FROM t"))
        found = look(Path(where), (b".git",))
        modes = {"file": 0o644, "directory": 0o755}
        for path, (kind, mode, _) in found.items():
            assert modes.get(kind) == mode, f"{path!r} is a {kind} with mode {mode:o}"
        return {
            os.fsdecode(p): content if k == "file" else None for p, (k, _, content) in found.items()
        }

    def reconcile(self, operation: Operation, facts: Facts) -> None:
        """The operation was what the model said: remember what it made."""
        run, before = operation.run, self.facts
        names = {group.group_id for group in before.groups} | self.known.keys()
        made = {one.decision_id: one for one in facts.decisions}
        for step, paths in (run.wrote if run else {}).items():
            calls = [c for c in facts.calls if c.step_id == step and c.state is CallState.OK]
            call = calls[-1] if calls else None
            if call and call.decision_id and call.call_id not in self.called:
                self.wrote[call.decision_id] = self.wrote.get(call.decision_id, frozenset()) | paths
        self.called = {call.call_id for call in facts.calls}
        for group in facts.groups:
            if group.group_id not in names:
                self.known[group.group_id] = self.held(operation, group, made)
        self.world, self.facts = operation.end, facts

    def held(
        self, operation: Operation, group: CheckpointGroup, decisions: dict[str, Any]
    ) -> Moment | None:
        """What a group that was made in this operation holds."""
        kind, run, start = group.checkpoint_type, operation.run, operation.start.now
        steps = [s.id for s in (run.end.steps if run else ())]
        step = steps[group.step_index] if 0 <= group.step_index < len(steps) else ""
        decision = decisions.get(group.decision_id or "")
        if kind in (CheckpointType.EXTERNAL_EDIT, CheckpointType.MANUAL):
            return start
        if run is None:
            whole = kind is CheckpointType.PRE_ROLLBACK and not self.facts.unsettled
            return start if whole else None
        if decision is not None and decision.kind is DecisionKind.USER_INTERVENTION:
            return operation.restored
        return {
            CheckpointType.PRE_EXECUTE: run.points[0],
            CheckpointType.POST_EXECUTE: run.end,
            CheckpointType.ON_DECISION: run.before.get(step),
            CheckpointType.BEFORE_STEP: run.before.get(step),
            CheckpointType.BEFORE_TOOL_EXECUTE: run.before.get(step),
            CheckpointType.AFTER_STEP: run.after.get(step),
            CheckpointType.AFTER_TOOL_EXECUTE: run.after.get(step),
            CheckpointType.ON_ERROR: run.failed.get(step),
        }.get(kind)

    # the rules

    @rule()
    def resume(self) -> None:
        self.operate(
            "resume", lambda plan, _ws: plan.resume(), self.model_resume(self.world, self.facts)
        )

    @rule(flag=st.sampled_from(("flag-1", "flag-2")), there=st.booleans())
    def set_flag(self, flag: str, there: bool) -> None:
        """What a step looks at outside the sandboxes is mended, or broken."""
        path = self.work / flag
        path.touch() if there else path.unlink(missing_ok=True)
        self.flags = self.flags | {flag} if there else self.flags - {flag}

    def changed_file(self, data: st.DataObject) -> tuple[Step, ...]:
        """The plan file with one step changed, added or taken out."""
        now = list(self.world.now.steps)
        self.number += 1
        how = data.draw(st.sampled_from(("change", "change", "mend", "add", "remove")))
        on, tool, inputs = data.draw(BODIES)
        waiting = [n for n, step in enumerate(now) if step.id not in self.world.now.done]
        at = data.draw(st.integers(0, len(now) - 1))
        if how == "mend" and waiting:
            at = waiting[0]
        named = {n for s in now for n in (*s.needs, *s.influences, s.parent, s.shares)}
        if how == "add":
            now.insert(at, Step(id=f"s{self.number}", on=on, tool=tool, inputs=inputs))
        elif how == "remove" and len(now) > 1 and now[at].id not in named:
            del now[at]
        else:
            now[at] = replace(now[at], on=on, tool=tool, inputs=inputs)
        return tuple(now)

    @rule(data=st.data())
    def resume_with_another_file(self, data: st.DataObject) -> None:
        file = self.changed_file(data)
        path = self.write_plan(file)
        self.operate(
            "resume --plan-file",
            lambda plan, _ws: plan.resume(plan_file=path),
            self.model_resume(self.world, self.facts, file),
        )

    def kept_groups(self) -> list[str]:
        return [g.group_id for g in self.facts.groups if self.known.get(g.group_id) is not None]

    def model_rollback(self, world: World, group: str, left: bool = False) -> Operation:
        """`left`: a dead step left something that the model does not know."""
        operation = Operation(world)
        target = self.known[group]
        assert target is not None
        operation.points.append(world.did(None if left else world.now, target))
        return operation

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.kept_groups()))
        [kind] = [g.checkpoint_type for g in self.facts.groups if g.group_id == group]
        note(f"to a group {kind}")
        self.operate(
            "rollback",
            lambda plan, _ws: plan.rollback(group),
            self.model_rollback(self.world, group),
        )

    def decided(self) -> list[str]:
        return sorted({d for d in self.facts.decision_of.values() if d})

    def model_correct(self, world: World, facts: Facts, decision: str, cascade: bool) -> Operation:
        operation = Operation(world)
        operation.points.append(world.adopted())
        return self._corrected(operation, facts, {decision}, cascade=cascade)

    @precondition(lambda self: self.decided())
    @rule(data=st.data(), cascade=st.sampled_from((False, False, True)))
    def correct(self, data: st.DataObject, cascade: bool) -> None:
        decision = data.draw(st.sampled_from(self.decided()))
        self.operate(
            "correct",
            lambda plan, _ws: plan.correct(decision, "do it again", cascade=cascade),
            self.model_correct(self.world, self.facts, decision, cascade),
        )

    def model_undo(self, world: World, facts: Facts) -> Operation:
        operation = Operation(world)
        adopted = world.adopted()
        operation.points.append(adopted)
        if not adopted.undo:
            operation.refused = (NothingToUndo,)
            return operation
        if adopted is world and facts.stacks[0][-1].entry_id not in facts.recent:
            operation.refused = (CheckpointPruned,)
        *left, last = adopted.undo
        if last.before is None:
            operation.unknown = True
            last = replace(last, before=adopted.now)
        operation.points.append(World(last.before, last.before, tuple(left), (*adopted.redo, last)))
        return operation

    @rule()
    def undo(self) -> None:
        self.operate("undo", lambda plan, _ws: plan.undo(), self.model_undo(self.world, self.facts))

    def model_redo(self, world: World, facts: Facts) -> Operation:
        operation = Operation(world)
        if not world.redo:
            operation.refused = (NothingToUndo,)
            return operation
        if facts.stacks[1][-1].entry_id not in facts.recent:
            operation.refused = (CheckpointPruned,)
        *left, last = world.redo
        operation.points.append(World(last.after, last.after, (*world.undo, last), tuple(left)))
        return operation

    @precondition(lambda self: self.world.redo)
    @rule()
    def redo(self) -> None:
        self.operate("redo", lambda plan, _ws: plan.redo(), self.model_redo(self.world, self.facts))

    @rule()
    def prune(self) -> None:
        operation = Operation(self.world)
        self.operate("prune", lambda plan, ws: prune_plan(ws.ctx, plan.plan), operation)

    def model_checkpoint(self, world: World) -> Operation:
        operation = Operation(world)
        operation.points.append(world.adopted())
        return operation

    @rule(label=st.sampled_from((None, None, "mark")))
    def checkpoint(self, label: str | None) -> None:
        self.operate(
            "checkpoint",
            lambda plan, _ws: plan.checkpoint(label),
            self.model_checkpoint(self.world),
        )

    @rule(data=st.data())
    def edit_by_hand(self, data: st.DataObject) -> None:
        """Somebody writes into a sandbox between two commands."""
        self.edits += 1
        name = data.draw(st.sampled_from((*FOLDERS, DATABASE)))
        text = f"edit {self.edits}"
        state = {**self.world.now.state, name: dict(self.world.now.state[name])}
        where = self.facts.sandboxes[name]
        if name == DATABASE:
            with closing(sqlite3.connect(where)) as db, db:
                db.execute("INSERT INTO t VALUES (?, ?)", (100 + self.edits, text))
            state[name] = {**state[name], 100 + self.edits: text}
        else:
            step = Step(
                "hand",
                name,
                "file.write",
                (("path", data.draw(st.sampled_from(FILES))), ("content", text)),
            )
            if data.draw(st.integers(0, 3)) == 0:
                there = sorted(state[name]) or ["a"]
                path = data.draw(st.sampled_from(there))
                step = Step("hand", name, "file.delete", (("path", path), ("recursive", True)))
            try:
                state = dict(model.done_by(step, state, frozenset()))
            except model.Failed:
                return
            self._write_out(Path(where), self.world.now.state[name], state[name])
        self.world = replace(self.world, now=replace(self.world.now, state=state))

    def _write_out(self, root: Path, old: Any, new: Any) -> None:
        for path in sorted(old.keys() - new.keys(), reverse=True):
            target = root / path
            target.rmdir() if old[path] is None else target.unlink()
        for path in sorted(new):
            if path not in old or old[path] != new[path]:
                target = root / path
                target.mkdir() if new[path] is None else target.write_bytes(new[path])

    # death

    @rule(data=st.data(), after=st.one_of(st.integers(1, 12), st.integers(1, 80)))
    def die_and_go_on(self, data: st.DataObject, after: int) -> None:
        """A command dies at its n-th fault point; the next one finds a whole plan."""
        command = data.draw(st.sampled_from(self.commands(data)))
        self.die(data, after, *command)

    @precondition(lambda self: self.kept_groups())
    @rule(data=st.data(), after=st.integers(1, 300))
    def die_while_running(self, data: st.DataObject, after: int) -> None:
        """The same with much to do."""
        self.operate(
            "rollback",
            lambda plan, _ws: plan.rollback("first"),
            self.model_rollback(self.world, self.facts.groups[0].group_id),
        )
        resumed = self.model_resume(self.world, self.facts)
        self.die(data, after, "resume", lambda plan, _ws: plan.resume(), resumed)

    def die(
        self, data: st.DataObject, after: int, name: str, action: Action, expected: Operation
    ) -> None:
        def act() -> None:
            with open_workspace(str(self.home / "store")) as ws:
                try:
                    action(ws.find(self.plan_id), ws)
                except (CorrectionRefused, CheckpointPruned, NothingToUndo):
                    pass

        if not killed_at(after, act):
            refused = expected.refused[0]("") if expected.refused else None
            self.conclude(name, refused, expected)
            return
        Machine.used[f"killed {name}"] += 1
        facts = self.read()
        self.learn(expected, facts)
        worlds = [w for w in expected.points if self.may_be(w, facts)]
        assert worlds, f"{name} died, and what is left fits nothing: {sorted(facts.done)}"
        self.facts = facts
        if not facts.unsettled:
            fits = [world for world in worlds if self.differs(world, facts) == ""]
            why = self.differs(worlds[0], facts) if not fits else ""
            assert fits, f"{name} died: {why}"
            worlds = fits
        note(f"{name} died at {after}, running {facts.running}, {len(worlds)} possible")
        Machine.used[f"{name} left something"] += facts.unsettled
        self.go_on(data, facts, worlds)

    def go_on(self, data: st.DataObject, facts: Facts, worlds: list[World]) -> None:
        self.world = worlds[-1]
        how = ["resume", "undo", "checkpoint", "rollback", "correct"]
        going_back = facts.plan.error is not None and facts.plan.error.undo_to is not None
        how = how if self.decided() and not going_back else how[:-1]
        if going_back and self.policy["on_failure"] == "rollback_plan":
            # The next command that settles goes back to the beginning: the model runs from there.
            how = ["resume", "rollback"]
        how = how if facts.plan.head_group_id else how[:1]
        chosen = data.draw(st.sampled_from(how))
        group = data.draw(st.sampled_from(self.kept_groups())) if chosen == "rollback" else ""
        decision = data.draw(st.sampled_from(self.decided())) if chosen == "correct" else ""
        actions: dict[str, Action] = {
            "resume": lambda plan, _ws: plan.resume(),
            "undo": lambda plan, _ws: plan.undo(),
            "checkpoint": lambda plan, _ws: plan.checkpoint(),
            "rollback": lambda plan, _ws: plan.rollback(group),
            "correct": lambda plan, _ws: plan.correct(decision, "again"),
        }
        says: dict[str, Callable[[World], Operation]] = {
            "resume": lambda world: self.model_resume(world, facts),
            "undo": lambda world: self.model_undo(world, facts),
            "checkpoint": self.model_checkpoint,
            "rollback": lambda world: self.model_rollback(world, group, left=bool(facts.unsettled)),
            "correct": lambda world: self.model_correct(world, facts, decision, False),
        }
        self.operate(f"{chosen} after death", actions[chosen], *map(says[chosen], worlds))

    def learn(self, operation: Operation, facts: Facts) -> None:
        """Remember what the dead command made, as far as the model can know it."""
        new = {group.group_id for group in facts.groups} - self.known.keys()
        self.reconcile(operation, facts)
        for group in facts.groups:
            if group.group_id in new and group.checkpoint_type is CheckpointType.PRE_ROLLBACK:
                self.known[group.group_id] = None

    def may_be(self, world: World, facts: Facts) -> bool:
        return (
            facts.order == [step.id for step in world.now.steps]
            and facts.done == world.now.done
            and tuple(map(len, facts.stacks)) == (len(world.undo), len(world.redo))
        )

    def commands(self, data: st.DataObject) -> list[tuple[str, Any, Operation]]:
        world, facts = self.world, self.facts
        found: list[tuple[str, Any, Operation]] = [
            ("resume", lambda plan, _ws: plan.resume(), self.model_resume(world, facts)),
            ("undo", lambda plan, _ws: plan.undo(), self.model_undo(world, facts)),
            ("redo", lambda plan, _ws: plan.redo(), self.model_redo(world, facts)),
        ]
        group = data.draw(st.sampled_from(self.kept_groups()))
        found.append(
            ("rollback", lambda plan, _ws: plan.rollback(group), self.model_rollback(world, group))
        )
        if self.decided():
            decision = data.draw(st.sampled_from(self.decided()))
            found.append(
                (
                    "correct",
                    lambda plan, _ws: plan.correct(decision, "again"),
                    self.model_correct(world, facts, decision, False),
                )
            )
        return found

    # what must hold after each

    @invariant()
    def nothing_is_left_open(self) -> None:
        if hasattr(self, "facts"):
            assert not self.facts.open
            assert self.facts.plan.state is not PlanState.PROCESSING

    @invariant()
    def a_fresh_look_gives_the_hashes_of_the_newest_group(self) -> None:
        if not hasattr(self, "world") or not self.world.now.same(self.world.head):
            return
        shutil.rmtree(self.home / "store" / "cache", ignore_errors=True)
        with open_workspace(str(self.home / "store")) as ws:
            service, plan = ws.ctx.checkpoints, ws.find(self.plan_id).plan
            assert plan.head_group_id is not None
            head = service.states(ws.ctx.store.checkpoints.group(plan.head_group_id))
            names = {r.resource_id: r.name for r in ws.ctx.store.resources.of_plan(self.plan_id)}
            ws.ctx.manager.doubt(self.plan_id)
            fresh = service.look(self.plan_id, lambda states: states)
            for resource, name in names.items():
                found = fresh[resource].state_hash
                assert found == head[resource].state_hash, f"{name}: another state_hash"
                state = self.world.now.state[name]
                assert self.hashes.setdefault((name, found), state) == state, "one hash, two states"


def test_a_plan_is_always_what_the_model_says(private_process: Path) -> None:
    Machine.template = make_template()
    Machine.used = Counter()
    try:
        run_state_machine_as_test(
            seed(SEED)(Machine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=OPERATIONS,
                deadline=None,
                database=None,
                print_blob=False,
                derandomize=False,
                phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        shutil.rmtree(Machine.template)
        print(sorted(Machine.used.items()))
