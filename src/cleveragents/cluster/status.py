"""The state of the machines that share a store, for the command and the page."""

import msgspec

from cleveragents.cluster.queue import Count, HandedBack, Schedule, Worker
from cleveragents.cluster.submit import queue_of
from cleveragents.context import Context
from cleveragents.model.journal import TAKEN_OVER_BY
from cleveragents.model.units import seconds_between

MOST_TAKE_OVERS = 20


class TakeOver(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a dead process, ended by the process that took the plan next."""

    plan_id: str
    operation: str
    by: str
    """The machine that took it."""
    began_at: str
    at: str


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of which something is not in the bucket yet."""

    plan_id: str
    groups: int
    seconds: float
    """Since the oldest of these groups was made."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    late: tuple[Late, ...]


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    workers: tuple[Worker, ...]
    queues: tuple[Count, ...]
    schedules: tuple[Schedule, ...]
    handed_back: tuple[HandedBack, ...]
    take_overs: tuple[TakeOver, ...]
    """The newest first."""
    bucket: Bucket | None
    """None: there is none."""


def cluster_status(ctx: Context) -> ClusterStatus:
    engine = queue_of(ctx.settings)
    return ClusterStatus(
        workers=tuple(engine.workers()),
        queues=tuple(engine.counts()),
        schedules=tuple(engine.schedules()),
        handed_back=tuple(engine.handed_back()),
        take_overs=_take_overs(ctx),
        bucket=_bucket(ctx),
    )


def _take_overs(ctx: Context) -> tuple[TakeOver, ...]:
    found = [
        TakeOver(
            plan_id=entry.plan_id,
            operation=str(entry.operation),
            by=entry.detail[TAKEN_OVER_BY],
            began_at=entry.started_at,
            at=entry.ended_at or entry.started_at,
        )
        for entry in ctx.store.journal.interrupted()
        if TAKEN_OVER_BY in entry.detail
    ]
    return tuple(found[:MOST_TAKE_OVERS])


def _bucket(ctx: Context) -> Bucket | None:
    if not ctx.settings.content_url:
        return None
    late = [
        Late(
            plan_id=plan_id,
            groups=behind.groups,
            seconds=round(max(0.0, seconds_between(behind.since or ctx.now(), ctx.now())), 3),
        )
        for plan_id, behind in ctx.store.segments.all_behind()
    ]
    return Bucket(url=ctx.settings.content_url, late=tuple(late))
