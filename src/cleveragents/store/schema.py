"""The schema: numbered scripts in `migrations/`, replayed from where a store is.

A new store and an old one run the same scripts, inside one transaction, and `user_version` is the
number of the last. To change the schema, add a file with the next number.
"""

import os
import sqlite3
from collections.abc import Iterator
from functools import cache

from cleveragents.errors import StoreError
from cleveragents.store import older

MIGRATIONS = os.path.join(os.path.dirname(__file__), "migrations")


@cache
def scripts() -> dict[int, str]:
    """Number -> path, in order; the first one is what a new store begins with."""
    names = sorted(name for name in os.listdir(MIGRATIONS) if name.endswith(".sql"))
    return {int(name[:4]): os.path.join(MIGRATIONS, name) for name in names}


def is_current(connection: sqlite3.Connection) -> bool:
    return _user_version(connection) == max(scripts())


def replay(connection: sqlite3.Connection, path: str) -> None:
    """Run every script that the store has not had; call it in a transaction, foreign keys off."""
    # Read inside the transaction: another process may have done it while this one waited.
    number = _number(connection, path)
    first, last = min(scripts()), max(scripts())
    if number > last:
        raise StoreError(
            f"the store at {path} has schema {number}, made by a newer version",
            "upgrade cleveragents, or name another store with CLEVERAGENTS_HOME",
        )
    if 0 < number < first:
        older.rebuild(connection, number, list(_statements_of(first)))
        number = first
    older.remove_stamp(connection)
    for script in scripts():
        if script > number:
            for statement in _statements_of(script):
                connection.execute(statement)
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StoreError(
            f"the store at {path} cannot be brought up to date: a row of {broken[0]} has no"
            f" {broken[2]}",
            "nothing was changed; use the version that made it, and report this",
        )
    connection.execute(f"PRAGMA user_version={last}")


def _number(connection: sqlite3.Connection, path: str) -> int:
    """The newest script that the store had; 0 if the database is empty."""
    number = _user_version(connection) or older.stamped(connection)
    if number is not None:
        return number
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return 0
    raise StoreError(
        f"the database {path} is not a store, or lost its version",
        "restore it from a backup, or name another store with CLEVERAGENTS_HOME",
    )


def _user_version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def text_of(number: int) -> str:
    with open(scripts()[number], encoding="utf-8") as found:
        return found.read()


def _statements_of(number: int) -> Iterator[str]:
    return statements(text_of(number))


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit behind our back."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
