"""States of a directory: captured as manifests, compared, merged and written out."""

import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from cleveragents.content import attributes, descent, files, fsio, removal, tree_diff, trees
from cleveragents.content.capture.known_files import KnownFiles
from cleveragents.content.entry import Entry, EntryKind, Tree
from cleveragents.content.packs import Batch
from cleveragents.content.restore.links import MOST, Names, by_file
from cleveragents.content.tree_diff import Difference
from cleveragents.errors import SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change, show_path
from cleveragents.sandbox.protocol import Merged, Place, scope_of

if TYPE_CHECKING:
    from cleveragents.content.capture.engine import TreeEngine
    from cleveragents.content.capture.updating import Borrowed


class TreeStates:
    """A directory's states, however the directory was made."""

    def __init__(self, place: Place) -> None:
        self.place = place
        packs = place.packs
        self.manifests: trees.Manifests = trees.Manifests(
            packs.get, lambda keys: packs.reading(keys)[0]
        )
        self._engine: TreeEngine | None = None
        self.seed: KnownFiles = {}
        """What `create` knows of the files it wrote, for the first capture."""
        self._not_copied: list[str] = []
        """What the user's files have and their copies have not, in words."""
        self._put_bytes = 0
        """What `create` put into the store, and the first checkpoint is told to have added."""
        self._compared: tuple[Tree, Tree, list[Difference], list[Difference]] | None = None

    @property
    def name(self) -> str:
        return self.place.resource.name

    def base(self) -> "Borrowed":
        """Content borrowed from elsewhere, which need not be stored."""
        return {}

    @property
    def engine(self) -> "TreeEngine":
        if self._engine is None:
            from cleveragents.content.capture.engine import TreeEngine

            self._engine = TreeEngine(
                self.place.root,
                scope_of(self.place),
                self.base(),
                self.place.packs,
                self.place.cache,
                self.manifests,
            )
            self._engine.known_files = self.seed
        return self._engine

    def follow(self) -> None:
        self.engine.track()

    def drain(self) -> int:
        return self.engine.drain()

    def doubt(self) -> None:
        self.engine.doubt()

    def read(self, key: bytes) -> bytes:
        return self.place.packs.get(key)

    def reading(self, keys: list[bytes]) -> Callable[[bytes], bytes]:
        """The same for keys known in advance, looked up at once."""
        return self.place.packs.reading(keys)[0]

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        if strict:
            require_links(self.place.root, self.engine.scope.links)
        else:
            removal.open_up(self.place.root)
        before = batch.added_bytes
        if previous is not None:
            self.engine.note_linked(tree_of(previous), links_of(previous))
        tree = self.engine.capture(batch, gone=self.fetch_old if previous else None)
        if previous is not None:
            self.begin_fetching()
            batch.prepare()
            self.keep_old(previous, tree, batch)
            return self._state(tree, batch.added_bytes - before)
        return self._state(tree, batch.added_bytes - before + self._put_bytes)

    def _state(self, tree: Tree, added: int) -> SandboxCheckpoint:
        mode = stat.S_IMODE(os.stat(self.place.root).st_mode)
        xattrs = attributes.of(os.fsencode(self.place.root)).hex()
        about = {"mode": mode, **({"xattrs": xattrs} if xattrs else {}), **self._link_names()}
        return self._state_with(tree, about, added)

    def _link_names(self) -> dict[str, Any]:
        found = self.engine.several
        if not found or len(found) > MOST:
            return {}
        return {"links": [[path.hex() for path in paths] for paths in by_file(found)]}

    def state_of(self, tree: Tree, like: SandboxCheckpoint) -> SandboxCheckpoint:
        """A tree as a state of this sandbox, with the root as it is in another."""
        return self._state_with(tree, root_of(like))

    def _state_with(self, tree: Tree, root: dict[str, Any], added: int = 0) -> SandboxCheckpoint:
        xattrs = bytes.fromhex(root.get("xattrs", ""))
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id,
            root=tree.key,
            state_hash=blake3(b"root %o " % root["mode"] + tree.state + xattrs).hexdigest(),
            added_bytes=added,
            metadata={**self.about(), "tree": tree.state.hex(), **root},
        )

    def keep_old(self, previous: SandboxCheckpoint, now: Tree, batch: Batch) -> None:
        """Store the old content of changed paths if it was only borrowed so far."""

    def fetch_old(self, gone: Entry) -> None:
        """Called during the capture, so that `keep_old` need not wait."""

    def begin_fetching(self) -> None:
        """Called after the capture, while new content is compressed."""

    def about(self) -> dict[str, Any]:
        return {}

    def differences(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> list[Difference]:
        one, other = tree_of(before), tree_of(after)
        if self._compared is None or self._compared[:2] != (one, other):
            # Staging and reporting ask the same question one after the other.
            touched: list[Difference] = []
            found = list(tree_diff.diff(self.manifests, one, other, touched))
            self._compared = one, other, found, touched
        return list(self._compared[2])

    def _touched(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> list[Difference]:
        """Paths of which only the mtime differs."""
        self.differences(before, after)
        return self._compared[3] if self._compared is not None else []

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        root = () if root_of(before) == root_of(after) else (self._root_change,)
        return root + tuple(
            Change(
                self.name,
                item.path,
                item.action,
                item.before.described if item.before else "",
                item.after.described if item.after else "",
            )
            for item in self.differences(before, after)
        )

    @property
    def _root_change(self) -> Change:
        return Change(self.name, b".", Action.CHANGED, "d:", "d:")

    def not_applied(self, origin: SandboxCheckpoint, result: SandboxCheckpoint) -> tuple[str, ...]:
        """The plan's changes of the folder itself, which stay in the sandbox."""
        before, after = root_of(origin), root_of(result)
        modes = f"{before['mode']:o} -> {after['mode']:o}"
        mode = (f"{self.name}: the mode of the folder itself is not applied: {modes}",)
        xattrs = (f"{self.name}: the attributes of the folder itself are not applied",)
        return (
            *(mode if before["mode"] != after["mode"] else ()),
            *(xattrs if before.get("xattrs") != after.get("xattrs") else ()),
        )

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        return frozenset()

    def contents(self, state: SandboxCheckpoint, scratch: str) -> dict[str, int]:
        """The number of files, without git's own."""
        found = trees.walk(self.manifests, tree_of(state))
        return {
            "files": sum(
                entry.kind is not EntryKind.DIRECTORY and path.split(b"/", 1)[0] != b".git"
                for path, entry in found
            )
        }

    def grafted(
        self,
        now: SandboxCheckpoint,
        then: SandboxCheckpoint,
        paths: frozenset[bytes],
        batch: Batch,
    ) -> SandboxCheckpoint:
        from cleveragents.content.restore.grafting import graft

        old = tree_of(then)
        wanted = {path: trees.find(self.manifests, old, path) for path in paths - {b"."}}
        root = {**root_of(then if b"." in paths else now), **_links_noted(now)}
        return self._state_with(graft(self.manifests, tree_of(now), wanted, batch), root)

    def merged(
        self,
        base: SandboxCheckpoint,
        ours: SandboxCheckpoint,
        theirs: SandboxCheckpoint,
        batch: Batch,
        scratch: str,
    ) -> Merged:
        from cleveragents.content.restore.grafting import graft
        from cleveragents.sandbox.merge_states import merge_states

        wanted, left_out = self.visible(base, ours, ignored=False)
        mine, now, known = tree_of(ours), tree_of(theirs), self.base().get
        merge = merge_states(self.name, wanted, mine, now, known, self.read, batch, scratch)
        tree = graft(self.manifests, tree_of(theirs), merge.wanted, batch)
        return Merged(
            state=self._state_with(tree, {**root_of(theirs), **_links_noted(theirs)}),
            files=tuple(show_path(path) for path in merge.wanted),
            conflicts=tuple(merge.conflicts),
            ignored_count=left_out,
        )

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        tree = tree_of(state)
        if paths is None:
            for path, entry in trees.walk(self.manifests, tree):
                self._export(path, entry, target)
            return
        for path in paths:
            entry = trees.find(self.manifests, tree, path)
            if entry is not None and entry.kind is not EntryKind.DIRECTORY:
                self._export(path, entry, target)

    def _export(self, path: bytes, entry: Entry, target: str) -> None:
        """Write one path of a state; pipes, sockets and devices are left out."""
        with made_parent(target, path) as (fd, name):
            if entry.kind is EntryKind.DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=fd)
            elif entry.kind is EntryKind.LINK:
                fsio.link(fd, name, entry.key, path)
            elif entry.kind is EntryKind.FILE:
                mode = entry.mode & 0o700 | 0o600
                files.write_content(self.read, entry.key, fd, name, mode, entry.mtime_ns, False)

    def visible(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, ignored: bool
    ) -> tuple[list[Difference], int]:
        """The plan's work on this resource, and the number of ignored paths left out."""
        found = self.differences(origin, result)
        hidden = self.ignored(self.changes(origin, result), result)
        private = {path for path in hidden if path.split(b"/")[0] == b".git"}
        if ignored:
            hidden = frozenset(private)
        kept = [item for item in found if item.path not in hidden]
        return kept, len(hidden - private)


@contextmanager
def made_parent(root: str, path: bytes) -> Generator[tuple[int, bytes]]:
    """Descriptor of the folder of a path, made if missing, and the last name."""
    folder, _, name = path.rpartition(b"/")
    with fsio.directory(root) as top:
        fd = descent.make_below(top, folder)
    try:
        yield fd, name
    finally:
        os.close(fd)


def tree_of(state: SandboxCheckpoint) -> Tree:
    return Tree(state.root, bytes.fromhex(state.metadata["tree"]))


def root_of(state: SandboxCheckpoint) -> dict[str, Any]:
    """The recorded state of the root itself."""
    return {name: state.metadata[name] for name in ("mode", "xattrs") if name in state.metadata}


def links_of(state: SandboxCheckpoint) -> Names:
    noted = state.metadata.get("links", ())
    return tuple(tuple(bytes.fromhex(path) for path in paths) for paths in noted)


def _links_noted(state: SandboxCheckpoint) -> dict[str, Any]:
    return {"links": state.metadata["links"]} if "links" in state.metadata else {}


def require_links(root: str, links: dict[bytes, bytes]) -> None:
    """Refuse if a link to an inner resource was replaced: no checkpoint would cover that."""
    for place, text in links.items():
        try:
            with fsio.directory(root) as top, fsio.parent_of(top, place) as (fd, name):
                found = os.readlink(name, dir_fd=fd)
        except OSError:
            found = b""
        # Older versions made relative links.
        where = os.path.join(os.fsencode(root), os.path.dirname(place))
        if not found or os.path.normpath(os.path.join(where, found)) != text:
            raise SandboxError(
                f"{show_path(place)} is no longer the link to the resource that belongs there",
                "a tool replaced it: write through the link instead",
            )
