"""What is different between two states of a database, in the words of its users: tables, rows."""

import os
import sqlite3
from contextlib import closing
from typing import Any

import msgspec

LARGEST = 256 << 20
"""Bytes of a database file up to which rows are compared; above, they are counted only."""


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    """table, index, view or trigger."""
    status: str
    """added, changed or removed."""
    definition_changed: bool = False
    rows_before: int | None = None
    rows_after: int | None = None
    rows_added: int | None = None
    """Distinct rows that were not there before; a row that was changed is one added, one gone."""
    rows_removed: int | None = None


def hardened(path: str, **options: Any) -> sqlite3.Connection:
    """A connection on which the database's own definitions can do nothing but compute."""
    connection = sqlite3.connect(path, **options)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    return connection


def is_sound(path: str) -> str | None:
    """What is wrong with the pages of a database nobody is using; None if nothing is."""
    try:
        with closing(hardened(_still(path), uri=True)) as db:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else str(found)


def table_changes(before: str | None, after: str | None) -> tuple[TableChange, ...]:
    """Compare two files; either may be missing. What cannot be read as a database tells nothing."""
    try:
        with closing(sqlite3.connect("file::memory:", uri=True)) as db:
            db.execute("PRAGMA trusted_schema=OFF")
            db.execute("ATTACH ? AS a", (_still(before) if before else ":memory:",))
            db.execute("ATTACH ? AS b", (_still(after) if after else ":memory:",))
            sizes = [os.path.getsize(path) for path in (before, after) if path]
            return _Comparison(db, max(sizes, default=0) <= LARGEST).changes()
    except sqlite3.Error:
        return ()


class _Comparison:
    def __init__(self, db: sqlite3.Connection, with_rows: bool) -> None:
        self._db = db
        self._with_rows = with_rows

    def changes(self) -> tuple[TableChange, ...]:
        old, new = self._schema("a"), self._schema("b")
        found = [self._one(key, old.get(key), new.get(key)) for key in sorted(old | new)]
        return tuple(item for item in found if item is not None)

    def _schema(self, side: str) -> dict[tuple[str, str], str]:
        """(kind, name) -> definition; what SQLite makes by itself is left out."""
        rows = self._db.execute(
            f"SELECT type, name, sql FROM {side}.sqlite_schema"
            " WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
        return {(kind, name): sql for kind, name, sql in rows.fetchall()}

    def _one(self, key: tuple[str, str], old: str | None, new: str | None) -> TableChange | None:
        kind, name = key
        is_table = kind == "table" and not any("VIRTUAL" in (sql or "")[:15] for sql in (old, new))
        counts = [
            self._count(side, name) if sql is not None and is_table else None
            for side, sql in (("a", old), ("b", new))
        ]
        added, removed = (None, None)
        if is_table and old is not None and new is not None:
            added, removed = self._rows(name)
        if old == new and counts[0] == counts[1] and not added and not removed:
            return None
        return TableChange(
            name=name,
            kind=kind,
            status="added" if old is None else "removed" if new is None else "changed",
            definition_changed=None not in (old, new) and old != new,
            rows_before=counts[0],
            rows_after=counts[1],
            rows_added=added,
            rows_removed=removed,
        )

    def _count(self, side: str, name: str) -> int:
        return self._db.execute(f"SELECT count(*) FROM {side}.{_quoted(name)}").fetchone()[0]

    def _rows(self, name: str) -> tuple[int | None, int | None]:
        """Rows only one side has; not known where the columns differ or there is too much."""
        if not self._with_rows or self._columns("a", name) != self._columns("b", name):
            return None, None
        table = _quoted(name)
        only = "SELECT count(*) FROM (SELECT * FROM {0}.{2} EXCEPT SELECT * FROM {1}.{2})"
        added = self._db.execute(only.format("b", "a", table)).fetchone()[0]
        removed = self._db.execute(only.format("a", "b", table)).fetchone()[0]
        return added, removed

    def _columns(self, side: str, name: str) -> list[str]:
        listed = self._db.execute(f"PRAGMA {side}.table_info({_quoted(name)})")
        return [row[1] for row in listed.fetchall()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _still(path: str) -> str:
    """A file of ours that nobody writes to, opened without side files."""
    from urllib.parse import quote

    return f"file:{quote(path)}?mode=ro&immutable=1"
