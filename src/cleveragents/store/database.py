"""One SQLite connection, set up so that what was acknowledged survives a power cut.

WAL with `synchronous=FULL`, `BEGIN IMMEDIATE` for every write, foreign keys on: each is read back,
because a setting silently not in effect would silently lose commits.
"""

import os
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from cleveragents import machine
from cleveragents.content import fsio
from cleveragents.errors import StoreError
from cleveragents.store import schema

BUSY_MS = 60_000
LOG_PAGES = 4000
"""The write-ahead log goes into the database whenever it has this many pages, 16 MB.

A commit waits for that. Keys are hashes, so each of a commit's rows is on a page of its own, and
with SQLite's usual 1000 every tenth checkpoint of a large tree would be the one that waits.
"""

INDEX_PAGE, INDEX_ROOM = 4096, 128 << 10
"""What SQLite takes for a block of the log's index, and more than LOG_PAGES of log need of it."""
_ALLOCATE = """import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.posix_fallocate(fd, 0, int(sys.argv[2]))
"""


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...
    @property
    def description(self) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


Part = tuple[str, Sequence[Sequence[Any]]]
"""A statement that inserts a row, and the values of each."""


class Database(Protocol):
    """The interface for repositories. Statements are SQLite's; `store/postgres.py` translates them.

    Writes may be sent without waiting, to save round trips: only a read or the commit shows whether
    those before it were accepted.
    """

    @property
    def shown(self) -> str:
        """Its location, for people."""
        ...

    @property
    def url(self) -> str:
        """The URL for another connection; empty if there is none."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...

    def hurry(self) -> None:
        """Send pending writes now, before doing something else."""
        ...

    def insert(self, *parts: Part) -> None:
        """Insert rows into several tables, each with an INSERT that reads nothing of the others."""
        ...

    def require(self, sql: str, parameters: Sequence[Any], otherwise: Exception) -> None:
        """Run a statement that must find or change a row; else the transaction fails."""
        ...

    def one_commit(
        self, *, lasts: bool, alone: bool, make_room: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """One commit. `lasts`: it survives a power cut; `alone`: no other such runs at once."""
        ...

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Around queries without writes that are mostly the same each time under this name."""
        ...

    def integrity(self) -> list[str]:
        """Problems found by the database itself; empty if none."""
        ...

    def compact(self, room: int) -> None:
        """Release unused space, if it is most of it; `room`: bytes that may be used for that."""
        ...

    def close(self) -> None: ...


class SqliteDatabase(sqlite3.Connection):
    """The store of one machine."""

    path = ""
    url = ""

    @property
    def shown(self) -> str:
        return self.path

    def hurry(self) -> None:
        """Nothing is far away."""

    def insert(self, *parts: Part) -> None:
        for sql, rows in parts:
            self.executemany(sql, rows)

    def require(self, sql: str, parameters: Sequence[Any], otherwise: Exception) -> None:
        done = self.execute(sql, parameters)
        if done.rowcount < 1 and done.fetchone() is None:
            raise otherwise

    @contextmanager
    def one_commit(
        self,
        *,
        lasts: bool = True,
        alone: bool = True,
        make_room: Callable[[], None] = lambda: None,
    ) -> Generator[None]:
        """SQLite lets one write at a time, so every transaction is alone."""
        with (
            nullcontext() if lasts else unsynced(self),
            write_transaction(self, self.path, make_room),
        ):
            yield

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Nothing is far away."""
        return nullcontext()

    def commit_now(self, make_room: Callable[[], None]) -> None:
        _commit(self, make_room)

    def integrity(self) -> list[str]:
        found = [row[0] for row in self.execute("PRAGMA integrity_check")]
        return [text for text in found if text != "ok"] + self.orphans()

    def orphans(self) -> list[str]:
        found = self.execute("PRAGMA foreign_key_check")
        return [f"row without its parent in {row[0]}" for row in found]

    def compact(self, room: int) -> None:
        pages, free = (_pragma(self, name) for name in ("page_count", "freelist_count"))
        if free <= 64 or free * 2 <= pages:
            return
        if room < 2 * os.path.getsize(self.path):
            return  # the new file is written before the old one is removed
        self.execute("VACUUM")
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def connect(path: str) -> SqliteDatabase:
    """Open the store's database, created or migrated if needed."""
    fresh = not os.path.exists(path)
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, timeout=BUSY_MS / 1000, factory=SqliteDatabase
        )
        connection.path = path
        _set_up(connection)
        if fresh:
            fsio.restrict(path)
        _take_room(f"{path}-shm")
        _bring_up_to_date(connection, path)
    except sqlite3.Error as error:
        raise machine.of_sqlite(error, path) from error
    return connection


def _take_room(index: str) -> None:
    """Allocate all blocks of the log's index, which SQLite writes through a mapping.

    SQLite itself takes one block of each 4 KiB. Where blocks are smaller, a full disk would end
    the process by SIGBUS at the first write to another (seen with 8 to 32 KiB free). A child does
    it: closing a descriptor of the file here would drop the locks that SQLite has on it.
    """
    try:
        if os.statvfs(os.path.dirname(index) or ".").f_bsize >= INDEX_PAGE:
            return
        if os.stat(index).st_blocks * 512 >= INDEX_ROOM:
            return
        import subprocess

        words = [sys.executable, "-I", "-S", "-c", _ALLOCATE, index, str(INDEX_ROOM)]
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return  # a read-only store, or a full disk: then SQLite's own behaviour remains


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
    if schema.is_current(connection):
        return
    # A script may recreate a table that others refer to. The pragma has no effect in a transaction.
    connection.execute("PRAGMA foreign_keys=OFF")
    try:
        with write_transaction(connection, path):
            schema.replay(connection, path)
    finally:
        connection.execute("PRAGMA foreign_keys=ON")


@contextmanager
def unsynced(connection: sqlite3.Connection) -> Generator[None]:
    """Commits in the block go to the log in order, without waiting for the disk."""
    connection.execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        connection.execute("PRAGMA synchronous=FULL")


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
        # The disk was filled meanwhile: nothing is written yet, so it can be retried.
        if not connection.in_transaction:
            raise
        make_room()
        connection.execute("COMMIT")


Question = tuple[str, tuple[Any, ...]]
Send = Callable[[str, Sequence[Any]], Rows]


class ReadAhead:
    """Sends queries that are the same each time together, in one round trip.

    Inside `reading`, the queries of last time are sent before they are asked.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: dict[str, list[Question]] = {}
        self._asked: list[Question] | None = None
        self._answers: dict[Question, Rows] = {}

    @contextmanager
    def reading(self, name: str) -> Generator[None]:
        """No writes inside it, so it does not matter when a query is sent."""
        asked: list[Question] = []
        try:
            self._answers = {one: self._send(*one) for one in self._last.get(name, ())}
            self._asked = asked
            yield
        finally:
            self._asked, self._answers = None, {}
        self._last[name] = asked

    def ask(self, sql: str, parameters: Sequence[Any]) -> Rows:
        if self._asked is None:
            return self._send(sql, parameters)
        question = sql, tuple(parameters)
        self._asked.append(question)
        answer = self._answers.pop(question, None)
        return self._send(sql, parameters) if answer is None else answer
