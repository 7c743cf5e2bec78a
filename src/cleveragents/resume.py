"""Start a plan, or go on with it: whatever a dead process or a person left is settled first."""

from cleveragents.context import Context
from cleveragents.executor import PlanExecutor
from cleveragents.journal import Operation
from cleveragents.leases import working_on
from cleveragents.lifecycle import require_not_final
from cleveragents.plan import Phase, Plan, State
from cleveragents.settling import Resumption, Settled, difference, next_step, settle


def execute_plan(
    ctx: Context, plan_id: str, *, verb: str = "plan execute", discard_edits: bool = False
) -> Resumption:
    """Run what is not done yet; returns when the plan is complete or has failed."""
    with working_on(ctx.store, plan_id, verb, ctx.now) as session:
        require_not_final(session.plan, "executed")
        executor = PlanExecutor(ctx, session)
        started = session.plan.head_group_id is not None
        executor.strategize()
        if not started:
            executor.prepare()
            executor.execute(Operation.EXECUTE)
            return Resumption(
                resumed_from=None, settled=Settled.NOTHING, changes=(), next_step=None
            )
        resumption = settle(ctx, session, discard_edits)
        finished = (session.plan.phase, session.plan.state) == (Phase.EXECUTE, State.COMPLETE)
        if resumption.next_step is None and finished:
            return resumption
        executor = PlanExecutor(ctx, session)
        executor.prepare()
        executor.execute(Operation.RESUME)
        return resumption


def preview_resume(ctx: Context, plan: Plan, discard_edits: bool = False) -> Resumption:
    """What `resume` would do; changes nothing."""
    require_not_final(plan, "resumed")
    settled, changes = difference(ctx, plan, discard_edits)
    return Resumption(
        resumed_from=plan.last_checkpoint_id,
        settled=settled,
        changes=changes,
        next_step=next_step(ctx, plan),
    )
