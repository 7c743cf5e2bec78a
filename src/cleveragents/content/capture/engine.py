"""Capture a directory as a tree of manifests at the cost of what changed.

We know the last tree in the store and the stat data of its directories. The next capture updates
that tree: only at the names that the tracker reports, or, in a new process and on any doubt, in
directories whose stat data differs. There a file is read unless its stamp is known.
"""

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from cleveragents.content import fsio, trees
from cleveragents.content.background import Background
from cleveragents.content.capture.known_files import KnownFiles, without_collected
from cleveragents.content.capture.mappings import mapped_files
from cleveragents.content.capture.statcache import Known, StatCache, proves_from
from cleveragents.content.capture.tracker import Dirty, Tracker
from cleveragents.content.capture.updating import (
    Borrowed,
    NeedsWalk,
    Pass,
    Work,
    as_walked,
    by_directory,
    linked_files,
    unreadable,
)
from cleveragents.content.capture.watch import size_at, size_between
from cleveragents.content.entry import Entry, Tree
from cleveragents.content.files import Stamp, stamp
from cleveragents.content.native import walker
from cleveragents.content.packs import Batch, Packs
from cleveragents.content.scope import Scope
from cleveragents.content.trees import (
    Manifests,
)
from cleveragents.errors import CheckpointFailed, ContentDamaged

