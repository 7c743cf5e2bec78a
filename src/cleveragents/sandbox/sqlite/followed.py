"""Rows of a database in one state, to compare them with the same rows in the next."""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

from cleveragents.sandbox.sqlite.rows import LONGEST_VALUE, RowChange, Value, columns_of, quoted
from cleveragents.sandbox.sqlite.tables import TableChange, hardened, open_immutable, to_text

SCANNED = 8 << 20
"""Bytes of a database up to which rows of a table without a key are looked for."""

Seen = dict[str, Any]
"""A row: column -> value; empty where it is not there."""
Rows = dict[tuple[str, int], Seen]
"""(Table, number of the row among those that are listed) -> that row."""


def rows_in(path: str, tables: Iterable[TableChange]) -> Rows:
    """The rows as they are in this file; those that cannot be identified are left out."""
    found: Rows = {}
    if not os.path.isfile(path):
        return found
    is_small = os.path.getsize(path) <= SCANNED
    with suppress(sqlite3.Error), closing(hardened(open_immutable(path), uri=True)) as db:
        db.text_factory = to_text
        for table in tables:
            if not table.key and not is_small:
                continue
            for number, row in enumerate(table.rows):
                seen = _row(db, table, _identity(table, row))
                if seen is not None:
                    found[table.name, number] = seen
    return found


def same(one: Seen, other: Seen) -> bool:
    """Whether a row is in both or in neither, with equal values in common columns (pure)."""
    return bool(one) == bool(other) and all(
        other[name] == value for name, value in one.items() if name in other
    )


def _identity(table: TableChange, row: RowChange) -> dict[str, Value]:
    """The row's key."""
    is_there = row.after is not None
    columns = table.columns if is_there else table.columns_before
    known = dict(zip(columns, (row.after if is_there else row.before) or (), strict=True))
    return {name: known[name] for name in table.key or columns}


def _row(db: sqlite3.Connection, table: TableChange, wanted: dict[str, Value]) -> Seen | None:
    if any(isinstance(value, str) and _is_cut(value) for value in wanted.values()):
        return None
    for name in (table.name, table.renamed_from):
        columns = columns_of(db, "main", name) if name else {}
        asked = [column for column in wanted if column in columns]
        if name and asked:
            values = ", ".join(quoted(column) for column in columns)
            where = " AND ".join(f"{quoted(column)} IS ?" for column in asked)
            sql = f"SELECT {values} FROM {quoted(name)} WHERE {where} LIMIT 1"
            row = db.execute(sql, [wanted[column] for column in asked]).fetchone()
            return dict(zip(columns, row, strict=True)) if row else {}
    return None


def _is_cut(value: str) -> bool:
    """Whether a shown value is shortened."""
    return len(value) > LONGEST_VALUE or value.startswith("x'")
