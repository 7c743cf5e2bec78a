"""Append to a plan: everything stays, and the extra work is a child plan of its own."""

from typing import Any

import msgspec

from cleveragents.context import Context
from cleveragents.errors import CorrectionRefused
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.executor import PlanExecutor
from cleveragents.execution.leasing import work_on
from cleveragents.execution.reconcile import reconcile
from cleveragents.execution.use import step_of
from cleveragents.history.correct import Request, ended_row
from cleveragents.history.rollback import require_own
from cleveragents.model.decision import (
    Correction,
    CorrectionMode,
    CorrectionState,
    Decision,
    DecisionKind,
)
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Operation
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Phase, State
from cleveragents.model.plan_spec import DecisionSpec, PlanSpec, StepSpec, SubplanSpec


def append(ctx: Context, decision: Decision, request: Request) -> Correction:
    """Keep everything; the extra work is a decision and a child plan of its own."""
    file = request.plan_file
    with work_on(ctx, decision.plan_id, "plan correct") as leased:
        require_rollback(leased.plan)
        require_own(ctx, leased.plan, "corrected")
        if file is None:
            raise CorrectionRefused(
                "there is no work to append: the plan's actor is a fixed list of steps",
                "name a plan file with the extra steps: --plan-file FILE",
            )
        reconcile(ctx, leased, discard_edits=False)
        plan = leased.plan
        steps = ctx.store.plans.steps(plan.plan_id)
        extra = f"append-{plan.attempt + 1}"
        spec = StepSpec(
            id=extra,
            tool="subplan",
            decision=DecisionSpec(question=f"append: {decision.question}", chosen=request.guidance),
            subplan=SubplanSpec(file=file.path, plan=file.spec),
        )
        intervention = Decision(
            decision_id=new_id(),
            plan_id=plan.plan_id,
            kind=DecisionKind.USER_INTERVENTION,
            question=f"append: {decision.question}",
            chosen=request.guidance,
            parent_id=decision.decision_id,
            step_id=extra,
            attempt=plan.attempt + 1,
            created_at=ctx.now(),
        )
        index = max((step.index for step in steps), default=-1) + 1
        step = msgspec.structs.replace(
            step_of(plan.plan_id, index, spec), decision_id=intervention.decision_id
        )
        row = Correction(
            correction_id=new_id(),
            plan_id=plan.plan_id,
            decision_id=decision.decision_id,
            mode=CorrectionMode.APPEND,
            guidance=request.guidance,
            attempt=plan.attempt + 1,
            state=CorrectionState.RESTORED,
            before_group_id=plan.head_group_id,
            created_at=ctx.now(),
        )
        entry = leased.opened(
            Operation.CORRECT, correction=row.correction_id, decision=decision.decision_id
        )
        with leased.transaction():
            ctx.store.corrections.put(row)
            ctx.store.journal.put(entry)
            leased.write(
                steps=(step,),
                decisions=(intervention,),
                view_changed=True,
                phase=Phase.EXECUTE,
                state=State.QUEUED,
                error=None,
                attempt=plan.attempt + 1,
                **with_step(leased.spec, spec),
            )
        # An actor that had ended is not asked again: the extra work is all there is to do.
        ended = plan.state is State.COMPLETE
        executor = PlanExecutor(ctx, leased) if ended else executor_for(ctx, leased)
        executor.prepare()
        executor.execute(Operation.CORRECT, entry)
        return ended_row(ctx, row)


def with_step(spec: PlanSpec, step: StepSpec) -> dict[str, Any]:
    """The plan's spec with one more step at its end."""
    return {"spec": msgspec.to_builtins(msgspec.structs.replace(spec, steps=(*spec.steps, step)))}
