"""Open the database of a store that cannot be written: on a read-only mount, or not ours to write.

SQLite wants to write beside a database in WAL mode even to read it. Where there is no log it is
told that nothing changes; where there is one and it cannot be used in place, a copy is read.
"""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from urllib.parse import quote

from cleveragents import machine
from cleveragents.errors import ReadOnlyStore
from cleveragents.store.database import BUSY_MS, HEAD_REVISION, stored_revision


def connect_read_only(path: str) -> sqlite3.Connection:
    try:
        connection = _opened(path)
        connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA query_only=ON")
        revision = stored_revision(connection)
    except sqlite3.Error as error:
        raise machine.of_sqlite(error, path) from error
    except OSError as error:
        raise machine.of_os(error, "a read-only store cannot be copied to read it") from error
    if revision != HEAD_REVISION:
        raise ReadOnlyStore(
            f"the store {path} is of another version and cannot be brought up to date",
            "mount it writable, or name another store with CLEVERAGENTS_HOME",
        )
    return connection


def _opened(path: str) -> sqlite3.Connection:
    if not os.path.exists(f"{path}-wal"):
        return _connected(path, "mode=ro&immutable=1")
    connection = _connected(path, "mode=ro")
    try:
        stored_revision(connection)
    except sqlite3.OperationalError:
        connection.close()
        return _copied(path)
    return connection


def _connected(path: str, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, isolation_level=None)


def _copied(path: str) -> sqlite3.Connection:
    """In memory, with what the log holds."""
    found = sqlite3.connect(":memory:", isolation_level=None)
    with tempfile.TemporaryDirectory(prefix="cleveragents-") as scratch:
        for side in ("", "-wal"):
            shutil.copyfile(f"{path}{side}", f"{scratch}/store.db{side}")
        with closing(sqlite3.connect(f"{scratch}/store.db")) as copy:
            copy.backup(found)
    return found
