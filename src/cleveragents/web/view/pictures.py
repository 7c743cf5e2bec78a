"""Pictures that differ, beside each other.

What a plan made may be hostile: a picture is what its first bytes say, of a closed list of kinds
that hold nothing but pixels (never SVG, which is a page), and neither too large nor too many.
"""

import hashlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from cleveragents.history.diff import Comparison, FileDiff

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
"""Only what is called so is read at all; what it is, its bytes say."""
LARGEST = 4 << 20
MOST_PIXELS = 40_000_000
"""A few bytes can claim to be more than a browser can hold."""
MOST_AT_ONCE = 60
ROOM = 64 << 20
"""Bytes of pictures that are kept for browsers to ask for."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """In its address: the hash of its bytes."""
    kind: str
    width: int
    height: int
    size: int


Sides = tuple[Picture | None, Picture | None]
"""Before and after; None where there is none, or none that is shown."""


class Album:
    """The pictures of comparisons that were shown, newest last; for all threads."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._kept: OrderedDict[str, tuple[Picture, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, data: bytes) -> Picture | None:
        """What may be shown, or None if it is no picture of a kind we know."""
        seen = recognised(data)
        if seen is None or seen[1] * seen[2] > MOST_PIXELS or len(data) > LARGEST:
            return None
        kind, width, height = seen
        name = hashlib.sha256(data).hexdigest()
        made = Picture(name=name, kind=kind, width=width, height=height, size=len(data))
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = (made, data)
            while sum(picture.size for picture, _ in self._kept.values()) > self._room:
                self._kept.popitem(last=False)
        return made

    def get(self, name: str) -> tuple[Picture, bytes] | None:
        with self._lock:
            return self._kept.get(name)

    def of(self, found: Comparison, files: Sequence[FileDiff]) -> dict[tuple[str, str], Sides]:
        """(resource, path) -> both pictures, of the first files that are one."""
        named = [f for f in files if f.binary and f.path.lower().endswith(SUFFIXES)]
        room = self._room // 2
        sides: dict[tuple[str, str], Sides] = {}
        for spot, (before, after) in found.contents(named[:MOST_AT_ONCE], LARGEST).items():
            room -= len(before or b"") + len(after or b"")
            if room < 0:
                break
            both = self.add(before or b""), self.add(after or b"")
            if both != (None, None):
                sides[spot] = both
        return sides


def recognised(data: bytes) -> tuple[str, int, int] | None:
    """The kind of a picture, its width and height; None if it is none of these (pure)."""
    try:
        if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
            return "image/png", *struct.unpack(">II", data[16:24])
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return "image/gif", *struct.unpack("<HH", data[6:10])
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return "image/webp", *_webp(data)
        if data[:3] == b"\xff\xd8\xff":
            return "image/jpeg", *_jpeg(data)
    except (struct.error, IndexError, ValueError):  # it ends too early, or is not what it says
        return None
    return None


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError


def _jpeg(data: bytes) -> tuple[int, int]:
    """From the header of its frame, whatever stands before that."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        (length,) = struct.unpack(">H", data[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    raise ValueError
