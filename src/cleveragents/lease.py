"""Who may work on a plan: one process at a time, and a dead one never blocks.

In the same home a holder is alive if its pid exists with the start time it had; others have to be
heard of, by the database's clock (`Store.lease_time`). Every write carries the lease's
epoch, so a process that was paused while another took over cannot write any more.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.content.background import Background
from cleveragents.content.fsio import boot_id
from cleveragents.errors import LeaseLost, MachineError, NotAllowed, PlanBusy
from cleveragents.model.decision import Decision
from cleveragents.model.ids import new_id
from cleveragents.model.journal import EntryState, JournalEntry, Moment, Operation
from cleveragents.model.plan import Plan, Step
from cleveragents.model.plan_spec import PlanSpec
from cleveragents.store import Lease, Store
from cleveragents.store.leases import Raced


def spec_of(plan: Plan) -> PlanSpec:
    return codec.convert(plan.spec, PlanSpec)


class LeasedPlan:
    """A plan leased by this process: every commit checks the lease and updates `plan`."""

    def __init__(self, store: Store, plan: Plan, lease: Lease, now: Callable[[], str]) -> None:
        self.store = store
        self.plan: Plan = plan
        self.lease = lease
        self.now = now
        self._read: tuple[dict[str, Any], PlanSpec] | None = None
        self._background: tuple[str, Background[None]] | None = None
        self._unanswered: BaseException | None = None
        """What a commit ended with of which nobody knows whether the server has done it."""

    @property
    def spec(self) -> PlanSpec:
        """The plan file in force; a correction may change it."""
        if self._read is None or self._read[0] is not self.plan.spec:
            self._read = self.plan.spec, spec_of(self.plan)
        return self._read[1]

    def moment(self) -> Moment:
        """The plan's current moment, to return to."""
        return Moment(self.plan.head_group_id, self.plan.version)

    def opened(self, operation: Operation, **detail: Any) -> JournalEntry:
        """A new journal entry that starts here."""
        return JournalEntry(
            entry_id=new_id(),
            plan_id=self.plan.plan_id,
            operation=operation,
            state=EntryState.OPEN,
            before=self.moment(),
            detail=detail,
            started_at=self.now(),
        )

    def closed(
        self, entry: JournalEntry, state: EntryState = EntryState.DONE, **detail: Any
    ) -> JournalEntry:
        """The same entry, ended here; write it in the commit that ends it."""
        return msgspec.structs.replace(
            entry,
            state=state,
            after=self.moment(),
            detail={**entry.detail, **detail},
            ended_at=self.now(),
        )

    def end_operations(self) -> None:
        """End open operations at the plan's current moment."""
        if entries := self.store.journal.open_entries(self.plan.plan_id):
            with self.transaction():
                for entry in entries:
                    self.store.journal.put(self.closed(entry))

    def run_in_background(self, intent_id: str, work: Callable[[], None]) -> None:
        """Do `work` in the background; the next commit waits for it and removes the intent."""
        self._wait()
        self._background = intent_id, Background(work)

    def finish_background(self) -> None:
        """Wait for background work, and remove its intent."""
        if self._background is not None:
            with self.transaction():
                self._remove_intent()

    def _remove_intent(self) -> None:
        if (intent_id := self._wait()) is not None:
            self.store.intents.remove(intent_id)
            self._background = None

    def _wait(self) -> str | None:
        if self._background is None:
            return None
        self._background[1].wait()
        return self._background[0]

    @contextmanager
    def transaction(self, *, lasts: bool = True, by_write: bool = False) -> Generator[None]:
        """One commit under the lease; if it fails, `plan` is as before.

        `by_write`: it writes the plan before anything else, and the lease is checked with that.
        """
        before, behind = self.plan, self._background
        try:
            with self.store.transaction(self.lease, lasts=lasts, checks=not by_write):
                yield
                assert not by_write or self.plan is not before, "nothing checked the lease"
        except BaseException as error:
            self.plan, self._background = before, behind
            self.store.forget(before.plan_id)
            if isinstance(error, LeaseLost) and self._unanswered is not None:
                raise self._unanswered from error  # nobody took the plan: it was done
            is_known = not isinstance(error, MachineError | KeyboardInterrupt)
            self._unanswered = None if is_known else error
            raise

    def write(
        self,
        *,
        steps: tuple[Step, ...] = (),
        decisions: tuple[Decision, ...] = (),
        removed_steps: tuple[str, ...] = (),
        view_changed: bool = False,
        **fields: Any,
    ) -> None:
        """Write the plan's next version; call it inside `transaction()`."""
        plan = msgspec.structs.replace(self.plan, updated_at=self.now(), **fields)
        self.plan = self.store.plans.commit(
            plan,
            before=self.plan,
            steps=steps,
            decisions=decisions,
            removed_steps=removed_steps,
            view_changed=view_changed,
            new_source="spec" in fields,
            lease=self.lease,
        )
        self._remove_intent()

    def commit(
        self,
        *,
        steps: tuple[Step, ...] = (),
        decisions: tuple[Decision, ...] = (),
        removed_steps: tuple[str, ...] = (),
        view_changed: bool = False,
        **fields: Any,
    ) -> None:
        """The same as a transaction of its own."""
        with self.transaction(by_write=True):
            self.write(
                steps=steps,
                decisions=decisions,
                removed_steps=removed_steps,
                view_changed=view_changed,
                **fields,
            )


RECOVERY = "recovery"


