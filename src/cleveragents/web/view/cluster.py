"""The machines that share a store, in words."""

import msgspec

from cleveragents.cluster.status import ClusterStatus
from cleveragents.context import utc_now
from cleveragents.web.view.words import count
from cleveragents.workspace import Workspace


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    status: ClusterStatus
    names: dict[str, str]
    """Plan -> what it is called, for those that are mentioned."""
    title: str
    said: str
    at: str


def seen_of(ws: Workspace, now: ClusterStatus) -> Seen:
    ids = {plan for worker in now.workers for plan in worker.plans}
    ids |= {one.plan_id for one in (*now.handed_back, *now.take_overs)}
    ids |= {one.plan_id for one in (now.bucket.late if now.bucket else ())}
    names = {plan.plan_id: plan.name for plan in ws.plans() if plan.plan_id in ids}
    running = sum(queue.running for queue in now.queues)
    waiting = sum(queue.waiting for queue in now.queues)
    oldest = max((queue.oldest for queue in now.queues), default=0.0)
    return Seen(
        status=now,
        names=names,
        title=count(len(now.workers), "worker") if now.workers else "No worker is there",
        said=_summary(running, waiting, oldest, bool(now.workers)),
        at=utc_now(),
    )


def _summary(running: int, waiting: int, oldest: float, anybody: bool) -> str:
    runs = f"{count(running, 'plan')} {'runs' if running == 1 else 'run'}"
    if not waiting:
        return f"{runs}, none waits."
    told = f"{runs}, {waiting:,} {'waits' if waiting == 1 else 'wait'}"
    nobody = "" if anybody else " Nobody takes them: agents worker, on a machine of your choice."
    return f"{told}, the oldest for {seconds(oldest)}.{nobody}"


def seconds(number: float) -> str:
    """A length of time as people say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if number >= size:
            return f"{int(number // size):,} {unit}"
    return f"{number:.0f} s" if number >= 10 else f"{number:.1f} s"
