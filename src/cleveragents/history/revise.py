"""Resumes a plan with a changed plan file: done and unchanged steps stay done."""

from collections.abc import Collection

from cleveragents.context import Context
from cleveragents.execution.run import Resumption, execute_plan
from cleveragents.execution.use import PlanFile
from cleveragents.history.affected import Request, find_affected
from cleveragents.history.correct import redo_dependents
from cleveragents.history.steps_again import failed_attempts, revised_steps, source_fields
from cleveragents.lease import LeasedPlan
from cleveragents.model.revision import revised
from cleveragents.tools import resolve_tool


def resume_with(
    ctx: Context,
    plan_id: str,
    file: PlanFile | None,
    *,
    discard_edits: bool = False,
    repeat: Collection[str] = (),
    accept_loss: bool = False,
) -> Resumption:
    """Resume; a changed done step means a correction. `file` None: the plan as it is."""

    def revise(leased: LeasedPlan, file: PlanFile) -> bool:
        if leased.plan.head_group_id is None:
            take_file(ctx, leased, file)
            return False
        return correct_to(ctx, leased, file, accept_loss)

    return execute_plan(
        ctx,
        plan_id,
        verb="plan resume",
        discard_edits=discard_edits,
        repeat=repeat,
        revise=None if file is None else lambda leased: revise(leased, file),
    )


def correct_to(ctx: Context, leased: LeasedPlan, file: PlanFile, accept_loss: bool) -> bool:
    """Adopt a changed plan file; True if that was a correction, which has run all steps."""
    request = Request(guidance=f"plan file {file.path}", plan_file=file, accept_loss=accept_loss)
    outlook = find_affected(ctx, leased.plan, (), request)
    if not outlook.superseded:
        take_file(ctx, leased, file)
        return False
    redo_dependents(ctx, leased, outlook, request)
    return True


def take_file(ctx: Context, leased: LeasedPlan, file: PlanFile) -> None:
    """Adopt a file that changes no done step, in one commit."""
    plan = leased.plan
    revised(leased.spec, file.spec, resolve_tool)
    steps, removed = revised_steps(
        ctx.store.plans.steps(plan.plan_id), file.spec.steps, set(), plan.plan_id
    )
    failed = failed_attempts(ctx.store, plan, steps, removed)
    leased.commit(
        steps=tuple(steps),
        decisions=tuple(decision.superseded() for decision in failed),
        removed_steps=tuple(removed),
        view_changed=True,
        **source_fields(file),
    )
