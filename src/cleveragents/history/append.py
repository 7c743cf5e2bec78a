"""Appends to a plan: everything stays, and the extra work is a child plan."""

from typing import Any

import msgspec

from cleveragents.context import Context
from cleveragents.errors import CorrectionRefused
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.executor import PlanExecutor
from cleveragents.execution.leasing import work_on
from cleveragents.execution.reconcile import reconcile
from cleveragents.execution.use import PlanFile, step_of
from cleveragents.history.affected import Request
from cleveragents.history.correct import ended_row
from cleveragents.history.rollback import require_own
from cleveragents.lease import LeasedPlan
from cleveragents.model.decision import (
    Correction,
    CorrectionMode,
    CorrectionState,
    Decision,
    DecisionKind,
)
from cleveragents.model.ids import new_id
from cleveragents.model.journal import JournalEntry, Operation
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Phase, Plan, State, Step
from cleveragents.model.plan_spec import DecisionSpec, PlanSpec, StepSpec, SubplanSpec


def append(ctx: Context, decision: Decision, request: Request) -> Correction:
    """Keep everything, and add a decision with a child plan for the extra work."""
    with work_on(ctx, decision.plan_id, "plan correct") as leased:
        require_rollback(leased.plan)
        require_own(ctx, leased.plan, "corrected")
        if request.plan_file is None:
            raise CorrectionRefused(
                "there is no work to append",
                "name a plan file with the extra steps: --plan-file FILE",
            )
        reconcile(ctx, leased, discard_edits=False)
        # An ended actor is not asked again: only the extra work is to do.
        ended = leased.plan.state is State.COMPLETE
        row, entry = _add(ctx, leased, decision, request, request.plan_file)
        executor = PlanExecutor(ctx, leased) if ended else executor_for(ctx, leased)
        executor.prepare()
        executor.execute(Operation.CORRECT, entry)
        return ended_row(ctx, row)


def _add(
    ctx: Context, leased: LeasedPlan, decision: Decision, request: Request, file: PlanFile
) -> tuple[Correction, JournalEntry]:
    """Add the step, its decision and the row of the correction, in one commit."""
    plan = leased.plan
    attempt = plan.attempt + 1
    question = f"append: {decision.question}"
    spec = StepSpec(
        id=f"append-{attempt}",
        tool="subplan",
        decision=DecisionSpec(question=question, chosen=request.guidance),
        subplan=SubplanSpec(file=file.path, plan=file.spec),
    )
    intervention = Decision(
        decision_id=new_id(),
        plan_id=plan.plan_id,
        kind=DecisionKind.USER_INTERVENTION,
        question=question,
        chosen=request.guidance,
        parent_id=decision.decision_id,
        step_id=spec.id,
        attempt=attempt,
        created_at=ctx.now(),
    )
    row = Correction(
        correction_id=new_id(),
        plan_id=plan.plan_id,
        decision_id=decision.decision_id,
        mode=CorrectionMode.APPEND,
        guidance=request.guidance,
        attempt=attempt,
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
            steps=(_last_step(ctx, plan, spec, intervention),),
            decisions=(intervention,),
            view_changed=True,
            phase=Phase.EXECUTE,
            state=State.QUEUED,
            error=None,
            attempt=attempt,
            **with_step(leased.spec, spec),
        )
    return row, entry


def _last_step(ctx: Context, plan: Plan, spec: StepSpec, intervention: Decision) -> Step:
    steps = ctx.store.plans.steps(plan.plan_id)
    index = max((step.index for step in steps), default=-1) + 1
    return msgspec.structs.replace(
        step_of(plan.plan_id, index, spec), decision_id=intervention.decision_id
    )


def with_step(spec: PlanSpec, step: StepSpec) -> dict[str, Any]:
    """The plan's spec with one more step at its end."""
    return {"spec": msgspec.to_builtins(msgspec.structs.replace(spec, steps=(*spec.steps, step)))}
