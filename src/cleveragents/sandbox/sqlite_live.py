"""The bytes of a database that others may use, read while nobody can change them.

Under SQLite's own read lock the file of a database in rollback-journal mode holds its last commit;
so does that of one in WAL mode while its WAL is empty, for then no checkpoint may write to it. In
any other case it has to be read through SQLite.
"""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from urllib.parse import quote

from cleveragents.content import fsio
from cleveragents.content.filecopy import share_blocks
from cleveragents.content.files import Stamp, stamp
from cleveragents.content.packs import Batch
from cleveragents.sandbox import sqlite_image
from cleveragents.sandbox.sqlite_image import Image
from cleveragents.sandbox.sqlite_tables import hardened

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_MAGIC = b"SQLite format 3\0"


class Moved(Exception):
    """What was being read did not stay as it was."""


def copy_still(
    live: str, target: str, batch: Batch | None, piece: Callable[[int], None]
) -> Image | None:
    """Copy the file byte by byte if it holds all of the database; None if SQLite has to."""
    try:
        with _held(live) as source:
            if source is None:
                return None
            fd = fsio.create(target, 0o600)
            try:
                shared = share_blocks(source, fd)
                return sqlite_image.copied(source, None if shared else fd, batch, piece)
            finally:
                os.close(fd)
    except (Moved, sqlite3.Error):
        fsio.unlink_if_there(target)
        return None


def logical_still(live: str) -> str | None:
    """What tells the state of the database from others, read in place; None as above."""
    try:
        with _held(live) as source:
            return None if source is None else sqlite_image.logical_of_file(source)
    except (Moved, sqlite3.Error):
        return None


@contextmanager
def _held(live: str) -> Generator[int | None]:
    """A descriptor on bytes that are the state of the database; raises `Moved` if they were not."""
    # It closes last: closing any descriptor of the file drops the locks that SQLite has on it.
    fd = os.open(live, _READ)
    try:
        if not _is_whole(fd):
            yield None
        elif _uses_wal(fd) and not os.path.exists(f"{live}-shm"):
            # Nobody is connected, and a lock would leave files beside it.
            if _waiting(live, "-wal") or _waiting(live, "-journal"):
                yield None
            else:
                with _unmoved(live, fd):
                    yield fd
        else:
            with closing(_reading(live)):
                if _waiting(live, "-wal") or not _is_whole(fd):
                    yield None
                else:
                    with _unmoved(live, fd):
                        yield fd
    finally:
        os.close(fd)


def _reading(live: str) -> sqlite3.Connection:
    """A connection that has the read lock; a journal that must first be rolled back is an error."""
    connection = hardened(f"file:{quote(live)}?mode=ro", uri=True, timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _unmoved(live: str, fd: int) -> Generator[None]:
    before = stamp(os.fstat(fd))
    yield
    if stamp(os.fstat(fd)) != before or _stamp_at(live) != before:
        raise Moved


def _stamp_at(path: str) -> Stamp | None:
    with suppress(OSError):
        return stamp(os.stat(path))
    return None


def _waiting(live: str, side: str) -> bool:
    with suppress(FileNotFoundError):
        return os.stat(live + side).st_size > 0
    return False


def _uses_wal(fd: int) -> bool:
    return os.pread(fd, 1, 18) == b"\x02"


def _is_whole(fd: int) -> bool:
    """Whether the header counts all the pages that are there, so that a copy of them is alike."""
    head = os.pread(fd, 100, 0)
    if len(head) < 100 or not head.startswith(_MAGIC) or head[24:28] != head[92:96]:
        return False
    page = int.from_bytes(head[16:18], "big")
    page = 1 << 16 if page == 1 else page
    return page * int.from_bytes(head[28:32], "big") == os.fstat(fd).st_size
