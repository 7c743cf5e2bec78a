"""The content of a git index, without the stat data that `git status` rewrites."""

import struct

from blake3 import blake3

_HEADER = struct.Struct(">4sII")
_STATS = 40
_EXTENDED = 0x4000
_NAME_LENGTH = 0x0FFF


def meaning_of(data: bytes) -> str | None:
    """A hash of modes, object names, flags and paths; None if the format is unknown."""
    if len(data) < _HEADER.size:
        return None
    magic, version, count = _HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3):
        return None
    for width in (20, 32):
        if (found := _read(data, count, width)) is not None:
            return found
    return None


def _read(data: bytes, count: int, width: int) -> str | None:
    hasher, at = blake3(b"index "), _HEADER.size
    for _ in range(count):
        end = at + _STATS + width + 2
        if end > len(data):
            return None
        # Of the stat data only the mode says anything: type and executable bit.
        flags = int.from_bytes(data[end - 2 : end], "big")
        more = 2 if flags & _EXTENDED else 0
        stop = data.find(b"\0", end + more)
        name = data[end + more : stop]
        if stop < 0 or len(name) != flags & _NAME_LENGTH < _NAME_LENGTH:
            return None
        mode, named = data[at + 24 : at + 28], data[at + _STATS : end]
        hasher.update(mode + named + data[end : end + more] + name + b"\0")
        at += (stop - at + 8) // 8 * 8
    return hasher.hexdigest()
