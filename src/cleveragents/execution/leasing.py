"""Leases a plan, to work on it or read its sandboxes, repairing first what they may have missed."""

from collections.abc import Generator
from contextlib import contextmanager, suppress

from cleveragents.context import Context
from cleveragents.errors import NotAllowed, PlanBusy
from cleveragents.lease import (
    LeasedPlan,
    await_sign_of_life,
    is_left_behind,
    working_on,
)
from cleveragents.model.plan import Plan


@contextmanager
def take(
    ctx: Context,
    plan_id: str,
    verb: str,
    *,
    whatever_waits: bool = False,
    patient: bool = False,
) -> Generator[LeasedPlan]:
    """Lease a plan; its sandboxes match its newest group, except for work since the boot."""
    ctx.checkpoints.require_bucket()
    if ctx.store.is_shared:
        await_sign_of_life(ctx.store, plan_id)
        if is_left_behind(ctx.store, plan_id):
            ctx.take_over(ctx, plan_id)
    with working_on(
        ctx.store, plan_id, verb, ctx.now, whatever_waits=whatever_waits, patient=patient
    ) as leased:
        if ctx.settings.content_url:
            from cleveragents.checkpoints.elsewhere import move_here

            move_here(ctx.checkpoints, leased, verb)
        for intent in ctx.store.intents.of_plan(plan_id):
            if intent.kind == "restore" and intent.is_done:
                ctx.checkpoints.confirm_rollback(leased, intent)
        if _is_in_doubt(ctx, leased.plan):
            ctx.reconcile(ctx, leased)
        yield leased


def _is_in_doubt(ctx: Context, plan: Plan) -> bool:
    """Whether a power cut or a restored backup may have parted the sandboxes from the store."""
    return bool(ctx.manager.sandboxes(plan.plan_id).from_another_boot()) or (
        ctx.manager.is_put_back(plan)
    )


@contextmanager
def work_on(
    ctx: Context,
    plan_id: str,
    verb: str,
    *,
    whatever_waits: bool = False,
    patient: bool = False,
) -> Generator[LeasedPlan]:
    """The same for a verb, after ending what a dead agent left open."""
    with take(ctx, plan_id, verb, whatever_waits=whatever_waits, patient=patient) as leased:
        ctx.settle(ctx, leased, verb)
        yield leased


def before_looking(ctx: Context, plan_id: str) -> None:
    """For reading sandboxes only; a process working on the plan has done this already."""
    if _is_in_doubt(ctx, ctx.store.plans.get(plan_id)):
        with suppress(PlanBusy, NotAllowed), work_on(ctx, plan_id, "recovery"):
            pass
