"""Databases among the files of a tree that another process has open.

That process would keep writing to a file that is gone, and lose what it writes; a new connection
would find the log of another database beside the file.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

_MAGIC = b"SQLite format 3\0"
_SMALLEST = 512
_SIDES = (b"-wal", b"-shm", b"-journal")


class Holder(NamedTuple):
    path: bytes
    pid: int
    program: str


def holder_of(root: str, paths: Iterable[bytes]) -> Holder | None:
    """Another process that has one of these files open, if they belong to a database."""
    top = os.fsencode(root)
    found: dict[tuple[int, int], bytes] = {}
    for base in {_base(path) for path in paths}:
        if _is_database(top + b"/" + base):
            for path in (base, *(base + side for side in _SIDES)):
                with suppress(OSError):
                    there = os.lstat(top + b"/" + path)
                    found[there.st_dev, there.st_ino] = base
    return _find_holder(found) if found else None


def _base(path: bytes) -> bytes:
    side = next((side for side in _SIDES if path.endswith(side)), b"")
    return path.removesuffix(side)


def _is_database(path: bytes) -> bool:
    with suppress(OSError):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size % _SMALLEST or not found.st_size:
            # While a log is new the database file may still be empty: it cannot be recognized.
            return False
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(fd, len(_MAGIC)) == _MAGIC
        finally:
            os.close(fd)
    return False


def _find_holder(wanted: dict[tuple[int, int], bytes]) -> Holder | None:
    """A holder among the processes that we may inspect."""
    processes = os.listdir("/proc") if os.path.isdir("/proc/self") else ()
    for pid in (name for name in processes if name.isdigit() and int(name) != os.getpid()):
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{number}")
                    if (path := wanted.get((found.st_dev, found.st_ino))) is not None:
                        return Holder(path, int(pid), _program(pid))
    return None


def _program(pid: str) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return "?"
