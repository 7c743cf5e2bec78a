"""Child plans of a plan that a worker runs: other workers with room take them.

Whoever waits for one holds its own plan. It takes a child back and runs it itself as soon as nobody
else would, so a single worker never waits for itself; what a dead worker had of it is continued.
"""

import time

import msgspec

from cleveragents.cluster.queue import Order, Queue
from cleveragents.cluster.submit import LOOK_AGAIN, queue_of, submit, takers, withdraw
from cleveragents.context import Context
from cleveragents.errors import ConfigError, NotInBucket, StoreError
from cleveragents.lease import holder
from cleveragents.model.plan import Plan, State


def handing_out(ctx: Context) -> Context:
    """The context, with child plans that may run on other workers."""
    return msgspec.structs.replace(ctx, execute_child=_execute)


def _execute(ctx: Context, plan_id: str) -> None:
    """By a worker that has room, else by this process; returns when the plan has ended."""
    child = ctx.store.plans.get(plan_id)
    try:
        queue = queue_of(ctx.settings)
        order = _order(ctx, queue, child)
        ended = order is not None and _ended_elsewhere(ctx, queue, child, order)
    except (ConfigError, StoreError, NotInBucket):
        ended = False  # there is no queue, or the content cannot be uploaded now
    if ended and ctx.store.plans.get(plan_id).state is State.ERRORED:
        return
    # Also what is complete: its sandboxes come here, and what the bucket lacks is done again.
    while holder(ctx.store, plan_id) is not None:
        ctx.stop()
        time.sleep(LOOK_AGAIN)
    ctx.execute(ctx, plan_id)


def _order(ctx: Context, queue: Queue, child: Plan) -> Order | None:
    """As the plan above it was submitted, but before what waits; None: no worker runs that."""
    if child.state is State.COMPLETE or not child.rollback_enabled:
        return None
    above = child
    while above.parent_plan_id is not None:
        job = queue.job(above.parent_plan_id)
        if job is not None and job.running:
            return Order(queue=job.queue, priority=job.priority + 1)
        above = ctx.store.plans.get(above.parent_plan_id)
    return None


def _ended_elsewhere(ctx: Context, queue: Queue, child: Plan, order: Order) -> bool:
    """Whether another worker ran it to its end; else it runs here."""
    plan_id = child.plan_id
    if queue.job(plan_id) is None:
        if not _has_room(ctx, queue, order):
            return False
        assert child.parent_plan_id is not None
        # Else a worker continuing the parent elsewhere would not know of this child.
        ctx.checkpoints.wait_until_uploaded(child.parent_plan_id)
        submit(ctx, plan_id, queue, order)
    try:
        while (job := queue.job(plan_id)) is not None:
            ctx.stop()
            is_left = not job.running and (job.handed_back or not _has_room(ctx, queue, order))
            if is_left and queue.cancel(plan_id, waiting_only=True):
                return False
            time.sleep(LOOK_AGAIN)
    except BaseException:
        withdraw(ctx, plan_id)
        raise
    return True


def _has_room(ctx: Context, queue: Queue, order: Order) -> bool:
    found = takers(queue, order.queue, ctx.settings.lease)
    return any(len(worker.plans) < worker.at_once for worker in found)
