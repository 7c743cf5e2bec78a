"""In place, in any order: what the agent wrote goes back and forth, what a person wrote stays.

An agent's session works on a folder while a person edits other files and other lines of the same
files; prompts, rollbacks, undos and redos come at random, by this process and by new ones. The
model keeps the two apart and knows nothing of groups, owners or merges.
CLEVERAGENTS_HEAVY=1 tries longer, CLEVERAGENTS_SEED=n takes another way.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
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

from cleveragents.errors import RollbackConflict
from cleveragents.history.owners import Choices
from cleveragents.integrations.events import Prompt, Quiet, StepBegins, StepEnded
from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import session_plan
from cleveragents.model.conversation import Anchor
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace, open_workspace

HEAVY = os.environ.get("CLEVERAGENTS_HEAVY") == "1"
EXAMPLES, OPERATIONS = (200, 30) if HEAVY else (8, 20)
EXAMPLES = int(os.environ.get("CLEVERAGENTS_EXAMPLES", EXAMPLES))
SEED = int(os.environ.get("CLEVERAGENTS_SEED", "0"))
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

SHARED = ("both.txt", "d/both.txt")
THEIRS = ("agent.txt", "d/agent.txt", "e/x/agent.txt", "shape-agent")
MINE = ("mine.txt", "d/mine.txt", "e/mine.txt", "shape-mine")
SHAPES: dict[str, dict[str, str]] = {
    "a file": {"": "text"},
    "a program": {"": "text!"},
    "a link": {"": "-> mine.txt"},
    "a folder": {"": "/"},
    "a folder with a file": {"": "/", "/x": "text"},
    "a folder in it": {"": "/", "/x": "/", "/x/y": "text", "/z": "-> x"},
    "a link in it": {"": "/", "/x": "-> ../e", "/y": "text!"},
}
"""What a name may be: of each path a text, one that can be executed, a link or a folder."""

Files = dict[str, str | None]
"""Of a shared file the word on somebody's line; of any other all of it, None if there is none."""


def lines(agent: str | None, person: str | None) -> str:
    """A file in which the two are far apart."""
    gap = "".join(f"{n}\n" for n in range(20))
    return f"{agent}\n{gap}{person}\n"


@dataclass
class Operation:
    before: Files
    after: Files


@dataclass
class Model:
    agent: Files = field(default_factory=lambda: dict.fromkeys((*SHARED, *THEIRS)))
    person: Files = field(default_factory=lambda: dict.fromkeys((*SHARED, *MINE)))
    groups: dict[str, Files] = field(default_factory=dict[str, Files])
    """What the agent's files were at each of them."""
    worlds: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """What the folder was."""
    done: list[Operation] = field(default_factory=list[Operation])
    undone: list[Operation] = field(default_factory=list[Operation])

    def files(self) -> dict[str, str]:
        alone = {**{n: self.agent[n] for n in THEIRS}, **{n: self.person[n] for n in MINE}}
        both = {name: lines(self.agent[name], self.person[name]) for name in SHARED}
        found = both | {name: text for name, text in alone.items() if text is not None}
        for name in ("shape-agent", "shape-mine"):
            if (shape := found.pop(name, None)) is not None:
                found |= {f"{name}{below}": what for below, what in SHAPES[shape].items()}
        return found

    def did(self, before: Files) -> None:
        self.done.append(Operation(before, dict(self.agent)))
        self.undone.clear()