Replaced = tuple[Tree, list[tuple[Entry, Entry | None]]]
"""A tree, and entries of it that are not there any more with what came in their place."""
Read = tuple[dict[bytes, bytes], int]
"""Stat data by directory, and since when it was read."""


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
        self.manifests: Manifests = manifests or Manifests(packs.get)
        self._cache = StatCache(cache, root) if cache else None
        self._known: Known | None = None
        # The walk runs in the background without the GIL; for a small tree it is done at once.
        self._loading = Background(self._cache.load) if self._cache else None
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
        self.several: dict[bytes, int] | None = None
        """Files with several names as the last capture found them, by path: their inodes."""
        self.known_files: KnownFiles = {}
        self.tell_gone: Callable[[Entry], None] | None = None
        self.replaced: Replaced | None = None
        """What the last capture began with and what it found replaced; None if it read it all."""

    @property
    def known(self) -> Known | None:
        """The last committed capture."""
        if self._loading is not None:
            self._known, self._loading = self._loading.wait(), None
        return self._known

    @known.setter
    def known(self, known: Known | None) -> None:
        self._known, self._loading = known, None

    def track(self) -> None:
        """Follow changes from now on; pays for a process that captures several times."""
        if self.tracker is None and Tracker.available():
            self.tracker = Tracker(self.root)
            self._synced = False

    def drain(self) -> int:
        """Read the kernel's queued events, so that the queue never overflows."""
        return self.tracker.drain() if self.tracker is not None else 0

    @property
    def walks(self) -> bool:
        """Whether the next capture has to walk the whole tree."""
        return not (self._synced and self.tracker is not None)

    def doubt(self) -> None:
        """Trust no events: the next capture looks at everything."""
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
        """Capture the tree; the result counts as known once the batch is committed.

        `touched`: the only paths that can have changed since the last capture, if that is certain.
        `gone` is called with replaced entries as they are found.
        """
        self.replaced = None
        self.tell_gone = gone
        try:
            if not self.walks:
                tree = self._from_events(batch)
                self.several = self._still_linked(self.linked)
                return tree
            if touched is not None and self._committed:
                self.several = None
                return self._update(batch, by_directory(touched)).tree
        except (NeedsWalk, ContentDamaged):
            self._synced = False
        return self._from_walk(batch)

    def _from_events(self, batch: Batch) -> Tree:
        assert self.tracker is not None
        read = self._refreshed_stats()
        told = self.tracker.take()
        if told is None:
            raise NeedsWalk
        for path, names in told.items():
            self._again.setdefault(path, set()).update(names)
        self._add_linked(self._again)
        dirty = {path: set(names) for path, names in self._again.items()}
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
            self._keep()

    def _commit_events(
        self, result: Pass, seen: dict[bytes, frozenset[bytes]], dirty: Dirty, read: Read | None
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
                unsure = proves_from(known[3]) > time.time_ns() or known[0] in held
                if found is None or stamp(found) != known or unsure:
                    dirty.setdefault(folder, set()).add(name)

    def _update(self, batch: Batch, dirty: Mapping[bytes, Iterable[bytes]]) -> Pass:
        one = Pass(self, batch)
        if batch.watch is not None:
            batch.watch.total = lambda: size_at(self.root, dirty)
        one.update(self._known_tree(batch), Work.of(dirty))
        return one

    def _known_tree(self, batch: Batch) -> Tree:
        """The tree to start from; raises if garbage collection has taken it."""
        assert self.known is not None
        tree = self.known.tree
        if tree.key != trees.EMPTY.key:
            if not self.packs.index.has(tree.key):
                raise ContentDamaged("the last captured state is no longer in the store")
            batch.rely_on(tree.key)
        return tree

    def _from_walk(self, batch: Batch) -> Tree:
        self._committed = False
        # Before asking who maps files: writes mapped later have a younger stamp.
        began = time.time_ns()
        if self.tracker is not None:
            self._watch_all()
        asking = Background(lambda: mapped_files(self.root)) if self.tracker is None else None
        self.known_files = without_collected(self.known_files, self.packs)
        stats = self._readable(self._walk_draining())
        # Before any file is read: a process that unmaps one meanwhile wrote before that.
        held = asking.wait() if asking else self.tracker.held if self.tracker else set[bytes]()
        if self.tracker is not None and not stats.keys() <= self._watched:
            # Directories made meanwhile are not watched, and changes in them go unseen.
            self.tracker.distrust()
        self._find_linked(stats)
        one = Pass(self, batch, stats)
        try:
            self._by_stats(one, stats)
        except ContentDamaged:
            self.known = None
            one = Pass(self, batch, stats)
            one.scan()
        # From the whole walk: files forgotten below are still linked.
        linked = linked_files(stats) if self.tracker is not None or held else {}
        result = Known(one.tree, stats, began)
        self._forget_held(result, held, linked)
        if self.tracker is not None:
            # A folder moved in meanwhile was read, but its path has another folder's stat data.
            result.forget((), stats.keys() & self.tracker.touched())
        batch.after_commit.append(lambda: self._commit_walk(result, linked))
        return one.tree

    def _find_linked(self, stats: Mapping[bytes, bytes]) -> None:
        """Update `several` in changed directories: linking changes the stat data of all names."""
        known, before = self.known, self.several
        if known is None or before is None:
            self.several = {path: seen[0] for path, seen in linked_files(stats).items()}
            return
        looked = {path: blob for path, blob in stats.items() if known.stats.get(path) != blob}
        kept = {
            path: inode
            for path, inode in before.items()
            if (folder := path.rpartition(b"/")[0]) in stats and folder not in looked
        }
        self.several = kept | {path: seen[0] for path, seen in linked_files(looked).items()}

    def note_linked(self, tree: Tree, paths: Iterable[Iterable[bytes]]) -> None:
        """Take the linked files from the known tree's state, so that only these are checked."""
        if self.several is None and self.known is not None and self.known.tree == tree:
            self.several = self._still_linked({path for names in paths for path in names})

    def _still_linked(self, paths: Collection[bytes]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        if paths:
            with fsio.directory(self.root) as root:
                for path in paths:
                    with suppress(OSError), fsio.parent_of(root, path) as (fd, name):
                        about = fsio.lstat_at(fd, name)
                        if about is not None and about.st_nlink > 1:
                            found[path] = about.st_ino
        return found

    def _forget_held(self, known: Known, held: set[bytes], linked: dict[bytes, Stamp]) -> None:
        """Stat data of a mapped file proves nothing: only the first write to a page is dated.

        Seen: a mapped file, captured three seconds after a write, written again and missed.
        """
        if not held:
            return
        inodes: set[int] = set()
        for path in held:
            with suppress(OSError):
                inodes.add(os.lstat(os.path.join(os.fsencode(self.root), path)).st_ino)
        others = {path for path, known_as in linked.items() if known_as[0] in inodes}
        known.forget({path.rpartition(b"/")[0] for path in held | others}, ())

    def _by_stats(self, one: Pass, stats: dict[bytes, bytes]) -> None:
        """Update the known tree in directories whose stat data differs, or scan everything."""
        watch, known = one.batch.watch, self.known
        if watch is not None:
            watch.total = lambda: size_between(known, stats)
        if known is None:
            one.scan()
            return
        work = Work()
        old, young = known.stats.get, walker.mark(known.young_from)
        for path in [path for path, blob in stats.items() if old(path) != blob or blob >= young]:
            work.at(path).whole = True
        one.update(self._known_tree(one.batch), work)

    def _commit_walk(self, result: Known, linked: dict[bytes, Stamp]) -> None:
        self.known = result
        self._committed = True
        self.known_files = {}
        if self.tracker is not None:
            limit = walker.mark(result.young_from)
            young = [blob for blob in result.stats.values() if blob >= limit]
            is_much = len(young) * 100 > len(result.stats)
            self._old_from = proves_from(walker.newest(max(young))) if is_much else None
            self.linked = linked
            self._synced = self.tracker.sure
            # Other processes may look at the tree while this one follows it.
            self._keep()

    def _watch_all(self) -> None:
        """Watch every directory before looking into any."""
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
        """Stat data by directory; unreadable ones must be excluded by a rule."""
        stats = {path: blob for path, blob in found if isinstance(blob, bytes)}
        failed = [item for item in found if item[0] not in stats] if len(stats) < len(found) else []
        for path, code in failed:
            if isinstance(code, int) and code != errno.ENOENT and not self.scope.leaves_out(path):
                raise unreadable(path, code)
        return stats

    def _refreshed_stats(self) -> Read | None:
        """Current stat data, once, if that of the last walk was too young to prove anything.

        Else a new process, or an overflow, would have to read every file of a fresh sandbox. It is
        valid for all that no event has reported as changed.
        """
        began = time.time_ns()
        if self._old_from is None or began < self._old_from:
            return None
        try:
            return as_walked(self._readable(self._walk_draining()), self.known), began
        except CheckpointFailed:
            self._old_from = None
            return None

    def _save_fresh_known(self) -> None:
        """Save stat data old enough for the next process to trust, if nothing has changed."""
        if self.known is None or self.tracker is None or self._again or not self._synced:
            return
        read, told = self._refreshed_stats(), self.tracker.take()
        self._add_linked(dirty := dict(told or {}))
        if told is not None and not dirty:
            self._know(self.known.tree, read)

    def close(self) -> None:
        # The plan may have been applied or deleted meanwhile; losing the cache is no error.
        with suppress(OSError):
            self._save_fresh_known()
        if self.tracker is not None:
            self.tracker.close()
            self.tracker = None
        self._keep()

    def _keep(self) -> None:
        """Save what is known for other processes; the cache may be lost."""
        with suppress(OSError):
            if self._cache is not None and self.known is not None and os.path.isdir(self.root):
                self._cache.keep(self.known)
