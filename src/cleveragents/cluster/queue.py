"""The interface to a queue, whichever product it is.

It delivers the ids of plans, at least once and possibly twice at the same time, and never sees a
step: that a step is recorded once is the work of the lease. A new engine is one module that keeps
this protocol and passes `cleveragents.testing.queue_contract`.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

DEFAULT = "default"
OF_A_MACHINE = "@"
"""Begins the name of the queue that only workers on one machine take from."""
Options = tuple[str, ...]
"""Of `agents plan apply`."""


def own_queue(host: str) -> str:
    return f"{OF_A_MACHINE}{host}"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is to be delivered."""

    queue: str = DEFAULT
    priority: int = 0
    """Higher first."""
    not_before: datetime | None = None
    limit_key: str = ""
    """Of the plans with one key only one runs at a time."""


class HandBack(msgspec.Struct, frozen=True):
    """This worker cannot run the plan now: deliver it again, to the next that asks."""

    reason: str
    delay: float


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A plan file that is submitted again and again."""

    name: str
    cron: str
    file: str
    """Its path on the workers' machines."""
    order: Order = Order()


class HandedBack(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that a plan which still waits was handed back."""

    plan_id: str
    worker: str
    reason: str


class Count(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    waiting: int
    running: int
    later: int
    """Not before a moment that has not come."""
    oldest: float
    """Seconds for which the first of those that wait has been ready."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seen: float
    """Seconds since it was last heard of."""
    plans: tuple[str, ...]
    at_once: int
    """How many plans it takes; none when it was told to stop."""
    queues: tuple[str, ...]
    """Those it takes from beside its machine's own; none: every one."""

    @property
    def host(self) -> str:
        return self.name.rpartition(":")[0]

    def takes(self, queue: str) -> bool:
        """Whether a plan in that queue can be given to it, now or later."""
        if queue.startswith(OF_A_MACHINE):
            return self.at_once > 0 and queue == own_queue(self.host)
        return self.at_once > 0 and (not self.queues or queue in self.queues)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is to be delivered, or was and has not ended."""

    queue: str
    priority: int
    running: bool
    handed_back: str
    """Why it was last handed back; empty: it was not."""


Run = Callable[[str, Options | None], Awaitable[HandBack | None]]
"""Run a plan to its end, wherever it stands; if cancelled, stop it and leave it resumable.

With options: apply it.
"""
Submit = Callable[[Schedule, int], Awaitable[HandBack | None]]
"""Submit a schedule's file for one of its moments, in seconds since 1970."""
Told = Callable[[str], None]
"""Prints a line at the worker's terminal."""


class Queue(Protocol):
    def install(self) -> None:
        """Make what the engine keeps in the database; twice does nothing more."""
        ...

    def submit(
        self, plan_id: str, order: Order, connection: Any, apply: Options | None = None
    ) -> None:
        """Deliver the plan once the caller's transaction on that connection is committed.

        Raises `NotAllowed` if it waits to be delivered already. `apply` goes to `Run`.
        """
        ...

    def job(self, plan_id: str) -> Job | None:
        """How far its delivery is; None: it was never submitted, has ended or was cancelled."""
        ...

    def cancel(self, plan_id: str, *, waiting_only: bool = False) -> bool:
        """Stop delivering the plan, and cancel its `Run`; returns whether there was anything.

        `waiting_only`: leave it alone if a worker has it.
        """
        ...

    def work(
        self, run: Run, submit: Submit, tell: Told, *, queues: Sequence[str], at_once: int
    ) -> None:
        """Take plans until SIGTERM or SIGINT; then those that run are waited for.

        A queue that begins with `@` is for the workers on the machine of that name, whatever
        `queues` says; no queue named means every other one.
        A second signal cancels them. A worker that dies is noticed by the others within the
        time of a lease, and its plans are delivered again, before those that wait. Where the
        engine is away the worker says so, waits and goes on; what can never work is raised.
        """
        ...

    def schedule(self, schedule: Schedule) -> None:
        """Submit a file at these times; one of that name is replaced."""
        ...

    def unschedule(self, name: str) -> bool: ...

    def schedules(self) -> list[Schedule]: ...

    def counts(self) -> list[Count]: ...

    def workers(self) -> list[Worker]: ...

    def handed_back(self) -> list[HandedBack]: ...
