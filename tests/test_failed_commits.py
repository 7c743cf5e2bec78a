"""Every commit of every verb fails once: the plan in memory is then the plan in the store.

A world is made anew for each commit, and the fault is armed with `fsio.arm`. Afterwards the plan
is not held, it goes back to its beginning and is done again, and the store is whole.
"""

import ast
import gc
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import cleveragents
from cleveragents.content import fsio
from cleveragents.errors import AgentsError
from cleveragents.history.checkpoints import delete_group, prune_plan
from cleveragents.lease import LeasedPlan
from cleveragents.maintenance.check import check
from cleveragents.model.plan import Plan
from cleveragents.workspace import PlanHandle, Workspace, open_workspace

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
HEAD = """\
name: work
resources: {docs: {kind: fs-directory, path: docs}}
policy: {max_parallel: 1}
steps:
"""
STEP = "  - {id: %s, tool: file.write, on: docs, with: {path: %s.txt, content: %s}}\n"
STEPS = STEP % (("one",) * 3) + STEP % (("two",) * 3)
FAILING = STEPS + "  - {id: bad, on: docs, run: 'echo half > c.txt; exit 3'}\n"
CHILD = (
    "  - {id: kid, subplan: {steps: [{id: inner, tool: file.write, on: docs,"
    " with: {path: k.txt, content: kid}}]}}\n"
)
FAULT = "disk I/O error"


class World:
    """A folder and a plan over it."""

    def __init__(self, root: Path, steps: str) -> None:
        self.root = root
        (root / "docs").mkdir(parents=True)
        (root / "docs" / "old.txt").write_text("old\n")
        (root / "plan.yaml").write_text(HEAD + steps)

    @contextmanager
    def open(self) -> Generator[tuple[Workspace, PlanHandle]]:
        with open_workspace(str(self.root / "store")) as ws:
            top = [plan for plan in ws.plans() if plan.parent_plan_id is None]
            yield ws, ws.find(top[0].plan_id) if top else ws.use(str(self.root / "plan.yaml"))


class Fault:
    """Strikes at the n-th commit."""

    def __init__(self, number: int, strike: Callable[[], object]) -> None:
        self.left = number
        self._strike = strike

    def __call__(self, point: str) -> None:
        if point == "commit":
            self.left -= 1
            if self.left == 0:
                self._strike()


def fail() -> None:
    raise sqlite3.OperationalError(FAULT)


def used(_ws: Workspace, _plan: PlanHandle) -> None:
    """Opening it the first time is enough."""


def execute(_ws: Workspace, plan: PlanHandle) -> None:
    plan.execute()


def to_the_first(_ws: Workspace, plan: PlanHandle) -> None:
    plan.rollback(plan.checkpoints()[0].group_id)


def rolled_back(ws: Workspace, plan: PlanHandle) -> None:
    execute(ws, plan)
    to_the_first(ws, plan)


def edited(ws: Workspace, plan: PlanHandle) -> None:
    execute(ws, plan)
    (Path(plan.sandboxes["docs"]) / "mine.txt").write_text("mine")


