"""One name in a tree: kind, mode and the key of its content."""

import stat
from enum import StrEnum

import msgspec
from blake3 import blake3

from cleveragents.content.keys import (
    show_key,
)

HASH = 32
"""Bytes of the state of a directory."""


class EntryKind(StrEnum):
    FILE = "f"
    LINK = "l"
    DIRECTORY = "d"
    FIFO = "p"
    SOCKET = "s"
    CHARACTER = "c"
    BLOCK = "b"


_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFLNK: EntryKind.LINK,
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARACTER,
    stat.S_IFBLK: EntryKind.BLOCK,
}


def kind_of(mode: int) -> EntryKind:
    return _KINDS[stat.S_IFMT(mode)]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One name in a directory."""

    name: bytes
    kind: EntryKind
    mode: int
    size: int = 0
    mtime_ns: int = 0
    key: bytes = b""
    """File: content key. Link: its text. Directory: key of its manifest. Device: its number."""
    state: bytes = b""
    """Directory: Merkle hash of what is below. Behind it the extended attributes, if it has any."""

    @property
    def xattrs(self) -> bytes:
        """Extended attributes, packed as by `attributes.packed`."""
        return self.state[HASH:] if self.kind is EntryKind.DIRECTORY else self.state

    @property
    def tree(self) -> "Tree":
        """The tree below a directory."""
        return Tree(self.key, self.state[:HASH])

    def same_state(self, other: "Entry | None") -> bool:
        if other is None or self.kind is not other.kind or self.mode != other.mode:
            return False
        if self.kind is EntryKind.DIRECTORY:
            return self.state == other.state
        return self.key == other.key and self.state == other.state

    @property
    def described(self) -> str:
        """The state of this name as text, for records of writes."""
        what = show_key(self.key) if self.kind is EntryKind.FILE else self.key.hex()
        more = f":x{blake3(self.xattrs).hexdigest()[:16]}" if self.xattrs else ""
        return f"{self.kind}:{self.mode:o}:{'' if self.kind is EntryKind.DIRECTORY else what}{more}"


class Tree(msgspec.Struct, frozen=True):
    """A directory: the key of its manifest and the hash of its state."""

    key: bytes
    state: bytes
