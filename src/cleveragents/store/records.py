"""The smaller repositories: resources, sandboxes, calls, journal, intents, agents' sessions."""

from collections.abc import Iterable
from typing import Any

import msgspec

from cleveragents.model.conversation import Session
from cleveragents.model.decision import Correction
from cleveragents.model.journal import EntryState, JournalEntry
from cleveragents.model.plan import Plan, State
from cleveragents.model.resource import IN_PLACE, Resource, SandboxRecord
from cleveragents.model.tool import ToolCall, Write
from cleveragents.store.database import Database
from cleveragents.store.tables import Table

RESOURCES = Table("resources", Resource, ("resource_id",))
SANDBOXES = Table("sandboxes", SandboxRecord, ("sandbox_id",))
CALLS = Table("tool_calls", ToolCall, ("call_id",))
WRITES = Table("writes", Write, ())
CORRECTIONS = Table("correction_attempts", Correction, ("correction_id",))
JOURNAL = Table("journal", JournalEntry, ("entry_id",))
SESSIONS = Table("sessions", Session, ("agent", "session_id"))


class ResourceRepository:
    """Resources and the sandboxes made of them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, resources: Iterable[Resource]) -> None:
        self._db.executemany(RESOURCES.insert, [RESOURCES.row(item) for item in resources])

    def of_plan(self, plan_id: str) -> list[Resource]:
        return RESOURCES.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def get(self, resource_id: str) -> Resource:
        return RESOURCES.select(self._db, "WHERE resource_id = ?", (resource_id,))[0]

    def put_sandbox(self, record: SandboxRecord) -> None:
        self._db.execute(SANDBOXES.upsert, SANDBOXES.row(record))

    def sandboxes(self, plan_id: str) -> list[SandboxRecord]:
        return SANDBOXES.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def move_sources(self, old: str, new: str) -> None:
        """Update the sources of child plans after the store has moved."""
        self._db.execute(
            "UPDATE resources SET source = CAST(? AS TEXT) || substr(source, ?)"
            " WHERE substr(source, 1, ?) = ?",
            (new, len(old) + 1, len(old) + 1, f"{old}/"),
        )

    def move_source(self, old: str, new: str) -> None:
        """Update the sources of child plans after a parent's sandbox was made elsewhere."""
        self._db.execute("UPDATE resources SET source = ? WHERE source = ?", (new, old))

    def all_sandboxes(self) -> list[SandboxRecord]:
        return SANDBOXES.select(self._db, "ORDER BY seq")


