"""One SQLite connection, set up so that what was acknowledged survives a power cut.

WAL with `synchronous=FULL`, `BEGIN IMMEDIATE` for every write, foreign keys on: each is read back,
because a setting that silently did not take is a store that silently loses commits.
"""

import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from cleveragents import machine
from cleveragents.content import fsio
from cleveragents.errors import StoreError

HEAD_REVISION = "0005"
BUSY_MS = 60_000
LOG_PAGES = 4000
"""The write-ahead log goes into the database whenever it has this many pages, 16 MB.

A commit waits for that. Keys are hashes, so each of a commit's rows is on a page of its own, and
with SQLite's usual 1000 every tenth checkpoint of a large tree would be the one that waits.
"""


def connect(path: str) -> sqlite3.Connection:
    """Open the store's database, made or brought up to date if need be."""
    fresh = not os.path.exists(path)
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
        _set_up(connection)
        if fresh:
            fsio.restrict(path)
        _bring_up_to_date(connection, path)
    except sqlite3.Error as error:
        raise machine.of_sqlite(error, path) from error
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": BUSY_MS,
        "wal_autocheckpoint": LOG_PAGES,
    }
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    connection.execute("PRAGMA foreign_keys=ON")
    if _pragma(connection, "journal_mode") != "wal":
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
    for name, value in wanted.items():
        if (got := _pragma(connection, name)) != value:
            raise StoreError(f"the store's {name} is {got!r}, not {value!r}")


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _bring_up_to_date(connection: sqlite3.Connection, path: str) -> None:
    revision = stored_revision(connection)
    if revision == HEAD_REVISION:
        return
    if revision is None:
        _create(connection)
        return
    from cleveragents.store import upgrade

    upgrade.upgrade(connection, path, revision)


def stored_revision(connection: sqlite3.Connection) -> str | None:
    """The stamp of the store's schema; None if the database is empty."""
    known = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    ).fetchone()
    if known is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else ""


def schema() -> str:
    with open(os.path.join(os.path.dirname(__file__), "schema.sql"), encoding="utf-8") as found:
        return found.read()


def _create(connection: sqlite3.Connection) -> None:
    with write_transaction(connection):
        if stored_revision(connection) is not None:
            return
        for statement in statements(schema()):
            connection.execute(statement)
        connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD_REVISION,))


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit behind our back."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


@contextmanager
def write_transaction(
    connection: sqlite3.Connection, path: str = "", make_room: Callable[[], None] = lambda: None
) -> Generator[None]:
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        fsio.point("commit")
        _commit(connection, make_room)
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise machine.of_sqlite(error, path) from error
        raise


def _commit(connection: sqlite3.Connection, make_room: Callable[[], None]) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.OperationalError:
        # Somebody filled the disk meanwhile: nothing is written yet, so it can be tried again.
        if not connection.in_transaction:
            raise
        make_room()
        connection.execute("COMMIT")
