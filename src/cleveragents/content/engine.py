"""Capture a directory as a tree of manifests at the cost of what changed.

What is known is a tree in the store and the stat data its directories had when it was taken. The
next capture updates that tree: only at the names the tracker tells, or, in a new process and on any
doubt, in directories whose stat data differs. There a file is read unless its stamp vouches for it.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cleveragents.content import fsio, trees, walker
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
from cleveragents.content.packs import BLOB, GIT, Batch, Packs, key_of
from cleveragents.content.scope import Scope
from cleveragents.content.statcache import Known, StatCache
from cleveragents.content.tracker import Dirty, Tracker
from cleveragents.content.trees import Entry, EntryKind, Listing, Manifests, Tree, kind_of
from cleveragents.content.vouching import Vouched, relied_on, still_kept
from cleveragents.errors import CheckpointFailed, ContentDamaged, SandboxError
from cleveragents.resource import show_path

RACY_NS = 2_000_000_000
"""A file touched this shortly before it was read may change again within the same time stamp."""
Replaced = tuple[Tree, list[tuple[Entry, Entry | None]]]
"""A tree, and entries of it that are not there any more with what came in their place."""


Read = tuple[dict[bytes, bytes], int]
"""Stat data by directory, and since when it was read."""


class Borrowed(Protocol):
    """Content that need not be stored: path -> its git key and size."""

    def get(self, path: bytes, /) -> Base | None: ...


class NeedsWalk(Exception):
    """What was told is not enough to know the state; look at everything."""


class Work:
    """Names to look at again, as a tree of directories."""

    __slots__ = ("below", "names", "whole")

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.whole = False
        """Every name in this directory."""
        self.below: dict[bytes, Work] = {}

    def at(self, path: bytes) -> "Work":
        node = self
        for part in path.split(b"/") if path else ():
            node = node.below.setdefault(part, Work())
        return node

    def all_names(self) -> set[bytes]:
        """Also those of directories of which only the mode, or what is below, is looked at."""
        return {name.removesuffix(b"/") for name in self.names} | self.below.keys()

    @staticmethod
    def of(dirty: Mapping[bytes, Iterable[bytes]]) -> "Work":
        work = Work()
        for path, names in dirty.items():
            work.at(path).names.update(names)
        return work


class TreeEngine:
    """Captures one root."""

    def __init__(
        self,
        root: str,
        scope: Scope,
        base: Borrowed,
        packs: Packs,
        cache: str | None = None,
        manifests: Manifests | None = None,
    ) -> None:
        self.root = root
        self.scope = scope
        self.base = base
        self.packs = packs
        self.manifests = manifests or Manifests(packs.get)
        self._cache = StatCache(cache, root) if cache else None
        self.known: Known | None = self._cache.load() if self._cache else None
        """What the last committed capture saw."""
        self.tracker: Tracker | None = None
        self._synced = False
        """Whether everything since `known` is in the tracker or in `_again`."""
        self._committed = False
        """Whether `known` is what this process itself saw last."""
        self._old_from: int | None = None
        """When stat data that is too young to prove anything can be read once more."""
        self._watched: set[bytes] = set()
        self._again: Dirty = {}
        """Touched names of captures that were not committed: they count once more."""
        self.linked: dict[bytes, Stamp] = {}
        """Files with several names: a write through another name gives no event for this one."""
        self.vouched: Vouched = {}
        self.tell_gone: Callable[[Entry], None] | None = None
        self.replaced: Replaced | None = None
        """What the last capture began with and what it found replaced; None if it read it all."""

    def track(self) -> None:
        """Follow changes from here on; worth it for a process that makes several captures."""
        if self.tracker is None and Tracker.available():
            self.tracker = Tracker(self.root)
            self._synced = False

    def drain(self) -> None:
        """Take in what the kernel has queued, so that the queue never overflows."""
        if self.tracker is not None:
            self.tracker.drain()

    @property
    def walks(self) -> bool:
        """Whether the next capture has to look at everything."""
        return not (self._synced and self.tracker is not None)

    def doubt(self) -> None:
        """Trust nothing that was only told: the next capture looks at everything."""
        self._synced = False

    def walk(self) -> walker.Found:
        with fsio.directory(self.root) as fd:
            return walker.walk(fd, self.scope.prune_names, self.scope.prune_paths)

    def _walk_draining(self) -> walker.Found:
        if self.tracker is None:
            return self.walk()
        with self.tracker.draining():
            return self.walk()

    def capture(
        self,
        batch: Batch,
        touched: Iterable[bytes] | None = None,
        gone: Callable[[Entry], None] | None = None,
    ) -> Tree:
        """The tree as it is now; counts as known once the batch is committed.

        `touched`: the only paths that can have changed since the last capture, if that is certain.
        `gone` is told of entries that are found replaced, as soon as they are.
        """
        self.replaced = None
        self.tell_gone = gone
        try:
            if not self.walks:
                return self._from_events(batch)
            if touched is not None and self._committed:
                return self._update(batch, _by_directory(touched)).tree
        except (NeedsWalk, ContentDamaged):
            self._synced = False
        return self._from_walk(batch)

    def _from_events(self, batch: Batch) -> Tree:
        assert self.tracker is not None
        read = self._read_again()
        told = self.tracker.take()
        if told is None:
            raise NeedsWalk
        for path, names in told.items():
            self._again.setdefault(path, set()).update(names)
        dirty = {path: set(names) for path, names in self._again.items()}
        self._add_linked(dirty)
        if not dirty:
            tree = self._known_tree(batch)
            self.replaced = tree, []
            self._know(tree, read)
            return tree
        result = self._update(batch, dirty)
        seen = {path: frozenset(names) for path, names in self._again.items()}
        batch.after_commit.append(lambda: self._commit_events(result, seen, dirty, read))
        return result.tree

    def _know(self, tree: Tree, read: Read | None) -> None:
        assert self.known is not None
        self.known = Known(tree, *(read or (self.known.stats, self.known.taken_ns)))
        if read is not None:
            self._old_from = None

    def _commit_events(
        self, result: "_Pass", seen: dict[bytes, frozenset[bytes]], dirty: Dirty, read: Read | None
    ) -> None:
        if self.known is None:
            return
        self._know(result.tree, read)
        self.known.forget(dirty, result.exchanged)
        self._committed = True
        self._again = {
            path: left for path, names in self._again.items() if (left := names - seen[path])
        }

    def _add_linked(self, dirty: Dirty) -> None:
        held = self.tracker.held_inodes if self.tracker else set[int]()
        if not self.linked:
            return
        with fsio.directory(self.root) as root:
            for path, known in self.linked.items():
                folder, _, name = path.rpartition(b"/")
                try:
                    with fsio.parent_of(root, path) as (fd, _name):
                        found = fsio.lstat_at(fd, name)
                except OSError:
                    found = None
                unsure = known[3] + RACY_NS > time.time_ns() or known[0] in held
                if found is None or stamp(found) != known or unsure:
                    dirty.setdefault(folder, set()).add(name)

    def _update(self, batch: Batch, dirty: Mapping[bytes, Iterable[bytes]]) -> "_Pass":
        one = _Pass(self, batch)
        one.update(self._known_tree(batch), Work.of(dirty))
        return one

    def _known_tree(self, batch: Batch) -> Tree:
        """What to begin with; a collection may have taken it, and then nothing of it counts."""
        assert self.known is not None
        tree = self.known.tree
        if tree.key != trees.EMPTY.key:
            if not self.packs.index.has(tree.key):
                raise ContentDamaged("what was captured last is not in the store any more")
            batch.rely_on(tree.key)
        return tree

    def _from_walk(self, batch: Batch) -> Tree:
        self._committed = False
        if self.tracker is not None:
            self._watch_all()
        self.vouched = still_kept(self.vouched, self.packs)
        began = time.time_ns()
        stats = self._readable(self._walk_draining())
        if self.tracker is not None and not stats.keys() <= self._watched:
            # Somebody makes directories meanwhile: what happens in those goes unseen.
            self.tracker.distrust()
        one = _Pass(self, batch, stats)
        try:
            self._by_stats(one, stats)
        except ContentDamaged:
            self.known = None
            one = _Pass(self, batch, stats)
            one.scan()
        result = Known(one.tree, stats, began)
        batch.after_commit.append(lambda: self._commit_walk(result))
        return one.tree

    def _by_stats(self, one: "_Pass", stats: dict[bytes, bytes]) -> None:
        """Update the known tree in directories whose stat data differs, or scan everything."""
        if self.known is None:
            one.scan()
            return
        work = Work()
        for path, blob in stats.items():
            old = self.known.stats.get(path)
            if old != blob or walker.newest(blob) + RACY_NS >= self.known.taken_ns:
                work.at(path).whole = True
        one.update(self._known_tree(one.batch), work)

    def _commit_walk(self, result: Known) -> None:
        self.known = result
        self._committed = True
        self.vouched = {}
        proves_from = [walker.newest(blob) + RACY_NS for blob in result.stats.values()]
        young = [moment for moment in proves_from if moment >= result.taken_ns]
        self._old_from = max(young) if len(young) * 100 > len(proves_from) else None
        if self.tracker is not None:
            self.linked = {
                (path + b"/" + name if path else name): known
                for path, blob in result.stats.items()
                for name, known in walker.linked(blob).items()
            }
            self._synced = self.tracker.sure

    def _watch_all(self) -> None:
        """Watch every directory there is, before anything in them is looked at."""
        assert self.tracker is not None
        if not self.tracker.sure:
            self.tracker.close()
            self.tracker = Tracker(self.root)
        self._again.clear()
        self._watched = {path for path, blob in self._walk_draining() if isinstance(blob, bytes)}
        self.tracker.watch_only(self._watched)
        self.tracker.look_for_holders()
        if not self.tracker.sure:
            self.tracker.close()
            self.tracker = None

    def _readable(self, found: walker.Found) -> dict[bytes, bytes]:
        """Stat data by directory; what cannot be read must be excluded by a rule."""
        stats: dict[bytes, bytes] = {}
        for path, blob in found:
            if isinstance(blob, bytes):
                stats[path] = blob
            elif blob != errno.ENOENT and not self.scope.leaves_out(path):
                raise _unreadable(path, blob)
        return stats

    def require_links(self) -> None:
        """Inner resources are still linked in; what replaced one would escape every checkpoint."""
        for place, text in self.scope.links.items():
            try:
                with fsio.directory(self.root) as top, fsio.parent_of(top, place) as (fd, name):
                    found = os.readlink(name, dir_fd=fd)
            except OSError:
                found = b""
            if found != text:
                raise SandboxError(
                    f"{show_path(place)} is no longer the link to the resource that lives there",
                    "a tool replaced it: write through the link instead",
                )

    def _read_again(self) -> Read | None:
        """Stat data of now, once, if that of the last walk was too young and would not be now.

        What was read just after the sandbox was made proves nothing to a new process or after an
        overflow, and every file would be read. Of what no event tells of, this is the stat data.
        """
        began = time.time_ns()
        if self._old_from is None or began < self._old_from:
            return None
        try:
            return self._readable(self._walk_draining()), began
        except CheckpointFailed:
            return None

    def _leave_known(self) -> None:
        """Leave the next process stat data that proves something, if all is as it was captured."""
        if self.known is None or self.tracker is None or self._again or not self._synced:
            return
        read, told = self._read_again(), self.tracker.take()
        self._add_linked(dirty := dict(told or {}))
        if told is not None and not dirty:
            self._know(self.known.tree, read)

    def close(self) -> None:
        if self.tracker is not None:
            self._leave_known()
            self.tracker.close()
            self.tracker = None
        if self._cache is not None and self.known is not None and os.path.isdir(self.root):
            self._cache.keep(self.known)


def _by_directory(paths: Iterable[bytes]) -> Dirty:
    found: Dirty = {}
    for path in paths:
        folder, _, name = path.rpartition(b"/")
        found.setdefault(folder, set()).add(name)
    return found


def _unreadable(path: bytes, code: int) -> CheckpointFailed:
    if code == errno.EXDEV:
        return CheckpointFailed(
            f"{show_path(path)} is a mount point and is not captured",
            f"unmount it, or add {show_path(path)!r} to the resource's exclude",
        )
    return CheckpointFailed(
        f"directory {show_path(path)} cannot be read: {os.strerror(code)}",
        f"chmod u+rx it, or add {show_path(path)!r} to the resource's exclude",
    )


def _directory_entry(name: bytes, mode: int, tree: Tree) -> Entry:
    return Entry(name, EntryKind.DIRECTORY, mode, key=tree.key, state=tree.state)


class _Pass:
    """One capture at work: the part of a tree that has to be looked at, rebuilt bottom up."""

    def __init__(
        self, engine: TreeEngine, batch: Batch, stats: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._engine = engine
        self.batch = batch
        self._stats = stats or {}
        self._load = engine.manifests
        self._replaced: list[tuple[Entry, Entry | None]] = []
        self.exchanged: set[bytes] = set()
        """Directories that are gone, or others by now: nothing known of what was below holds."""
        self.tree = trees.EMPTY

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
        """Every entry of a directory nothing is known of."""
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
        """Only the mode of a directory was touched; what is below it has events of its own."""
        entry, found = entries.get(name), fsio.lstat_at(fd, name)
        if entry is None or found is None or entry.kind is not kind_of(found.st_mode):
            if name not in work.names:
                raise NeedsWalk
            return
        mode = stat.S_IMODE(found.st_mode)
        entries[name] = Entry(name, entry.kind, mode, key=entry.key, state=entry.state)

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
        """Find out by stamps which names of a directory to look at."""
        known = self._engine.known
        assert known is not None
        old, blob = known.stats.get(prefix[:-1], walker.NOTHING), self._stats[prefix[:-1]]
        now = walker.unpack(blob)
        before = now if old == blob else walker.unpack(old)
        limit = known.taken_ns - RACY_NS
        for name in [name for name in entries if name not in now]:
            self._gone(entries.pop(name), None)
        for name, found in now.items():
            entry = entries.get(name)
            if entry is not None and entry.kind is EntryKind.DIRECTORY and stat.S_ISDIR(found[4]):
                mode = stat.S_IMODE(found[4])
                if mode != entry.mode:
                    entries[name] = Entry(name, entry.kind, mode, key=entry.key, state=entry.state)
                continue
            vouched = before.get(name) == found and max(found[2], found[3]) < limit
            if entry is None or not vouched:
                work.names.add(name)

    def _below(self, fd: int, prefix: bytes, entry: Entry, work: Work) -> Entry | None:
        path = prefix + entry.name
        if prefix.count(b"/") == fsio.DEEP:
            fsio.allow_deep()
        try:
            with fsio.directory(entry.name, fd) as below:
                tree = Tree(entry.key, entry.state)
                tree = self._updated(below, path + b"/", tree, work)
                return _directory_entry(entry.name, entry.mode, tree)
        except (FileNotFoundError, NotADirectoryError):
            # Gone since it was told of; its parent's own event or stat data says so as well.
            return None if fsio.lstat_at(fd, entry.name) is None else entry

    def _look(self, fd: int, name: bytes, path: bytes, old: Entry | None = None) -> Entry | None:
        """The entry of one name as it is now."""
        if self._engine.scope.leaves_out(path):
            return None
        found = look(fd, name, -1 if path in self._engine.vouched else CHUNK - 1)
        if found is None:
            return None
        kind = kind_of(found[4])
        if kind is EntryKind.FILE:
            return self._file(fd, name, path, found, old)
        mode = stat.S_IMODE(found[4])
        if kind is EntryKind.DIRECTORY:
            return self._new_directory(fd, name, path, mode)
        if kind is EntryKind.LINK:
            return Entry(name, kind, 0o777, key=os.readlink(name, dir_fd=fd))
        device = kind in (EntryKind.CHARACTER, EntryKind.BLOCK)
        return Entry(name, kind, mode, key=b"%d" % found[6] if device else b"")

    def _new_directory(self, fd: int, name: bytes, path: bytes, mode: int) -> Entry | None:
        if path.count(b"/") == fsio.DEEP:
            fsio.allow_deep()
        try:
            with fsio.directory(name, fd) as below:
                if os.fstat(below).st_dev != os.fstat(fd).st_dev:
                    raise _unreadable(path, errno.EXDEV)
                return _directory_entry(name, mode, self._store(self._scan(below, path + b"/")))
        except PermissionError:
            raise _unreadable(path, errno.EACCES) from None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _base(self, path: bytes, before: Entry | None) -> Base | None:
        """The base's blob at a path; what had the key of that tells what it is."""
        if before is not None and before.key[:1] == GIT:
            return before.key, before.size
        return self._engine.base.get(path)

    def _small(self, data: bytes, path: bytes, before: Entry | None) -> bytes:
        """The key of a small file, stored; one that is as it was is not asked of the base."""
        if before is not None and before.key[:1] == BLOB and key_of(BLOB, data) == before.key:
            self.batch.put_keyed(before.key, data)
            return before.key
        return store_small(data, self.batch, self._base(path, before))

    def _file(
        self, fd: int, name: bytes, path: bytes, found: Seen, old: Entry | None
    ) -> Entry | None:
        engine = self._engine
        status, links, data = found[:5], found[5], found[7]
        vouched = engine.vouched.get(path)
        known = vouched is not None and vouched[0] == status
        if vouched and known and relied_on(vouched[1], self.batch, engine.packs):
            key = vouched[1]
        else:
            before = old if old is not None and old.kind is EntryKind.FILE else None
            if data is not None:
                key = self._small(data, path, before)
            elif captured := capture_file(fd, name, path, self.batch, self._base(path, before)):
                key, status, links = captured[0], stamp(captured[1]), captured[1].st_nlink
            else:
                return None
        if links > 1 and engine.tracker is not None and not self._stats:
            if path not in engine.linked:
                raise NeedsWalk
            engine.linked[path] = status
        return Entry(name, EntryKind.FILE, stat.S_IMODE(status[4]), status[1], status[2], key)
