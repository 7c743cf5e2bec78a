"""Copies all rows of a store from one database to another, and compares them row by row.

A machine's own rows are not copied: locations of content, and the facts in `own.NAMES`.
"""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from cleveragents.errors import StoreError
from cleveragents.store import own, schema
from cleveragents.store.database import Database
from cleveragents.store.tables import SERIES

AT_ONCE = 1000
OF_A_MACHINE = ("packs", "objects")
_KEPT = ", ".join(f"'{name}'" for name in sorted({*own.NAMES, "schema", "moved"}))
ID = "SELECT value FROM store WHERE name = 'id'"


def tables() -> list[str]:
    """The copied tables, each after those it refers to."""
    made = (re.findall(r'CREATE TABLE "?(\w+)', schema.text_of(n)) for n in schema.scripts())
    return [name for names in made for name in names if name not in OF_A_MACHINE]


def copy_rows(source: Database, target: Database) -> dict[str, int]:
    """Copy; returns table -> number of rows. Call it in a transaction of the empty target."""
    counts: dict[str, int] = {}
    for table in tables():
        columns, rows = _rows(source, table)
        names = ", ".join(f'"{name}"' for name in columns)
        into = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"
        found = list(rows)
        for start in range(0, len(found), AT_ONCE):
            target.executemany(into, found[start : start + AT_ONCE])
        counts[table] = len(found)
    if target.url:
        _continue_numbers(target)
    return counts


def compare_rows(source: Database, target: Database) -> dict[str, int]:
    """Table -> number of rows in both; an error names the first table that differs."""
    counts: dict[str, int] = {}
    for table in tables():
        (columns, here), (others, there) = _rows(source, table), _rows(target, table)
        pairs = zip_longest(here, there)
        equal = columns == others
        counts[table] = 0
        for mine, theirs in pairs:
            equal = equal and mine is not None and theirs is not None and mine == theirs
            counts[table] += 1
        if not equal:
            raise StoreError(
                f"the rows of {table} in {source.shown} and {target.shown} differ",
                "nothing was changed; copy into a database without a store",
            )
    return counts


def remove_rows(db: Database) -> None:
    for table in reversed(tables()):
        where = f" WHERE name NOT IN ({_KEPT})" if table == "store" else ""
        db.execute(f"DELETE FROM {table}{where}")


def has_plans(db: Database) -> bool:
    return db.execute("SELECT 1 FROM plans LIMIT 1").fetchone() is not None


def id_of(db: Database) -> str:
    row = db.execute(ID).fetchone()
    return row[0] if row else ""


def note(db: Database, name: str, value: str) -> None:
    db.execute(
        "INSERT INTO store (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def _rows(db: Database, table: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """A table's column names, and its rows in the same order in both databases."""
    where = f" WHERE name NOT IN ({_KEPT})" if table == "store" else ""
    names = _columns(db, table)
    order = "seq" if "seq" in names else ", ".join(f'"{name}"' for name in names)
    found = db.execute(f"SELECT * FROM {table}{where} ORDER BY {order}")
    return names, (tuple(row) for row in found)


def _columns(db: Database, table: str) -> list[str]:
    found = db.execute(f"SELECT * FROM {table} LIMIT 0")
    found.fetchall()  # in a transaction nothing is known before the answer has come
    return [column[0] for column in found.description]


def _continue_numbers(db: Database) -> None:
    """Continue the number series after the copied rows."""
    latest = " UNION ALL ".join(f"SELECT max(seq) AS seq FROM {table}" for table in SERIES)
    db.execute(f"SELECT setval('series', coalesce(max(seq), 1)) FROM ({latest}) latest")
    for table in tables():
        if "seq" in _columns(db, table):
            db.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), coalesce(max(seq), 1))"
                f" FROM {table}"
            )
