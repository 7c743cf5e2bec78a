"""Copies, replaces and removes by open directories, following no link."""

import errno
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from cleveragents.errors import ToolFailed
from cleveragents.tools.limits import Deadline
from cleveragents.tools.paths import LIST, Spot, shown

BLOCK = 1 << 16
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: a FIFO that replaced a file must not block us before we see what it is.
OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def staged(spot: Spot) -> Generator[str]:
    """A temporary name beside the spot that replaces it if the block succeeds."""
    temp = f".agents-{os.urandom(8).hex()}.tmp"
    try:
        yield temp
        os.rename(temp, spot.name, src_dir_fd=spot.dir_fd, dst_dir_fd=spot.dir_fd)
    except BaseException:
        remove(temp, spot.dir_fd)
        raise


def copy(source: Spot, target: Spot, deadline: Deadline) -> None:
    with staged(target) as temp:
        _copy_entry(source.dir_fd, source.name, target.dir_fd, temp, deadline)


def move(source: Spot, target: Spot, deadline: Deadline) -> None:
    try:
        os.rename(source.name, target.name, src_dir_fd=source.dir_fd, dst_dir_fd=target.dir_fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy(source, target, deadline)
        remove(source.name, source.dir_fd)


def remove(name: str, dir_fd: int) -> None:
    """Remove a name with all below it; it may be missing."""
    try:
        info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(info.st_mode):
        shutil.rmtree(name, dir_fd=dir_fd)
    else:
        os.unlink(name, dir_fd=dir_fd)


def remove_empty(spot: Spot) -> None:
    try:
        os.rmdir(spot.name, dir_fd=spot.dir_fd)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise ToolFailed(
            f"{spot} is not empty", "recursive: true deletes everything in it"
        ) from None


def _copy_entry(from_fd: int, name: str, to_fd: int, new: str, deadline: Deadline) -> None:
    deadline.check()
    info = os.stat(name, dir_fd=from_fd, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=from_fd), new, dir_fd=to_fd)
    elif stat.S_ISREG(info.st_mode):
        with (
            os.fdopen(os.open(name, OLD, dir_fd=from_fd), "rb") as source,
            os.fdopen(os.open(new, NEW, 0o600, dir_fd=to_fd), "wb") as target,
        ):
            shutil.copyfileobj(source, target, BLOCK)
            os.fchmod(target.fileno(), stat.S_IMODE(info.st_mode))
    elif stat.S_ISDIR(info.st_mode):
        _copy_directory(from_fd, name, to_fd, new, deadline)
    else:
        raise ToolFailed(f"{shown(name)} is not a file, link or directory and cannot be copied")


def _copy_directory(from_fd: int, name: str, to_fd: int, new: str, deadline: Deadline) -> None:
    with ExitStack() as stack:
        source = os.open(name, LIST, dir_fd=from_fd)
        stack.callback(os.close, source)
        os.mkdir(new, 0o700, dir_fd=to_fd)
        target = os.open(new, LIST, dir_fd=to_fd)
        stack.callback(os.close, target)
        for each in os.listdir(source):
            _copy_entry(source, each, target, each, deadline)
        os.fchmod(target, stat.S_IMODE(os.fstat(source).st_mode))
