"""A sandbox that is a directory: captured as manifests, put back name by name."""

import os
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import attributes, descent, files, fsio, removal, tree_diff, trees
from cleveragents.content.capture.engine import TreeEngine
from cleveragents.content.capture.known_files import KnownFiles
from cleveragents.content.capture.updating import Borrowed
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.packs import Batch
from cleveragents.content.restore.operation import Op
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch, put_times_back, sync_in_place, unlocked
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change, show_path
from cleveragents.model.units import plural, show_bytes
from cleveragents.sandbox import merge as merging
from cleveragents.sandbox.control import control_files_of
from cleveragents.sandbox.protocol import (
    Applied,
    ApplyOptions,
    Making,
    Merged,
    Place,
    Proposal,
    scope_of,
    source_scope,
)

if TYPE_CHECKING:
    from cleveragents.content.copy.census import Known
    from cleveragents.content.copy.copying import Copier


class TreeSandbox:
    """What `copy_on_write` and `git_worktree` share."""

    strategy = "copy_on_write"
    own: tuple[bytes, ...] = ()
    """Names at the root of the user's tree that are not copied."""

    def __init__(self, place: Place) -> None:
        self.place = place
        packs = place.packs
        self.manifests = trees.Manifests(packs.get, lambda keys: packs.reading(keys)[0])
        self._engine: TreeEngine | None = None
        self.seed: KnownFiles = {}
        """What `create` knows of the files it wrote, for the first capture."""
        self._put_bytes = 0
        """What `create` put into the store, and the first checkpoint is told to have added."""
        self._compared: tuple[Tree, Tree, list[Difference], list[Difference]] | None = None

    @property
    def name(self) -> str:
        return self.place.resource.name

    def base(self) -> Borrowed:
        """Content that need not be stored."""
        return {}

    @property
    def engine(self) -> TreeEngine:
        if self._engine is None:
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

    def drain(self) -> None:
        self.engine.drain()

    def doubt(self) -> None:
        self.engine.doubt()

    def read(self, key: bytes) -> bytes:
        return self.place.packs.get(key)

    def reading(self, keys: list[bytes]) -> Callable[[bytes], bytes]:
        """The same for keys that are known beforehand."""
        return self.place.packs.reading(keys)[0]

    def create(self, making: Making) -> dict[str, Any]:
        self._require_within_limit(making)
        fsio.make_private_dir(self.place.root)
        attributes.set_all(os.fsencode(self.place.root), b"")  # none that its folder gives
        self._copy(making)
        self._make_links()
        return {"path": self.place.resource.path}

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        from cleveragents.content.copy.copying import Copier

        fsio.make_private_dir(self.place.root)
        # Nothing is learned on the way: a child plan is run by other objects than make this.
        Copier(
            source_scope(self.place),
            lambda _path, _is_dir: True,
            lambda size: making.progress(self.name, size),
            piece=lambda size: making.piece(self.name, size),
        ).copy(source, self.place.root)
        self._make_links()
        return origin

    def _require_within_limit(self, making: Making) -> None:
        from cleveragents.content.copy.census import census

        scope = source_scope(self.place, *self.own)
        found = census(self.place.resource.path, scope)
        if not found.exceeds(making.limit_bytes, making.limit_files):
            return
        beyond = ""
        if (known := self._known_before()) is not None:
            found = census(self.place.resource.path, scope, known)
            beyond = " beyond its commit"
            if not found.exceeds(making.limit_bytes, making.limit_files):
                return
        folders = found.largest()
        largest = ", ".join(f"{name} ({show_bytes(size)})" for name, size in folders)
        making.confirm(
            f"resource {self.name!r} has {plural(found.files, 'file')},"
            f" {show_bytes(found.size)}{beyond}:"
            f" more than is copied without asking; the largest: {largest}",
            f"add to the resource: exclude: [{', '.join(name for name, _ in folders)}]",
        )

    def _known_before(self) -> "Known | None":
        """What does not count, if the sandbox is made of more than files that are carried."""
        return None

    def _copy(self, making: Making) -> None:
        self._copy_wanted(making, lambda _path, _is_dir: True)

    def _copy_wanted(self, making: Making, wanted: Callable[[bytes, bool], bool]) -> None:
        copier = self._copier(making, wanted)
        before = making.batch.added_bytes if making.batch is not None else 0
        copier.copy(self.place.resource.path, self.place.root)
        self.seed = copier.known
        if making.batch is not None:
            self._put_bytes = making.batch.added_bytes - before

    def inherit(self, made: Any) -> None:
        """Continue with what another object of the same sandbox learned when it made it."""
        assert isinstance(made, TreeSandbox)
        self.seed = made.seed
        self._put_bytes = made._put_bytes

    def _copier(self, making: Making, wanted: Callable[[bytes, bool], bool]) -> "Copier":
        from cleveragents.content.copy.copying import Copier

        return Copier(
            source_scope(self.place, *self.own),
            wanted,
            lambda size: making.progress(self.name, size),
            batch=making.batch,
            piece=lambda size: making.piece(self.name, size),
        )

    def _make_links(self) -> None:
        for spot, text in scope_of(self.place).links.items():
            with _made_parent(self.place.root, spot) as (fd, name):
                fsio.link(fd, name, text, spot)

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        if strict:
            self.engine.require_links()
        else:
            removal.open_up(self.place.root)
        before = batch.added_bytes
        tree = self.engine.capture(batch, gone=self.fetch_old if previous else None)
        if previous is not None:
            self.begin_fetching()
            batch.sort_out()
            self.keep_old(previous, tree, batch)
            return self._state(tree, batch.added_bytes - before)
        return self._state(tree, batch.added_bytes - before + self._put_bytes)

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        learned = len(batch.after_commit)
        touched = [item.path for item in _touched_of(staged)]
        tree = self.engine.capture(batch, [*(op.path for op in ops), *touched])
        if self.place.packs.index.has(tree.key):
            # The store has this very tree: nothing need be committed for it to count as known.
            for one in batch.after_commit[learned:]:
                one()
            del batch.after_commit[learned:]
        return self._state(tree, 0)

    def _state(self, tree: Tree, added: int) -> SandboxCheckpoint:
        mode = stat.S_IMODE(os.stat(self.place.root).st_mode)
        xattrs = attributes.of(os.fsencode(self.place.root)).hex()
        return self._state_with(
            tree, {"mode": mode, **({"xattrs": xattrs} if xattrs else {})}, added
        )

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
        """Put the old content of changed paths into the store, if it was only borrowed so far."""

    def fetch_old(self, gone: Entry) -> None:
        """Told during the capture, so that `keep_old` need not wait."""

    def begin_fetching(self) -> None:
        """Told after it: what is new is compressed meanwhile."""

    def about(self) -> dict[str, Any]:
        return {}

    def differences(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> list[Difference]:
        one, other = tree_of(before), tree_of(after)
        if self._compared is None or self._compared[:2] != (one, other):
            # What is staged is also told: the same question comes twice in a row.
            touched: list[Difference] = []
            found = list(tree_diff.diff(self.manifests, one, other, touched))
            self._compared = one, other, found, touched
        return list(self._compared[2])

    def _touched(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> list[Difference]:
        """Paths of which only the mtime differs."""
        self.differences(before, after)
        return self._compared[3] if self._compared is not None else []

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        root = () if _root_of(before) == _root_of(after) else (self._root_change,)
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
        return Change(self.name, b".", Action.CHANGED, "d", "d")

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        return frozenset()

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        differences = self.differences(current, target)
        wanted = [
            item.after.key
            for item in differences
            if item.after is not None and item.after.kind is EntryKind.FILE
        ]
        self.expect(differences)
        links = self._links(differences)
        ops = stage(self.reading(wanted), differences, staging, durable=False, links=links)
        return {"ops": ops, "touched": self._touched(current, target), **_root_of(target)}

    def _links(self, differences: list[Difference]) -> dict[bytes, int]:
        """Files to be put back that have other names as well: path -> inode."""
        root, found = os.fsencode(self.place.root), dict[bytes, int]()
        for item in differences:
            old, new = item.before, item.after
            if old is not None and new is not None and old.kind is new.kind is EntryKind.FILE:
                with suppress(OSError):
                    about = os.lstat(root + b"/" + item.path)
                    if about.st_nlink > 1:
                        found[item.path] = about.st_ino
        return found

    def expect(self, differences: Iterable[Difference]) -> None:
        """Told what will be there after the switch."""

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        self.switch_now(staged, staging)
        self.make_last(staged)

    def make_last(self, staged: dict[str, Any]) -> None:
        sync_in_place(self.place.root, codec.convert(staged["ops"], tuple[Op, ...]))

    def switch_now(self, staged: dict[str, Any], staging: str) -> None:
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        switch = Switch(self.place.root, staging, ops, force=True)
        try:
            self._switch_with(switch, staged)
        except PermissionError as error:
            paths = [b".", *(op.path for op in ops), *(item.path for item in _touched_of(staged))]
            if not unlocked(self.place.root, paths):
                raise SandboxError(
                    f"a file in {self.place.root} cannot be changed: {error}",
                    f"lsattr -R {self.place.root} shows what is immutable; chattr -i it,"
                    " and run the command again",
                ) from error
            self._switch_with(switch, staged)
        self._mend_links()

    def _switch_with(self, switch: Switch, staged: dict[str, Any]) -> None:
        switch.forward()
        put_times_back(self.place.root, _touched_of(staged))
        wanted = bytes.fromhex(staged.get("xattrs", ""))
        attributes.set_all(os.fsencode(self.place.root), wanted)
        os.chmod(self.place.root, staged["mode"])

    def _mend_links(self) -> None:
        """A tool may have put something else where an inner resource is linked in."""
        for spot, text in scope_of(self.place).links.items():
            with _made_parent(self.place.root, spot) as (fd, name):
                found = fsio.lstat_at(fd, name)
                if found is not None:
                    if stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=fd) == text:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        removal.remove_tree_at(name, fd)
                    else:
                        os.unlink(name, dir_fd=fd)
                fsio.link(fd, name, text, spot)

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
        root = _root_of(then if b"." in paths else now)
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
            state=self._state_with(tree, _root_of(theirs)),
            files=tuple(show_path(path) for path in merge.wanted),
            conflicts=tuple(merge.conflicts),
            ignored_count=left_out,
        )

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes], target: str) -> None:
        for path in paths:
            entry = trees.find(self.manifests, tree_of(state), path)
            if entry is None or entry.kind not in (EntryKind.FILE, EntryKind.LINK):
                continue
            with _made_parent(target, path) as (fd, name):
                if entry.kind is EntryKind.LINK:
                    fsio.link(fd, name, entry.key, path)
                    continue
                mode = entry.mode & 0o700 | 0o600
                files.write_content(self.read, entry.key, fd, name, mode, durable=False)

    def visible(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, ignored: bool
    ) -> tuple[list[Difference], int]:
        """The plan's work on this resource, and how many ignored paths were left out of it."""
        found = self.differences(origin, result)
        hidden = self.ignored(self.changes(origin, result), result)
        private = {path for path in hidden if path.split(b"/")[0] == b".git"}
        if ignored:
            hidden = frozenset(private)
        kept = [item for item in found if item.path not in hidden]
        return kept, len(hidden - private)

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        wanted, left_out = self.visible(origin, result, options.ignored)
        merge = merging.merge_into(
            self.place.resource.path, self.name, wanted, self.read, batch, options.staging
        )
        return Proposal(
            resource=self.name,
            mode="changes",
            files=tuple(merge.files),
            conflicts=tuple(merge.conflicts),
            merged=tuple(merge.merged),
            ignored_count=left_out,
            control_files=control_files_of(wanted),
            work=msgspec.to_builtins(merge.work),
        )

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        work = codec.convert(proposal.work, merging.Work)
        staging = merging.staging_beside(
            self.place.resource.path, os.path.basename(options.staging)
        )
        ops, notes = self._stage_target(work, staging)
        return {
            "staging": staging,
            "ops": msgspec.to_builtins(ops),
            "notes": notes,
            "files": len(proposal.files),
            "mode": proposal.mode,
        }

    def _stage_target(self, work: merging.Work, staging: str) -> tuple[tuple[Op, ...], list[str]]:
        """What is staged has owner and attributes of what it replaces; says what has not."""
        notes: list[str] = []
        _remove_staging(staging)

        def dress(fd: int, new: bytes, item: Difference) -> None:
            assert item.after is not None
            try:
                with fsio.parent_of(root, item.path) as (parent, name):
                    found = fsio.lstat_at(parent, name)
                    changed = merging.changed_attributes(item)
                    lost = attributes.dress(fd, new, item.after.mode, parent, name, found, changed)
            except (FileNotFoundError, NotADirectoryError):
                return  # its folder is new as well
            notes.extend(f"{show_path(item.path)}: {text}" for text in lost)

        with fsio.directory(self.place.resource.path) as root:
            expected = dict(work.expected)
            return stage(self.read, work.differences, staging, expected, finish=dress), notes

    def switch_apply(self, staged: dict[str, Any]) -> None:
        self._target_switch(staged).forward()

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if os.path.isdir(staged["staging"]):
            self._target_switch(staged).backward()
            _remove_staging(staged["staging"])

    def finish_apply(self, staged: dict[str, Any]) -> None:
        _remove_staging(staged["staging"])

    def discard_apply(self, staging: str) -> None:
        if os.path.isdir(self.place.resource.path):
            name = os.path.basename(staging)
            _remove_staging(merging.staging_beside(self.place.resource.path, name))

    def applied(self, staged: dict[str, Any]) -> Applied:
        notes = tuple(staged.get("notes", ()))
        return Applied(resource=self.name, files=staged["files"], mode=staged["mode"], notes=notes)

    def _target_switch(self, staged: dict[str, Any]) -> Switch:
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        return Switch(self.place.resource.path, staged["staging"], ops)

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None: ...

    def remove(self) -> None:
        self.close()
        removal.remove_tree(self.place.root)
        if self.place.cache is not None:
            with suppress(OSError):
                fsio.unlink_if_there(self.place.cache)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@contextmanager
