"""Leases of plans, and when each holder was last alive, by the database's own clock."""

import time

import msgspec

from cleveragents.errors import LeaseLost
from cleveragents.store.database import Database
from cleveragents.store.tables import Table

CLOCK = "((julianday('now') - 2440587.5) * 86400.0)"
"""Seconds since 1970 by the database's clock: machines need not agree on the time."""
QUIET = 60.0
"""Seconds after which a commit says again that its process is alive."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who may write a plan's state; the epoch is checked in every such transaction."""

    plan_id: str
    epoch: int
    host: str
    boot_id: str
    pid: int
    started: str
    verb: str
    held: bool
    renewed_at: str
    home: str = ""
    """The id of its home where several share a store; empty: there is one, or it was not noted."""
    heard_at: float = 0.0
    """By the database's clock, which also gives it."""


class Raced(Exception):
    """The lease was taken by another process or renewed since it was read."""


LEASES = Table("leases", Lease, ("plan_id",))
HELD = "SELECT 1 FROM leases WHERE plan_id = ? AND epoch = ? AND held = 1 /*pg FOR UPDATE */"
"""Plan and epoch of a lease: whether it is still ours, and it stays so until the commit."""
OWN = "host = ? AND boot_id = ? AND pid = ? AND started = ?"


def lost(plan_id: str) -> LeaseLost:
    return LeaseLost(
        f"plan {plan_id} was taken over by another process", f"agents plan status {plan_id}"
    )


class LeaseRepository:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._said: dict[str, float] = {}

    def get(self, plan_id: str) -> Lease | None:
        found = LEASES.select(self._db, "WHERE plan_id = ?", (plan_id,))
        return found[0] if found else None

    def holders(self) -> list[tuple[Lease, float]]:
        """Every held lease, and the seconds since its holder was last alive."""
        rows = self._db.execute(
            f"SELECT {CLOCK} - heard_at, {LEASES.selected} FROM leases WHERE held = 1"
            " ORDER BY plan_id"
        )
        return [(LEASES.value(row[1:]), row[0]) for row in rows]

    def take(self, lease: Lease, known: Lease | None) -> None:
        """Take over from `known`, read before; raises `Raced` if that has changed."""
        columns = ", ".join(LEASES.columns[:-1])
        marks = ", ".join("?" * (len(LEASES.columns) - 1))
        values = LEASES.row(lease)[:-1]
        self._said[lease.plan_id] = time.monotonic()
        if known is None:
            self._db.require(
                f"INSERT INTO leases ({columns}, heard_at) VALUES ({marks}, {CLOCK})"
                " ON CONFLICT (plan_id) DO NOTHING",
                values,
                Raced(),
            )
            return
        self._db.require(
            f"UPDATE leases SET ({columns}, heard_at) = ({marks}, {CLOCK})"
            " WHERE plan_id = ? AND epoch = ? AND heard_at = ?",
            (*values, lease.plan_id, known.epoch, known.heard_at),
            Raced(),
        )

    def release(self, lease: Lease) -> None:
        self._db.execute(
            "UPDATE leases SET held = 0 WHERE plan_id = ? AND epoch = ?",
            (lease.plan_id, lease.epoch),
        )

    def silence(self, lease: Lease) -> float:
        """Seconds since its holder was last alive."""
        asked = f"SELECT {CLOCK} - heard_at FROM leases WHERE plan_id = ?"
        return self._db.execute(asked, (lease.plan_id,)).fetchone()[0]

    def check(self, lease: Lease) -> None:
        """In a transaction: ensure that the lease is ours until the commit."""
        self._db.require(HELD, (lease.plan_id, lease.epoch), lost(lease.plan_id))
        self.renew_if_due(lease)

    def renew_if_due(self, lease: Lease) -> None:
        """Renew in a commit, if the last time was long ago."""
        now = time.monotonic()
        if now - self._said.get(lease.plan_id, 0.0) > QUIET:
            self._said[lease.plan_id] = now
            self.renew(lease)

    def renew(self, lease: Lease) -> None:
        """Renew all leases of this lease's process."""
        self._db.execute(
            f"UPDATE leases SET heard_at = {CLOCK} WHERE plan_id IN (SELECT plan_id FROM leases"
            f" WHERE held = 1 AND {OWN} /*pg FOR UPDATE SKIP LOCKED */)",
            (lease.host, lease.boot_id, lease.pid, lease.started),
        )
