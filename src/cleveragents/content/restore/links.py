"""Hard links: which names of a state are one file, and how to link them again."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from cleveragents.content import fsio
from cleveragents.content.entry import Entry, EntryKind
from cleveragents.content.tree_diff import Difference

Names = tuple[tuple[bytes, ...], ...]
"""Paths by the file that they are names of; one alone has its other names elsewhere."""
MOST = 2000
"""With more names than these a state does not say which are one file."""


class Links(msgspec.Struct, frozen=True):
    """How the files of a switch are linked."""

    of: dict[bytes, int] = {}
    """Path -> number of the file it is to be a name of."""
    live: dict[int, bytes] = {}
    """Number of a file -> a path at which it is already, and stays."""
    more: tuple[Difference, ...] = ()
    """Names that have the right content and are names of the wrong file."""


def by_file(inodes: Mapping[bytes, int]) -> Names:
    found: dict[int, list[bytes]] = {}
    for path, inode in sorted(inodes.items()):
        found.setdefault(inode, []).append(path)
    return tuple(tuple(paths) for paths in found.values())


def plan_links(
    root: str,
    differences: Iterable[Difference],
    now: Names,
    wanted: Names,
    entry_of: Callable[[bytes], Entry | None],
) -> Links:
    """Plan what to link and separate to get from one state's links to another's."""
    one = _Plan({item.path for item in differences}, entry_of)
    with fsio.directory(root) as fd:
        for paths in _alike(wanted, entry_of):
            one.join(paths, {path: _inode(fd, path) for path in paths})
        for paths in now:
            one.separate({path: _inode(fd, path) for path in paths})
    return Links(one.of, one.live, tuple(one.more.values()))


class _Plan:
    def __init__(self, changed: set[bytes], entry_of: Callable[[bytes], Entry | None]) -> None:
        self._changed = changed
        self._entry_of = entry_of
        self._taken: set[int] = set()
        """Inodes that one file keeps."""
        self.of: dict[bytes, int] = {}
        self.live: dict[int, bytes] = {}
        self.more: dict[bytes, Difference] = {}

    def join(self, paths: list[bytes], inodes: dict[bytes, int | None]) -> None:
        """Make these names of one file: that of the first unchanged one."""
        number = len(self.of)
        self.of |= dict.fromkeys(paths, number)
        staying = [path for path in paths if path not in self._changed and inodes[path]]
        kept = next((path for path in staying if inodes[path] not in self._taken), None)
        if kept is not None and (inode := inodes[kept]) is not None:
            self._taken.add(inode)
            self.live[number] = kept
        for path in staying:
            if kept is None or inodes[path] != inodes[kept]:
                self._write_again(path)

    def separate(self, inodes: dict[bytes, int | None]) -> None:
        """Give each of these names of one file a file of its own where it must be separate."""
        for path, inode in inodes.items():
            if inode is None or path in self.of or path in self._changed:
                continue
            if inode in self._taken:
                self._write_again(path)
            self._taken.add(inode)

    def _write_again(self, path: bytes) -> None:
        entry = self._entry_of(path)
        if entry is not None:
            self.more[path] = Difference(path, entry, entry)


def _alike(wanted: Names, entry_of: Callable[[bytes], Entry | None]) -> list[list[bytes]]:
    """Names of one file with equal entries; in a merged state they may differ."""
    found: dict[tuple[int, Entry], list[bytes]] = {}
    for number, paths in enumerate(wanted):
        for path in paths:
            entry = entry_of(path)
            if entry is not None and entry.kind is EntryKind.FILE:
                alike = number, msgspec.structs.replace(entry, name=b"")
                found.setdefault(alike, []).append(path)
    return [paths for paths in found.values() if len(paths) > 1]


def _inode(root: int, path: bytes) -> int | None:
    with suppress(OSError), fsio.parent_of(root, path) as (fd, name):
        found = fsio.lstat_at(fd, name)
        if found is not None and stat.S_ISREG(found.st_mode):
            return found.st_ino
    return None


def link_live(root: str, path: bytes, staging: int, new: bytes) -> bool:
    """Link the staged name to an existing file; False where that is not allowed."""
    try:
        with fsio.directory(root) as top, fsio.parent_of(top, path) as (fd, name):
            os.link(name, new, src_dir_fd=fd, dst_dir_fd=staging, follow_symlinks=False)
    except OSError:
        return False
    return True
