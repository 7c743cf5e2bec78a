"""What a queue has to do for us, whichever product it is.

It delivers the ids of plans, at least once and possibly twice at the same time, and never sees a
step: that a step is recorded once is the work of the lease. A new engine is one module that keeps
this protocol and passes `cleveragents.testing.queue_contract`.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

DEFAULT = "default"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is to be delivered."""

    queue: str = DEFAULT
    priority: int = 0
    """Higher first."""
    not_before: datetime | None = None
    limit_key: str = ""
    """Of the plans with one key only one runs at a time."""


class HandBack(msgspec.Struct, frozen=True):
    """This worker cannot run it now: deliver it again, to whoever asks next."""

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


Run = Callable[[str], Awaitable[HandBack | None]]
"""Run a plan to its end, wherever it stands; if cancelled, stop it and leave it resumable."""
Submit = Callable[[Schedule, int], Awaitable[HandBack | None]]
"""Submit a schedule's file for one of its moments, in seconds since 1970."""


class Queue(Protocol):
    def install(self) -> None:
        """Make what the engine keeps in the database; twice does nothing more."""
        ...

    def submit(self, plan_id: str, order: Order, connection: Any) -> None:
        """Deliver the plan once the caller's transaction on that connection is committed.

        Raises `NotAllowed` if it waits to be delivered already.
        """
        ...

    def cancel(self, plan_id: str) -> bool:
        """Deliver it no more, and cancel the `Run` of it; whether there was anything to cancel."""
        ...

    def work(self, run: Run, submit: Submit, *, queues: Sequence[str], at_once: int) -> None:
        """Take plans until SIGTERM or SIGINT; then those that run are waited for.

        A second signal cancels them. A worker that dies is noticed by the others within the
        time of a lease, and its plans are delivered again, before those that wait.
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
