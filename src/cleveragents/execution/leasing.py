"""Take a plan to work on it, or to look at its sandboxes: what another boot left comes first."""

from collections.abc import Generator
from contextlib import contextmanager, suppress

from cleveragents.context import Context
from cleveragents.errors import NotAllowed, PlanBusy
from cleveragents.lease import (
    LeasedPlan,
    working_on,
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
    """Hold a plan whose sandboxes are what its newest group says, but for work of this boot."""
    with working_on(
        ctx.store, plan_id, verb, ctx.now, whatever_waits=whatever_waits, patient=patient
    ) as leased:
        for intent in ctx.store.intents.all():
            if intent.plan_id == plan_id and intent.kind == "restore" and intent.is_done:
                ctx.checkpoints.confirm_rollback(leased, intent)
        if ctx.manager.sandboxes(plan_id).from_another_boot():
            ctx.reconcile(ctx, leased)
        yield leased


def before_looking(ctx: Context, plan_id: str) -> None:
    """For whoever only looks at sandboxes; if somebody works on the plan, they did this already."""
    if ctx.manager.sandboxes(plan_id).from_another_boot():
        with suppress(PlanBusy, NotAllowed), work_on(ctx, plan_id, "recovery"):
            pass
