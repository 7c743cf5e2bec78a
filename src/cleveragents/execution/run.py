"""Starts or continues a plan, after reconciling its sandboxes."""

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

import msgspec

from cleveragents.actors import OBSERVED
from cleveragents.checkpoints import effects
from cleveragents.context import Context
from cleveragents.errors import NotAllowed
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.reconcile import (
    Reconciled,
    Resumption,
    difference,
    next_step,
    of_dead_steps,
    reconcile,
)
from cleveragents.lease import LeasedPlan
from cleveragents.model.journal import JournalEntry, Operation
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Phase, Plan, State

Revise = Callable[[LeasedPlan], bool]
"""Bring another plan file into force; True if that was a correction, which ran what was to run."""


def execute_plan(
    ctx: Context,
    plan_id: str,
    *,
    verb: str = "plan execute",
    discard_edits: bool = False,
    repeat: Collection[str] = (),
    revise: Revise | None = None,
) -> Resumption:
    """Run the undone steps; returns when the plan is complete or has failed."""
    with work_on(ctx, plan_id, verb) as leased, _arrived(ctx, plan_id):
        require_not_final(leased.plan, "executed")
        if leased.spec.actor.kind == OBSERVED:
            raise NotAllowed(
                f"the steps of plan {leased.plan.name!r} are its agent's",
                f"agents plan resume {plan_id} continues the agent's conversation",
            )
        effects.require_repeatable(leased, repeat)
        started = leased.plan.head_group_id is not None
        if revise is not None and not started:
            revise(leased)
        executor = executor_for(ctx, leased)
        executor.strategize()
        if not started:
            executor.prepare()
            executor.execute(Operation.EXECUTE)
            return Resumption(
                resumed_from=None, reconciled=Reconciled.NOTHING, changes=(), next_step=None
            )
        resumption = reconcile(ctx, leased, discard_edits)
        # Undo reverts the changed plan file together with its steps.
        entry = leased.opened(Operation.RESUME)
        if revise is not None and revise(leased):
            return resumption
        return _continue(ctx, leased, resumption, entry)


@contextmanager
def _arrived(ctx: Context, plan_id: str) -> Generator[None]:
    """Release the plan only once the bucket has it: a process that dies before still holds it."""
    try:
        yield
    finally:
        ctx.checkpoints.finish_uploads(plan_id, lambda: ctx.talk.tell("uploading", {}))


def _continue(
    ctx: Context, leased: LeasedPlan, resumption: Resumption, entry: JournalEntry
) -> Resumption:
    upcoming = next_step(ctx, leased.plan)
    finished = (leased.plan.phase, leased.plan.state) == (Phase.EXECUTE, State.COMPLETE)
    if upcoming is None and finished:
        return msgspec.structs.replace(resumption, resumed_from=None)
    executor = executor_for(ctx, leased)
    executor.prepare()
    executor.execute(Operation.RESUME, entry)
    return msgspec.structs.replace(resumption, next_step=upcoming)


def preview_resume(ctx: Context, plan: Plan, discard_edits: bool = False) -> Resumption:
    """What `resume` would do; changes nothing."""
    require_not_final(plan, "resumed")
    before_looking(ctx, plan.plan_id)
    reconciled, changes = difference(ctx, plan, discard_edits)
    return Resumption(
        resumed_from=plan.last_checkpoint_id,
        from_group=plan.head_group_id,
        reconciled=reconciled,
        changes=changes,
        next_step=next_step(ctx, plan),
        in_doubt=tuple(effects.doubtful(ctx.store, plan)),
        compensable=of_dead_steps(ctx, plan).compensable,
    )
