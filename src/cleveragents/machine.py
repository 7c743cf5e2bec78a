"""Turns errors of the operating system and SQLite into ours, with place and hint."""

import errno
import math
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from shlex import quote

from cleveragents.errors import AgentsError, DiskFull, MachineError, ReadOnlyStore, StoreError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
MAKE_ROOM = "free some space: remove unneeded files or plans, agents gc --grace 0s"
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_PRIMARY = 0xFF
"""An extended result code of SQLite has its primary one in the lowest byte."""


def of_os(error: OSError, doing: str = "", kind: type[AgentsError] = MachineError) -> AgentsError:
    """Our error for an OSError; `kind` if it is neither a full nor a read-only disk."""
    reason = error.strerror or str(error)
    named = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    text = ": ".join(part for part in (doing, named, reason) if part)
    if error.errno in FULL:
        return DiskFull(f"the disk is full: {text}", MAKE_ROOM)
    if error.errno == errno.EROFS:
        return ReadOnlyStore(text, "mount it writable, or name another place")
    if error.errno in _DENIED:
        return kind(text, f"allow it: ls -ld {quote(named)}" if named else "run it as the owner")
    if error.errno == errno.ENOENT and named == "git":
        return kind("git is not installed", "install git 2.36 or newer")
    if error.errno == errno.ENOENT and not named and _stands_nowhere():
        return kind("the current directory was removed", "cd to one that exists, then run it again")
    return kind(text, "fix that on this machine, then run it again")


def of_any(error: Exception) -> AgentsError | None:
    """The same of anything that was raised; None if it is not the machine's."""
    if isinstance(error, OSError):
        return of_os(error)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return MachineError(
            "this machine starts no more threads",
            "end what is not needed; limits: ulimit -u, cat /sys/fs/cgroup/pids.max",
        )
    return None


def _stands_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def named(doing: str, kind: type[AgentsError] = MachineError) -> Generator[None]:
    """Turn OSErrors in the block into ours."""
    try:
        yield
    except OSError as error:
        raise of_os(error, doing, kind) from error


@contextmanager
def at(path: str) -> Generator[None]:
    """Have OSErrors in the block name this path: calls by descriptor name none, or one of ours."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def of_sqlite(error: sqlite3.Error, path: str) -> StoreError:
    """Our error for SQLite's on the store's database; damage only if SQLite says so."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    unwritten = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path)
    if code == sqlite3.SQLITE_FULL or unwritten:
        return DiskFull(f"the disk is full: {path}: {error}", MAKE_ROOM)
    if code == sqlite3.SQLITE_READONLY:
        return ReadOnlyStore(
            f"the store cannot be written: {path}: {error}",
            "mount it writable, or name another store with CLEVERAGENTS_HOME",
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return MachineError(
            f"the store cannot be opened: {path}: {error}",
            f"look at its owner and mode: ls -la {os.path.dirname(path)}",
        )
    if code == sqlite3.SQLITE_IOERR:
        return MachineError(f"the disk failed: {path}: {error}", "look at the disk: dmesg")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MachineError(
            f"another process locked the store for too long: {path}: {error}", f"fuser -v {path}"
        )
    return StoreError(f"the store is damaged: {path}: {error}", "run agents check")


def free_bytes(path: str) -> int:
    """Bytes that an ordinary user can still write there; on ramfs, free memory."""
    space = os.statvfs(path)
    if space.f_blocks:
        return space.f_bavail * space.f_frsize
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # ramfs counts nothing


def free_files(path: str) -> float:
    """Free inodes; many file systems have no such limit."""
    space = os.statvfs(path)
    return space.f_favail if space.f_files else math.inf


def _is_full(path: str) -> bool:
    folder = os.path.dirname(path)
    try:
        return free_bytes(folder) < 1 << 20 or not free_files(folder)
    except OSError:
        return False
