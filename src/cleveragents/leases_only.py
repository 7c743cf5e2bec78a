"""Who may work on a plan: one process at a time, and a dead one never blocks.

On the same machine a holder is alive if its pid exists with the start time it had; only for other
machines does a time limit count. Every write carries the lease's epoch, so a process that was
paused while another took over cannot write any more.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from cleveragents.content.fsio import boot_id
from cleveragents.errors import NotAllowed, PlanBusy
from cleveragents.lease import Session
from cleveragents.store import Lease, Store

ELSEWHERE = timedelta(minutes=10)
RECOVERY = "recovery"
WAIT_SECONDS = 0.05


def host_name() -> str:
    return os.uname().nodename


def uptime() -> float | None:
    """Seconds since the machine was started, by a clock that nobody sets."""
    try:
        with open("/proc/uptime", "rb") as found:
            return float(found.read().split()[0])
    except OSError:
        return None


def start_time(pid: int) -> str | None:
    """When a process started, in the kernel's own ticks; None if it is not there or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as found:
            fields = found.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def is_alive(lease: Lease, now: str) -> bool:
    if not lease.held:
        return False
    if lease.host != host_name():
        age = datetime.fromisoformat(now) - datetime.fromisoformat(lease.renewed_at)
        # A clock that was set back must not let a dead host hold the plan until it has caught up.
        return abs(age) < ELSEWHERE
    return lease.boot_id == boot_id() and start_time(lease.pid) == lease.started


@contextmanager
def hold(
    store: Store, plan_id: str, verb: str, now: Callable[[], str], patient: bool = False
) -> Generator[Lease]:
    """Hold a plan for the time of the block, or raise `PlanBusy` naming who does.

    `patient`: wait for whoever does the same, or finishes what a dead process left.
    """
    acquire = _wait_for if patient else _acquire
    lease = acquire(store, plan_id, verb, now)
    try:
        yield lease
    finally:
        _release(store, lease)


@contextmanager
def working_on(
    store: Store,
    plan_id: str,
    verb: str,
    now: Callable[[], str],
    *,
    whatever_waits: bool = False,
    patient: bool = False,
) -> Generator[Session]:
    """Hold a plan and work on it; an operation that could not be finished comes first."""
    with hold(store, plan_id, verb, now, patient) as lease:
        waiting = [
            intent
            for intent in store.intents.all()
            if intent.plan_id == plan_id
            and not intent.is_done
            and not (whatever_waits and intent.kind == "restore")
        ]
        if waiting:
            raise NotAllowed(
                f"plan {plan_id} has an interrupted {waiting[0].kind} that could not be finished",
                "agents plan list tells why; a rollback to another checkpoint replaces a restore",
            )
        session = Session(store, store.plans.get(plan_id), lease, now)
        try:
            yield session
        finally:
            session.settle()


def _wait_for(store: Store, plan_id: str, verb: str, now: Callable[[], str]) -> Lease:
    while True:
        try:
            return _acquire(store, plan_id, verb, now)
        except PlanBusy:
            known = holder(store, plan_id, now())
            if known is not None and known.verb not in (verb, RECOVERY):
                raise
        time.sleep(WAIT_SECONDS)


def _acquire(store: Store, plan_id: str, verb: str, clock: Callable[[], str]) -> Lease:
    now = clock()
    with store.transaction():
        known = store.leases.get(plan_id)
        if known is not None and is_alive(known, now):
            raise PlanBusy(
                f"plan {plan_id} is held by `{known.verb}` (process {known.pid} on {known.host})",
                f"wait for it, or end it: kill {known.pid}",
            )
        lease = Lease(
            plan_id=plan_id,
            epoch=known.epoch + 1 if known else 1,
            host=host_name(),
            boot_id=boot_id(),
            pid=os.getpid(),
            started=start_time(os.getpid()) or "",
            verb=verb,
            held=True,
            renewed_at=now,
        )
        store.leases.put(lease)
    return lease


def _release(store: Store, lease: Lease) -> None:
    with store.transaction():
        known = store.leases.get(lease.plan_id)
        if known is not None and known.epoch == lease.epoch:
            store.leases.put(msgspec.structs.replace(known, held=False))


def holder(store: Store, plan_id: str, now: str) -> Lease | None:
    """The live process that holds a plan, if any."""
    known = store.leases.get(plan_id)
    return known if known is not None and is_alive(known, now) else None
