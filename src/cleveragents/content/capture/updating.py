"""One capture: the part of a tree that has to be read, rebuilt bottom up."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cleveragents.content import attributes, fsio, trees
from cleveragents.content.capture.known_files import KnownFiles, rely_on_file
from cleveragents.content.capture.statcache import Known
from cleveragents.content.capture.tracker import Tracker
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
    kind_of,
)
from cleveragents.content.files import (
    CHUNK,
    Base,
    Seen,
    Stamp,
    capture_file,
    look,
    stamp,
    store_small,
)
from cleveragents.content.keys import (
    BLOB,
    GIT,
    key_of,
)
from cleveragents.content.native import walker
from cleveragents.content.packs import (
    Batch,
    Packs,
)
from cleveragents.content.scope import Scope
from cleveragents.content.trees import (
    Listing,
    Manifests,
)
from cleveragents.errors import CheckpointFailed
from cleveragents.model.resource import show_path


class Borrowed(Protocol):
    """Content that need not be stored: path -> git key and size."""

    def get(self, path: bytes, /) -> Base | None: ...


class Engine(Protocol):
    """What a capture needs from `TreeEngine`; documented there."""

    root: str
    scope: Scope
    base: Borrowed
    packs: Packs
    manifests: Manifests
    tracker: Tracker | None
    linked: dict[bytes, Stamp]
    known_files: KnownFiles
    tell_gone: Callable[[Entry], None] | None
    replaced: tuple[Tree, list[tuple[Entry, Entry | None]]] | None

    @property
    def known(self) -> Known | None: ...


class NeedsWalk(Exception):
    """Events are not enough to know the state; look at everything."""


class Work:
    """Names to read again, as a tree of directories."""

    __slots__ = ("_made", "below", "names", "whole")

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.whole: bool = False
        """Every name in this directory."""
        self.below: dict[bytes, Work] = {}
        self._made: dict[bytes, Work] = {}

    def at(self, path: bytes) -> "Work":
        """The node of a path; call it on the top node, which caches them."""
        missing: list[bytes] = []
        while path and path not in self._made:
            path, _, name = path.rpartition(b"/")
            missing.append(name)
        node = self._made[path] if path else self
        for name in reversed(missing):
            path = path + b"/" + name if path else name
            node = self._made[path] = node.below.setdefault(name, Work())
        return node

    def all_names(self) -> set[bytes]:
        """All names, also directories with only a changed mode or changes below."""
        return {name.removesuffix(b"/") for name in self.names} | self.below.keys()

    @staticmethod
    def of(dirty: Mapping[bytes, Iterable[bytes]]) -> "Work":
        work = Work()
        for path, names in dirty.items():
            work.at(path).names.update(names)
        return work


def unreadable(path: bytes, code: int) -> CheckpointFailed:
    if code == errno.EXDEV:
        return CheckpointFailed(
            f"{show_path(path)} is a mount point and is not captured",
            f"unmount it, or add {show_path(path)!r} to the resource's exclude",
        )
    return CheckpointFailed(
        f"directory {show_path(path)} cannot be read: {os.strerror(code)}",
        f"chmod u+rx it, or add {show_path(path)!r} to the resource's exclude",
    )


def _directory_entry(name: bytes, mode: int, tree: Tree, xattrs: bytes) -> Entry:
    return Entry(name, EntryKind.DIRECTORY, mode, key=tree.key, state=tree.state + xattrs)


class Pass:
    """One pass of a capture over the tree."""

    def __init__(
        self, engine: Engine, batch: Batch, stats: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._engine = engine
        self.batch = batch
        self._stats = stats or {}
        self._load = engine.manifests
        self._replaced: list[tuple[Entry, Entry | None]] = []
        self.exchanged: set[bytes] = set()
        """Directories that are gone, or others by now: nothing known of what was below holds."""
        self.tree: Tree = trees.EMPTY

    def scan(self) -> None:
        with fsio.directory(self._engine.root) as fd:
            self.tree = self._store(self._scan(fd, b""))

    def update(self, old: Tree, work: Work) -> None:
        with fsio.directory(self._engine.root) as fd:
            self.tree = self._updated(fd, b"", old, work)
        self._engine.replaced = old, self._replaced

    def _store(self, listing: Listing, before: Listing | None = None) -> Tree:
        tree = trees.store_directory(listing, self.batch, before)
        self._load.put(tree.key, listing)
        return tree

    def _scan(self, fd: int, prefix: bytes) -> Listing:
        """Every entry of an unknown directory."""
        if self._engine.tracker is not None:
            self._engine.tracker.watch((prefix[:-1],))
            self._engine.tracker.drain()
        with os.scandir(fd) as items:
            names = [os.fsencode(item.name) for item in items]
        found = [self._look(fd, name, prefix + name) for name in names]
        return Listing.of([entry for entry in found if entry is not None])

    def _updated(self, fd: int, prefix: bytes, old: Tree, work: Work) -> Tree:
        listing = self._load(old.key)
        before = listing.all() if work.whole else listing.some(work.all_names())
        entries = dict(before)
        if work.whole:
            self._whole(fd, prefix, entries, work)
        for name in work.names:
            if name[-1:] == b"/":
                self._set_mode(fd, entries, name[:-1], work)
        for name in work.names:
            if name[-1:] != b"/":
                entry = self._look(fd, name, prefix + name, entries.get(name))
                self._put(entries, name, entry, prefix)
        for name, below in work.below.items():
            entry = entries.get(name)
            if entry is not None and entry.kind is EntryKind.DIRECTORY and name not in work.names:
                self._put(entries, name, self._below(fd, prefix, entry, below), prefix, True)
        changed = {
            name: entries.get(name)
            for name in before.keys() | entries.keys()
            if entries.get(name) != before.get(name)
        }
        return self._store(listing.changed(changed), listing) if changed else old

    def _set_mode(self, fd: int, entries: dict[bytes, Entry], name: bytes, work: Work) -> None:
        """Update mode and attributes of a directory; what is below has its own events."""
        entry, found = entries.get(name), fsio.lstat_at(fd, name)
        if entry is None or found is None or entry.kind is not kind_of(found.st_mode):
            if name not in work.names:
                raise NeedsWalk
            return
        mode, xattrs = stat.S_IMODE(found.st_mode), attributes.of(attributes.where(fd, name))
        entries[name] = _directory_entry(name, mode, entry.tree, xattrs)

    def _put(
        self,
        entries: dict[bytes, Entry],
        name: bytes,
        entry: Entry | None,
        prefix: bytes,
        looked_below: bool = False,
    ) -> None:
        gone = entries.get(name)
        if gone is not None and not (looked_below and entry) and not gone.same_state(entry):
            self._gone(gone, entry)
        if entry is not None:
            entries[name] = entry
        elif gone is not None:
            del entries[name]
            if gone.kind is EntryKind.DIRECTORY and self._engine.tracker is not None:
                self._engine.tracker.forget(prefix + name)
        if gone is not None and gone.kind is EntryKind.DIRECTORY and not (looked_below and entry):
            self.exchanged.add(prefix + name)

    def _gone(self, entry: Entry, instead: Entry | None) -> None:
        self._replaced.append((entry, instead))
        if self._engine.tell_gone is not None:
            self._engine.tell_gone(entry)

    def _whole(self, fd: int, prefix: bytes, entries: dict[bytes, Entry], work: Work) -> None:
        """Mark by stamps which names of a directory to read."""
        known = self._engine.known
        assert known is not None
        old, blob = known.stats.get(prefix[:-1], walker.NOTHING), self._stats[prefix[:-1]]
        now = walker.unpack(blob)
        before = now if old == blob else walker.unpack(old)
        limit = known.young_from
        for name in [name for name in entries if name not in now]:
            self._gone(entries.pop(name), None)
        for name, found in now.items():
            entry = entries.get(name)
            known_files = before.get(name) == found and max(found[2], found[3]) < limit
            if entry is not None and entry.kind is EntryKind.DIRECTORY and stat.S_ISDIR(found[4]):
                if not known_files:
                    mode, xattrs = stat.S_IMODE(found[4]), attributes.of(attributes.where(fd, name))
                    entries[name] = _directory_entry(name, mode, entry.tree, xattrs)
                continue
            if entry is None or not known_files:
                work.names.add(name)

    def _below(self, fd: int, prefix: bytes, entry: Entry, work: Work) -> Entry | None:
        path = prefix + entry.name
        if prefix.count(b"/") == fsio.DEEP:
            fsio.allow_deep()
        try:
            with fsio.directory(entry.name, fd) as below:
                tree = self._updated(below, path + b"/", entry.tree, work)
                return _directory_entry(entry.name, entry.mode, tree, entry.xattrs)
        except (FileNotFoundError, NotADirectoryError):
            # Gone since the event; the parent's event or stat data shows that too.
            return None if fsio.lstat_at(fd, entry.name) is None else entry

    def _look(self, fd: int, name: bytes, path: bytes, old: Entry | None = None) -> Entry | None:
        """The entry of one name as it is now."""
        if self._engine.scope.leaves_out(path):
            return None
        known = self._engine.known_files.get(path)
        found = look(fd, name, -1) if known is not None else None
        if found is None or known is None or found[:5] != known[0]:
            found = look(fd, name, CHUNK - 1)
        if found is None:
            return None
        kind = kind_of(found[4])
        if kind is EntryKind.FILE:
            return self._file(fd, name, path, found, old)
        mode = stat.S_IMODE(found[4])
        if kind is EntryKind.DIRECTORY:
            return self._new_directory(fd, name, path, mode)
        if kind is EntryKind.LINK:
            return Entry(name, kind, 0o777, 0, found[2], os.readlink(name, dir_fd=fd))
        device = kind in (EntryKind.CHARACTER, EntryKind.BLOCK)
        return Entry(name, kind, mode, 0, found[2], b"%d" % found[6] if device else b"")

    def _new_directory(self, fd: int, name: bytes, path: bytes, mode: int) -> Entry | None:
        if path.count(b"/") == fsio.DEEP:
            fsio.allow_deep()
        try:
            with fsio.directory(name, fd) as below:
                if os.fstat(below).st_dev != os.fstat(fd).st_dev:
                    raise unreadable(path, errno.EXDEV)
                tree = self._store(self._scan(below, path + b"/"))
                return _directory_entry(name, mode, tree, attributes.of(below))
        except PermissionError:
            raise unreadable(path, errno.EACCES) from None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _base(self, path: bytes, before: Entry | None) -> Base | None:
        """The base's blob at a path, taken from the old entry if that is borrowed."""
        if before is not None and before.key[:1] == GIT:
            return before.key, before.size
        return self._engine.base.get(path)

    def _small(self, data: bytes, path: bytes, before: Entry | None) -> bytes:
        """Store a small file and return its key; the base is asked only if it changed."""
        if before is not None and before.key[:1] == BLOB and key_of(BLOB, data) == before.key:
            self.batch.put_keyed(before.key, data)
            return before.key
        return store_small(data, self.batch, self._base(path, before))

    def _file(
        self, fd: int, name: bytes, path: bytes, found: Seen, old: Entry | None
    ) -> Entry | None:
        engine = self._engine
        status, links, data = found[:5], found[5], found[7]
        known_files = engine.known_files.get(path)
        known = known_files is not None and known_files[0] == status
        if known_files and known and rely_on_file(known_files[1], self.batch, engine.packs):
            key = known_files[1]
        else:
            before = old if old is not None and old.kind is EntryKind.FILE else None
            if data is not None:
                key = self._small(data, path, before)
            elif captured := capture_file(fd, name, path, self.batch, self._base(path, before)):
                key, status, links = captured[0], stamp(captured[1]), captured[1].st_nlink
            else:
                return None
        if links > 1 and engine.tracker is not None and not self._stats:
            # The name has another file than before, which may have names without events.
            if path not in engine.linked or engine.linked[path][0] != status[0]:
                raise NeedsWalk
            engine.linked[path] = status
        mode = stat.S_IMODE(status[4])
        xattrs = attributes.of(attributes.where(fd, name)) if found[8] else b""
        return Entry(name, EntryKind.FILE, mode, status[1], status[2], key, xattrs)


def by_directory(paths: Iterable[bytes]) -> dict[bytes, set[bytes]]:
    found: dict[bytes, set[bytes]] = {}
    for path in paths:
        folder, _, name = path.rpartition(b"/")
        found.setdefault(folder, set()).add(name)
    return found


def linked_files(stats: Mapping[bytes, bytes]) -> dict[bytes, Stamp]:
    """Files with several names, by path."""
    return {
        (path + b"/" + name if path else name): known
        for path, blob in stats.items()
        for name, known in walker.linked(blob).items()
    }


def as_walked(stats: dict[bytes, bytes], known: Known | None) -> dict[bytes, bytes]:
    """Drop directories whose linked files differ from what the walk saw.

    A write through a name outside the tree gives no event: its stat data must not vouch for older
    content, or no walk would ever find the change.
    """
    assert known is not None
    return {
        path: blob
        for path, blob in stats.items()
        if (was := known.stats.get(path)) == blob
        or (was and walker.files(was) == walker.files(blob))
    }