def _made_parent(root: str, path: bytes) -> Generator[tuple[int, bytes]]:
    """Descriptor of the folder of a path, which is made if it is missing, and the last name."""
    folder, _, name = path.rpartition(b"/")
    with fsio.directory(root) as top:
        fd = descent.make_below(top, folder)
    try:
        yield fd, name
    finally:
        os.close(fd)


def _remove_staging(staging: str) -> None:
    """For good: else it may be in the user's folder again after a power cut."""
    if os.path.isdir(staging):
        removal.remove_tree(staging)
        fsio.sync_dir(os.path.dirname(staging))


def tree_of(state: SandboxCheckpoint) -> Tree:
    return Tree(state.root, bytes.fromhex(state.metadata["tree"]))


def _root_of(state: SandboxCheckpoint) -> dict[str, Any]:
    """What a state says of the root itself."""
    return {name: state.metadata[name] for name in ("mode", "xattrs") if name in state.metadata}


def _touched_of(staged: dict[str, Any]) -> list[Difference]:
    return codec.convert(staged.get("touched", []), list[Difference])


def require_not_too_wide(
    path: str, *stores: str, sandboxes: str = "", told: tuple[str, ...] = ()
) -> None:
    """Refuse roots that hold everything: `/`, the home directory, the store and its sandboxes.

    Those that one was `told` to take may hold all but the sandboxes: a copy cannot lie in itself.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise SandboxError(f"no such directory: {path}")
    is_told = real in {os.path.realpath(item) for item in told}
    for guarded in () if is_told else ("/", os.path.expanduser("~"), *stores):
        if _holds(real, guarded):
            raise SandboxError(
                f"{path} holds {'everything' if real == '/' else guarded} and is not sandboxed",
                f"name a folder inside it, or agents config set sandbox.allow-wide {real}",
            )
    if sandboxes and _holds(real, sandboxes):
        raise SandboxError(
            f"{path} holds the sandboxes themselves: {sandboxes}",
            "agents config set sandbox.dir DIR, outside of it",
        )


def _holds(outer: str, inner: str) -> bool:
    return f"{os.path.realpath(inner).rstrip('/')}/".startswith(f"{outer.rstrip('/')}/")


__all__ = ["Entry", "TreeSandbox", "require_not_too_wide", "tree_of"]