class InPlace(RuleBasedStateMachine):
    """Rules are what happens; after each the folder is what the model says."""

    kind = "fs-directory"

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="agents-in-place-", dir=MEMORY))
        self.place = self.top / "place"
        self.place.mkdir()
        self.model = Model()
        self.words = self.prompts = self.calls = 0
        self.open: Files | None = None
        """The agent's files when its prompt began, while that has written something."""
        for name in SHARED:
            self.write(name, lines(None, None))
        if self.kind == "git-checkout":
            for argv in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
                who = ["-c", "user.name=p", "-c", "user.email=p@example.org"]
                subprocess.run(["git", *who, *argv], cwd=self.place, check=True)
        self.begin_process()

    def begin_process(self) -> None:
        self.process = ExitStack()
        self.ws: Workspace = self.process.enter_context(open_workspace(str(self.top / "store")))
        make = partial(session_plan, strategy="in_place", extra={})
        self.observer = Observer(self.ws.ctx, make, wait=5)
        self.process.callback(self.observer.close)

    def end_process(self) -> None:
        self.process.close()

    def teardown(self) -> None:
        self.end_process()
        shutil.rmtree(self.top)

    def word(self, name: str) -> str:
        """No word is written twice, so that what looks the same is the same."""
        self.words += 1
        return list(SHAPES)[self.words % len(SHAPES)] if "shape" in name else f"word {self.words}"

    def write(self, name: str, what: str | None) -> None:
        path = self.place / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if what is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if what == "/":
            path.mkdir()
        elif what.startswith("-> "):
            path.symlink_to(what[3:])
        else:
            path.write_text(what.removesuffix("!"))
            path.chmod(0o755 if what.endswith("!") else 0o644)

    def bring(self, names: tuple[str, ...]) -> None:
        files = self.model.files()
        for name in names:
            self.write(name, files.get(name))
            for path, what in files.items():
                if path.startswith(f"{name}/"):
                    self.write(path, what)

    def anchor(self, call: str = "") -> Anchor:
        return Anchor(
            agent="claude-code", session_id="s", prompt_id=f"p{self.prompts}", call_id=call
        )

    def seen(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in self.place.rglob("*"):
            name = str(path.relative_to(self.place))
            if name.startswith(".git"):
                continue
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = path.read_text() + ("!" if path.stat().st_mode & 0o100 else "")
            elif name.startswith("shape"):
                found[name] = "/"
        return found

    @property
    def plan(self) -> PlanHandle:
        return self.ws.find("s")

    def remember(self) -> None:
        group = self.plan.plan.head_group_id
        assert group
        self.model.groups[group] = dict(self.model.agent)
        self.model.worlds[group] = self.model.files()

    def some_group(self, data: st.DataObject) -> str:
        there = {c.group_id for c in self.plan.checkpoints()}
        return data.draw(st.sampled_from([g for g in self.model.groups if g in there]))

    @initialize()
    def first_prompt(self) -> None:
        self.prompt()

    def prompt(self) -> None:
        self.prompts += 1
        told = Prompt(anchor=self.anchor(), cwd=str(self.place), text=f"prompt {self.prompts}")
        self.observer.handle(told, pid=0)
        self.remember()

    @rule(names=st.sets(st.sampled_from((*SHARED, *THEIRS)), min_size=1), gone=st.booleans())
    def agent_calls(self, names: set[str], gone: bool) -> None:
        """A tool call of the agent, which writes some of its lines and files."""
        if self.open is None:
            if self.calls:
                self.prompt()
            self.open = dict(self.model.agent)
        for name in names:
            self.model.agent[name] = None if gone and name in THEIRS else self.word(name)
        self.call(tuple(names))
        note(f"call {self.calls} wrote {sorted(names)}, {gone=}")

    def call(self, names: tuple[str, ...]) -> None:
        self.calls += 1
        call = f"c{self.calls}"
        cwd = str(self.place)
        begins = StepBegins(
            anchor=self.anchor(call), cwd=cwd, call=call, tool="Bash", inputs={}, writes=True
        )
        self.observer.handle(begins, pid=0)
        self.bring(names)
        self.observer.handle(StepEnded(anchor=self.anchor(call), call=call, ok=True), pid=0)
        self.remember()

    @precondition(lambda self: self.open is not None)
    @rule()
    def agent_is_done(self) -> None:
        self.observer.handle(Quiet(anchor=self.anchor(), said="done", background=()), pid=0)
        self.remember()
        assert self.open is not None
        self.model.did(self.open)
        self.open = None
        note("the prompt is done")

    @rule(name=st.sampled_from((*SHARED, *MINE)), gone=st.booleans())
    def person_edits(self, name: str, gone: bool) -> None:
        self.model.person[name] = None if gone and name in MINE else self.word(name)
        self.bring((name,))
        note(f"the person wrote {name}, {gone=}")

    @precondition(lambda self: self.open is None and self.calls)
    @rule(data=st.data())
    def rolled_back(self, data: st.DataObject) -> None:
        group = self.some_group(data)
        before = dict(self.model.agent)
        note(f"rollback to {group}")
        self.plan.rollback(group)
        self.model.agent = dict(self.model.groups[group])
        self.model.did(before)

    @precondition(lambda self: self.open is None and self.model.done)
    @rule()
    def undone(self) -> None:
        note("undo")
        last = self.model.done.pop()
        self.plan.undo()
        self.model.agent = dict(last.before)
        self.model.undone.append(last)

    @precondition(lambda self: self.open is None and self.model.undone)
    @rule()
    def redone(self) -> None:
        note("redo")
        last = self.model.undone.pop()
        self.plan.redo()
        self.model.agent = dict(last.after)
        self.model.done.append(last)

    @precondition(lambda self: self.open is None and self.calls)
    @rule(data=st.data())
    def rolled_back_with_everything_and_undone(self, data: st.DataObject) -> None:
        group = self.some_group(data)
        note(f"everything as at {group}, and undo")
        self.plan.rollback(group, choices=Choices(everything=True))
        assert self.seen() == self.model.worlds[group]
        self.plan.undo()
        self.model.undone.clear()

    @precondition(lambda self: self.open is None and self.model.done)
    @rule(data=st.data(), name=st.sampled_from(THEIRS[:3]), given_up=st.booleans())
    def person_writes_over_the_agent(self, data: st.DataObject, name: str, given_up: bool) -> None:
        """Both cannot be had: refused, and nothing changes, until the person gives it up."""
        group = self.some_group(data)
        then, now = self.model.groups[group][name], self.model.agent[name]
        if then == now:
            return
        note(f"the person wrote over {name}, rollback to {group} is refused, {given_up=}")
        self.write(name, f"by the person {self.words}")
        before = self.seen()
        with pytest.raises(RollbackConflict):
            self.plan.rollback(group)
        assert self.seen() == before
        if given_up:
            self.plan.rollback(group, choices=Choices(take_checkpoint=frozenset((b"",))))
            self.model.agent = dict(self.model.groups[group])
            self.model.done.clear()  # an undo would bring it back, and the model has no word for it
            self.model.undone.clear()
        else:
            self.bring((name,))

    @rule()
    def continued_by_another_process(self) -> None:
        note("another process")
        self.end_process()
        self.begin_process()

    @invariant()
    def folder_is_what_the_model_says(self) -> None:
        assert self.seen() == self.model.files()


class InPlaceInRepository(InPlace):
    kind = "git-checkout"


def test_what_the_agent_wrote_is_rolled_back_and_what_a_person_wrote_stays() -> None:
    run(InPlace)


def test_in_a_repository_too() -> None:
    run(InPlaceInRepository)


def test_what_a_person_gave_up_does_not_come_back_with_a_later_checkpoint() -> None:
    """Nor with one before it or by a detour; only undo brings it back."""
    at = InPlace()
    try:
        at.first_prompt()
        groups: list[str] = []
        for word in ("one", "two", "three"):
            at.model.agent["agent.txt"] = word
            at.call(("agent.txt",))
            groups.append(at.plan.plan.head_group_id or "")
        at.observer.handle(Quiet(anchor=at.anchor(), said="done", background=()), pid=0)
        at.write("agent.txt", "the person's")
        given_up = Choices(take_checkpoint=frozenset((b"agent.txt",)))
        at.plan.rollback(groups[0], choices=given_up)
        for which, word in ((2, "three"), (1, "two"), (0, "one")):
            at.plan.rollback(groups[which])
            assert at.seen()["agent.txt"] == word
        for word in ("two", "three", "one", "the person's"):
            at.plan.undo()
            assert at.seen()["agent.txt"] == word
    finally:
        at.teardown()


def run(machine: type[InPlace]) -> None:
    phases = (Phase.generate, Phase.shrink) if HEAVY else (Phase.generate,)
    run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType]
        seed(SEED)(machine),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=OPERATIONS,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )
