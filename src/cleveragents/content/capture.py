"""Turn a directory into a tree of manifests: walk it, read what a stat cannot vouch for."""

import os
import stat
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from cleveragents.content import fsio
from cleveragents.content.files import Stamp, capture_file, stamp
from cleveragents.content.packs import Batch
from cleveragents.content.trees import (
    SPECIAL,
    Entry,
    EntryKind,
    Tree,
    directory_state,
    kind_of,
    store_directory,
)
from cleveragents.errors import CheckpointFailed, SandboxError
from cleveragents.resource import show_path

RACY_NS = 2_000_000_000
"""A file touched this shortly before it was read may change again within the same time stamp."""


_EMPTY = directory_state([])


class Known(NamedTuple):
    stamp: Stamp
    key: bytes


class StatCache:
    """path -> (what stat said, key). Vouches for a file only if its stamps are old enough.

    What a capture learned counts once its content is committed: until then it is only noted.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def get(self, path: bytes, found: os.stat_result) -> bytes | None:
        known = self._known.get(path)
        return known.key if known is not None and known.stamp == stamp(found) else None

    def learn(self, noted: dict[bytes, Known], now_ns: int) -> None:
        for path, known in noted.items():
            if max(known.stamp[2], known.stamp[3]) + RACY_NS < now_ns:
                self._known[path] = known
            else:
                self._known.pop(path, None)


class Scope(msgspec.Struct, frozen=True):
    """What belongs to a resource: everything below its root but these."""

    exclude: tuple[bytes, ...] = ()
    """Paths, or glob patterns on the path, that are never captured, restored or applied."""
    links: dict[bytes, bytes] = {}
    """Places of inner resources -> the text of the link that must be there."""
    skip: tuple[bytes, ...] = ()
    """Places of inner resources in the user's own tree."""

    def leaves_out(self, path: bytes) -> bool:
        return path in self.links or path in self.skip or excluded(path, self.exclude)


def excluded(path: bytes, patterns: tuple[bytes, ...]) -> bool:
    """Whether a rule names the path or one of its parents."""
    if not patterns:
        return False
    import fnmatch

    parts = path.split(b"/")
    heads = [b"/".join(parts[: n + 1]) for n in range(len(parts))]
    return any(
        fnmatch.fnmatchcase(head, rule) or (b"/" not in rule and fnmatch.fnmatchcase(part, rule))
        for rule in patterns
        for head, part in zip(heads, parts, strict=True)
    )


class Walker:
    """Captures a tree; one per sandbox, so that the cache serves the next capture."""

    def __init__(self, scope: Scope, base: Mapping[bytes, tuple[bytes, int]]) -> None:
        self.scope = scope
        self.base = base
        self.cache = StatCache()

    def capture(self, root: str, batch: Batch) -> Tree:
        noted: dict[bytes, Known] = {}
        now_ns = time.time_ns()
        with fsio.directory(root) as fd:
            tree = _Pass(self, batch, noted, os.fstat(fd).st_dev).directory(fd, b"")
        batch.after_commit.append(lambda: self.cache.learn(noted, now_ns))
        return tree

    def require_links(self, root: str) -> None:
        """Inner resources are still linked in; what replaced one would escape every checkpoint."""
        for place, text in self.scope.links.items():
            try:
                with fsio.directory(root) as top, fsio.parent_of(top, place) as (fd, name):
                    found = os.readlink(name, dir_fd=fd)
            except OSError:
                found = b""
            if found != text:
                raise SandboxError(
                    f"{show_path(place)} is no longer the link to the resource that lives there",
                    "a tool replaced it: write through the link instead",
                )


class _Pass:
    """One walk of the tree."""

    def __init__(
        self, walker: Walker, batch: Batch, noted: dict[bytes, Known], device: int
    ) -> None:
        self._walker = walker
        self._batch = batch
        self._noted = noted
        self._device = device

    def directory(self, fd: int, prefix: bytes) -> Tree:
        entries: list[Entry] = []
        with os.scandir(fd) as found:
            names = [os.fsencode(item.name) for item in found]
        for name in names:
            path = prefix + name
            if self._walker.scope.leaves_out(path):
                continue
            entry = self._entry(fd, name, path)
            if entry is not None:
                entries.append(entry)
        return store_directory(entries, self._batch)

    def _entry(self, fd: int, name: bytes, path: bytes) -> Entry | None:
        found = fsio.lstat_at(fd, name)
        if found is None:
            return None
        kind = kind_of(found.st_mode)
        if kind is EntryKind.DIRECTORY:
            return self._below(fd, name, path, found)
        if kind is EntryKind.LINK:
            return Entry(name, kind, 0o777, key=os.readlink(name, dir_fd=fd))
        if kind in SPECIAL:
            device = kind in (EntryKind.CHARACTER, EntryKind.BLOCK)
            number = b"%d" % found.st_rdev if device else b""
            return Entry(name, kind, stat.S_IMODE(found.st_mode), key=number)
        return self._file(fd, name, path, found)

    def _below(self, fd: int, name: bytes, path: bytes, found: os.stat_result) -> Entry | None:
        if found.st_dev != self._device:
            raise CheckpointFailed(
                f"{show_path(path)} is a mount point and is not captured",
                f"unmount it, or add {show_path(path)!r} to the resource's exclude",
            )
        try:
            with fsio.directory(name, fd) as below:
                tree = self.directory(below, path + b"/")
                if tree.state == _EMPTY and self._holds_excluded(below, path + b"/"):
                    return None
        except PermissionError:
            raise CheckpointFailed(
                f"directory {show_path(path)} cannot be read",
                f"chmod u+rx it, or add {show_path(path)!r} to the resource's exclude",
            ) from None
        mode = stat.S_IMODE(found.st_mode)
        return Entry(name, EntryKind.DIRECTORY, mode, key=tree.key, state=tree.state)

    def _holds_excluded(self, fd: int, prefix: bytes) -> bool:
        """A directory with nothing but excluded things in it is left out as they are."""
        rules = self._walker.scope.exclude
        return any(excluded(prefix + os.fsencode(name), rules) for name in os.listdir(fd))

    def _file(self, fd: int, name: bytes, path: bytes, found: os.stat_result) -> Entry:
        key = self._walker.cache.get(path, found)
        if key is None:
            key, found = capture_file(fd, name, path, self._batch, self._walker.base.get(path))
            self._noted[path] = Known(stamp(found), key)
        mode = stat.S_IMODE(found.st_mode)
        return Entry(name, EntryKind.FILE, mode, found.st_size, found.st_mtime_ns, key)
