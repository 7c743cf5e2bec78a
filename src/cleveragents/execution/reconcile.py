"""Reconciles changes left in the sandboxes, by a dead process or a person, before a resume."""

from enum import StrEnum

import msgspec

from cleveragents.actors import KINDS
from cleveragents.checkpoints import effects
from cleveragents.checkpoints.restoration import (
    restoration_to,
)
from cleveragents.context import Context
from cleveragents.execution import compensation
from cleveragents.execution.failure import roll_back_failure
from cleveragents.execution.in_place_writes import interrupted_call, remember_changes
from cleveragents.execution.manual_edits import adopt_edits, changes_since
from cleveragents.lease import LeasedPlan, spec_of
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.effect import Effect, EffectState, Outlook
from cleveragents.model.plan import Plan, StepState
from cleveragents.model.resource import Change
from cleveragents.tools.runner import end_leftovers


class Reconciled(StrEnum):
    NOTHING = "nothing"
    RESIDUE = "residue"
    ADOPTED = "adopted"
    DISCARDED = "discarded"


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan continues, and what happened to differences found there."""

    resumed_from: str | None
    reconciled: Reconciled
    changes: tuple[Change, ...]
    next_step: str | None
    in_doubt: tuple[Effect, ...] = ()
    """What may have happened and would be done a second time."""
    compensable: tuple[Effect, ...] = ()
    """What the step of a dead process may have done, and is compensated before it runs again."""
    from_group: str | None = None
    """The group that the plan stood at."""


def next_step(ctx: Context, plan: Plan) -> str | None:
    """The next step; None at the end, or if an actor decides what comes next."""
    if spec_of(plan).actor.kind in KINDS:
        return None
    waiting = [step.step_id for step in ctx.store.plans.steps(plan.plan_id) if not step.done]
    return waiting[0] if waiting else None


def difference(
    ctx: Context, plan: Plan, discard_edits: bool
) -> tuple[Reconciled, tuple[Change, ...]]:
    """The difference to the newest group: residue of a dead step, or else manual edits."""
    if (began := _began(ctx, plan)) is None:
        return Reconciled.NOTHING, ()
    changes = changes_since(ctx, began)
    if not changes:
        return Reconciled.NOTHING, ()
    steps = ctx.store.plans.steps(plan.plan_id)
    if any(step.state is StepState.PROCESSING for step in steps):
        return Reconciled.RESIDUE, changes
    return (Reconciled.DISCARDED if discard_edits else Reconciled.ADOPTED), changes


def _began(ctx: Context, plan: Plan) -> CheckpointGroup | None:
    """The newest group; if a step was running, the one from before that step."""
    if plan.head_group_id is None:
        return None
    head = ctx.store.checkpoints.group(plan.head_group_id)
    if head.checkpoint_type is CheckpointType.ON_QUIET:
        dead = interrupted_call(ctx, plan)
        if dead is not None and dead.group_id is not None:
            return ctx.store.checkpoints.group(dead.group_id)
    return head


def of_dead_steps(ctx: Context, plan: Plan) -> Outlook:
    """Effects that dead steps may have had outside the sandboxes."""
    steps = ctx.store.plans.steps(plan.plan_id)
    dead = {step.step_id for step in steps if step.state is StepState.PROCESSING}
    if not dead or (began := _began(ctx, plan)) is None:
        return Outlook()
    return effects.after(ctx.store, plan.plan_id, began.group_id, dead)


def reconcile(ctx: Context, leased: LeasedPlan, discard_edits: bool) -> Resumption:
    end_leftovers(leased.plan.plan_id)
    if leased.plan.error is not None and leased.plan.error.undo_to is not None:
        # The process died between keeping the failed state and rolling back.
        roll_back_failure(ctx, leased)
    plan = leased.plan
    reconciled, changes = difference(ctx, plan, discard_edits)
    outlook = of_dead_steps(ctx, plan)
    if reconciled is Reconciled.ADOPTED:
        adopt_edits(ctx, leased)
    elif reconciled in (Reconciled.RESIDUE, Reconciled.DISCARDED):
        began = _began(ctx, plan)
        assert began is not None
        dead = interrupted_call(ctx, plan) if reconciled is Reconciled.RESIDUE else None
        if dead is not None:
            with leased.transaction():
                remember_changes(ctx, dead, changes)
        # Steps after the newest group count as not done.
        todo = restoration_to(
            ctx.store, plan, began, phase=plan.phase, state=plan.state, error=plan.error
        )
        marks = effects.marks(outlook, EffectState.ACCEPTED)
        ctx.checkpoints.rollback_to_checkpoint(
            leased, msgspec.structs.replace(todo, effects=marks), lossy=True
        )
    running = tuple(
        msgspec.structs.replace(step, state=StepState.QUEUED)
        for step in ctx.store.plans.steps(plan.plan_id)
        if step.state is StepState.PROCESSING
    )
    if running:
        with leased.transaction():
            effects.mark(ctx.store, outlook, ctx.now())
            leased.write(steps=running)
    compensation.compensate_waiting(ctx, leased)
    return Resumption(
        resumed_from=leased.plan.last_checkpoint_id,
        from_group=leased.plan.head_group_id,
        reconciled=reconciled,
        changes=changes,
        next_step=next_step(ctx, leased.plan),
        compensable=outlook.compensable,
    )
