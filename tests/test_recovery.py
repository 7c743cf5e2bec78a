"""What a dead process left: finished, freed or reported by whoever opens the store next."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.prune import reachable_groups
from cleveragents.content import fsio
from cleveragents.errors import (
    NotAllowed,
)
from cleveragents.lease import (
    hold,
    working_on,
)
from cleveragents.maintenance import recovery
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.journal import EntryState, Operation
from cleveragents.model.plan import Phase, State
from cleveragents.testing import killed_at
from cleveragents.workspace import open_workspace
from tests.in_process import TWO, Yard, box, die_while, interrupted_restore


def test_what_cannot_be_finished_is_told_and_blocks_only_its_plan(yard: Yard) -> None:
    with open_workspace() as ws:
        plan, other = yard.done(ws), yard.use(ws, TWO)
        intent = interrupted_restore(plan, "no-such-group")
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(intent)
    with open_workspace() as ws:
        (said,) = ws.recovered
        assert "an interrupted restore is pending: no checkpoint group no-such-group" in said
        store = ws.ctx.store
        assert "no-such-group" in reachable_groups(store, store.plans.get(plan.plan_id))
        with (
            pytest.raises(NotAllowed, match="interrupted restore"),
            working_on(store, plan.plan_id, "test", ws.ctx.now),
        ):
            raise AssertionError
        with working_on(store, plan.plan_id, "test", ws.ctx.now, whatever_waits=True) as leased:
            assert leased.plan.plan_id == plan.plan_id
        with working_on(store, other.plan_id, "test", ws.ctx.now) as leased:
            assert leased.plan.plan_id == other.plan_id
        assert [item.intent_id for item in store.intents.all()] == [intent.intent_id]


def test_a_restore_that_was_interrupted_is_finished_by_whoever_comes_next(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        (group,) = [g for g in ws.ctx.store.checkpoints.groups(plan.plan_id) if g.label]
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(interrupted_restore(plan, group.group_id))
    with open_workspace() as ws:
        assert ws.recovered == ("plan 'yard': an interrupted restore was finished",)
        assert set(os.listdir(box(ws.find("yard")))) == {"old.txt", "one"}
        assert ws.ctx.store.intents.all() == []


def test_a_plan_whose_process_died_is_freed_and_its_operation_ended(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        die_while(ws, plan, state=State.PROCESSING)
        staging = Path(ws.ctx.manager.staging(plan.plan_id, "never-begun"))
        staging.mkdir()
    with open_workspace() as ws:
        assert ws.recovered == ("plan 'yard': its process ended before it finished",)
        plan = ws.find("yard")
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.hint == f"agents plan resume {plan.plan_id}"
        assert ws.ctx.store.journal.open_entries(plan.plan_id) == []
        last = ws.ctx.store.journal.of_plan(plan.plan_id)[-1]
        assert (last.operation, last.state) == (Operation.RESUME, EntryState.INTERRUPTED)
        assert not staging.exists()
        assert ws.ctx.store.leases.holders() == []
    with open_workspace() as ws:
        assert ws.recovered == ()


def test_an_operation_nobody_will_end_is_ended_also_when_the_plan_rests(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        die_while(ws, plan)
    with open_workspace() as ws:
        assert ws.recovered == ()
        assert ws.ctx.store.journal.open_entries(plan.plan_id) == []
        assert ws.find("yard").plan.state is State.COMPLETE


def test_a_plan_that_died_before_it_began_is_simply_queued_again(yard: Yard) -> None:
    with open_workspace() as ws:
        die_while(ws, yard.use(ws, TWO), state=State.PROCESSING)
    with open_workspace() as ws:
        assert len(ws.recovered) == 1
        assert ws.find("yard").plan.state is State.QUEUED


def test_what_the_validations_of_a_dead_apply_left_is_rolled_back(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, "validate: [{run: 'true'}]\n" + TWO)
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            leased.commit(phase=Phase.APPLY, state=State.QUEUED)
            request = CheckpointRequest(force=True)
            ws.ctx.checkpoints.create_checkpoint(CheckpointType.PRE_APPLY, leased, request)
        (box(plan) / "residue").write_text("x")
        die_while(ws, plan, state=State.PROCESSING)
    with open_workspace() as ws:
        plan = ws.find("yard")
        assert set(os.listdir(box(plan))) == {"old.txt", "one", "two"}
        assert plan.plan.error is not None
        assert plan.plan.error.hint == f"agents plan apply {plan.plan_id}"


@contextmanager
def held_by_another(plan_id: str) -> Generator[None]:
    """Another process works on the plan."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with open_workspace() as ws, hold(ws.ctx.store, plan_id, "test", ws.ctx.now):
            os.write(tell, b".")
            signal.pause()
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)


