"""Undo the last operation as a whole, or redo it."""

import msgspec

from cleveragents.checkpoints.restoration import (
    restoration,
)
from cleveragents.context import Context
from cleveragents.errors import NothingToUndo
from cleveragents.execution.leasing import work_on
from cleveragents.execution.manual_edits import adopt_edits
from cleveragents.execution.reconcile import Reconciled, difference
from cleveragents.history.rollback import (
    accepted,
    go_back,
    require_own,
)
from cleveragents.lease import LeasedPlan
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import RollbackResult
from cleveragents.model.journal import JournalEntry, Moment, Operation, undo_stack
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan, State


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """Which operation was undone or redone, and what that changed."""

    operation: str
    entry_id: str
    result: RollbackResult


def undo(ctx: Context, plan: Plan, *, accept_loss: bool = False) -> Undone:
    return _travel(ctx, plan, Operation.UNDO, accept_loss)


def redo(ctx: Context, plan: Plan, *, accept_loss: bool = False) -> Undone:
    return _travel(ctx, plan, Operation.REDO, accept_loss)


def _travel(ctx: Context, plan: Plan, way: Operation, accept_loss: bool) -> Undone:
    with work_on(ctx, plan.plan_id, f"plan {way}") as leased:
        require_rollback(leased.plan)
        require_own(ctx, leased.plan, f"{way}ne")
        _keep_edits(ctx, leased, way)
        entry = _next_entry(ctx, leased.plan, way)
        moment = entry.before if way is Operation.UNDO else entry.after
        assert moment is not None
        result = _go(ctx, leased, moment, leased.opened(way), entry, accept_loss)
        return Undone(operation=str(entry.operation), entry_id=entry.entry_id, result=result)


def _keep_edits(ctx: Context, leased: LeasedPlan, way: Operation) -> None:
    """Manual edits that no group has yet are the last operation: undo cancels those.

    What the step of a dead process left is no edit: it goes with the operation it was part of.
    """
    if way is Operation.UNDO and difference(ctx, leased.plan, False)[0] is Reconciled.ADOPTED:
        adopt_edits(ctx, leased)


def _next_entry(ctx: Context, plan: Plan, way: Operation) -> JournalEntry:
    done, undone = undo_stack(ctx.store.journal.of_plan(plan.plan_id))
    stack = done if way is Operation.UNDO else undone
    if not stack:
        raise NothingToUndo(
            f"plan {plan.name!r} has nothing to {way}", f"agents plan log {plan.plan_id}"
        )
    return stack[-1]


def _go(
    ctx: Context,
    leased: LeasedPlan,
    moment: Moment,
    opened: JournalEntry,
    entry: JournalEntry,
    accept_loss: bool,
) -> RollbackResult:
    plan = leased.plan
    group = find_group(ctx.store, plan, moment.group_id or "first")
    view = ctx.store.plans.view_at(plan.plan_id, moment.version)
    standing = view.standing
    state = State.QUEUED if standing.state is State.PROCESSING else standing.state
    fields = {
        "phase": standing.phase,
        "state": state,
        "error": standing.error,
        "attempt": standing.attempt,
        "actor_state": standing.actor_state,
    }
    command = f"agents plan {opened.operation} {plan.plan_id}"
    todo = restoration(ctx.store, plan, group, view, fields)
    todo = accepted(todo, accept_loss, command)
    todo = msgspec.structs.replace(
        todo, entry=msgspec.structs.replace(opened, target=entry.entry_id)
    )
    return go_back(ctx, leased, group, todo)
