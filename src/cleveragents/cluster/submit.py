"""Submits a plan to the workers, capturing its resources here, where they are."""

import time

from cleveragents.cluster.queue import Order, Queue, Worker
from cleveragents.context import Context
from cleveragents.errors import ConfigError, NotInBucket, StoreError
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.leasing import work_on
from cleveragents.lease import holder
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.settings import Settings

EXTRA = "pip install 'cleveragents[cluster]'"
LOOK_AGAIN = 0.25
"""Seconds between two looks at how far a worker is."""
STOPPED_WITHIN = 30.0
"""Seconds that a worker has to stop a plan; after them the caller gets that it is busy."""


def queue_of(settings: Settings) -> Queue:
    """The queue of the shared store."""
    if not settings.store_url:
        raise ConfigError(
            "workers need a store that several machines share",
            "agents config set store.url postgresql://USER@HOST/DATABASE, then agents store init",
        )
    try:
        from cleveragents.cluster.procrastinate_queue import ProcrastinateQueue
    except ImportError as error:
        raise ConfigError(f"workers need {error.name}, which is missing", EXTRA) from None
    from cleveragents.store.postgres import SCHEMA

    return ProcrastinateQueue(settings.store_url, SCHEMA, settings.lease)


def install_queue(settings: Settings) -> str:
    """Make the queue beside the store's tables; what to say of it."""
    try:
        queue_of(settings).install()
    except ConfigError:
        return f"; for workers: {EXTRA}, then agents store init again"
    return ", its queue too"


def takers(queue: Queue, name: str, lease: float) -> list[Worker]:
    """The live workers that take from that queue."""
    return [worker for worker in queue.workers() if worker.seen < lease and worker.takes(name)]


def submit(ctx: Context, plan_id: str, queue: Queue, order: Order) -> None:
    """Make sandboxes and the first group; then the plan and its delivery are one commit."""
    with work_on(ctx, plan_id, "plan submit") as leased:
        require_not_final(leased.plan, "submitted")
        if leased.plan.head_group_id is None:
            executor = executor_for(ctx, leased)
            executor.strategize()
            executor.prepare()
        # A worker on another machine sees only what is in the bucket.
        ctx.checkpoints.finish_uploads(plan_id, lambda: None)
        if ctx.settings.content_url and ctx.store.segments.pending(plan_id):
            ctx.talk.tell("uploading", {})
        try:
            ctx.checkpoints.wait_until_uploaded(plan_id)
        except NotInBucket as error:
            again = f"when it answers: agents plan submit {plan_id}"
            raise NotInBucket(error.message, again) from None
        with leased.transaction():
            leased.write()
            queue.submit(plan_id, order, ctx.store.connection)


def withdraw(ctx: Context, plan_id: str) -> None:
    """Withdraw a plan and its children from the queue, and wait until no worker runs them."""
    if not ctx.store.is_shared:
        return
    try:
        withdrawn = queue_of(ctx.settings).cancel(plan_id)
    except (ConfigError, StoreError):
        return  # nobody can have submitted it
    until = time.monotonic() + STOPPED_WITHIN
    while withdrawn and holder(ctx.store, plan_id) and time.monotonic() < until:
        time.sleep(0.1)
    for child in ctx.store.plans.children(plan_id):
        withdraw(ctx, child.plan_id)