class CallRepository:
    """Tool calls and what each of them wrote."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, call: ToolCall) -> None:
        self._db.execute(CALLS.upsert, CALLS.row(call))

    def of_plan(self, plan_id: str) -> list[ToolCall]:
        return CALLS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def without_output(self, plan_id: str) -> list[ToolCall]:
        """The same without output, which may be large."""
        columns = ", ".join("''" if name == "output" else name for name in CALLS.columns)
        rows = self._db.execute(
            f"SELECT {columns} FROM tool_calls WHERE plan_id = ? ORDER BY seq", (plan_id,)
        )
        return [CALLS.value(row) for row in rows]

    def output(self, call_id: str) -> str:
        """A call's kept output."""
        row = self._db.execute("SELECT output FROM tool_calls WHERE call_id = ?", (call_id,))
        found = row.fetchone()
        return found[0] if found else ""

    def of_open_steps(self, plan_id: str) -> list[ToolCall]:
        """Calls of steps that no group holds yet, oldest first."""
        return CALLS.select(
            self._db,
            "WHERE plan_id = ? AND EXISTS (SELECT 1 FROM steps WHERE steps.plan_id ="
            " tool_calls.plan_id AND steps.step_id = tool_calls.step_id"
            " AND steps.state = 'processing') ORDER BY seq",
            (plan_id,),
        )

    def running(self, plan_id: str) -> list[ToolCall]:
        """Calls that have not ended, oldest first."""
        return CALLS.select(
            self._db, "WHERE plan_id = ? AND state = 'running' ORDER BY seq", (plan_id,)
        )

    def interrupt(self, plan_id: str, now: str) -> None:
        """Mark running calls as interrupted."""
        self._db.execute(
            "UPDATE tool_calls SET state = 'interrupted', ended_at = ?"
            " WHERE plan_id = ? AND state = 'running'",
            (now, plan_id),
        )

    def count(self, plan_id: str) -> int:
        """The number of calls, also of those that were undone."""
        row = self._db.execute("SELECT count(*) FROM tool_calls WHERE plan_id = ?", (plan_id,))
        return row.fetchone()[0]

    def in_force_since(self, plan_id: str, number: int) -> int:
        """How many calls since the row of that number were not undone yet."""
        row = self._db.execute(
            "SELECT count(*) FROM tool_calls c JOIN steps s"
            " ON s.plan_id = c.plan_id AND s.step_id = c.step_id"
            " AND coalesce(s.decision_id, '') = coalesce(c.decision_id, '')"
            " WHERE c.plan_id = ? AND c.seq > ? AND s.state != 'queued'",
            (plan_id, number),
        )
        return row.fetchone()[0]

    def times(self, plan_id: str) -> dict[str, tuple[str, str | None]]:
        """Step -> when its last call began and ended."""
        rows = self._db.execute(
            "SELECT step_id, started_at, ended_at FROM tool_calls WHERE plan_id = ? ORDER BY seq",
            (plan_id,),
        )
        return {step_id: (started, ended) for step_id, started, ended in rows.fetchall()}

    def finished(self, plan_id: str, tail: int) -> dict[str, tuple[str, str]]:
        """Step -> when its last good call ended, and the last `tail` characters of the output."""
        rows = self._db.execute(
            "SELECT step_id, ended_at, substr(output, CASE WHEN length(output) > ?"
            " THEN length(output) - ? + 1 ELSE 1 END) FROM tool_calls"
            " WHERE plan_id = ? AND state = 'ok' ORDER BY seq",
            (tail, tail, plan_id),
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
        """Every step ever called, including removed ones."""
        rows = self._db.execute(
            "SELECT DISTINCT step_id FROM tool_calls WHERE plan_id = ?", (plan_id,)
        )
        return [row[0] for row in rows]

    def add_writes(self, writes: Iterable[Write]) -> None:
        self._db.executemany(WRITES.insert, [WRITES.row(item) for item in writes])

    def forget_writes(self, plan_id: str, call_id: str) -> None:
        self._db.execute("DELETE FROM writes WHERE plan_id = ? AND call_id = ?", (plan_id, call_id))

    def writes_after(self, plan_id: str, number: int) -> list[Write]:
        """Writes of calls and restores since the row of that number, oldest first."""
        rows = self._db.execute(
            f"SELECT {', '.join(f'w.{name}' for name in WRITES.columns)} FROM writes w"
            " LEFT JOIN tool_calls c USING (call_id)"
            " LEFT JOIN checkpoint_groups g ON g.group_id = w.call_id"
            " WHERE w.plan_id = ? AND coalesce(c.seq, g.seq) > ?"
            " ORDER BY coalesce(c.seq, g.seq), w.path",
            (plan_id, number),
        )
        return [WRITES.value(row) for row in rows]

    def shared_writes(self, plan_id: str) -> frozenset[tuple[str, bytes]]:
        """(call, path) in place with an identical write by a call of another plan.

        Only calls open at the same time count: one after the other writing the same is not rare, as
        with a repeated prompt.
        """
        rows = self._db.execute(
            "SELECT DISTINCT w.call_id, w.path FROM writes w JOIN tool_calls c USING (call_id)"
            " JOIN resources r ON r.resource_id = w.resource_id"
            " JOIN resources q ON q.path = r.path AND q.strategy = r.strategy"
            " AND q.plan_id != r.plan_id"
            " JOIN writes o ON o.plan_id = q.plan_id AND o.resource_id = q.resource_id"
            " AND o.path = w.path AND o.before = w.before AND o.after = w.after"
            " JOIN tool_calls p ON p.call_id = o.call_id"
            " WHERE w.plan_id = ? AND r.strategy = ?"
            " AND CASE WHEN p.seq < c.seq THEN coalesce(p.ended_at, c.started_at) >= c.started_at"
            " ELSE coalesce(c.ended_at, p.started_at) >= p.started_at END",
            (plan_id, IN_PLACE),
        )
        return frozenset((call_id, bytes(path)) for call_id, path in rows)

    def when_others_wrote(self, plan_id: str) -> list[tuple[str, str]]:
        """(begin, end) of calls of other plans that changed this plan's resources in place."""
        rows = self._db.execute(
            "SELECT DISTINCT c.started_at, coalesce(c.ended_at, c.started_at) FROM resources r"
            " JOIN resources q ON q.path = r.path AND q.strategy = r.strategy"
            " AND q.plan_id != r.plan_id"
            " JOIN writes w ON w.plan_id = q.plan_id AND w.resource_id = q.resource_id"
            " JOIN tool_calls c ON c.call_id = w.call_id"
            " WHERE r.plan_id = ? AND r.strategy = ?",
            (plan_id, IN_PLACE),
        )
        return [(began, ended) for began, ended in rows]

    def writes_by_decision(self, plan_id: str) -> list[tuple[str | None, Write]]:
        """Every write with the decision of its call, oldest first."""
        rows = self._db.execute(
            f"SELECT c.decision_id, {', '.join(f'w.{name}' for name in WRITES.columns)}"
            " FROM writes w JOIN tool_calls c USING (call_id) WHERE w.plan_id = ?"
            " ORDER BY c.seq",
            (plan_id,),
        )
        return [(row[0], WRITES.value(row[1:])) for row in rows]

    def that_wrote(self, plan_id: str) -> frozenset[str]:
        """The calls with writes, known even after their checkpoints are pruned."""
        rows = self._db.execute("SELECT DISTINCT call_id FROM writes WHERE plan_id = ?", (plan_id,))
        return frozenset(call_id for (call_id,) in rows)

    def writes(self, plan_id: str) -> list[Write]:
        return WRITES.select(self._db, "WHERE plan_id = ? ORDER BY path", (plan_id,))


class CorrectionRepository:
    """The rows of `correction_attempts`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, correction: Correction) -> None:
        self._db.execute(CORRECTIONS.upsert, CORRECTIONS.row(correction))

    def of_plan(self, plan_id: str) -> list[Correction]:
        """Oldest first."""
        return CORRECTIONS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def restored(self, correction_id: str) -> None:
        """Record that its files are restored; its steps still have to run."""
        self._db.execute(
            "UPDATE correction_attempts SET state = 'restored' WHERE correction_id = ?",
            (correction_id,),
        )

    def end(self, plan: Plan, now: str) -> None:
        """End the newest correction of a stopped plan: done, or errored until it is resumed."""
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
    def __init__(self, db: Database) -> None:
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
        """The number of the plan's last operation of that kind, to compare plans by age."""
        row = self._db.execute(
            "SELECT coalesce(max(seq), 0) FROM journal WHERE plan_id = ? AND operation = ?",
            (plan_id, operation),
        )
        return row.fetchone()[0]

    def interrupted(self) -> list[JournalEntry]:
        """Interrupted operations of all plans, newest first, limited in number."""
        return JOURNAL.select(
            self._db, "WHERE state = ? ORDER BY seq DESC LIMIT ?", ("interrupted", 200)
        )

    def open_entries(self, plan_id: str) -> list[JournalEntry]:
        return JOURNAL.select(
            self._db, "WHERE plan_id = ? AND state = ?", (plan_id, EntryState.OPEN.value)
        )


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A change outside the database, recorded before it is made."""

    intent_id: str
    plan_id: str
    kind: str
    state: str
    body: dict[str, Any]
    created_at: str

    @property
    def is_done(self) -> bool:
        """Whether it is a committed restore that may not be on disk yet."""
        return self.kind == "restore" and self.state == "committed"


INTENTS = Table("intents", Intent, ("intent_id",))


class IntentRepository:
    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, intent: Intent) -> None:
        self._db.execute(INTENTS.upsert, INTENTS.row(intent))

    def done(self, intent_id: str, body: dict[str, Any]) -> None:
        """Mark it done; it stays until its change is known to be on disk."""
        self._db.execute(
            "UPDATE intents SET state = 'committed', body = ? WHERE intent_id = ?",
            (msgspec.json.encode(body).decode(), intent_id),
        )

    def replace(self, intent: Intent) -> None:
        """Record it, replacing any waiting restore of the same plan."""
        self._db.execute(
            "DELETE FROM intents WHERE plan_id = ? AND kind = 'restore'", (intent.plan_id,)
        )
        self.put(intent)

    def all(self) -> list[Intent]:
        return INTENTS.select(self._db, "ORDER BY seq")

    def of_plan(self, plan_id: str) -> list[Intent]:
        return INTENTS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def remove(self, intent_id: str) -> None:
        self._db.execute("DELETE FROM intents WHERE intent_id = ?", (intent_id,))


class SessionRepository:
    """The sessions of agents, and the plan that follows each."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, session: Session) -> None:
        self._db.execute(SESSIONS.upsert, SESSIONS.row(session))

    def get(self, agent: str, session_id: str) -> Session | None:
        found = SESSIONS.select(self._db, "WHERE agent = ? AND session_id = ?", (agent, session_id))
        return found[0] if found else None

    def of_plan(self, plan_id: str) -> list[Session]:
        """Oldest first."""
        return SESSIONS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def newest(self, agent: str) -> Session | None:
        """The session of an agent that was seen last."""
        found = SESSIONS.select(self._db, "WHERE agent = ? ORDER BY seq DESC LIMIT 1", (agent,))
        return found[0] if found else None

    def plans_of(self, session_id: str) -> list[str]:
        """The plans that followed a session of that id, newest first."""
        rows = self._db.execute(
            "SELECT plan_id FROM sessions WHERE session_id = ? ORDER BY seq DESC", (session_id,)
        )
        return [row[0] for row in rows]
