"""Removes trees, even locked ones, by descriptors, so that no link is followed."""

import fcntl
import os
import stat
import sys
from contextlib import suppress

from cleveragents.content.fsio import (
    DEEP,
    allow_deep,
    directory,
)

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_LOCKED = 0x10 | 0x20
"""Immutable, and append only: `chattr +i`, `chattr +a`."""


def remove_tree(path: str) -> None:
    """Remove a directory and all below it, following no link; it may be missing."""
    with suppress(FileNotFoundError):
        remove_tree_at(path, None)


def remove_tree_at(name: str | bytes, dir_fd: int | None) -> None:
    """The same inside an open directory; it must exist."""
    _empty(name, dir_fd, 0)
    os.rmdir(name, dir_fd=dir_fd)


def _empty(name: str | bytes, dir_fd: int | None, level: int) -> None:
    if level == DEEP:
        allow_deep()
    if os.geteuid() != 0:
        # Tools leave directories that even their owner may not list or change.
        _add_mode(name, dir_fd, 0)
    with directory(name, dir_fd) as fd:
        with os.scandir(fd) as entries:
            names = [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in entries]
        for below, is_dir in names:
            if is_dir:
                _empty(below, fd, level + 1)
            remove = os.rmdir if is_dir else os.unlink
            try:
                remove(below, dir_fd=fd)
            except PermissionError:
                if not unlock(fd, below):
                    raise
                remove(below, dir_fd=fd)


def unlock(dir_fd: int, name: bytes) -> bool:
    """Clear such flags on a directory and one name in it; False if there are none."""
    found = _unlock(dir_fd)
    with suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
        try:
            if stat.S_IFMT(os.fstat(fd).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                found = _unlock(fd) or found
        finally:
            os.close(fd)
    return found


def _unlock(fd: int) -> bool:
    try:
        flags = int.from_bytes(fcntl.ioctl(fd, _GET_FLAGS, bytes(8))[:4], sys.byteorder)
        if not flags & _LOCKED:
            return False
        fcntl.ioctl(fd, _SET_FLAGS, (flags & ~_LOCKED).to_bytes(8, sys.byteorder))
    except OSError:
        return False
    return True


def open_up(root: str) -> None:
    """Make what a tool made unreadable readable again; root needs nothing."""
    if os.geteuid() != 0:
        with suppress(FileNotFoundError):
            _open_up(root, None, 0)


def _open_up(name: str | bytes, dir_fd: int | None, level: int) -> None:
    if level == DEEP:
        allow_deep()
    kind = _add_mode(name, dir_fd, 0o400)
    if not stat.S_ISDIR(kind):
        return
    with suppress(NotADirectoryError), directory(name, dir_fd) as fd:
        with os.scandir(fd) as entries:
            names = [os.fsencode(entry.name) for entry in entries]
        for inner in names:
            with suppress(FileNotFoundError):
                _open_up(inner, fd, level + 1)


def _add_mode(name: str | bytes, dir_fd: int | None, for_file: int) -> int:
    """Give a directory 0700, or a file at least `for_file`; returns the mode before.

    Read and changed through one descriptor: a file that a tool swaps in stays as it is.
    """
    mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    least = stat.S_IRWXU if stat.S_ISDIR(mode) else for_file
    if stat.S_ISLNK(mode) or mode & least == least:
        return mode
    if sys.platform != "linux":
        os.chmod(name, stat.S_IMODE(mode) | least, dir_fd=dir_fd, follow_symlinks=False)
        return mode
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISLNK(mode):
            least = stat.S_IRWXU if stat.S_ISDIR(mode) else for_file
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | least)
        return mode
    finally:
        os.close(fd)
