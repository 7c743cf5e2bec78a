"""The difference between two states of a database, in tables and rows."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from cleveragents.errors import SandboxError
from cleveragents.model.units import show_row
from cleveragents.sandbox.merge import LINES_SHOWN
from cleveragents.sandbox.sqlite.rows import (
    MOST_ROWS,
    Pair,
    RowChange,
    changed_rows,
    pair_of,
    quoted,
)

Key = tuple[str, str]
"""Kind and name."""

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
    renamed_from: str | None = None
    """The table's name before, if it is told apart by where it lies and by its columns."""
    columns_before: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    """The columns that tell rows apart; without any, a changed row is one gone and one new."""
    rows: tuple[RowChange, ...] = ()
    """The first rows that differ; those of a table that came or went are not listed."""
    rows_left_out: bool = False
    """Whether more rows differ than are listed."""


def hardened(path: str, **options: Any) -> sqlite3.Connection:
    """A connection on which the database's own code (triggers, views) can have no side effects."""
    connection = sqlite3.connect(path, **options)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    return connection


def require_sqlite(path: str) -> None:
    """Refuse a file that SQLite would not open; an empty one is fine."""
    with open(path, "rb") as found:
        head = found.read(16)
    if head not in (b"", b"SQLite format 3\0"):
        raise SandboxError(f"not a SQLite database: {path}")


def damage_in(path: str) -> str | None:
    """Damage in the pages of a database that nobody uses; None if there is none."""
    try:
        with closing(hardened(open_immutable(path), uri=True)) as db:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else str(found)


def table_changes(before: str | None, after: str | None) -> tuple[TableChange, ...]:
    """Compare two files; either may be missing. Without two readable databases, no changes."""
    try:
        with closing(sqlite3.connect("file::memory:", uri=True)) as db:
            db.text_factory = to_text
            db.execute("PRAGMA trusted_schema=OFF")
            db.execute("ATTACH ? AS a", (open_immutable(before) if before else ":memory:",))
            db.execute("ATTACH ? AS b", (open_immutable(after) if after else ":memory:",))
            sizes = [os.path.getsize(path) for path in (before, after) if path]
            return _Comparison(db, max(sizes, default=0) <= LARGEST).changes()
    except sqlite3.Error:
        return ()


def two_sides(changes: tuple[TableChange, ...]) -> tuple[str, str] | None:
    """The lines that only one of two states has; None if unknown."""
    before: list[str] = []
    after: list[str] = []
    for one in changes:
        if one.status == "removed":
            before.append(f"{one.kind} {one.name}")
        elif one.status == "added":
            after.append(f"{one.kind} {one.name}")
        elif one.definition_changed:
            after.append(f"{one.kind} {one.name}, defined differently")
        for row in one.rows:
            if row.before is not None:
                before.append(f"{one.name}: {show_row(one.columns_before, row.before)}")
            if row.after is not None:
                after.append(f"{one.name}: {show_row(one.columns, row.after)}")
    return (_first_lines(before), _first_lines(after)) if before or after else None


def _first_lines(lines: list[str]) -> str:
    more = [f"and {len(lines) - LINES_SHOWN} more"] if len(lines) > LINES_SHOWN else []
    return "\n".join([*(line.replace("\n", "\\n") for line in lines[:LINES_SHOWN]), *more])


def same_content(one: str, other: str) -> bool:
    """Whether two files of ours hold the same, wherever in them; False if that is not sure."""
    if max(map(os.path.getsize, (one, other))) > LARGEST:
        return False
    try:
        with (
            closing(hardened(open_immutable(one), uri=True)) as first,
            closing(hardened(open_immutable(other), uri=True)) as second,
        ):
            return all(a == b for a, b in zip_longest(_content(first), _content(second)))
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def _content(db: sqlite3.Connection) -> Iterator[str]:
    """What programs read from a database, written out: 1 is not 1.0, and text is no blob."""
    db.text_factory = bytearray
    for name in ("user_version", "application_id", "encoding", "page_size", "auto_vacuum"):
        yield repr(db.execute(f"PRAGMA {name}").fetchone())
    schema = db.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    ).fetchall()
    yield repr(schema)
    for kind, name, _, sql in schema:
        # The rows of a virtual table are in tables of its own.
        if kind == b"table" and not (sql or b"").upper().startswith(b"CREATE VIRTUAL"):
            yield from map(repr, _rows(db, quoted(name.decode())))