def test_recovery_leaves_alone_what_another_process_took_first(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        with held_by_another(plan.plan_id):
            with ws.ctx.store.transaction():
                ws.ctx.store.intents.put(interrupted_restore(plan, "x"))
            with open_workspace() as other:
                assert other.recovered == ()
                assert recovery.free_plan(other.ctx, plan.plan_id) == []
                recovery.clean_up(other.ctx, plan.plan_id)
                assert len(other.ctx.store.intents.all()) == 1


def test_what_waits_keeps_its_staging_and_is_looked_at_again_under_the_lease(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        die_while(ws, plan)
        with ws.ctx.store.transaction():
            ws.ctx.store.intents.put(interrupted_restore(plan, "no-such-group"))
        staging = Path(ws.ctx.manager.staging(plan.plan_id, "begun"))
        staging.mkdir()
        recovery.clean_up(ws.ctx, plan.plan_id)
        assert staging.exists()
        assert len(ws.ctx.store.journal.open_entries(plan.plan_id)) == 1
        assert (
            recovery.recover_intent(ws.ctx, interrupted_restore(plan, "finished by another")) == []
        )
        assert recovery.free_plan(ws.ctx, plan.plan_id) == []
        assert plan.plan.state is State.COMPLETE


def apply_and_die(plan_id: str) -> None:
    """At the first name that is switched in the user's folder."""

    def die(point: str) -> None:
        if point in ("rename", "exchange") and "one" in os.listdir("app"):
            os.kill(os.getpid(), signal.SIGKILL)

    fsio.arm(die)
    with open_workspace() as ws:
        ws.find(plan_id).apply()


def test_an_interrupted_apply_is_finished_as_an_apply(yard: Yard) -> None:
    with open_workspace() as ws:
        plan_id = yard.done(ws).plan_id
    child = os.fork()
    if child == 0:
        apply_and_die(plan_id)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with open_workspace() as ws:
        assert ws.recovered == ("plan 'yard': an interrupted apply was finished",)
        applied = ws.find(plan_id).plan.state is State.APPLIED
    assert set(os.listdir("app")) == ({"old.txt", "one", "two"} if applied else {"old.txt"})


FAILING_SECOND = """
name: failing
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: one, tool: file.write, on: docs, with: {path: one, content: "1"}}
  - {id: two, on: docs, run: "echo half > two; exit 1"}
"""


def test_no_operation_stays_open_whenever_the_process_dies(tmp_path: Path) -> None:
    """It stayed open if the process died while a failed step was taken back."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "plan.yaml").write_text(FAILING_SECOND)
    home = str(tmp_path / "store")
    number, killed = 0, True
    while killed:
        number += 1
        with open_workspace(home) as ws:
            plan_id = ws.use(str(tmp_path / "plan.yaml")).plan_id
        killed = killed_at(number, partial(execute_plan, home, plan_id))
        with open_workspace(home) as ws:
            left = [str(e.operation) for e in ws.ctx.store.journal.open_entries(plan_id)]
            assert left == [], f"killed at point {number}"
            ws.find(plan_id).delete(force=True)
    assert number > 20


def execute_plan(home: str, plan_id: str) -> None:
    with open_workspace(home) as ws:
        ws.find(plan_id).execute()
