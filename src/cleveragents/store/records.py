"""The smaller repositories: resources and sandboxes, tool calls, journal, intents, leases."""

import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

from cleveragents.errors import LeaseLost
from cleveragents.model.decision import Correction
from cleveragents.model.journal import EntryState, JournalEntry
from cleveragents.model.plan import Plan, State
from cleveragents.model.resource import Resource, SandboxRecord
from cleveragents.model.tool import ToolCall, Write
from cleveragents.store.tables import Table

RESOURCES = Table("resources", Resource, ("resource_id",))
SANDBOXES = Table("sandboxes", SandboxRecord, ("sandbox_id",))
CALLS = Table("tool_calls", ToolCall, ("call_id",))
WRITES = Table("writes", Write, ())
CORRECTIONS = Table("correction_attempts", Correction, ("correction_id",))
JOURNAL = Table("journal", JournalEntry, ("entry_id",))


class ResourceRepository:
    """Resources and the sandboxes made of them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, resources: Iterable[Resource]) -> None:
        self._db.executemany(RESOURCES.insert, [RESOURCES.row(item) for item in resources])

    def of_plan(self, plan_id: str) -> list[Resource]:
        return RESOURCES.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def put_sandbox(self, record: SandboxRecord) -> None:
        self._db.execute(SANDBOXES.upsert, SANDBOXES.row(record))

    def sandboxes(self, plan_id: str) -> list[SandboxRecord]:
        return SANDBOXES.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def move_sources(self, old: str, new: str) -> None:
        """What child plans are made of lies where the store is."""
        self._db.execute(
            "UPDATE resources SET source = ? || substr(source, ?) WHERE substr(source, 1, ?) = ?",
            (new, len(old) + 1, len(old) + 1, f"{old}/"),
        )

    def all_sandboxes(self) -> list[SandboxRecord]:
        return SANDBOXES.select(self._db, "ORDER BY seq")


class CallRepository:
    """Tool calls and what each of them wrote."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def put(self, call: ToolCall) -> None:
        self._db.execute(CALLS.upsert, CALLS.row(call))

    def of_plan(self, plan_id: str) -> list[ToolCall]:
        return CALLS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def interrupt(self, plan_id: str, now: str) -> None:
        """Calls that nobody waits for any more."""
        self._db.execute(
            "UPDATE tool_calls SET state = 'interrupted', ended_at = ?"
            " WHERE plan_id = ? AND state = 'running'",
            (now, plan_id),
        )

    def count(self, plan_id: str, after: int = 0) -> int:
        """How many there were; `after`: since the row of that number."""
        row = self._db.execute(
            "SELECT count(*) FROM tool_calls WHERE plan_id = ? AND seq > ?", (plan_id, after)
        )
        return row.fetchone()[0]

    def finished(self, plan_id: str, tail: int) -> dict[str, tuple[str, str]]:
        """Step -> when its last good call ended, and the last `tail` characters of the output."""
        rows = self._db.execute(
            "SELECT step_id, ended_at, substr(output, ?) FROM tool_calls"
            " WHERE plan_id = ? AND state = 'ok' ORDER BY seq",
            (-tail, plan_id),
        )
        return {step_id: (ended, output) for step_id, ended, output in rows}

    def last_good(self, plan_id: str) -> dict[str, int]:
        """Step -> the number of its last good call."""
        rows = self._db.execute(
            "SELECT step_id, max(seq) FROM tool_calls WHERE plan_id = ? AND state = 'ok'"
            " GROUP BY step_id",
            (plan_id,),
        )
        return dict(rows.fetchall())

    def step_ids(self, plan_id: str) -> list[str]:
        """Every step that was ever called, also those that are no longer part of the plan."""
        rows = self._db.execute(
            "SELECT DISTINCT step_id FROM tool_calls WHERE plan_id = ?", (plan_id,)
        )
        return [row[0] for row in rows]

    def add_writes(self, writes: Iterable[Write]) -> None:
        self._db.executemany(WRITES.insert, [WRITES.row(item) for item in writes])

    def writes_by_decision(self, plan_id: str) -> list[tuple[str | None, Write]]:
        """Every write with the decision that its call hung on, oldest first."""
        rows = self._db.execute(
            f"SELECT c.decision_id, {', '.join(f'w.{name}' for name in WRITES.columns)}"
            " FROM writes w JOIN tool_calls c USING (call_id) WHERE w.plan_id = ?"
            " ORDER BY c.seq",
            (plan_id,),
        )
        return [(row[0], WRITES.value(row[1:])) for row in rows]

    def writes(self, plan_id: str) -> list[Write]:
        return WRITES.select(self._db, "WHERE plan_id = ? ORDER BY path", (plan_id,))