EVENT = "event of "
"""Prefix of the verb of a process recording an agent's event while no call is open."""


AT_WORK = " is running "
"""Between agent and tool in the verb of a process holding a plan for an open call."""
WAIT_SECONDS = 0.05

DUE = 2 / 3
"""Fraction of the lease time after which a holder has missed a heartbeat."""

_released: set[tuple[str, int]] = set()
"""Plan and epoch of leases that this process released, or never learned that it got, while the
store could not be written."""


def host_name() -> str:
    return os.uname().nodename


def start_time(pid: int) -> str | None:
    """A process's start time, in the kernel's ticks; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as found:
            fields = found.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def is_here(store: Store, lease: Lease) -> bool:
    """Whether the lease belongs to a process of this home on this machine.

    Another home may belong to a container with the same host name and other processes.
    """
    return lease.host == host_name() and lease.home in ("", store.home_id)


def _is_ours(lease: Lease) -> bool:
    """Whether it is of this process."""
    return (lease.host, lease.boot_id, lease.pid) == (host_name(), boot_id(), os.getpid())


def is_alive(store: Store, lease: Lease) -> bool:
    if not lease.held:
        return False
    if (lease.plan_id, lease.epoch) in _released and _is_ours(lease):
        return False
    if not is_here(store, lease):
        # A clock set back must not let a dead host hold the plan until it has caught up.
        return abs(store.leases.silence(lease)) < store.lease_time
    return lease.boot_id == boot_id() and start_time(lease.pid) == lease.started


@contextmanager
def hold(
    store: Store, plan_id: str, verb: str, now: Callable[[], str], patient: bool = False
) -> Generator[Lease]:
    """Hold a plan for the time of the block, or raise `PlanBusy` naming who does.

    A process recording an agent's event is waited for. `patient`: wait also for one that does the
    same, or finishes what a dead process left.
    """
    lease = _acquire_in_turn(store, plan_id, verb, now, (verb, RECOVERY) if patient else ())
    try:
        yield lease
    finally:
        try:
            _release(store, lease)
        except BaseException:
            # Else this living process would lock itself out until it ends.
            _released.add((lease.plan_id, lease.epoch))
            raise


@contextmanager
def working_on(
    store: Store,
    plan_id: str,
    verb: str,
    now: Callable[[], str],
    *,
    whatever_waits: bool = False,
    patient: bool = False,
) -> Generator[LeasedPlan]:
    """Lease a plan to work on it, finishing an interrupted operation first."""
    with hold(store, plan_id, verb, now, patient) as lease:
        waiting = [
            intent
            for intent in store.intents.of_plan(plan_id)
            if not intent.is_done and not (whatever_waits and intent.kind == "restore")
        ]
        # Read under the lease: until then recovery may be finishing it.
        if waiting:
            raise NotAllowed(
                f"plan {plan_id} has an interrupted {waiting[0].kind} that could not be finished",
                "agents plan list shows why; a rollback to another checkpoint replaces a restore",
            )
        leased = LeasedPlan(store, store.plans.get(plan_id), lease, now)
        try:
            yield leased
        finally:
            leased.finish_background()


def _acquire_in_turn(
    store: Store, plan_id: str, verb: str, now: Callable[[], str], awaited: tuple[str, ...]
) -> Lease:
    while True:
        try:
            return _acquire(store, plan_id, verb, now)
        except PlanBusy:
            known = holder(store, plan_id)
            if known is not None and not (known.verb.startswith(EVENT) or known.verb in awaited):
                raise
        time.sleep(WAIT_SECONDS)


def _acquire(store: Store, plan_id: str, verb: str, clock: Callable[[], str]) -> Lease:
    while True:
        known = store.leases.get(plan_id)
        if known is not None and is_alive(store, known):
            if AT_WORK in known.verb:
                # Its process only follows the agent: to end that one would end no call.
                raise PlanBusy(
                    f"plan {plan_id}: {known.verb}",
                    "wait until it has ended, or interrupt the agent",
                )
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
            renewed_at=clock(),
            home=store.home_id,
        )
        try:
            # A power cut ends every process that a lease could be of, but where others have the
            # database: a restarted server had forgotten who held a plan, and refused its holder.
            with store.transaction(lasts=store.is_shared, alone=False):
                store.leases.take(lease, known)
        except Raced:
            # Another process took it between our read and our commit: check whether it lives.
            continue
        except BaseException:
            _released.add((lease.plan_id, lease.epoch))  # the server may have it
            raise
        store.taken(lease)
        return lease


def _release(store: Store, lease: Lease) -> None:
    with store.transaction(lasts=store.is_shared, alone=False):
        store.leases.release(lease)


def await_sign_of_life(store: Store, plan_id: str) -> None:
    """Wait for an overdue holder elsewhere: it sends a heartbeat, or soon counts as dead."""
    while (known := holder(store, plan_id)) is not None and not is_here(store, known):
        if store.leases.silence(known) < DUE * store.lease_time:
            return
        time.sleep(WAIT_SECONDS)


def is_left_behind(store: Store, plan_id: str) -> bool:
    """Whether another machine had the plan last and died before finishing."""
    known = store.leases.get(plan_id)
    return (
        known is not None
        and not is_here(store, known)
        and not is_alive(store, known)
        and bool(store.unfinished(plan_id=plan_id))
    )


def holder(store: Store, plan_id: str) -> Lease | None:
    """The live process that holds a plan, if any."""
    known = store.leases.get(plan_id)
    return known if known is not None and is_alive(store, known) else None
