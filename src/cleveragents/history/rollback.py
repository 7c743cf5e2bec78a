"""Rolls back to a group: everything after it is undone together."""

from collections.abc import Callable
from typing import Any

import msgspec

from cleveragents.checkpoints import effects
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import (
    Restoration,
    restoration_to,
)
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, PlanBusy
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.history.owners import Choices
from cleveragents.history.rollback_in_place import (
    Outlook,
    changes_in,
    require_known,
    restore_in_place,
)
from cleveragents.lease import (
    LeasedPlan,
    holder,
)
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, RollbackResult
from cleveragents.model.decision import DecisionState
from cleveragents.model.effect import Effect, EffectState
from cleveragents.model.journal import JournalEntry, Operation
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan, State
from cleveragents.model.resource import Change

PLAIN = Choices()


def accepted(todo: Restoration, accept_loss: bool, command: str) -> Restoration:
    """The rollback, if effects that cannot be undone were accepted; else refuse."""
    effects.require_accepted(todo.outlook, accept_loss, command)
    marks = effects.marks(todo.outlook, EffectState.ACCEPTED)
    return msgspec.structs.replace(todo, effects=marks)


def with_effects(entry: JournalEntry, todo: Restoration) -> JournalEntry:
    """The entry, with the outside effects that it undoes and leaves."""
    told = {
        "undone": [effect.effect_id for effect in todo.outlook.compensable],
        "left": [effect.effect_id for effect in todo.outlook.irreversible],
    }
    if not any(told.values()):
        return entry
    return msgspec.structs.replace(entry, detail={**entry.detail, "effects": told})


def require_own(ctx: Context, plan: Plan, verb: str) -> None:
    """Refuse a merged child plan: it is part of its parent, and changed there."""
    parent = plan.parent_plan_id
    if parent is None:
        return
    steps = {step.step_id: step for step in ctx.store.plans.steps(parent)}
    step = steps.get(plan.parent_step_id or "")
    if step is not None and step.done and plan.state is State.COMPLETE:
        raise NotAllowed(
            f"child plan {plan.name!r} is merged into its parent and cannot be {verb}",
            f"correct or roll back the parent: agents plan tree {parent}",
        )


def require_children_free(ctx: Context, todo: Restoration) -> None:
    """Refuse if somebody works on a child plan that has to be rolled back."""
    for child in (*todo.children, *todo.cancelled_children):
        held = holder(ctx.store, child)
        if held is not None:
            raise PlanBusy(
                f"child plan {child} is held by `{held.verb}` (process {held.pid})",
                f"wait for it, or end it: kill {held.pid}",
            )
    for below in todo.children.values():
        require_children_free(ctx, below)


def preview(
    ctx: Context, plan: Plan, group: CheckpointGroup, choices: Choices = PLAIN
) -> RollbackResult:
    """What a rollback would do; changes nothing."""
    require_rollback(plan)
    ctx.checkpoints.require_readable(group)
    before_looking(ctx, plan.plan_id)
    return previewed(ctx, plan, group, restoration_to(ctx.store, plan, group), choices)


def previewed(
    ctx: Context,
    plan: Plan,
    group: CheckpointGroup,
    todo: Restoration,
    choices: Choices = PLAIN,
) -> RollbackResult:
    """What a restore to a group would do."""
    if ctx.manager.sandboxes(plan.plan_id).in_place:
        found, changes = changes_in(ctx, plan, group, choices)
        require_known(choices, found)
        result = _result(ctx, plan, group, todo, changes, dry_run=True)
        return _with_owners(result, found)
    targets = ctx.checkpoints.states(group)

    def reverted(now: States) -> tuple[Change, ...]:
        return ctx.checkpoints.diff(plan.plan_id, now, targets)

    changes = ctx.checkpoints.look(plan.plan_id, reverted)
    return _result(ctx, plan, group, todo, changes, dry_run=True)


def _with_owners(result: RollbackResult, found: Outlook) -> RollbackResult:
    return msgspec.structs.replace(
        result, in_place=found.paths, conflicts=found.conflicts, notes=found.notes
    )


Remember = Callable[[Any], Any]
"""The actor's state at the target -> what the plan keeps; called before anything changes."""


