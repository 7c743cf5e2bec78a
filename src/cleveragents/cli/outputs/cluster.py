"""What commands for many machines print."""

from typing import TypedDict

from cleveragents.cluster.queue import Count, HandedBack, Schedule, Worker
from cleveragents.cluster.status import Bucket, TakeOver


class Submitted(TypedDict):
    plan_id: str
    name: str
    queue: str
    priority: int
    not_before: str | None
    limit_key: str


class Scheduled(TypedDict):
    schedule: Schedule


class Unscheduled(TypedDict):
    unscheduled: str


class WorkerStopped(TypedDict):
    queues: list[str]
    at_once: int


class ClusterStatus(TypedDict):
    workers: list[Worker]
    queues: list[Count]
    schedules: list[Schedule]
    handed_back: list[HandedBack]
    take_overs: list[TakeOver]
    bucket: Bucket | None
