"""Resume a plan with a changed plan file: what is done and unchanged stays done."""

from collections.abc import Collection

from cleveragents.context import Context
from cleveragents.execution.run import Resumption, execute_plan
from cleveragents.execution.use import PlanFile
from cleveragents.history import correct
from cleveragents.lease import Session
from cleveragents.model.revision import revised
from cleveragents.tools import resolve_tool


def resume_with(
    ctx: Context,
    plan_id: str,
    file: PlanFile,
    *,
    discard_edits: bool = False,
    repeat: Collection[str] = (),
    accept_loss: bool = False,
) -> Resumption:
    """A changed step that was done is a correction of its decision."""

    def revise(session: Session) -> bool:
        if session.plan.head_group_id is None:
            take_file(ctx, session, file)
            return False
        return correct_to(ctx, session, file, accept_loss)

    return execute_plan(
        ctx,
        plan_id,
        verb="plan resume",
        discard_edits=discard_edits,
        repeat=repeat,
        revise=revise,
    )


def correct_to(ctx: Context, session: Session, file: PlanFile, accept_loss: bool) -> bool:
    """Take a changed plan file in; True if that was a correction, which ran what was to run."""
    request = correct.Request(
        guidance=f"plan file {file.path}", plan_file=file, accept_loss=accept_loss
    )
    outlook = correct.work_out(ctx, session.plan, (), request)
    if not outlook.superseded:
        take_file(ctx, session, file)
        return False
    correct.take_back(ctx, session, outlook, request)
    return True


def take_file(ctx: Context, session: Session, file: PlanFile) -> None:
    """Nothing that is done changed: steps come and go in one commit."""
    plan = session.plan
    revised(session.spec, file.spec, resolve_tool)
    steps, removed = correct.revised_steps(
        ctx.store.plans.steps(plan.plan_id), file.spec.steps, set(), plan.plan_id
    )
    failed = correct.left_behind(ctx.store, plan, steps, removed)
    session.commit(
        steps=tuple(steps),
        decisions=tuple(decision.superseded() for decision in failed),
        removed_steps=tuple(removed),
        view_changed=True,
        **correct.source_fields(file),
    )
