"""`in_place`: work happens in the directory itself; there is no copy and nothing to apply.

Somebody else may write to it at any time. So nothing is restored unasked, a rollback replaces only
what it has just read, and deleting the plan removes nothing from the directory.
"""

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import attributes, fsio, removal
from cleveragents.content.capture.engine import TreeEngine
from cleveragents.content.entry import Entry, EntryKind
from cleveragents.content.fsio import Inode, inode_of
from cleveragents.content.packs import Batch
from cleveragents.content.restore.operation import Op, is_directory
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch, restore_times
from cleveragents.content.scope import Scope
from cleveragents.content.tree_diff import Difference
from cleveragents.errors import ApplyRefused, CheckpointFailed, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import IN_PLACE, Resource, show_path
from cleveragents.sandbox.merge import has_git_folder, holds
from cleveragents.sandbox.owned import OwnedTree
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Making, Place, Proposal
from cleveragents.sandbox.tree import TreeSandbox

OURS = b".cleveragents-"
"""How what we put beside the user's files begins, while a rollback is under way."""
AGAIN = "nothing was changed; run the command again"


class InPlaceScope(Scope, frozen=True):
    """The scope less inner resources, uncovered files, our own files and git's temporary ones."""

    def leaves_out(self, path: bytes) -> bool:
        inside = path[5:] if path.startswith(b".git/") else None
        if (path if inside is None else inside).startswith(OURS):
            return True
        if inside is not None and _is_gits_own(inside):
            return True
        return super().leaves_out(path)


def _is_gits_own(inside: bytes) -> bool:
    """Git's locks and temporary files."""
    name = inside.rpartition(b"/")[2]
    return (
        name.endswith(b".lock")
        or name.startswith((b"tmp_", b"fsmonitor--daemon"))
        or name == b"gc.pid"
    )


class NothingToApply:
    """The apply half of a sandbox in place: the work is real already."""

    place: Place

    @staticmethod
    def path_in(root: str, resource: Resource) -> str:
        """Tools are given the resource itself."""
        return resource.path

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        return Proposal(resource=self.place.resource.name, mode=IN_PLACE, files=())

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        return {"files": 0}

    def switch_apply(self, staged: dict[str, Any]) -> None: ...

    def undo_apply(self, staged: dict[str, Any]) -> None: ...

    def finish_apply(self, staged: dict[str, Any]) -> None: ...

    def discard_apply(self, staging: str) -> None: ...

    def applied(self, staged: dict[str, Any]) -> Applied:
        name = self.place.resource.name
        note = f"{name} is worked on in place: there was nothing to apply"
        return Applied(resource=name, files=0, mode=IN_PLACE, notes=(note,))

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        raise SandboxError(
            f"resource {self.place.resource.name!r} is worked on in place, and a child plan"
            " needs a copy",
            "use another strategy, or no child plans",
        )


