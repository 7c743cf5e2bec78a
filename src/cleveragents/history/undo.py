"""Undoes the last operation as a whole, or redoes it."""

import msgspec

from cleveragents.checkpoints.restoration import (
    Restoration,
    fields_then,
    restoration,
    restoration_to,
)
from cleveragents.context import Context
from cleveragents.errors import NothingToUndo
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.manual_edits import adopt_edits, has_edits
from cleveragents.history.rollback import (
    Remember,
    accepted,
    previewed,
    remembering,
    require_own,
    roll_back_to,
    with_effects,
)
from cleveragents.lease import LeasedPlan
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, RollbackResult
from cleveragents.model.journal import JournalEntry, Moment, Operation, undo_stack
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """The undone or redone operation, and the changes."""

    operation: str
    entry_id: str
    result: RollbackResult
    prompt: str = ""
    """What a person had asked of the agent, if that was the operation."""


def undo(
    ctx: Context, plan: Plan, *, accept_loss: bool = False, remember: Remember | None = None
) -> Undone:
    return _travel(ctx, plan, Operation.UNDO, accept_loss, remember)


def redo(
    ctx: Context, plan: Plan, *, accept_loss: bool = False, remember: Remember | None = None
) -> Undone:
    return _travel(ctx, plan, Operation.REDO, accept_loss, remember)


def preview(ctx: Context, plan: Plan, redo: bool = False) -> Undone:
    """What `undo` or `redo` would do; changes nothing."""
    way = Operation.REDO if redo else Operation.UNDO
    require_rollback(plan, f"{way}ne")
    before_looking(ctx, plan.plan_id)
    if way is Operation.UNDO and _has_edits(ctx, plan):
        # Edits would be the last operation: undoing them leads to the plan's current group.
        group = find_group(ctx.store, plan, "last")
        edits = previewed(ctx, plan, group, restoration_to(ctx.store, plan, group))
        edits = msgspec.structs.replace(edits, phase=str(plan.phase), state=str(plan.state))
        return Undone(operation=str(Operation.EXTERNAL_EDIT), entry_id="", result=edits)
    entry = _next_entry(ctx, plan, way)
    moment = entry.before if way is Operation.UNDO else entry.after
    assert moment is not None
    group, todo = _way_to(ctx, plan, moment)
    return _undone(entry, previewed(ctx, plan, group, todo))


def _has_edits(ctx: Context, plan: Plan) -> bool:
    """Whether there are manual edits to undo; in place edits are no operation, and stay."""
    if ctx.manager.sandboxes(plan.plan_id).in_place:
        return False
    return has_edits(ctx, plan)


def _way_to(ctx: Context, plan: Plan, moment: Moment) -> tuple[CheckpointGroup, Restoration]:
    group = find_group(ctx.store, plan, moment.group_id or "first")
    view = ctx.store.plans.view_at(plan.plan_id, moment.version)
    return group, restoration(ctx.store, plan, group, view, fields_then(view))


def _travel(
    ctx: Context, plan: Plan, way: Operation, accept_loss: bool, remember: Remember | None
) -> Undone:
    with work_on(ctx, plan.plan_id, f"plan {way}") as leased:
        require_rollback(leased.plan, f"{way}ne")
        require_own(ctx, leased.plan, f"{way}ne")
        _keep_edits(ctx, leased, way)
        entry = _next_entry(ctx, leased.plan, way)
        moment = entry.before if way is Operation.UNDO else entry.after
        assert moment is not None
        result = _return_to(ctx, leased, moment, leased.opened(way), entry, accept_loss, remember)
        return _undone(entry, result)


def _undone(entry: JournalEntry, result: RollbackResult) -> Undone:
    return Undone(
        operation=str(entry.operation),
        entry_id=entry.entry_id,
        result=result,
        prompt=entry.detail.get("prompt", ""),
    )


def _keep_edits(ctx: Context, leased: LeasedPlan, way: Operation) -> None:
    """Make pending manual edits the last operation, so that undo cancels them.

    Leftovers of a dead step are no edits: they are undone with the step's operation.
    """
    if way is Operation.UNDO and _has_edits(ctx, leased.plan):
        adopt_edits(ctx, leased)


def _next_entry(ctx: Context, plan: Plan, way: Operation) -> JournalEntry:
    entries = ctx.store.journal.of_plan(plan.plan_id)
    done, undone = undo_stack(entries, in_place=bool(ctx.manager.sandboxes(plan.plan_id).in_place))
    stack = done if way is Operation.UNDO else undone
    if not stack:
        raise NothingToUndo(
            f"plan {plan.name!r} has nothing to {way}", f"agents plan log {plan.plan_id}"
        )
    return stack[-1]


def _return_to(
    ctx: Context,
    leased: LeasedPlan,
    moment: Moment,
    opened: JournalEntry,
    entry: JournalEntry,
    accept_loss: bool,
    remember: Remember | None,
) -> RollbackResult:
    plan = leased.plan
    command = f"agents plan {opened.operation} {plan.plan_id}"
    group, todo = _way_to(ctx, plan, moment)
    todo = accepted(todo, accept_loss, command)
    opened = with_effects(msgspec.structs.replace(opened, target=entry.entry_id), todo)
    todo = msgspec.structs.replace(todo, entry=opened)
    return roll_back_to(ctx, leased, group, remembering(todo, remember))
