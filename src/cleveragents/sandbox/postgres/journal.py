"""A journal of statements, and its replay, which must give the same answers."""

from typing import TYPE_CHECKING, Any

import msgspec

from cleveragents import codec
from cleveragents.model.units import plural
from cleveragents.sandbox.postgres.script import (
    Statement,
    beginning,
    show,
    tell_changed,
)
from cleveragents.sandbox.postgres.server import said

if TYPE_CHECKING:
    from psycopg import Connection


class Entry(msgspec.Struct, frozen=True):
    """A statement that was run, and how many rows it gave or changed (-1: it has none)."""

    statement: str
    params: Any
    rows: int


class ReplayDiffers(Exception):
    """The target answers differently from when the journal was written."""

    def __init__(self, number: int, entry: Entry, found: str) -> None:
        super().__init__(f"statement {number} ({beginning(entry.statement)}): {found}")
        self.number = number
        self.entry = entry
        self.found = found


def replay(db: "Connection[Any]", entries: list[Entry]) -> None:
    from psycopg import Error

    for number, entry in enumerate(entries, 1):
        try:
            rows = db.execute(entry.statement.encode(), entry.params, prepare=True).rowcount
        except Error as error:
            raise ReplayDiffers(number, entry, said(error)) from error
        if rows != entry.rows:
            raise ReplayDiffers(number, entry, f"{plural(rows, 'row')} instead of {entry.rows}")


def run_after(
    db: "Connection[Any]",
    entries: list[Entry],
    statements: list[Statement],
    params: Any,
    out: Any,
    read_only: bool,
) -> list[Entry]:
    """Run statements after those of the journal, and roll all of it back."""
    ran: list[Entry] = []
    changed, silent = 0, True
    db.execute(b"BEGIN")
    try:
        replay(db, entries)
        if read_only:
            db.execute(b"SET TRANSACTION READ ONLY")
        for one in statements:
            # Prepared, so that the server accepts only one statement, not a second hidden in it.
            cursor = db.execute(one.text.encode(), params or None, prepare=True)
            silent = cursor.description is None
            ran.append(Entry(one.text, params or None, cursor.rowcount))
            changed += show(cursor, out)
    finally:
        if not db.closed and db.info.transaction_status.name != "IDLE":
            db.execute(b"ROLLBACK")
    tell_changed(out, changed, silent)
    return ran


def read_entries(data: bytes) -> list[Entry]:
    return codec.from_json(data, list[Entry]) if data else []


def as_script(entries: list[Entry]) -> str:
    """The journal for people."""
    lines: list[str] = []
    for entry in entries:
        did = plural(entry.rows, "row") if entry.rows >= 0 else "done"
        given = f", with {msgspec.json.encode(entry.params).decode()}" if entry.params else ""
        lines.append(f"{entry.statement};  -- {did}{given}\n")
    return "".join(lines)
