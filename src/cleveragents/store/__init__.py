"""The store: one database, SQLite or PostgreSQL, behind one repository per noun."""

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from cleveragents import machine
from cleveragents.content import fsio, removal
from cleveragents.content.bucket.home import home_id
from cleveragents.content.reserve import LOW, SIZE, Reserve
from cleveragents.errors import DiskFull, ReadOnlyStore, StoreElsewhere, StoreError
from cleveragents.model.ids import new_id
from cleveragents.store.checkpoints import CheckpointRepository
from cleveragents.store.database import Database, SqliteDatabase, connect
from cleveragents.store.effects import EffectRepository
from cleveragents.store.identity import Identity
from cleveragents.store.leases import Lease, LeaseRepository
from cleveragents.store.objects import ObjectRepository
from cleveragents.store.own import NAMES as OWN_NAMES
from cleveragents.store.own import OwnPart
from cleveragents.store.plans import PlanRepository, Source, Standing, View
from cleveragents.store.records import (
    CallRepository,
    CorrectionRepository,
    Intent,
    IntentRepository,
    JournalRepository,
    ResourceRepository,
    SessionRepository,
)
from cleveragents.store.segments import Behind, SegmentRepository
from cleveragents.store.tables import ALL

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = [
    "Behind",
    "CheckpointRepository",
    "Identity",
    "Intent",
    "Lease",
    "Source",
    "Standing",
    "Store",
    "View",
    "open_store",
]


ELSEWHERE = 600.0
"""Seconds that a lease of another machine counts where nobody renews it but the commits."""


