"""What is remembered: one SQLite database behind one repository per noun."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from cleveragents import machine
from cleveragents.content import fsio, removal
from cleveragents.content.reserve import LOW, SIZE, Reserve
from cleveragents.errors import DiskFull, StoreElsewhere, StoreError
from cleveragents.model.ids import new_id
from cleveragents.store.checkpoints import CheckpointRepository
from cleveragents.store.database import connect, write_transaction
from cleveragents.store.effects import EffectRepository
from cleveragents.store.identity import Identity
from cleveragents.store.objects import ObjectRepository
from cleveragents.store.plans import PlanRepository, Source, Standing, View
from cleveragents.store.records import (
    CallRepository,
    CorrectionRepository,
    Intent,
    IntentRepository,
    JournalRepository,
    Lease,
    LeaseRepository,
    ResourceRepository,
)

__all__ = [
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


class Store:
    """The repositories of one store; every write happens inside `transaction`."""

    def __init__(
        self, db: sqlite3.Connection, path: str, reserve: Reserve, read_only: bool = False
    ) -> None:
        self._db = db
        self.read_only = read_only
        self._path = path
        self.reserve = reserve
        self._home = os.path.realpath(os.path.dirname(path))
        self.identity = self._identity()
        self._guarded = self.identity.is_elsewhere
        self.plans = PlanRepository(db)
        self.resources = ResourceRepository(db)
        self.checkpoints = CheckpointRepository(db)
        self.calls = CallRepository(db)
        self.corrections = CorrectionRepository(db)
        self.effects = EffectRepository(db)
        self.journal = JournalRepository(db)
        self.intents = IntentRepository(db)
        self.leases = LeaseRepository(db)
        self.objects = ObjectRepository(db)

    @contextmanager
    def transaction(self, lease: Lease | None = None) -> Generator[None]:
        """One commit. With a lease the commit happens only if it is still ours.

        What is written for a plan goes through `LeasedPlan.transaction`, which also undoes
        what was changed in memory; without a lease: leases, and work on the whole store.
        """
        if self._guarded:
            raise StoreElsewhere(self.identity.said, self.identity.hint)
        self.reserve.give_back_below(LOW)
        with write_transaction(self._db, self._path, lambda: self.reserve.give_back_below(SIZE)):
            if lease is not None:
                self.leases.check(lease)
            yield

    def _identity(self) -> Identity:
        noted = dict(self._db.execute("SELECT name, value FROM store WHERE name IN ('id', 'home')"))
        return Identity(
            store_id=noted.get("id") or new_id(), home=self._home, made_at=noted.get("home", "")
        )

    @contextmanager
    def unguarded(self) -> Generator[None]:
        """One commit, also of a store that is elsewhere; only for what makes it at home here."""
        with write_transaction(self._db):
            self.identity = msgspec.structs.replace(
                self._identity(), store_id=self.noted("id") or self.identity.store_id
            )
            yield

    def claim(self) -> None:
        """Note that the store is where it is; call it inside `unguarded`."""
        self.note("id", self.identity.store_id)
        self.note("home", self._home)
        self.identity = msgspec.structs.replace(self.identity, made_at=self._home)
        self._guarded = False

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
        """A fact about the store itself."""
        row = self._db.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def note(self, name: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO store (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong; empty if nothing."""
        found = [row[0] for row in self._db.execute("PRAGMA integrity_check")]
        broken = [
            f"row without its parent in {row[0]}"
            for row in self._db.execute("PRAGMA foreign_key_check")
        ]
        return [text for text in found if text != "ok"] + broken

    def compact(self) -> None:
        """Give the file's unused pages back to the disk, if they are most of it."""
        pages, free = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count")
        )
        if free <= 64 or free * 2 <= pages:
            return
        if self.reserve.room() < 2 * os.path.getsize(self._path):
            return  # it is written anew before the old one goes
        self._db.execute("VACUUM")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._db.close()
        if self.read_only:
            return
        self.reserve.take_again()
        self.reserve.renew()


def open_store(home: str) -> Store:
    """The store in that directory, made if it is not there."""
    path = f"{home}/store.db"
    # Also for root: what it would write there, its owner could not change any more.
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

        return Store(connect_read_only(path), path, reserve, read_only=True)
    reserve.give_back_below(LOW)
    reserve.renew()
    return Store(_connect(path, home), path, reserve)


def _is_read_only(home: str, path: str) -> bool:
    """Whether there is a store that can be read and not written."""
    writable = os.access(home, os.W_OK | os.X_OK) and os.access(path, os.W_OK)
    return not writable and os.access(path, os.R_OK)


def _connect(path: str, home: str) -> sqlite3.Connection:
    try:
        return connect(path)
    except DiskFull:
        # Somebody used the reserve up. What may be lost goes first.
        removal.remove_tree(f"{home}/cache")
        return connect(path)