def killed(ws: Workspace, plan: PlanHandle) -> None:
    """By itself, in its second step; this process only holds the store."""
    child = os.fork()
    if child == 0:
        fsio.arm(Fault(16, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        with open_workspace(ws.ctx.settings.home) as mine:
            mine.find(plan.plan_id).execute()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def resume(_ws: Workspace, plan: PlanHandle) -> None:
    plan.resume()


def undo(_ws: Workspace, plan: PlanHandle) -> None:
    plan.undo()


def correct(ws: Workspace, plan: PlanHandle) -> None:
    found = ws.ctx.store.plans.decisions(plan.plan_id)
    plan.correct([d.decision_id for d in found if d.question == "one"][-1], "again")


def checkpoint(_ws: Workspace, plan: PlanHandle) -> None:
    plan.checkpoint("named")


def prune(ws: Workspace, plan: PlanHandle) -> None:
    prune_plan(ws.ctx, plan.plan)


def drop(ws: Workspace, plan: PlanHandle) -> None:
    groups = ws.ctx.store.checkpoints.groups(plan.plan_id)
    delete_group(ws.ctx, plan.plan, groups[len(groups) // 2])


def apply(_ws: Workspace, plan: PlanHandle) -> None:
    plan.apply()


def cancel(_ws: Workspace, plan: PlanHandle) -> None:
    plan.cancel()


def done_again(ws: Workspace, plan: PlanHandle) -> None:
    """Whatever the verb left: back to the beginning, and to the end once more."""
    if not plan.checkpoints():
        plan.execute()
    to_the_first(ws, plan)
    plan.resume()
    folder = Path(plan.sandboxes["docs"])
    assert (folder / "one.txt").read_text() == "one"


def applied(_ws: Workspace, plan: PlanHandle) -> None:
    plan.apply()
    assert plan.plan.state == "applied"
    assert (Path(plan.plan.plan_dir) / "docs" / "two.txt").read_text() == "two"


def cancelled(_ws: Workspace, plan: PlanHandle) -> None:
    if not plan.plan.is_final:
        plan.cancel()
    assert plan.plan.state == "cancelled"


Verb = Callable[[Workspace, PlanHandle], None]


class Scenario(msgspec.Struct, frozen=True):
    before: Verb
    verb: Verb
    steps: str = STEPS
    after: Verb = done_again


SCENARIOS = {
    "run": Scenario(used, execute),
    "a run that fails": Scenario(used, execute, FAILING),
    "child plans": Scenario(used, execute, STEP % (("one",) * 3) + CHILD),
    "rollback": Scenario(edited, to_the_first),
    "undo": Scenario(rolled_back, undo),
    "correct": Scenario(execute, correct),
    "checkpoint create": Scenario(edited, checkpoint),
    "checkpoint delete": Scenario(execute, drop),
    "prune": Scenario(execute, prune),
    "apply": Scenario(execute, apply, after=applied),
    "cancel": Scenario(execute, cancel, after=cancelled),
    "resume after a kill": Scenario(killed, resume),
}


def leased_plans(ws: Workspace) -> list[LeasedPlan]:
    """Those of this store that are alive, in frames that an error's traceback holds.

    Another test's may be alive too, if a traceback of its own is kept somewhere.
    """
    alive = [found for found in gc.get_objects() if isinstance(found, LeasedPlan)]
    return [leased for leased in alive if leased.store is ws.ctx.store]


def as_kept(plan: Plan) -> bytes:
    """A result that was just made has tuples where one that was read has lists."""
    return msgspec.json.encode(plan, order="deterministic")


def fails_at(world: World, scenario: Scenario, number: int) -> bool:
    """The verb with a fault at that commit; False if there are not so many."""
    with world.open() as (ws, plan):
        scenario.before(ws, plan)
    gc.collect()
    with world.open() as (ws, plan):
        fault = Fault(number, fail)
        fsio.arm(fault)
        failed = None
        try:
            scenario.verb(ws, plan)
        except AgentsError as error:
            failed = error  # its traceback keeps the leased plans alive
        finally:
            fsio.arm(None)
        assert failed is None or FAULT in str(failed), number
        for leased in leased_plans(ws):
            row = ws.ctx.store.plans.get(leased.plan.plan_id)
            assert as_kept(leased.plan) == as_kept(row), number
    with world.open() as (ws, plan):
        scenario.after(ws, plan)
        assert not ws.ctx.store.intents.all(), number
        assert not check(ws.ctx).problems, number
    return fault.left <= 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_commit_that_fails_leaves_the_plan_in_memory_as_it_is_in_the_store(name: str) -> None:
    root = Path(tempfile.mkdtemp(dir=MEMORY))
    number = 1
    try:
        while fails_at(World(root / str(number), SCENARIOS[name].steps), SCENARIOS[name], number):
            shutil.rmtree(root / str(number))
            number += 1
    finally:
        shutil.rmtree(root)
    assert number > 3


def test_only_a_leased_plan_writes_under_a_lease() -> None:
    """`store.transaction(lease)` would leave the plan in memory ahead of the store."""
    source = Path(cleveragents.__file__).parent
    found = [
        f"{path.relative_to(source)}:{node.lineno}"
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "transaction"
        and (node.args or any(given.arg == "lease" for given in node.keywords))
        and path != source / "lease.py"
    ]
    assert found == []