class Store:
    """The repositories of one store; every write happens inside `transaction`."""

    def __init__(
        self,
        db: Database,
        own: SqliteDatabase,
        reserve: Reserve,
        *,
        read_only: bool = False,
        lease_time: float = ELSEWHERE,
        shared_id: str = "",
    ) -> None:
        """`shared_id`: the id of a store shared by several machines."""
        self._db = db
        self._own = own
        self.is_shared: bool = db is not own
        """Whether other machines have it too: then `own` has only what is this machine's."""
        self.read_only = read_only
        self.reserve = reserve
        self.lease_time = lease_time
        """Seconds after which a machine that was not heard of has lost its plans."""
        self._home = os.path.realpath(os.path.dirname(own.path))
        self.home_id: str = home_id(self._home) if self.is_shared else ""
        """Which of the homes that share the store this is; empty: there is only one."""
        self._part = OwnPart(own, self._make_room)
        self.on_taken: list[Callable[[Lease], None]] = []
        """Called with every lease that this process gets."""
        self._shared_id = shared_id
        self._heard_at = ""
        """The address at which this process says that it is alive."""
        self.identity: Identity = self._identity()
        self._guarded = self.identity.is_elsewhere
        self.plans: PlanRepository = PlanRepository(db)
        self.resources: ResourceRepository = ResourceRepository(db)
        self.checkpoints: CheckpointRepository = CheckpointRepository(db)
        self.calls: CallRepository = CallRepository(db)
        self.corrections: CorrectionRepository = CorrectionRepository(db)
        self.effects: EffectRepository = EffectRepository(db)
        self.journal: JournalRepository = JournalRepository(db)
        self.intents: IntentRepository = IntentRepository(db)
        self.leases: LeaseRepository = LeaseRepository(db)
        self.objects: ObjectRepository = ObjectRepository(
            own, self._begin_part if self.is_shared else _nothing
        )
        self.segments: SegmentRepository = SegmentRepository(db)
        self.sessions: SessionRepository = SessionRepository(db)

    def _begin_part(self) -> None:
        self._db.hurry()
        self._part.begin()

    def _make_room(self) -> None:
        self.reserve.release_below(SIZE)

    @contextmanager
    def transaction(
        self,
        lease: Lease | None = None,
        *,
        lasts: bool = True,
        alone: bool = True,
        checks: bool = True,
    ) -> Generator[None]:
        """One commit. With a lease the commit happens only if the lease is still ours.

        `lasts=False`: it need not survive a power cut. It is not waited for, but comes before every
        later commit that is. Without a lease transactions run one at a time, so that what they read
        stays true; `alone=False` if a row ensures that. `checks=False`: the lease is checked by the
        first write, the plan's next version.

        Writes for a plan go through `LeasedPlan.transaction`, which also undoes changes in memory;
        without a lease: leases, and work on the whole store.
        """
        self._require_writable()
        with self._commit(lasts, alone and lease is None):
            if lease is not None and checks:
                self.leases.check(lease)
            yield
            if lease is None:
                self._require_not_copied()
            elif not checks:
                self.leases.renew_if_due(lease)

    def _require_not_copied(self) -> None:
        """At the end of a transaction: what it writes is not left behind by a copy of all plans.

        A lease proves it by itself: nothing is copied while somebody has one.
        """
        self._db.require(
            "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM store WHERE name = ?)",
            ("moved" if self.is_shared else "url",),
            StoreError(
                f"the plans of {self._db.shown} were copied to another place meanwhile",
                "agents store status shows where they are; begin again",
            ),
        )

    def _require_writable(self) -> None:
        if self._guarded:
            raise StoreElsewhere(self.identity.message, self.identity.hint)
        self.reserve.release_below(LOW)

    def _commit(self, lasts: bool = True, alone: bool = True) -> AbstractContextManager[None]:
        rows = self._db.one_commit(lasts=lasts, alone=alone, make_room=self._make_room)
        return self._both(rows) if self.is_shared else rows

    @contextmanager
    def _both(self, rows: AbstractContextManager[None]) -> Generator[None]:
        with self._part.lock(), rows, self._part.commit():
            yield

    @contextmanager
    def content_transaction(self, *, exclusive: bool = False) -> Generator[None]:
        """One commit of this machine's own rows: locations of content, clocks.

        `exclusive`: no checkpoint is between finding content and the commit that needs it.
        """
        self._require_writable()
        with self._part.collecting(exclusive) if self.is_shared else self._commit():
            yield

    def _identity(self) -> Identity:
        asked = "SELECT name, value FROM store WHERE name IN ('id', 'home', 'url')"
        noted = dict(self._own.execute(asked).fetchall())
        store_id = self._shared_id or noted.get("id") or new_id()
        if not self.is_shared and "url" in noted:
            raise StoreError(
                f"the plans of the store at {self._home} are in {noted['url']}",
                f"agents config set store.url {noted['url']}, or agents store copy --back",
            )
        places = {"home": self._home, "made_at": noted.get("home", "")}
        return Identity(store_id=store_id, is_shared=self.is_shared, **places)

    @contextmanager
    def unguarded(self) -> Generator[None]:
        """One commit, even of a moved store; only for adopting it here."""
        with self._commit():
            self.identity = msgspec.structs.replace(
                self._identity(), store_id=self.noted("id") or self.identity.store_id
            )
            yield

    def claim(self) -> None:
        """Record the store's current place; call it inside `unguarded`."""
        self.note("id", self.identity.store_id)
        self.note("home", self._home)
        if self.is_shared:
            self.note("url", self._db.shown)
        self.identity = msgspec.structs.replace(self.identity, made_at=self._home)
        self._guarded = False

    @property
    def shown(self) -> str:
        """The location of the rows, for people."""
        return self._db.shown

    def unfinished(self, host: str | None = None, plan_id: str | None = None) -> list[str]:
        """Plans with unfinished work, parents first.

        `host`: those last held by this home on the machine of that name. `plan_id`: only this one.
        """
        of_host, given = " WHERE 1 = 1", list[str]()
        if host:
            of_host = " JOIN leases l USING (plan_id) WHERE l.host = ? AND l.home IN ('', ?)"
            given += (host, self.home_id)
        of_plan = " AND plan_id = ?" if plan_id else ""
        given = [*given, *([plan_id] if plan_id else ())] * 4
        rows = self._db.execute(
            "SELECT plan_id FROM plans WHERE plan_id IN ("
            f"SELECT plan_id FROM intents{of_host}{of_plan}"
            f" UNION SELECT plan_id FROM effects e{of_host}{of_plan} AND e.state = 'compensating'"
            f" UNION SELECT plan_id FROM plans p{of_host}{of_plan} AND p.state = 'processing'"
            f" UNION SELECT plan_id FROM leases h{of_host}{of_plan} AND h.held = 1"
            ") ORDER BY seq",
            given,
        )
        return [row[0] for row in rows]

    @property
    def connection(self) -> "Connection[Any]":
        """The connection of a shared store; writes with it in a transaction join its commit."""
        from cleveragents.store.postgres import PostgresDatabase

        assert isinstance(self._db, PostgresDatabase)
        return self._db.connection

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Around repeated queries without writes: see `ReadAhead`."""
        return self._db.reading(name)

    def order_of(self, plan_id: str) -> dict[str, int]:
        """Id -> number of a plan's decisions, groups and calls."""
        found = self._db.execute(
            "SELECT decision_id, seq FROM decisions WHERE plan_id = ?"
            " UNION ALL SELECT group_id, seq FROM checkpoint_groups WHERE plan_id = ?"
            " UNION ALL SELECT call_id, seq FROM tool_calls WHERE plan_id = ?",
            (plan_id,) * 3,
        )
        return dict(found.fetchall())

    def noted(self, name: str) -> str | None:
        """A noted fact about the store itself, or this machine's part of it."""
        db = self._own if name in OWN_NAMES else self._db
        row = db.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def note(self, name: str, value: str) -> None:
        db: Database = self._db
        if self.is_shared and name in OWN_NAMES:
            self._begin_part()
            db = self._own
        db.execute(
            "INSERT INTO store (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def integrity(self) -> list[str]:
        """Problems found by the databases themselves; empty if none."""
        shared = self._db.integrity() if self.is_shared else ()
        return [*self._own.integrity(), *shared, *self._unreadable()]

    def _unreadable(self) -> list[str]:
        return [text for table in ALL for text in table.unreadable(self._db)]

    def broken_rows(self) -> list[str]:
        """Rows that are unreadable, or refer to missing ones."""
        return [*self._own.orphans(), *self._unreadable()]

    def recover_packs(self) -> None:
        """After a power cut: find records in packs after their known ends.

        A commit of a shared store does not wait for this machine's own part to reach the disk.
        """
        if self._guarded or self.noted("boot") == fsio.boot_id():
            return
        from cleveragents.content.pack_file import records_after_all

        with self.content_transaction(exclusive=True):
            self.objects.add(records_after_all(f"{self._home}/content", self.objects.ends()))
            self.note("boot", fsio.boot_id())

    def compact(self) -> None:
        """Give the file's unused pages back to the disk, if they are most of it."""
        self._own.compact(self.reserve.room())

    def forget(self, plan_id: str) -> None:
        """Drop cached rows of a plan."""
        self.plans.forget(plan_id)
        self.checkpoints.forget(plan_id)

    def taken(self, lease: Lease) -> None:
        """This process has leased a plan: send a heartbeat until the store is closed."""
        self.forget(lease.plan_id)
        for told in self.on_taken:
            told(lease)
        if self._heard_at or not self._db.url:
            return  # on one machine processes can be checked directly
        from cleveragents.store import heartbeat

        self._heard_at = self._db.url
        heartbeat.begin(self._heard_at, lease, self.lease_time / 3)

    def close(self) -> None:
        if self._heard_at:
            from cleveragents.store import heartbeat

            heartbeat.end(self._heard_at)
            self._heard_at = ""
        self._db.close()
        self._own.close()
        if self.read_only:
            return
        self.reserve.refill()
        self.reserve.renew()


def _nothing() -> None: ...


def open_store(home: str, url: str = "", lease_time: float = 10.0, *, lasts: bool = True) -> Store:
    """Open the store in that directory, made if missing; with a URL, the shared one.

    `lasts`: whether most of its commits must survive a power cut; only the server is told.
    """
    path = f"{home}/store.db"
    # Also for root: the owner could not change files that root writes there.
    own = "run it as that user, or name a store of your own with CLEVERAGENTS_HOME"
    fsio.require_own(home, path, f"{home}/content", hint=own)
    try:
        fsio.make_private_dir(home)
        lost = not os.path.exists(path) or os.path.getsize(path) == 0
        if lost and os.path.isdir(f"{home}/content") and os.listdir(f"{home}/content"):
            raise StoreError(
                f"the store at {home} has content, but its database is gone or empty",
                f"restore {path} from a backup, or name another store with CLEVERAGENTS_HOME",
            )
    except OSError as error:
        refused = machine.of_os(error, f"the store cannot be made or read at {home}")
        refused.hint = f"{refused.hint}; or name another place with CLEVERAGENTS_HOME"
        raise refused from error
    reserve = Reserve(home)
    if _is_read_only(home, path):
        from cleveragents.store.read_only import connect_read_only

        if url:
            raise ReadOnlyStore(f"the home {home} cannot be written", "mount it writable")
        return Store(own := connect_read_only(path), own, reserve, read_only=True)
    reserve.release_below(LOW)
    reserve.renew()
    own = _connect(path, home)
    if not url:
        return Store(own, own, reserve)
    from cleveragents.store.postgres import open_shared

    try:
        db, store_id = open_shared(url, own, lasts)
    except BaseException:
        own.close()
        raise
    store = Store(db, own, reserve, lease_time=lease_time, shared_id=store_id)
    try:
        store.recover_packs()
    except BaseException:
        store.close()
        raise
    return store


def _is_read_only(home: str, path: str) -> bool:
    """Whether there is a store that can be read but not written."""
    writable = os.access(home, os.W_OK | os.X_OK) and os.access(path, os.W_OK)
    return not writable and os.access(path, os.R_OK)


def _connect(path: str, home: str) -> SqliteDatabase:
    try:
        return connect(path)
    except DiskFull:
        # The reserve is used up: remove caches first.
        removal.remove_tree(f"{home}/cache")
        return connect(path)
