"""Applies a plan whose targets are on another machine, through a worker there.

The job may be delivered twice and its worker may die: `agents plan apply` on that machine applies
once, and says the same again. Without a worker there nothing is left in a queue that would apply
some day, unexpected.
"""

import time
from typing import Any

from cleveragents.apply.apply import Request
from cleveragents.apply.targets import require_own_targets, require_targets_here, targets_elsewhere
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.cluster.queue import Options, Order, Queue, own_queue
from cleveragents.cluster.submit import LOOK_AGAIN, queue_of, takers
from cleveragents.context import Context
from cleveragents.errors import ApplyRefused, ConfigError, NotAllowed, StoreError
from cleveragents.execution.caller_executor import as_applied
from cleveragents.execution.leasing import work_on
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.lifecycle import require_appliable, require_not_final
from cleveragents.model.plan import Phase, Plan

FIRST = 1000
"""Its priority: a person waits for it."""


def worker_with_targets(ctx: Context, plan: Plan) -> str:
    """The machine whose workers can apply it; empty: its targets are here.

    Raises `ApplyRefused` if they are on a machine where nobody takes jobs.
    """
    host = targets_elsewhere(ctx, plan)
    if not host:
        return ""
    try:
        if takers(queue_of(ctx.settings), own_queue(host), ctx.settings.lease):
            return host
    except (ConfigError, StoreError):
        pass  # no queue, no workers
    require_targets_here(ctx, plan)
    return ""  # the targets arrived meanwhile


def apply_there(ctx: Context, plan: Plan, host: str, request: Request) -> dict[str, Any]:
    """Have it applied on that machine; returns when it is, or raises why it is not."""
    require_not_final(plan, "applied")
    require_own_targets(ctx, plan)
    require_appliable(as_applied(plan))
    queue, own = queue_of(ctx.settings), own_queue(host)
    plan = _brought(ctx, plan)
    waits = queue.job(plan.plan_id)
    if waits is None or waits.queue != own:
        with ctx.store.transaction():
            order = Order(queue=own, priority=FIRST)
            queue.submit(plan.plan_id, order, ctx.store.connection, _options(request))
    said = f"the target is on {host}: a worker there applies the plan"
    ctx.talk.tell("remark", {"message": said})
    try:
        return _awaited(ctx, queue, plan, host)
    except BaseException:
        if waits is None:
            queue.cancel(plan.plan_id)
        raise


def _options(request: Request) -> Options:
    mode = (f"--as={request.mode}",) if request.mode else ()
    flags = {"--ignored": request.ignored, "--hooks": request.hooks}
    return *mode, *(name for name, given in flags.items() if given)


def _brought(ctx: Context, plan: Plan) -> Plan:
    """Upload work that only this machine has, including manual edits."""
    here = not ctx.manager.sandboxes(plan.plan_id).elsewhere
    if not here or not ctx.settings.content_url or not plan.rollback_enabled:
        return plan
    with work_on(ctx, plan.plan_id, "plan apply", patient=True) as leased:
        ctx.checkpoints.create_checkpoint(CheckpointType.PRE_APPLY, leased, CheckpointRequest())
        ctx.checkpoints.wait_until_uploaded(plan.plan_id)
        return leased.plan


def _awaited(ctx: Context, queue: Queue, before: Plan, host: str) -> dict[str, Any]:
    told = ""
    while True:
        job = queue.job(before.plan_id)
        plan = ctx.store.plans.get(before.plan_id)
        if plan.result is not None:
            return plan.result
        if job is None:
            raise _why(plan, before, host)
        if not job.running:
            if not takers(queue, job.queue, ctx.settings.lease):
                raise ApplyRefused(
                    f"no worker is left on {host}; nothing was applied", _by_hand(plan, host)
                )
            if job.handed_back not in ("", told):
                told = job.handed_back
                ctx.talk.tell("warning", {"message": f"{host} tries again: {told}"})
        time.sleep(LOOK_AGAIN)


def _why(plan: Plan, before: Plan, host: str) -> NotAllowed:
    """Why the other machine could not apply it."""
    if plan.phase is Phase.APPLY and plan.error is not None and plan.version != before.version:
        return ApplyRefused(f"on {host}: {plan.error.message}", plan.error.hint)
    return ApplyRefused(f"{host} could not apply it; nothing was changed", _by_hand(plan, host))


def _by_hand(plan: Plan, host: str) -> str:
    return f"on {host}: agents plan apply {plan.plan_id}"