class DirectoryInPlace(NothingToApply, TreeSandbox):
    strategy = IN_PLACE

    def create(self, making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.ours)
        self._require_within_limit(making)
        return {"path": self.place.resource.path}

    def _elsewhere(self) -> tuple[bytes, ...]:
        """Content kept elsewhere; a repository that appears in a directory is plain files."""
        return ()

    @property
    def scope(self) -> InPlaceScope:
        inner = tuple(os.fsencode(spot) for spot in self.place.inner)
        sides = tuple(spot + side for spot in inner for side in (b"-wal", b"-shm", b"-journal"))
        uncovered = tuple(os.fsencode(path) for path in self.place.origin.get("not_covered", {}))
        rules = tuple(os.fsencode(rule) for rule in self.place.resource.exclude)
        return InPlaceScope(rules, {}, (*self._elsewhere(), *inner, *sides, *uncovered))

    @property
    def engine(self) -> TreeEngine:
        if self._engine is None:
            self._engine = TreeEngine(
                self.place.root,
                self.scope,
                self.base(),
                self.place.packs,
                self.place.cache,
                self.manifests,
            )
            self._engine.known_files = self.seed
        return self._engine

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        """Always strict: an unreadable file is not ours to make readable."""
        if not os.path.isdir(self.place.root):
            raise CheckpointFailed(
                f"{self.place.root} is no longer a directory",
                f"mkdir {self.place.root}, then run it again",
            )
        return super().capture(batch, previous, strict=True)

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        differences = self.differences(current, target)
        self.expect(differences)
        differences, links = self.linking(differences, current, target)
        where = self._staging_for(staging)
        removal.remove_tree(where)
        ops: tuple[Op, ...] = ()
        if differences:
            with fsio.directory(self.place.root) as root:
                expected = _as_captured(root, differences)
                ops = stage(
                    self.reading(_contents(differences)),
                    differences,
                    where,
                    expected,
                    finish=lambda fd, new, item: _keep_owner(root, fd, new, item),
                    links=links,
                    root=self.place.root,
                )
        return {
            "ops": ops,
            "touched": self._touched(current, target),
            "staging": where,
            "start": _root_of(current),
            "end": _root_of(target),
            "target": msgspec.to_builtins(target),
        }

    def _staging_for(self, staging: str) -> str:
        """Our own folder, or beside the user's files if a rename would cross file systems."""
        if _mount_of(self.place.ours) == _mount_of(self.place.root):
            return staging
        root = self.place.root
        top = f"{root}/.git" if has_git_folder(root) else root
        return f"{top}/{self._beside}{blake3(os.fsencode(staging)).hexdigest()[:12]}"

    @property
    def _beside(self) -> str:
        return f"{OURS.decode()}{self.place.plan_id}-"

    def discard_staged(self) -> None:
        """Remove what a rollback left beside the user's files, whether it ended or never began."""
        for top in (self.place.root, f"{self.place.root}/.git"):
            with suppress(OSError):
                left = [name for name in os.listdir(top) if name.startswith(self._beside)]
                for name in left:
                    removal.remove_tree(f"{top}/{name}")
                if left:  # synced: else it may reappear among the user's files after a power cut
                    fsio.sync_dir(top)

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        if ops:
            try:
                Switch(self.place.root, staged["staging"], ops, may_stay=True).forward()
            except ApplyRefused as error:
                text = error.message.replace("being applied", "being rolled back")
                raise SandboxError(text, AGAIN) from error
            _keep_folders_owners(self.place.root, ops)
        restore_times(self.place.root, _touched_of(staged))
        self._set_root(staged["start"], staged["end"])

    def switch_now(self, staged: dict[str, Any], staging: str) -> None:
        self.switch(staged, staging)

    def make_last(self, staged: dict[str, Any]) -> None:
        """Nothing to do: it is on disk already, as no later repair would check it."""

    def undo_switch(self, staged: dict[str, Any]) -> None:
        """Undo whatever part of `switch` happened; changes by others since then stay."""
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        if ops and os.path.isdir(staged["staging"]):
            Switch(self.place.root, staged["staging"], ops).backward()
        back = [Difference(t.path, t.after, t.before) for t in _touched_of(staged)]
        restore_times(self.place.root, back)
        self._set_root(staged["end"], staged["start"])

    def _set_root(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        if start != end:
            wanted = bytes.fromhex(end.get("xattrs", ""))
            attributes.set_all(os.fsencode(self.place.root), wanted)
            os.chmod(self.place.root, end["mode"])

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        """Read only what was switched: the rest may change at any time."""
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        with fsio.directory(self.place.root) as root:
            for op in ops:
                if not _is_switched(root, op):
                    raise CheckpointFailed(
                        f"{show_path(op.path)} is not what its checkpoint says",
                        "something wrote to it in the meantime; run the command again",
                    )
        return codec.convert(staged["target"], SandboxCheckpoint)

    def by_owner(
        self, states: Sequence[SandboxCheckpoint], batch: Batch, scratch: str
    ) -> OwnedTree:
        return OwnedTree(self, states, batch, scratch)

    def remove(self) -> None:
        self.discard_staged()
        super().remove()


def _root_of(state: SandboxCheckpoint) -> dict[str, Any]:
    return {name: state.metadata[name] for name in ("mode", "xattrs") if name in state.metadata}


def _touched_of(staged: dict[str, Any]) -> list[Difference]:
    return codec.convert(staged["touched"], list[Difference])


def _contents(differences: Iterable[Difference]) -> list[bytes]:
    found = [item.after for item in differences]
    return [entry.key for entry in found if entry and entry.kind is EntryKind.FILE]


def _as_captured(root: int, differences: Iterable[Difference]) -> dict[bytes, Inode]:
    """Read again what will be replaced: an edit made since the capture must not be lost."""
    found: dict[bytes, Inode] = {}
    for item in differences:
        now = _inode_if_held(root, item.path, item.before)
        if now is not None:
            found[item.path] = now
    return found


def _inode_if_held(root: int, path: bytes, entry: Entry | None) -> Inode | None:
    """The inode that holds exactly this entry; None for a directory or a missing file."""
    try:
        with fsio.parent_of(root, path) as (fd, name):
            before = fsio.lstat_at(fd, name)
            held = _holds(fd, name, before, entry)
            after = fsio.lstat_at(fd, name)
    except (FileNotFoundError, NotADirectoryError):
        before, held, after = None, entry is None, None
    same = before is after or (before and after and inode_of(before) == inode_of(after))
    if not held or not same:
        raise SandboxError(f"{show_path(path)} changed while it was being rolled back", AGAIN)
    return None if before is None or stat.S_ISDIR(before.st_mode) else inode_of(before)


def _holds(fd: int, name: bytes, found: os.stat_result | None, entry: Entry | None) -> bool:
    """Whether a name is in the state of an entry, extended attributes included."""
    if not holds(fd, name, found, entry):
        return False
    if entry is None or entry.kind is EntryKind.LINK:
        return True
    return attributes.of(attributes.where(fd, name)) == entry.xattrs


def _is_switched(root: int, op: Op) -> bool:
    try:
        with fsio.parent_of(root, op.path) as (fd, name):
            found = fsio.lstat_at(fd, name)
            if op.after is None and found is not None:
                # A folder with uncovered files in it had to stay.
                return stat.S_ISDIR(found.st_mode)
            return _holds(fd, name, found, op.after)
    except (FileNotFoundError, NotADirectoryError):
        return op.after is None


def _keep_owner(root: int, fd: int, new: bytes, item: Difference) -> None:
    """Give a restored file the owner of the file it replaces, or else of the folder."""
    if os.geteuid() != 0 or item.after is None:
        return
    found = _nearest(root, item.path)
    made = os.stat(new, dir_fd=fd, follow_symlinks=False)
    if (found.st_uid, found.st_gid) == (made.st_uid, made.st_gid):
        return
    os.chown(new, found.st_uid, found.st_gid, dir_fd=fd, follow_symlinks=False)
    if item.after.kind is EntryKind.FILE:
        # A new owner costs a file its set-uid bits and capabilities.
        where = attributes.where(fd, new)
        attributes.set_all(where, item.after.xattrs)
        os.chmod(where, item.after.mode)


def _nearest(root: int, path: bytes) -> os.stat_result:
    """What is there now, or the folder it would be in, or the nearest one above that exists."""
    while path:
        with suppress(OSError), fsio.parent_of(root, path) as (parent, name):
            return fsio.lstat_at(parent, name) or os.fstat(parent)
        path = path.rpartition(b"/")[0]
    return os.fstat(root)


def _keep_folders_owners(path: str, ops: Iterable[Op]) -> None:
    """The same of folders that were made anew: they are not staged."""
    if os.geteuid() != 0:
        return
    with fsio.directory(path) as root:
        for op in ops:
            if not is_directory(op.after) or is_directory(op.before):
                continue
            with suppress(OSError), fsio.parent_of(root, op.path) as (fd, name):
                above, made = os.fstat(fd), fsio.lstat_at(fd, name)
                if made is not None and stat.S_ISDIR(made.st_mode) and made.st_uid == 0:
                    os.chown(name, above.st_uid, above.st_gid, dir_fd=fd, follow_symlinks=False)


def _mount_of(path: str) -> tuple[int, str]:
    """The mount of a directory: a rename works only within one."""
    with fsio.directory(path) as fd:
        device = os.fstat(fd).st_dev
        with suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as about:
            for line in about:
                if line.startswith("mnt_id:"):
                    return device, line.split()[1]
    return device, ""
