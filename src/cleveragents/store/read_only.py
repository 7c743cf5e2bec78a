"""Opens a store's database that we cannot write: on a read-only mount, or without permission.

SQLite writes beside a database in WAL mode even to read it. Without a log it is opened as
immutable; with one that cannot be used in place, a copy is read.
"""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from urllib.parse import quote

from cleveragents import machine
from cleveragents.errors import ReadOnlyStore
from cleveragents.store.database import BUSY_MS, SqliteDatabase
from cleveragents.store.schema import is_current


def connect_read_only(path: str) -> SqliteDatabase:
    try:
        connection = _opened(path)
        connection.path = path
        connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA query_only=ON")
        current = is_current(connection)
    except sqlite3.Error as error:
        raise machine.of_sqlite(error, path) from error
    except OSError as error:
        raise machine.of_os(error, "a read-only store cannot be copied to read it") from error
    if not current:
        raise ReadOnlyStore(
            f"the store {path} is of another version and cannot be brought up to date",
            "mount it writable, or name another store with CLEVERAGENTS_HOME",
        )
    return connection


def _opened(path: str) -> SqliteDatabase:
    if not os.path.exists(f"{path}-wal"):
        return _connected(path, "mode=ro&immutable=1")
    connection = _connected(path, "mode=ro")
    try:
        is_current(connection)
    except sqlite3.OperationalError:
        connection.close()
        return _copied(path)
    return connection


def _connected(path: str, how: str) -> SqliteDatabase:
    source = f"file:{quote(path)}?{how}"
    return sqlite3.connect(source, uri=True, isolation_level=None, factory=SqliteDatabase)


def _copied(path: str) -> SqliteDatabase:
    """A copy in memory, log included."""
    found = sqlite3.connect(":memory:", isolation_level=None, factory=SqliteDatabase)
    with tempfile.TemporaryDirectory(prefix="cleveragents-") as scratch:
        for side in ("", "-wal"):
            shutil.copyfile(f"{path}{side}", f"{scratch}/store.db{side}")
        with closing(sqlite3.connect(f"{scratch}/store.db")) as copy:
            copy.backup(found)
    return found
