"""Finds manual edits and makes them part of the plan."""

import os

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.context import Context
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.journal import Operation
from cleveragents.model.plan import Plan, StepState
from cleveragents.model.resource import Action, Change


def changes_since(ctx: Context, group: CheckpointGroup) -> tuple[Change, ...]:
    """The difference between the sandboxes and a group; stores nothing."""
    then = ctx.checkpoints.states(group)
    found = ctx.checkpoints.look(
        group.plan_id, lambda now: ctx.checkpoints.diff(group.plan_id, then, now)
    )
    return without_kept_folders(found, ctx.manager.sandboxes(group.plan_id).paths)


def has_edits(ctx: Context, plan: Plan) -> bool:
    """Whether there is what `reconcile` would adopt; what a dead step left is no edit."""
    steps = ctx.store.plans.steps(plan.plan_id)
    if plan.head_group_id is None or any(step.state is StepState.PROCESSING for step in steps):
        return False
    return bool(changes_since(ctx, ctx.store.checkpoints.group(plan.head_group_id)))


def without_kept_folders(found: tuple[Change, ...], paths: dict[str, str]) -> tuple[Change, ...]:
    """Leave out folders that exist only because of excluded files in them."""
    kept: list[Change] = []
    for change in sorted(found, key=lambda change: change.path, reverse=True):
        below = change.path + b"/"
        is_new_folder = change.action is Action.ADDED and change.after.startswith("d:")
        if is_new_folder and not any(
            other.resource == change.resource and other.path.startswith(below) for other in kept
        ):
            where = os.path.join(os.fsencode(paths[change.resource]), change.path)
            if os.path.isdir(where) and os.listdir(where):
                continue
        kept.append(change)
    return tuple(kept[::-1])


def adopt_edits(ctx: Context, leased: LeasedPlan) -> CheckpointGroup:
    """Make manual edits part of the plan, as one operation that can be undone."""
    entry = leased.opened(Operation.EXTERNAL_EDIT)
    request = CheckpointRequest(
        force=True,
        reason="manual edit",
        record=lambda _before, _now: ctx.store.journal.put(leased.closed(entry)),
    )
    return ctx.checkpoints.create_checkpoint(CheckpointType.EXTERNAL_EDIT, leased, request)
