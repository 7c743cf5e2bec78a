"""Undo and redo travel between the states of operations."""

import pytest

from cleveragents.errors import (
    NothingToUndo,
)
from cleveragents.history.rollback import (
    preview,
)
from cleveragents.lookup import find_group
from cleveragents.model.journal import EntryState, JournalEntry, Moment, Operation, undo_stack
from cleveragents.model.plan import State, StepState
from cleveragents.workspace import open_workspace
from tests.in_process import Yard, edit, files


def test_rollback_undo_and_redo_travel_between_the_same_states(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        todo = preview(ws.ctx, plan.plan, find_group(ws.ctx.store, plan.plan, "first"))
        assert todo.dry_run
        assert files(plan) == {"one.txt", "two.txt"}
        done = plan.rollback("first")
        assert not done.dry_run
        assert done.changes == todo.changes
        assert {c.shown for c in done.changes} == {"one.txt", "two.txt", "old.txt"}
        assert done.decisions_after == todo.decisions_after == 2
        assert files(plan) == {"old.txt"}
        assert plan.plan.state is State.QUEUED
        assert plan.undo().operation == "rollback"
        assert files(plan) == {"one.txt", "two.txt"}
        assert plan.plan.state is State.COMPLETE
        assert plan.redo().operation == "rollback"
        assert files(plan) == {"old.txt"}
        with pytest.raises(NothingToUndo, match="nothing to redo"):
            plan.redo()
        assert plan.resume().next_step == "one"
        assert files(plan) == {"one.txt", "two.txt"}


FAILS = """
name: yard
resources: {app: {kind: fs-directory, path: app}}
steps: [{id: one, run: "echo 1 > one.txt"}, {id: two, run: "echo oops >&2; exit 3"}]
"""


def test_after_undo_of_a_rollback_the_failed_step_has_failed(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(FAILS))
        steps = ws.ctx.store.plans.steps(plan.plan_id)
        assert [step.state for step in steps] == [StepState.COMPLETE, StepState.ERRORED]
        plan.rollback("first")
        back = ws.ctx.store.plans.steps(plan.plan_id)
        assert {(step.state, step.error) for step in back} == {(StepState.QUEUED, None)}
        plan.undo()
        assert plan.plan.state is State.ERRORED
        assert ws.ctx.store.plans.steps(plan.plan_id) == steps
        assert plan.resume().next_step == "two"


def test_undo_undoes_manual_edits_before_anything_else(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        edit(plan, "hand.txt")
        assert plan.undo().operation == "external_edit"
        assert files(plan) == {"one.txt", "two.txt"}
        assert plan.undo().operation == "execute"
        assert files(plan) == {"old.txt"}
        with pytest.raises(NothingToUndo, match="nothing to undo"):
            plan.undo()


def entry_of(operation: Operation, name: str, state: EntryState = EntryState.DONE) -> JournalEntry:
    return JournalEntry(
        entry_id=name, plan_id="p", operation=operation, state=state, before=Moment(None, 0),
        started_at="",
    )  # fmt: skip


def test_the_undo_stack_leaves_out_what_is_open_and_ends_redo_at_a_new_operation() -> None:
    run = entry_of(Operation.EXECUTE, "run")
    back = entry_of(Operation.ROLLBACK, "back")
    undo, redo = entry_of(Operation.UNDO, "u"), entry_of(Operation.REDO, "r")
    prune = entry_of(Operation.PRUNE, "p")
    unfinished = entry_of(Operation.RESUME, "open", EntryState.OPEN)
    assert undo_stack([run, back, undo, unfinished, prune], in_place=False) == ([run], [back])
    assert undo_stack([run, back, undo, redo], in_place=False) == ([run, back], [])
    assert undo_stack([run, undo, back], in_place=False) == ([back], [])
    assert undo_stack([undo, redo], in_place=False) == ([], [])
