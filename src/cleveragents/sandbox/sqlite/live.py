"""A database that others may use: read under a lock, written through SQLite.

Under SQLite's own read lock a database file in rollback-journal mode holds the last commit; so does
one in WAL mode while its WAL is empty, for then no checkpoint may write to it. Otherwise it has to
be read through SQLite.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from urllib.parse import quote

from cleveragents.content import fsio
from cleveragents.content.files import ATTEMPTS, Stamp, stamp
from cleveragents.content.native.filecopy import share_blocks
from cleveragents.content.packs import Batch
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.sandbox.sqlite import image as sqlite_image
from cleveragents.sandbox.sqlite.image import Image
from cleveragents.sandbox.sqlite.prints import Prints
from cleveragents.sandbox.sqlite.tables import hardened

BUSY_SECONDS = 5.0
SIDES = ("-wal", "-shm", "-journal")
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_MAGIC = b"SQLite format 3\0"


class ChangedWhileRead(Exception):
    """The database changed while it was read."""


def copy_if_complete(
    live: str, target: str, batch: Batch | None, piece: Callable[[int], None]
) -> tuple[Image, Prints | None] | None:
    """Copy the file byte by byte if it holds the whole database; else None, and SQLite has to."""
    try:
        with held(live) as source:
            if source is None:
                return None
            fd = fsio.create(target, 0o600)
            try:
                shared = share_blocks(source, fd)
                return sqlite_image.copied(source, None if shared else fd, batch, piece)
            finally:
                os.close(fd)
    except (ChangedWhileRead, sqlite3.Error):
        fsio.unlink_if_there(target)
        return None


def logical_in_place(live: str) -> str | None:
    """The logical hash of the database, read in place; None as above."""
    try:
        with held(live) as source:
            return None if source is None else sqlite_image.logical_of_file(source)
    except (ChangedWhileRead, sqlite3.Error):
        return None


@contextmanager
def held(live: str) -> Generator[int | None]:
    """A descriptor on the database's committed bytes; raises `ChangedWhileRead` on a change."""
    # SQLite puts its side files beside the file itself, not beside a link to it.
    live = os.path.realpath(live)
    # Closed last: closing any descriptor of the file drops SQLite's locks on it.
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
    """A connection with the read lock; a hot journal is an error."""
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
        raise ChangedWhileRead


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
    """Whether the header's page count matches the file, so that a copy is identical."""
    head = os.pread(fd, 100, 0)
    if len(head) < 100 or not head.startswith(_MAGIC) or head[24:28] != head[92:96]:
        return False
    page = int.from_bytes(head[16:18], "big")
    page = 1 << 16 if page == 1 else page
    return page * int.from_bytes(head[28:32], "big") == os.fstat(fd).st_size


def file_logical(path: str) -> str:
    with opened(path, os.O_RDONLY) as fd:
        return sqlite_image.logical_of_file(fd)


@contextmanager
def opened(path: str, flags: int) -> Generator[int]:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def live_logical(live: str, scratch: str) -> str:
    """The state of the live database, under SQLite's locks, as a hash."""
    if (found := logical_in_place(live)) is not None:
        return found
    image = f"{scratch}/compare.db"
    fsio.unlink_if_there(image)
    copy_live(live, image)
    found = file_logical(image)
    fsio.unlink_if_there(image)
    return found


def copy_live(live: str, target: str) -> None:
    """Copy a database that may be in use; creates and changes nothing beside it."""
    if os.path.exists(f"{live}-shm") or not _is_in_wal_mode(live):
        # SQLite's own locks make the copy consistent, and opening it makes no files.
        try:
            _backup(f"file:{quote(live)}?mode=ro", target)
            return
        except SandboxError:
            if not os.path.exists(f"{live}-journal"):
                raise
    for _ in range(ATTEMPTS):
        if _copy_unused(live, target):
            return
    raise SandboxError(f"{live} keeps changing", "end what is writing it")


def _copy_unused(live: str, target: str) -> bool:
    """Copy a database without connections, with its side files after a crash.

    False if somebody was using it after all.
    """
    before = _stamps(live)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as scratch:
        copy = f"{scratch}/copy.db"
        for side in ("", "-wal", "-journal"):
            if os.path.exists(live + side):
                shutil.copyfile(live + side, copy + side)
        if _stamps(live) != before:
            return False
        _backup(f"file:{quote(copy)}?mode=rw", target)
    return True


def _stamps(live: str) -> list[Stamp | None]:
    return [
        stamp(os.stat(live + side)) if os.path.exists(live + side) else None
        for side in ("", *SIDES)
    ]


def _backup(source: str, target: str) -> None:
    try:
        with (
            closing(hardened(source, uri=True, timeout=10)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            copy.execute("PRAGMA synchronous=OFF")
            live.backup(copy, progress=_patience())
    except sqlite3.Error as error:
        fsio.unlink_if_there(target)
        raise SandboxError(f"the SQLite database cannot be copied: {error}") from error


def copy_into_live(image: str, live: str, expected: str, scratch: str) -> None:
    """Make the live database equal to an image, in one transaction of its own.

    The first page is copied alone: from then on we hold the write lock, so the comparison is with
    exactly what will be replaced.
    """
    patience = _patience()
    looked: list[int] = []

    def look(status: int, remaining: int, total: int) -> None:
        patience(status, remaining, total)
        if status == sqlite3.SQLITE_OK and not looked:
            # Closed last: closing a descriptor of the file would drop SQLite's locks.
            looked.append(os.open(live, os.O_RDONLY | os.O_CLOEXEC))
            if _under_lock(live, looked[0], scratch) != expected:
                raise sqlite3.OperationalError("it was changed by somebody else")

    try:
        with (
            closing(hardened(f"file:{quote(image)}?mode=ro&immutable=1", uri=True)) as new,
            closing(hardened(live, timeout=5)) as target,
        ):
            target.execute("PRAGMA synchronous=EXTRA")
            new.backup(target, pages=1, progress=look, sleep=0.05)
    except sqlite3.Error as error:
        raise ApplyRefused(
            f"{live} cannot be written: {error}", "end what is using it, then apply again"
        ) from error
    finally:
        for fd in looked:
            os.close(fd)


def _under_lock(live: str, fd: int, scratch: str) -> str:
    """The committed state of a database whose write lock we hold."""
    if os.path.exists(f"{live}-wal"):
        return live_logical(live, scratch)
    return sqlite_image.logical_of_file(fd)


def _patience() -> Callable[[int, int, int], None]:
    """A progress callback that ends a backup of a locked database, which would retry for ever."""
    deadline = time.monotonic() + BUSY_SECONDS

    def look(status: int, _remaining: int, _total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise sqlite3.OperationalError("the database is in use by another process")

    return look


def _is_in_wal_mode(live: str) -> bool:
    with open(live, "rb") as found:
        return _uses_wal(found.fileno())