class CorrectionRepository:
    """The rows of `correction_attempts`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def put(self, correction: Correction) -> None:
        self._db.execute(CORRECTIONS.upsert, CORRECTIONS.row(correction))

    def of_plan(self, plan_id: str) -> list[Correction]:
        """Oldest first."""
        return CORRECTIONS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def restored(self, correction_id: str) -> None:
        """Its files are back, its steps still have to run."""
        self._db.execute(
            "UPDATE correction_attempts SET state = 'restored' WHERE correction_id = ?",
            (correction_id,),
        )

    def end(self, plan: Plan, now: str) -> None:
        """The newest correction of a plan that stopped: done, or errored until it is resumed."""
        self._db.execute(
            "UPDATE correction_attempts SET state = ?, after_group_id = ?, ended_at = ?"
            " WHERE state IN ('restored', 'errored') AND seq ="
            " (SELECT max(seq) FROM correction_attempts WHERE plan_id = ?)",
            (
                "complete" if plan.state is State.COMPLETE else "errored",
                plan.head_group_id,
                now,
                plan.plan_id,
            ),
        )


class JournalRepository:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def put(self, entry: JournalEntry) -> None:
        self._db.execute(JOURNAL.upsert, JOURNAL.row(entry))

    def of_plan(self, plan_id: str) -> list[JournalEntry]:
        """Oldest first."""
        return JOURNAL.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def last(self, plan_id: str, count: int) -> list[JournalEntry]:
        """The newest `count`, oldest first."""
        found = JOURNAL.select(
            self._db, "WHERE plan_id = ? ORDER BY seq DESC LIMIT ?", (plan_id, count)
        )
        return found[::-1]

    def number(self, plan_id: str, operation: str) -> int:
        """Of the plan's last operation of that kind: it tells which of two plans came later."""
        row = self._db.execute(
            "SELECT coalesce(max(seq), 0) FROM journal WHERE plan_id = ? AND operation = ?",
            (plan_id, operation),
        )
        return row.fetchone()[0]

    def open_entries(self, plan_id: str) -> list[JournalEntry]:
        return JOURNAL.select(
            self._db, "WHERE plan_id = ? AND state = ?", (plan_id, EntryState.OPEN.value)
        )


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to happen to things outside the database, written before it does."""

    intent_id: str
    plan_id: str
    kind: str
    state: str
    body: dict[str, Any]
    created_at: str

    @property
    def is_done(self) -> bool:
        """A restore that is committed and perhaps not yet on disk."""
        return self.kind == "restore" and self.state == "committed"


INTENTS = Table("intents", Intent, ("intent_id",))


class IntentRepository:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def put(self, intent: Intent) -> None:
        self._db.execute(INTENTS.upsert, INTENTS.row(intent))

    def done(self, intent_id: str, body: dict[str, Any]) -> None:
        """What it was about has happened; it stays until that is known to be on disk."""
        self._db.execute(
            "UPDATE intents SET state = 'committed', body = ? WHERE intent_id = ?",
            (msgspec.json.encode(body).decode(), intent_id),
        )

    def replace(self, intent: Intent) -> None:
        """Put it down in place of any restore of the same plan that still waits."""
        self._db.execute(
            "DELETE FROM intents WHERE plan_id = ? AND kind = 'restore'", (intent.plan_id,)
        )
        self.put(intent)

    def all(self) -> list[Intent]:
        return INTENTS.select(self._db, "ORDER BY seq")

    def remove(self, intent_id: str) -> None:
        self._db.execute("DELETE FROM intents WHERE intent_id = ?", (intent_id,))


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


LEASES = Table("leases", Lease, ("plan_id",))


class LeaseRepository:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def get(self, plan_id: str) -> Lease | None:
        found = LEASES.select(self._db, "WHERE plan_id = ?", (plan_id,))
        return found[0] if found else None

    def held(self) -> list[str]:
        """Plans that some process took and did not give back."""
        rows = self._db.execute("SELECT plan_id FROM leases WHERE held")
        return [row[0] for row in rows]

    def put(self, lease: Lease) -> None:
        self._db.execute(LEASES.upsert, LEASES.row(lease))

    def check(self, lease: Lease) -> None:
        row = self._db.execute(
            "SELECT epoch FROM leases WHERE plan_id = ? AND held", (lease.plan_id,)
        ).fetchone()
        if row != (lease.epoch,):
            raise LeaseLost(
                f"plan {lease.plan_id} was taken over by another process",
                f"agents plan status {lease.plan_id}",
            )
