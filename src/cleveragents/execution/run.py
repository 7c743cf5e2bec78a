"""Start a plan, or go on with it: whatever a dead process or a person left is settled first."""

from collections.abc import Collection

import msgspec

from cleveragents.checkpoints import effects
from cleveragents.context import Context
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.reconcile import (
    Resumption,
    Settled,
    difference,
    next_step,
    of_dead_steps,
    settle,
)
from cleveragents.execution.use import PlanFile
from cleveragents.history import correct
from cleveragents.lease import Session
from cleveragents.model.journal import JournalEntry, Operation
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Phase, Plan, State
from cleveragents.model.revision import revised
from cleveragents.tools import resolve_tool


def execute_plan(
    ctx: Context,
    plan_id: str,
    *,
    verb: str = "plan execute",
    discard_edits: bool = False,
    plan_file: PlanFile | None = None,
    repeat: Collection[str] = (),
    accept_loss: bool = False,
) -> Resumption:
    """Run what is not done yet; returns when the plan is complete or has failed."""
    with work_on(ctx, plan_id, verb) as session:
        require_not_final(session.plan, "executed")
        effects.require_repeatable(session, repeat)
        if plan_file is not None and session.plan.head_group_id is None:
            take_file(ctx, session, plan_file)
        executor = executor_for(ctx, session)
        started = session.plan.head_group_id is not None
        executor.strategize()
        if not started:
            executor.prepare()
            executor.execute(Operation.EXECUTE)
            return Resumption(
                resumed_from=None, settled=Settled.NOTHING, changes=(), next_step=None
            )
        resumption = settle(ctx, session, discard_edits)
        # Undo takes the changed plan file back with what was run of it.
        entry = session.opened(Operation.RESUME)
        if plan_file is not None and go_on_with(ctx, session, plan_file, accept_loss):
            return resumption
        return _go_on(ctx, session, resumption, entry)


def _go_on(
    ctx: Context, session: Session, resumption: Resumption, entry: JournalEntry
) -> Resumption:
    upcoming = next_step(ctx, session.plan)
    finished = (session.plan.phase, session.plan.state) == (Phase.EXECUTE, State.COMPLETE)
    if upcoming is None and finished:
        return msgspec.structs.replace(resumption, resumed_from=None)
    executor = executor_for(ctx, session)
    executor.prepare()
    executor.execute(Operation.RESUME, entry)
    return msgspec.structs.replace(resumption, next_step=upcoming)


def go_on_with(ctx: Context, session: Session, file: PlanFile, accept_loss: bool) -> bool:
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


def preview_resume(ctx: Context, plan: Plan, discard_edits: bool = False) -> Resumption:
    """What `resume` would do; changes nothing."""
    require_not_final(plan, "resumed")
    before_looking(ctx, plan.plan_id)
    settled, changes = difference(ctx, plan, discard_edits)
    return Resumption(
        resumed_from=plan.last_checkpoint_id,
        settled=settled,
        changes=changes,
        next_step=next_step(ctx, plan),
        in_doubt=tuple(effects.doubtful(ctx.store, plan)),
        compensable=of_dead_steps(ctx, plan).compensable,
    )
