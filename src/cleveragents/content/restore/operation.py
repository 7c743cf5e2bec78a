"""One step of a switch: what is at a path before and after it."""

import os

import msgspec

from cleveragents.content import fsio
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.fsio import Inode
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.model.resource import show_path


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One name to switch."""

    number: int
    path: bytes
    before: Entry | None
    after: Entry | None
    staged: Inode | None = None
    """The staged new file; None for directories and removals."""
    checked: bool = False
    """Whether only what is `expected` may be replaced: so in a target that is not ours."""
    expected: Inode | None = None
    """What is to be replaced; None: nothing may be there."""

    def is_in_place(self, found: os.stat_result) -> bool:
        return self.staged is not None and self.staged[0] == found.st_ino

    @property
    def goes_first(self) -> bool:
        """Whether it is a removal, or replaces a directory."""
        if self.before is None or (is_directory(self.before) and is_directory(self.after)):
            return False
        return self.after is None or is_directory(self.before)

    @property
    def new(self) -> bytes:
        return b"n%d" % self.number

    @property
    def old(self) -> bytes:
        return b"o%d" % self.number


def is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIRECTORY


MANY = 64
"""From this many files on, one sync of the file system is cheaper than one for each."""


Expected = dict[bytes, Inode]


def cannot_set(path: bytes, names: list[bytes]) -> SandboxError:
    return SandboxError(
        f"{show_path(path)}: attribute {show_path(names[0])} cannot be set: not permitted",
        "run it as a user who may set it",
    )


def changed_meanwhile(op: Op) -> ApplyRefused:
    return ApplyRefused(
        f"{show_path(op.path)} changed while it was being applied",
        "no target was changed; fix the cause and apply again",
    )


def set_entry_times(fd: int, name: bytes, entry: Entry) -> None:
    """Set an entry's time; states of older versions have times only for files."""
    if entry.mtime_ns or entry.kind is EntryKind.FILE:
        fsio.set_times(fd, name, entry.mtime_ns)
