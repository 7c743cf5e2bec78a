"""Rows that differ between two states of a table, matched by its primary key."""

import math
import re
import sqlite3
from ast import literal_eval
from typing import Any

import msgspec

MOST_ROWS = 50
"""Rows of one table that are shown; what is beyond is counted."""
LONGEST_VALUE = 200

Value = int | float | str | None


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """One row, before and after; values in the order of the table's columns."""

    action: str
    """added, changed or removed."""
    before: tuple[Value, ...] | None = None
    after: tuple[Value, ...] | None = None
    owner: str | None = None
    """Who did it, as of a file; None where nobody asked, or it cannot be told."""


class Pair(msgspec.Struct, frozen=True):
    """One table in both states: names, columns and key."""

    before: str
    after: str
    columns_before: tuple[str, ...]
    columns_after: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def common(self) -> tuple[str, ...]:
        return tuple(c for c in self.columns_after if c in self.columns_before)


def pair_of(db: sqlite3.Connection, before: str, after: str) -> Pair:
    """Pair tables `a.before` and `b.after`; without a common key, whole rows are compared."""
    old, new = columns_of(db, "a", before), columns_of(db, "b", after)
    keys = [
        tuple(name for _, name in sorted((place, name) for name, place in side.items() if place))
        for side in (old, new)
    ]
    key = keys[1] if keys[0] == keys[1] else ()
    return Pair(before, after, tuple(old), tuple(new), key)


def changed_rows(db: sqlite3.Connection, pair: Pair) -> tuple[RowChange, ...]:
    """The changed rows, at most one more than are shown."""
    if not pair.common:
        return ()
    if pair.key:
        return _by_key(db, pair)
    if pair.columns_before != pair.columns_after:
        return ()
    told = ", ".join(_limited_value(c) for c in pair.columns_after)
    only = (
        f"SELECT {told} FROM (SELECT * FROM {{}} EXCEPT SELECT * FROM {{}}) LIMIT {MOST_ROWS + 1}"
    )
    old, new = f"a.{quoted(pair.before)}", f"b.{quoted(pair.after)}"
    removed = db.execute(only.format(old, new)).fetchall()
    added = db.execute(only.format(new, old)).fetchall()
    rows = [RowChange(action="removed", before=_shown(row)) for row in removed]
    rows += [RowChange(action="added", after=_shown(row)) for row in added]
    return tuple(rows[: MOST_ROWS + 1])


def _by_key(db: sqlite3.Connection, pair: Pair) -> tuple[RowChange, ...]:
    old = ", ".join(_limited_value(c, "x.") for c in pair.columns_before)
    new = ", ".join(_limited_value(c, "y.") for c in pair.columns_after)
    a, b = f"a.{quoted(pair.before)} x", f"b.{quoted(pair.after)} y"
    same = " AND ".join(f"x.{quoted(c)} IS y.{quoted(c)}" for c in pair.key)
    ordered = "ORDER BY {} LIMIT " + str(MOST_ROWS + 1)
    by_old, by_new = (
        ordered.format(", ".join(f"{side}.{quoted(c)}" for c in pair.key)) for side in "xy"
    )
    # Values equal under a collation may still differ.
    other = [f"x.{quoted(c)} COLLATE BINARY IS NOT y.{quoted(c)}" for c in pair.common]
    filled = _defaults(db, pair)
    differs = " OR ".join([*other, *(f"y.{quoted(c)} IS NOT ?" for c in filled)])
    removed = db.execute(
        f"SELECT {old} FROM {a} WHERE NOT EXISTS (SELECT 1 FROM {b} WHERE {same}) {by_old}"
    )
    rows = [RowChange(action="removed", before=_shown(row)) for row in removed.fetchall()]
    changed = db.execute(
        f"SELECT {old}, {new} FROM {a} JOIN {b} ON {same} WHERE {differs} {by_new}",
        tuple(filled.values()),
    )
    width = len(pair.columns_before)
    rows += [
        RowChange(action="changed", before=_shown(row[:width]), after=_shown(row[width:]))
        for row in changed.fetchall()
    ]
    added = db.execute(
        f"SELECT {new} FROM {b} WHERE NOT EXISTS (SELECT 1 FROM {a} WHERE {same}) {by_new}"
    )
    rows += [RowChange(action="added", after=_shown(row)) for row in added.fetchall()]
    return tuple(rows[: MOST_ROWS + 1])


def _defaults(db: sqlite3.Connection, pair: Pair) -> dict[str, Value]:
    """New column -> its default, if that is a plain value; nothing is executed."""
    listed = db.execute(f"PRAGMA b.table_info({quoted(pair.after)})").fetchall()
    said = {row[1]: row[4] for row in listed if row[1] not in pair.columns_before}
    return {
        name: None if text is None else literal_eval(text)
        for name, text in said.items()
        if text is None or _PLAIN.fullmatch(text)
    }


_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?|'[^'\\\n]*'")


def columns_of(db: sqlite3.Connection, side: str, table: str) -> dict[str, int]:
    """Column -> its position in the primary key; 0: not part of it."""
    listed = db.execute(f"PRAGMA {side}.table_info({quoted(table)})")
    return {row[1]: row[5] for row in listed.fetchall()}


def _limited_value(column: str, side: str = "") -> str:
    """SQL for a column's value, reading no more than is shown."""
    name = f"{side}{quoted(column)}"
    cut = f"substr({name}, 1, {LONGEST_VALUE + 1})"
    return f"CASE WHEN typeof({name}) IN ('text', 'blob') THEN {cut} ELSE {name} END"


def _shown(row: tuple[Any, ...]) -> tuple[Value, ...]:
    return tuple(_value(value) for value in row)


def _value(value: Any) -> Value:
    """A value for display: bytes as SQL writes them, long values shortened."""
    if isinstance(value, bytes):
        value = f"x'{value.hex()}'"
    elif isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        return value[:LONGEST_VALUE] + "..."
    return value


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
