"""Copies a directory's small files: compiled, or else in Python.

`copy_files(source, target, names, reflink, buffer, large, keep)`: `_copy.c` says what it returns.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable

from cleveragents.content import attributes, fsio
from cleveragents.content.files import Stamp, stamp
from cleveragents.content.keys import (
    git_key,
)
from cleveragents.content.native.compiled import copy as _copy

Made = tuple[Stamp, int | bytes | None, bool]
"""The stamp of a copy; if it was read, the bytes of it in the buffer, or the SHA-1 of the blob; and
whether source or copy has extended attributes, which are not copied here."""
NOTHING, BYTES, DIGEST = 0, 1, 2
"""What to keep of a file that was read."""
Copied = tuple[list[Made | int], bool]
"""One by one what was made or the errno, and whether to try to share blocks the next time."""
IS_LARGE, IS_OTHER = -1, -2
"""Stand for an errno: of `large` bytes or more, and no regular file."""
_FICLONE = 0x40049409
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_source(name: bytes, dir_fd: int) -> int:
    """Open without following links or blocking on a pipe."""
    return os.open(name, _READ, dir_fd=dir_fd)


def share_blocks(source: int, target: int) -> bool:
    """Share the source's blocks (reflink); False where the file system cannot."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY):
            raise
        return False
    return True


def finish(source: int, target: int, mode: int) -> os.stat_result:
    """Set mode and mtime like the source's, after the last write; returns the copy's stat."""
    found = os.fstat(source)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    if stat.S_IMODE(os.fstat(target).st_mode) != mode:
        os.fchmod(target, mode)
    return os.fstat(target)


def python_copy_files(
    source: int,
    target: int,
    names: tuple[bytes, ...],
    reflink: bool,
    buffer: memoryview,
    large: int,
    keep: int,
) -> Copied:
    """The twin of `_copy.copy_files`: slower, the same answer."""
    job = _Job(source, target, reflink, buffer, large)
    made: list[Made | int] = []
    for name in names:
        if len(job.buffer) < large:
            break
        try:
            one = job.copy(name)
        except OSError as error:
            one = error.errno or errno.EIO
        if not isinstance(one, int) and isinstance(one[1], int):
            count = one[1]
            if keep == DIGEST:
                one = one[0], git_key(bytes(job.buffer[:count]))[1:], one[2]
            elif keep == BYTES:
                job.buffer = job.buffer[count:]
        made.append(one)
    return made, job.reflink


class _Job:
    def __init__(
        self, source: int, target: int, reflink: bool, buffer: memoryview, large: int
    ) -> None:
        self._source = source
        self._target = target
        self.reflink = reflink
        self.buffer = buffer
        """What is left of it."""
        self._large = large

    def copy(self, name: bytes) -> Made | int:
        try:
            source = open_source(name, self._source)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            return IS_OTHER
        target, count = -1, None
        try:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                return IS_OTHER
            if found.st_size >= self._large:
                return IS_LARGE
            mode = stat.S_IMODE(found.st_mode)
            if self.reflink:
                target = fsio.create(name, mode & 0o777, self._target)
                self.reflink = share_blocks(source, target)
            if not self.reflink:
                count = self._read(source)
                if count >= self._large:
                    if target >= 0:
                        os.unlink(name, dir_fd=self._target)
                    return IS_LARGE
                if target < 0:
                    target = fsio.create(name, mode & 0o777, self._target)
                fsio.write_all(target, self.buffer[:count])
            has = bool(attributes.of(source) or attributes.of(target))
            return stamp(finish(source, target, mode)), count, has
        finally:
            os.close(source)
            if target >= 0:
                os.close(target)

    def _read(self, source: int) -> int:
        """Read a file, unless it has become large."""
        count = 0
        while more := os.readv(source, [self.buffer[count : self._large]]):
            count += more
        return count


ACCELERATED = _copy is not None
"""Whether the compiled copying is in use."""
HASHES = not _copy or bool(_copy.KNOWS_SHA)
"""Whether it can be asked for a DIGEST."""
copy_files: Callable[[int, int, tuple[bytes, ...], bool, memoryview, int, int], Copied] = (
    _copy.copy_files if _copy else python_copy_files
)
