"""A sandbox that is a directory: copied, put back name by name, removed."""

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cleveragents import codec
from cleveragents.content import attributes, fsio, removal, trees
from cleveragents.content.capture.known_files import KnownFiles
from cleveragents.content.entry import Entry, EntryKind
from cleveragents.content.packs import Batch
from cleveragents.content.restore.links import Links, plan_links
from cleveragents.content.restore.operation import Op
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch, lift_locks, restore_times, sync_in_place
from cleveragents.content.tree_diff import Difference
from cleveragents.errors import SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import show_path
from cleveragents.model.units import plural, show_bytes
from cleveragents.sandbox.protocol import Making, Place, scope_of, source_scope
from cleveragents.sandbox.traits import Traits
from cleveragents.sandbox.tree_states import links_of, made_parent, root_of, tree_of
from cleveragents.sandbox.tree_target import TreeTarget
from cleveragents.sandbox.wide import require_not_too_wide

if TYPE_CHECKING:
    from cleveragents.content.copy.census import Known
    from cleveragents.content.copy.copying import Copier

__all__ = ["Entry", "TreeSandbox", "require_not_too_wide", "tree_of"]

FEW_SHOWN = 10


class TreeSandbox(TreeTarget):
    """What `copy_on_write` and `git_worktree` share."""

    strategy = "copy_on_write"
    traits: Traits = Traits(is_directory=True)
    own: tuple[bytes, ...] = ()
    """Names at the root of the user's tree that are not copied."""
    seed: KnownFiles

    def create(self, making: Making) -> dict[str, Any]:
        self._require_within_limit(making)
        fsio.make_private_dir(self.place.root)
        attributes.set_all(os.fsencode(self.place.root), b"")  # no inherited ACL
        self._copy(making)
        self._make_links()
        lacking = {"not_copied": self._not_copied} if self._not_copied else {}
        return {"path": self.place.resource.path, **lacking}

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        from cleveragents.content.copy.copying import Copier

        fsio.make_private_dir(self.place.root)
        # Nothing is kept from the copy: other objects will run the child plan.
        Copier(
            source_scope(self.place),
            lambda _path, _is_dir: True,
            lambda size: making.progress(self.name, size),
            piece=lambda size: making.piece(self.name, size),
        ).copy(source, self.place.root)
        self._make_links()
        return origin

    def create_at(self, state: SandboxCheckpoint, staging: str) -> dict[str, Any]:
        """Make the private copy from a state alone, without the user's files."""
        fsio.make_private_dir(self.place.root)
        attributes.set_all(os.fsencode(self.place.root), b"")
        nothing = self.state_of(trees.EMPTY, like=state)
        self.switch(self.stage(nothing, state, staging), staging)
        return dict(self.place.origin)

    def _require_within_limit(self, making: Making) -> None:
        from cleveragents.content.copy.census import census

        scope = source_scope(self.place, *self.own)
        found = census(self.place.resource.path, scope)
        if found.linked:
            many = plural(found.linked, "file has", "files have")
            self._not_copied.append(
                f"{many} other names (hard links): in the sandbox each is a file of its own"
            )
        making.total(self.name, found.size)
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
        """Test for paths that do not count towards the limit; None if all do."""
        return None

    def _copy(self, making: Making) -> None:
        self._copy_wanted(making, lambda _path, _is_dir: True)

    def _copy_wanted(self, making: Making, wanted: Callable[[bytes, bool], bool]) -> None:
        copier = self._copier(making, wanted)
        before = making.batch.added_bytes if making.batch is not None else 0
        copier.copy(self.place.resource.path, self.place.root)
        self.seed = copier.known
        self._not_copied += _shown_attributes(copier.not_copied)
        if making.batch is not None:
            self._put_bytes = making.batch.added_bytes - before

    def inherit(self, made: Any) -> None:
        """Take over what the object that created this sandbox has learned."""
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
            with made_parent(self.place.root, spot) as (fd, name):
                fsio.link(fd, name, text, spot)

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
        differences, links = self.linking(differences, current, target)
        wanted += [item.after.key for item in links.more if item.after is not None]
        read, root = self.reading(wanted), self.place.root
        ops = stage(read, differences, staging, durable=False, links=links, root=root)
        return {"ops": ops, "touched": self._touched(current, target), **root_of(target)}

    def linking(
        self, differences: list[Difference], current: SandboxCheckpoint, target: SandboxCheckpoint
    ) -> tuple[list[Difference], Links]:
        """The differences, with those that hard links add, and the links to make."""
        find = partial(trees.find, self.manifests, tree_of(target))
        root, now, then = self.place.root, links_of(current), links_of(target)
        links = plan_links(root, differences, now, then, find)
        return [*differences, *links.more], links

    def expect(self, differences: Iterable[Difference]) -> None:
        """Called with what the switch will put in place."""

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
            if not lift_locks(self.place.root, paths):
                raise SandboxError(
                    f"a file in {self.place.root} cannot be changed: {error}",
                    f"lsattr -R {self.place.root} shows what is immutable; chattr -i it,"
                    " and run the command again",
                ) from error
            self._switch_with(switch, staged)
        repair_links(self.place)

    def _switch_with(self, switch: Switch, staged: dict[str, Any]) -> None:
        switch.forward()
        restore_times(self.place.root, _touched_of(staged))
        wanted = bytes.fromhex(staged.get("xattrs", ""))
        attributes.set_all(os.fsencode(self.place.root), wanted)
        os.chmod(self.place.root, staged["mode"])

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        learned = len(batch.after_commit)
        touched = [item.path for item in _touched_of(staged)]
        tree = self.engine.capture(batch, [*(op.path for op in ops), *touched])
        if self.place.packs.index.has(tree.key):
            # The store has this tree already: it counts as known without a commit.
            for one in batch.after_commit[learned:]:
                one()
            del batch.after_commit[learned:]
        return self._state(tree, 0)

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None: ...

    def remove(self) -> None:
        self.close()
        removal.remove_tree(self.place.ours)
        if self.place.cache is not None:
            with suppress(OSError):
                fsio.unlink_if_there(self.place.cache)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def repair_links(place: Place) -> None:
    """Link inner resources in again where a tool put something else."""
    for spot, text in scope_of(place).links.items():
        with made_parent(place.root, spot) as (fd, name):
            found = fsio.lstat_at(fd, name)
            if found is not None:
                if stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=fd) == text:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    removal.remove_tree_at(name, fd)
                else:
                    os.unlink(name, dir_fd=fd)
            fsio.link(fd, name, text, spot)


def _touched_of(staged: dict[str, Any]) -> list[Difference]:
    return codec.convert(staged.get("touched", []), list[Difference])


def _shown_attributes(missing: list[tuple[bytes, bytes]]) -> list[str]:
    shown = [
        f"{show_path(path)}: its attribute {show_path(name)} cannot be set in the sandbox"
        for path, name in sorted(missing)[:FEW_SHOWN]
    ]
    more = len(missing) - len(shown)
    return [*shown, *([f"{plural(more, 'more attribute')} of other files"] if more else [])]
