"""Manifests as bytes: split, joined and compared, compiled or in Python."""

from binascii import crc32
from collections.abc import Callable

import msgspec

from cleveragents import codec
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.native.compiled import walk as _walk
from cleveragents.content.safe_names import is_name

ENCODER = msgspec.msgpack.Encoder()


DECODER = msgspec.msgpack.Decoder(list[Entry])


LARGE = 1000
"""Entries from which on pieces are of 32 on average; else of 8: the list of them has a cost too."""


LONGEST = 64
"""Entries of the longest piece."""


def manifest(entries: list[Entry]) -> bytes:
    return ENCODER.encode(entries)


def python_pieces(manifest: bytes, before: bytes) -> list[bytes | int]:
    """The twin of `_walk.pieces`."""
    old = {part: number for number, part in enumerate(_cut(before))}
    return [old.get(part, part) for part in _cut(manifest)]


def _cut(manifest: bytes) -> list[bytes]:
    entries = DECODER.decode(manifest)
    mask = 7 if len(entries) < LARGE else 31
    parts: list[list[Entry]] = [[]]
    for entry in entries:
        parts[-1].append(entry)
        if crc32(entry.name) & mask == 0 or len(parts[-1]) == LONGEST:
            parts.append([])
    return [ENCODER.encode(part) for part in parts if part]


def python_picked(manifest: bytes, names: list[bytes]) -> bytes:
    """The twin of `_walk.picked`."""
    wanted = set(names)
    return ENCODER.encode([item for item in DECODER.decode(manifest) if item.name in wanted])


def python_changed(manifest: bytes, changes: list[tuple[bytes, bytes]]) -> bytes:
    """The twin of `_walk.changed`."""
    entries = {entry.name: entry for entry in DECODER.decode(manifest)}
    for name, entry in changes:
        entries.pop(name, None)
        if entry:
            entries[name] = codec.from_msgpack(entry, Entry)
    return ENCODER.encode([entries[name] for name in sorted(entries)])


def python_unequal(before: bytes, after: bytes) -> list[bytes]:
    """The twin of `_walk.unequal`."""
    old, new = ({item.name: item for item in DECODER.decode(data)} for data in (before, after))
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def python_unsafe(manifest: bytes) -> bytes | None:
    """The twin of `_walk.unsafe`."""
    last = b""
    for entry in DECODER.decode(manifest):
        if not is_name(entry.name) or entry.name <= last:
            return entry.name
        last = entry.name
    return None


def python_state_text(manifest: bytes) -> bytes:
    """The text whose hash is a directory's state; the twin of `_walk.state_text`."""
    parts: list[bytes] = []
    for entry in DECODER.decode(manifest):
        content = entry.state if entry.kind is EntryKind.DIRECTORY else entry.key
        head = b"%s%o %d %d " % (entry.kind.encode(), entry.mode, len(entry.name), len(content))
        parts += (head, entry.name, content)
        if entry.state and entry.kind is not EntryKind.DIRECTORY:
            parts.append(b"x%d %s" % (len(entry.state), entry.state))
    return b"".join(parts)


state_text: Callable[[bytes], bytes] = _walk.state_text if _walk else python_state_text


pieces: Callable[[bytes, bytes], list[bytes | int]] = _walk.pieces if _walk else python_pieces
"""A manifest in parts, so that one changed entry does not rewrite all of a large directory.

Where a part ends depends on names alone: what happens in one does not move the others. Of a part
that the manifest before had as well comes only its number there.
"""


picked: Callable[[bytes, list[bytes]], bytes] = _walk.picked if _walk else python_picked
"""A manifest of the entries of these names, which are sorted."""


changed: Callable[[bytes, list[tuple[bytes, bytes]]], bytes] = (
    _walk.changed if _walk else python_changed
)
"""A manifest with other entries: name, and what it has now or nothing; sorted."""


unequal: Callable[[bytes, bytes], list[bytes]] = _walk.unequal if _walk else python_unequal
"""Names whose entries are not the same in two manifests."""


unsafe: Callable[[bytes], bytes | None] = getattr(_walk, "unsafe", python_unsafe)
"""The first name that leads elsewhere, is there twice or out of order; None if all are fine."""