def remembering(todo: Restoration, remember: Remember | None) -> Restoration:
    if remember is None:
        return todo
    fields = {**todo.plan, "actor_state": remember(todo.plan["actor_state"])}
    return msgspec.structs.replace(todo, plan=fields)


def rollback(
    ctx: Context,
    plan: Plan,
    group: CheckpointGroup,
    *,
    accept_loss: bool = False,
    choices: Choices = PLAIN,
    remember: Remember | None = None,
) -> RollbackResult:
    with work_on(ctx, plan.plan_id, "plan rollback", whatever_waits=True) as leased:
        require_rollback(leased.plan)
        require_own(ctx, leased.plan, "rolled back")
        # Looked up before we had the lease: another process may have pruned it since.
        group = find_group(ctx.store, leased.plan, group.group_id)
        ctx.checkpoints.require_readable(group)
        entry = leased.opened(Operation.ROLLBACK, to=group.group_id)
        command = f"agents plan rollback {plan.plan_id} {group.group_id}"
        todo = accepted(restoration_to(ctx.store, leased.plan, group), accept_loss, command)
        entry = with_effects(entry, todo)
        # Leftovers of a failed step are no work: rolling back must not need disk space for them.
        lossy = accept_loss or leased.plan.state is State.ERRORED
        todo = remembering(msgspec.structs.replace(todo, entry=entry), remember)
        return roll_back_to(ctx, leased, group, todo, lossy, choices)


def roll_back_to(
    ctx: Context,
    leased: LeasedPlan,
    group: CheckpointGroup,
    todo: Restoration,
    lossy: bool = False,
    choices: Choices = PLAIN,
) -> RollbackResult:
    """Roll back; returns what was done, counted before and measured after."""
    require_children_free(ctx, todo)
    counted = _result(ctx, leased.plan, group, todo, (), dry_run=False)
    if ctx.manager.sandboxes(leased.plan.plan_id).in_place:
        found, changes = restore_in_place(ctx, leased, group, todo, choices)
        counted = _with_owners(counted, found)
    else:
        changes = ctx.checkpoints.rollback_to_checkpoint(leased, todo, lossy=lossy)
    outcome = _compensated(ctx, leased, todo) if todo.outlook.compensable else ()
    return msgspec.structs.replace(
        counted,
        changes=changes,
        effects=msgspec.structs.replace(counted.effects, compensable=outcome),
        phase=str(leased.plan.phase),
        state=str(leased.plan.state),
        checkpoints_remaining=ctx.store.checkpoints.count(leased.plan.plan_id),
    )


def _compensated(ctx: Context, leased: LeasedPlan, todo: Restoration) -> tuple[Effect, ...]:
    """Run compensations; imported on demand, as most rollbacks need none."""
    from cleveragents.execution.compensation import compensated

    return compensated(ctx, leased, todo)


def _result(
    ctx: Context,
    plan: Plan,
    group: CheckpointGroup,
    todo: Restoration,
    changes: tuple[Change, ...],
    dry_run: bool,
) -> RollbackResult:
    rows = ctx.store.checkpoints.of_group(group.group_id)
    return RollbackResult(
        plan_id=plan.plan_id,
        group_id=group.group_id,
        checkpoint_id=rows[0].checkpoint_id,
        label=group.label,
        changes=changes,
        child_plans_invalidated=len(todo.cancelled_children) + _children_to_roll_back(ctx, todo),
        decisions_after=sum(d.state is DecisionState.SUPERSEDED for d in todo.decisions),
        tool_calls_after=ctx.store.calls.in_force_since(
            plan.plan_id, ctx.store.checkpoints.number(group.group_id)
        ),
        sandboxes=ctx.manager.sandboxes(plan.plan_id).paths,
        phase=todo.plan["phase"],
        state=todo.plan["state"],
        checkpoints_remaining=ctx.store.checkpoints.count(plan.plan_id),
        dry_run=dry_run,
        effects=todo.outlook,
    )


def _children_to_roll_back(ctx: Context, todo: Restoration) -> int:
    """Child plans that have to be rolled back too."""
    pairs = ((ctx.store.plans.get(child), below) for child, below in todo.children.items())
    return sum(
        (child.head_group_id, child.state) != (below.group_id, below.plan["state"])
        for child, below in pairs
    )
