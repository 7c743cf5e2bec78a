"""A tree's stat data, one blob per directory: compiled, or else in Python.

Equal blobs mean that nothing in the directory itself changed, as far as stat can tell.
"""

import errno
import os
import stat
import struct
from collections.abc import Callable

from cleveragents.content import fsio
from cleveragents.content.descent import Descent
from cleveragents.content.files import Stamp
from cleveragents.content.native.compiled import walk as _walk

Found = list[tuple[bytes, bytes | int]]
"""(path, blob), or (path, errno) for what could not be read."""
_HEAD = struct.Struct(">Q")
_LENGTH = struct.Struct("<H")
_FIELDS = struct.Struct("<QQQQQ")
_TIMES = (1 << 64) - 1
_DIRECTORY = stat.S_IFDIR >> 12
_ONE_LINK = struct.pack("<I", 1)
NOTHING = _HEAD.pack(0)
"""The stat data of an empty directory."""


def python_walk(root: int, names: tuple[bytes, ...], paths: tuple[bytes, ...]) -> Found:
    """The twin of `_walk.walk`: slower, the same answer but for the order."""
    device = os.fstat(root).st_dev
    pruned_names, pruned_paths = set(names), set(paths)
    found: Found = []
    todo = [b""]
    with Descent(root) as descent:
        while todo:
            path = todo.pop()
            try:
                entries = _read(descent.to(path))
            except OSError as error:
                found.append((path, error.errno or errno.EIO))
                continue
            found.append((path, _pack(entries)))
            for name, status in entries:
                below = path + b"/" + name if path else name
                is_dir = stat.S_ISDIR(status.st_mode)
                if not is_dir or name in pruned_names or below in pruned_paths:
                    continue
                if status.st_dev != device:
                    found.append((below, errno.EXDEV))
                else:
                    todo.append(below)
    return found


def _read(fd: int) -> list[tuple[bytes, os.stat_result]]:
    with os.scandir(fd) as items:
        names = sorted(os.fsencode(item.name) for item in items)
    return [(name, status) for name in names if (status := fsio.lstat_at(fd, name)) is not None]


def _pack(entries: list[tuple[bytes, os.stat_result]]) -> bytes:
    newest = max((max(s.st_mtime_ns, s.st_ctime_ns) for _, s in entries), default=0)
    newest = fsio.bounded(max(newest, 0))
    parts = [_HEAD.pack(newest)]
    for name, status in entries:
        parts += (_LENGTH.pack(len(name)), name, _FIELDS.pack(*_fields(status)))
    return b"".join(parts)


def _fields(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return (
        status.st_ino,
        status.st_size,
        fsio.bounded(status.st_mtime_ns) & _TIMES,
        fsio.bounded(status.st_ctime_ns) & _TIMES,
        status.st_mode | status.st_nlink << 32,
    )


def _moment(field: int) -> int:
    return field if field <= fsio.LATEST else field - _TIMES - 1


def unpack(blob: bytes) -> dict[bytes, Stamp]:
    """Name -> inode, size, mtime, ctime, mode."""
    found: dict[bytes, Stamp] = {}
    at = _HEAD.size
    while at < len(blob):
        (length,) = _LENGTH.unpack_from(blob, at)
        at += _LENGTH.size
        name = blob[at : at + length]
        inode, size, mtime, ctime, mode = _FIELDS.unpack_from(blob, at + length)
        found[name] = (inode, size, _moment(mtime), _moment(ctime), mode & 0xFFFFFFFF)
        at += length + _FIELDS.size
    return found


def files(blob: bytes) -> dict[bytes, Stamp]:
    """The same, without directories."""
    return {name: found for name, found in unpack(blob).items() if not stat.S_ISDIR(found[4])}


def totals(blob: bytes) -> tuple[int, int]:
    """The number and size of entries that are not directories."""
    files = size = 0
    at, end = _HEAD.size, len(blob)
    while at < end:
        at += _LENGTH.size + (blob[at] | blob[at + 1] << 8)
        # The kind is in the upper four of the mode's 16 bits.
        if blob[at + 33] >> 4 != _DIRECTORY:
            files += 1
            size += int.from_bytes(blob[at + 8 : at + 16], "little")
        at += _FIELDS.size
    return files, size


def linked(blob: bytes) -> dict[bytes, Stamp]:
    """Name -> stamp of files with more than one name."""
    found: dict[bytes, Stamp] = {}
    at = _HEAD.size
    while at < len(blob):
        (length,) = _LENGTH.unpack_from(blob, at)
        at += _LENGTH.size + length
        # The count of links is the upper half of the last field.
        if blob[at + 36 : at + 40] != _ONE_LINK:
            fields = _FIELDS.unpack_from(blob, at)
            mode = fields[4] & 0xFFFFFFFF
            if stat.S_ISREG(mode):
                times = _moment(fields[2]), _moment(fields[3])
                found[blob[at - length : at]] = (*fields[:2], *times, mode)
        at += _FIELDS.size
    return found


def mark(moment: int) -> bytes:
    """A bound: blobs of directories with a time stamp from that moment on are not less."""
    return _HEAD.pack(max(moment, 0))


def newest(blob: bytes) -> int:
    """The newest time stamp in a directory."""
    return _HEAD.unpack_from(blob)[0]


ACCELERATED = _walk is not None
"""Whether the compiled walker is in use."""
walk: Callable[[int, tuple[bytes, ...], tuple[bytes, ...]], Found] = (
    _walk.walk if _walk else python_walk
)
