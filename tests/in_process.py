"""The world that tests of plans work in: here, in this process, without starting the command."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from cleveragents.cli.main import root
from cleveragents.execution.executor import PlanExecutor
from cleveragents.history.checkpoints import preview_prune
from cleveragents.lease import LeasedPlan, hold, working_on
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Operation
from cleveragents.model.plan import State, StepState
from cleveragents.store import Intent
from cleveragents.workspace import PlanHandle, Workspace
from tests.databases import Where
from tests.harness import Outcome

Arm = Callable[[Callable[[str], None] | int | None], None]
PLAN = """\
name: shop
resources:
  app: {kind: fs-directory, path: app}
steps:
  - id: one
    decision: {question: which name, chosen: people, alternatives: [users]}
    on: app
    run: "echo one > one.txt"
  - id: two
    decision: {question: which file, chosen: two}
    on: app
    run: "echo two > two.txt && rm old.txt"
"""
FAILING = PLAN.replace(
    'rm old.txt"', 'rm old.txt"\n  - {id: three, on: app, run: "echo half > half.txt; test -e ok"}'
)
TWO = "steps: [{id: a, run: touch one, checkpoint: early}, {id: b, run: touch two}]"


def cli(*argv: str, expect: int = 0) -> Outcome:
    """The command line in this process; what it returned is its exit code."""
    result = CliRunner().invoke(root, list(argv), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    done = Outcome(("agents", *argv), result.return_value, result.stdout, result.stderr)
    return done.expect(expect)


class Yard:
    """A folder with a directory to work on, and plan files beside it; the store is elsewhere."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.app = top / "app"
        self.app.mkdir(parents=True)
        (self.app / "old.txt").write_text("old\n")

    def plan(self, text: str = PLAN, name: str = "plan.yaml") -> str:
        path = self.top / name
        path.write_text(text)
        return str(path)

    def use(self, ws: Workspace, text: str) -> PlanHandle:
        """A plan over the directory."""
        head = "name: yard\nresources: {app: {kind: fs-directory, path: app}}\n"
        return ws.use(self.plan(head + text))

    def done(self, ws: Workspace, text: str = TWO) -> PlanHandle:
        """A plan over the directory, executed."""
        plan = self.use(ws, text)
        execute(ws, plan)
        assert plan.plan.state is State.COMPLETE
        return plan


def execute(ws: Workspace, plan: PlanHandle) -> list[float]:
    """Run a plan without waiting; the pauses it would have made."""
    slept: list[float] = []
    with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
        executor = PlanExecutor(ws.ctx, leased, sleep=slept.append)
        executor.strategize()
        executor.prepare()
        executor.execute(Operation.EXECUTE)
    return slept


def box(plan: PlanHandle) -> Path:
    return Path(plan.sandboxes["app"])


def files(plan: PlanHandle) -> set[str]:
    """The names in the sandbox."""
    return set(os.listdir(box(plan)))


def edit(plan: PlanHandle, name: str, text: str = "by hand\n") -> Path:
    path = box(plan) / name
    path.write_text(text)
    return path


def states(ws: Workspace, plan: PlanHandle) -> dict[str, StepState]:
    return {s.step_id: s.state for s in ws.ctx.store.plans.steps(plan.plan_id)}


def loose(ws: Workspace, plan: PlanHandle) -> list[CheckpointGroup]:
    """Groups that only the retention rule keeps."""
    fixed = ("first", "newest", "undo can reach it")
    names = [v.group_id for v in preview_prune(ws.ctx, plan.plan) if v.reason not in fixed]
    return [ws.ctx.store.checkpoints.group(name) for name in names]


def interrupted_restore(plan: PlanHandle, group_id: str) -> Intent:
    return Intent(
        intent_id=new_id(),
        plan_id=plan.plan_id,
        kind="restore",
        state="staged",
        body={"group_id": group_id, "plan": {}},
        created_at="2026-01-01T00:00:00+00:00",
    )


def die_while(ws: Workspace, plan: PlanHandle, **fields: Any) -> None:
    """Leave the plan as a process does that was killed while it held it."""
    store = ws.ctx.store
    with hold(store, plan.plan_id, "test", ws.ctx.now) as lease:
        leased = LeasedPlan(store, plan.plan, lease, ws.ctx.now)
        with leased.transaction():
            store.journal.put(leased.opened(Operation.RESUME))
            if fields:
                leased.write(**fields)
    with store.transaction():
        dead = msgspec.structs.replace(lease, epoch=lease.epoch + 1, started="0")
        store.leases.take(dead, store.leases.get(plan.plan_id))


OWN = re.compile(r"\b(objects|packs)\b")
"""Where content lies is each machine's own."""


def damage_store(sql: str, *parameters: Any) -> None:
    """Change rows past all repositories."""
    shared = "" if OWN.search(sql) else os.environ.get("CLEVERAGENTS_STORE_URL", "")
    Where(os.environ["CLEVERAGENTS_HOME"], shared).query(sql, parameters)


def fail_with(code: int) -> Callable[..., Any]:
    """What the operating system does when it refuses."""

    def failing(*_args: Any, **_options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return failing


@contextmanager
def ordinary_user() -> Generator[Path]:
    """A folder, and the rights of an ordinary user in it."""
    folder = Path(tempfile.mkdtemp())
    was = os.geteuid()
    if was == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(was)
        shutil.rmtree(folder, ignore_errors=True)