def _rows(db: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    """With the numbers of rows, which indexes of programs may point to."""
    try:
        return db.execute(f"SELECT rowid, * FROM {table}")
    except sqlite3.OperationalError:  # WITHOUT ROWID
        return db.execute(f"SELECT * FROM {table}")


def table_counts(path: str) -> dict[str, int]:
    """The number of tables and rows in a file of ours; empty if it is no database."""
    try:
        with closing(hardened(open_immutable(path), uri=True)) as db:
            db.text_factory = to_text
            found = db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table'"
                " AND sql NOT LIKE 'CREATE VIRTUAL%' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            ).fetchall()
            rows = (db.execute(f"SELECT count(*) FROM {quoted(name)}") for (name,) in found)
            return {"tables": len(found), "rows": sum(one.fetchone()[0] for one in rows)}
    except sqlite3.Error:
        return {}


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


class Definition(NamedTuple):
    sql: str
    root: int


class _Comparison:
    def __init__(self, db: sqlite3.Connection, with_rows: bool) -> None:
        self._db = db
        self._with_rows = with_rows

    def changes(self) -> tuple[TableChange, ...]:
        old, new = self._schema("a"), self._schema("b")
        renamed = self._renamed(old, new)
        gone = set(renamed.values())
        found = [
            self._table_change(
                key,
                old.get(renamed.get(key, key)),
                new.get(key),
                renamed.get(key, key)[1],
            )
            for key in sorted(old | new)
            if key not in gone
        ]
        return tuple(item for item in found if item is not None)

    def _schema(self, side: str) -> dict[Key, Definition]:
        """(kind, name) -> definition, without SQLite's internal objects."""
        rows = self._db.execute(
            f"SELECT type, name, sql, rootpage FROM {side}.sqlite_schema"
            " WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
        return {(kind, name): Definition(sql, root) for kind, name, sql, root in rows.fetchall()}

    def _renamed(self, old: dict[Key, Definition], new: dict[Key, Definition]) -> dict[Key, Key]:
        """New name -> old name, of tables with the same root page and the same first columns."""
        found: dict[Key, Key] = {}
        gone = {old[key].root: key for key in old.keys() - new.keys() if _is_table(key, old[key])}
        for key in new.keys() - old.keys():
            before = gone.get(new[key].root)
            if before is not None and _is_table(key, new[key]):
                pair = pair_of(self._db, before[1], key[1])
                pairs = zip(pair.columns_before, pair.columns_after, strict=False)
                if all(old_one == new_one for old_one, new_one in pairs):
                    found[key] = before
        return found

    def _table_change(
        self, key: Key, old: Definition | None, new: Definition | None, old_name: str
    ) -> TableChange | None:
        kind, name = key
        is_table = all(_is_table(key, one) for one in (old, new) if one)
        counts = [
            self._count(side, at) if one is not None and is_table else None
            for side, at, one in (("a", old_name, old), ("b", name, new))
        ]
        added, removed = (None, None)
        pair, rows = None, ()
        if is_table and old is not None and new is not None:
            pair = pair_of(self._db, old_name, name)
            added, removed = self._rows(pair)
            rows = changed_rows(self._db, pair) if self._with_rows else ()
        same = old and new and old.sql == new.sql
        if same and counts[0] == counts[1] and not added and not removed and not rows:
            return None
        return TableChange(
            name=name,
            kind=kind,
            status="added" if old is None else "removed" if new is None else "changed",
            definition_changed=None not in (old, new) and not same,
            rows_before=counts[0],
            rows_after=counts[1],
            rows_added=added,
            rows_removed=removed,
            renamed_from=old_name if old_name != name else None,
            columns_before=pair.columns_before if pair else (),
            columns=pair.columns_after if pair else (),
            key=pair.key if pair else (),
            rows=rows[:MOST_ROWS],
            rows_left_out=len(rows) > MOST_ROWS,
        )

    def _count(self, side: str, name: str) -> int:
        return self._db.execute(f"SELECT count(*) FROM {side}.{quoted(name)}").fetchone()[0]

    def _rows(self, pair: Pair) -> tuple[int | None, int | None]:
        """The changed rows; unknown if the columns differ or there are too many."""
        if not self._with_rows or pair.columns_before != pair.columns_after:
            return None, None
        old, new = f"a.{quoted(pair.before)}", f"b.{quoted(pair.after)}"
        only = "SELECT count(*) FROM (SELECT * FROM {} EXCEPT SELECT * FROM {})"
        added = self._db.execute(only.format(new, old)).fetchone()[0]
        removed = self._db.execute(only.format(old, new)).fetchone()[0]
        return added, removed


def _is_table(key: Key, one: Definition) -> bool:
    return key[0] == "table" and "VIRTUAL" not in one.sql[:15]


def open_immutable(path: str) -> str:
    """Open a file of ours that nobody writes to, without side files."""
    from urllib.parse import quote

    return f"file:{quote(path)}?mode=ro&immutable=1"
