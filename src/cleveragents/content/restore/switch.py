"""Bring a directory from one state to another: stage beside it, then switch name by name.

Replaced and removed files are moved into the staging directory, so every switch can be undone. The
staged inode shows whether an operation has happened, so both directions may be repeated after a
crash.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress

from cleveragents import machine
from cleveragents.content import attributes, fsio, removal
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    kind_of,
)
from cleveragents.content.fsio import inode_of
from cleveragents.content.restore.operation import (
    MANY,
    Op,
    cannot_set,
    changed_meanwhile,
    is_directory,
    set_entry_times,
)
from cleveragents.content.safe_names import require_path
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import SandboxError
from cleveragents.model.resource import show_path

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


BESIDE = b".before-apply"
"""Behind the name of what was there, where somebody else has the name by now."""
MOST_OPEN = 200
"""Directories that are kept open."""


def lift_locks(root: str, paths: Iterable[bytes]) -> bool:
    """Clear flags that prevent changes to these paths; False if there were none."""
    found = False
    with fsio.directory(root) as top:
        for above in sorted({one for path in paths for one in _with_parents(path)}):
            with suppress(OSError), fsio.parent_of(top, above) as (fd, name):
                found = removal.unlock(fd, name) or found
    return found


def _with_parents(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def restore_times(root: str, touched: Iterable[Difference]) -> None:
    """Set mtimes where nothing else differs: the inode stays."""
    with fsio.directory(root) as top:
        for item in touched:
            assert item.after is not None
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                fsio.parent_of(top, item.path) as (fd, name),
            ):
                found = fsio.lstat_at(fd, name)
                if found is not None and kind_of(found.st_mode) is item.after.kind:
                    set_entry_times(fd, name, item.after)


class Switch:
    """Runs staged operations on a root, forwards or backwards."""

    def __init__(
        self,
        root: str,
        staging: str,
        ops: tuple[Op, ...],
        force: bool = False,
        may_stay: bool = False,
    ) -> None:
        for op in ops:
            require_path(op.path, "a switch")
        self._root_path = root
        self._staging_path = staging
        self._ops = ops
        self._force = force
        """In our own sandboxes: read-only directories are made writable while we work in them,
        directories stay open from one operation to the next, and `sync_in_place` comes after."""
        self._may_stay = may_stay
        """Whether a directory that goes stays if it holds what is not ours to remove."""
        self._touched: dict[bytes, None] = {}
        self._opened: dict[bytes, int] = {}
        self._folders: dict[bytes, int] = {}

    def forward(self) -> None:
        with self._descriptors():
            # Removals first, deepest first: a new file may need the name.
            for op in reversed(self._ops):
                if op.goes_first:
                    self._named(self._remove_old, op)
            for op in self._ops:
                if op.after is not None:
                    self._named(self._put, op)
            # Modes last, deepest first: nothing can be put into a folder once it is read-only.
            self._set_attributes()
            self._set_modes((op.path, op.after) for op in reversed(self._ops))
            self._sync()
            for op in self._ops:
                self._require_untouched(op)

    def backward(self) -> None:
        """Undo whatever part of `forward` has happened."""
        with self._descriptors():
            for op in reversed(self._ops):
                if op.after is not None:
                    self._named(self._undo_put, op)
            for op in self._ops:
                if op.before is not None:
                    self._named(self._put_old_back, op)
            self._set_attributes(backward=True)
            self._set_modes((op.path, op.before) for op in reversed(self._ops))
            self._sync()

    def _named(self, do: Callable[[Op], None], op: Op) -> None:
        with machine.at(f"{self._root_path}/{os.fsdecode(op.path)}"):
            do(op)

    @contextmanager
    def _descriptors(self) -> Generator[None]:
        with fsio.directory(self._root_path) as root, fsio.directory(self._staging_path) as staging:
            self._root, self._staging = root, staging
            try:
                yield
            finally:
                self._forget_folders()

    @contextmanager
    def _parent(self, path: bytes) -> Generator[tuple[int, bytes]]:
        folder, _, name = path.rpartition(b"/")
        self._touched[folder] = None
        if self._force:
            fd = self._folder(folder)
            self._open_up(fd, folder)
            yield fd, name
            return
        with fsio.parent_of(self._root, path) as (fd, _):
            yield fd, name

    def _folder(self, path: bytes) -> int:
        """Descriptor of a directory, opened step by step and cached."""
        missing: list[bytes] = []
        while path and path not in self._folders:
            missing.append(path)
            path = path.rpartition(b"/")[0]
        fd = self._folders[path] if path else self._root
        for below in reversed(missing):
            fd = fsio.below(fd, below.rpartition(b"/")[2])
            if len(self._folders) >= MOST_OPEN:
                self._forget_folders()
            self._folders[below] = fd
        return fd

    def _forget_folders(self, at: bytes = b"") -> None:
        """Close cached descriptors of a directory and all below it."""
        below = at + b"/" if at else b""
        for path in [p for p in self._folders if p == at or p.startswith(below)]:
            os.close(self._folders.pop(path))

    def _open_parent(self, path: bytes) -> tuple[int, bytes] | None:
        """Descriptor of the parent, and the name; None if the parent is gone."""
        try:
            with self._parent(path) as (fd, name):
                return os.dup(fd), name
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def _open_up(self, fd: int, directory: bytes) -> None:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o300 != 0o300:
            self._opened.setdefault(directory, mode)
            os.fchmod(fd, mode | 0o700)

    def _remove_old(self, op: Op) -> None:
        parent = self._open_parent(op.path)
        if parent is None:
            return
        fd, name = parent
        try:
            found = fsio.lstat_at(fd, name)
            if found is None or op.is_in_place(found):
                return
            if is_directory(op.before):
                if stat.S_ISDIR(found.st_mode):
                    self._remove_directory(fd, op.path, self._is_kept(op))
                return
            self._require_expected(op, found)
            fsio.rename(name, fd, op.old, self._staging)
        finally:
            os.close(fd)

    def _is_kept(self, op: Op) -> bool:
        return self._force or (self._may_stay and op.after is None)

    def _remove_directory(self, fd: int, path: bytes, may_stay: bool) -> None:
        """Remove a directory unless it has files that are not ours (excluded, or new)."""
        name = path.rpartition(b"/")[2]
        self._forget_folders(path)
        fsio.point("rmdir")
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            if not may_stay or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _put(self, op: Op) -> None:
        assert op.after is not None
        with self._parent(op.path) as (fd, name):
            found = fsio.lstat_at(fd, name)
            if is_directory(op.after):
                self._make_directory(op, fd, name, found)
            elif found is None:
                fsio.rename(op.new, self._staging, name, fd)
            elif not op.is_in_place(found):
                self._require_expected(op, found)
                if stat.S_ISDIR(found.st_mode):
                    self._forget_folders(op.path)
                    self._set_aside(fd, name)
                    fsio.rename(op.new, self._staging, name, fd)
                else:
                    fsio.exchange(op.new, self._staging, name, fd)
                    self._check_swapped(op, fd, name)

    def _set_aside(self, fd: int, name: bytes) -> None:
        """Rename a directory that still holds excluded files, which it keeps."""
        for number in range(1, 1000):
            aside = name + b".kept-%d" % number
            if fsio.lstat_at(fd, aside) is None:
                fsio.rename(name, fd, aside, fd)
                return
        raise SandboxError(f"{show_path(name)} cannot be replaced: it holds excluded files")

    def _make_directory(self, op: Op, fd: int, name: bytes, found: os.stat_result | None) -> None:
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self._require_expected(op, found)
            fsio.rename(name, fd, op.old, self._staging)
            found = None
        if found is None:
            fsio.point("mkdir")
            os.mkdir(name, self._first_mode(op.after), dir_fd=fd)

    def _first_mode(self, entry: Entry | None) -> int:
        """In a user's tree the final mode: after a crash 0700 would look like the user's choice."""
        return 0o700 if self._force or entry is None else entry.mode | 0o700

    def _require_expected(self, op: Op, found: os.stat_result) -> None:
        if op.checked and op.expected != inode_of(found):
            raise changed_meanwhile(op)

    def _check_swapped(self, op: Op, fd: int, name: bytes) -> None:
        """Check that the exchange took out what we meant to replace."""
        if not op.checked:
            return
        found = fsio.lstat_at(self._staging, op.new)
        if found is not None and inode_of(found) == op.expected:
            return
        fsio.exchange(op.new, self._staging, name, fd)
        raise changed_meanwhile(op)

    def _require_untouched(self, op: Op) -> None:
        """Check that nobody replaced the file just before, or has it open."""
        if not op.checked:
            return
        taken = fsio.lstat_at(self._staging, op.old)
        swapped = fsio.lstat_at(self._staging, op.new)
        if swapped is not None and not op.is_in_place(swapped):
            taken = swapped
        if taken is not None and inode_of(taken) != op.expected:
            raise changed_meanwhile(op)

    def _undo_put(self, op: Op) -> None:
        parent = self._open_parent(op.path)
        if parent is None:
            return
        fd, name = parent
        try:
            found = fsio.lstat_at(fd, name)
            if found is None:
                return
            if is_directory(op.after):
                if not is_directory(op.before) and stat.S_ISDIR(found.st_mode):
                    self._remove_directory(fd, op.path, may_stay=True)
            elif op.is_in_place(found):
                self._restore_old(op, fd, name, found)
        finally:
            os.close(fd)

    def _restore_old(self, op: Op, fd: int, name: bytes, found: os.stat_result) -> None:
        has_old = fsio.lstat_at(self._staging, op.new) is not None
        if inode_of(found) != op.staged:
            # Edited meanwhile: their version stays, the old one goes beside it.
            if has_old:
                fsio.rename(op.new, self._staging, name + BESIDE, fd)
        elif has_old:
            fsio.exchange(op.new, self._staging, name, fd)
        else:
            fsio.rename(name, fd, op.new, self._staging)

    def _put_old_back(self, op: Op) -> None:
        assert op.before is not None
        with self._parent(op.path) as (fd, name):
            is_free = fsio.lstat_at(fd, name) is None
            if is_directory(op.before):
                if is_free:
                    os.mkdir(name, self._first_mode(op.before), dir_fd=fd)
            elif fsio.lstat_at(self._staging, op.old) is not None:
                # Created again meanwhile: their version stays, the old one goes beside it.
                put = name if is_free else name + BESIDE
                fsio.rename(op.old, self._staging, put, fd)

    def _set_modes(self, wanted: Iterable[tuple[bytes, Entry | None]]) -> None:
        final = {path: entry.mode for path, entry in wanted if entry and is_directory(entry)}
        for path, mode in (self._opened | final).items():
            if not path:
                fsio.set_mode(self._root, mode)
                continue
            self._touched[path] = None
            self._at_directory(path, lambda fd, mode=mode: fsio.set_mode(fd, mode))

    def _set_attributes(self, backward: bool = False) -> None:
        """Set directories' attributes in place, before their modes: an ACL is part of the mode."""
        for op in self._ops:
            start, end = (op.after, op.before) if backward else (op.before, op.after)
            if end is None or not is_directory(end):
                continue
            old = start.xattrs if start is not None and is_directory(start) else b""
            if self._force and not is_directory(start):
                self._at_directory(op.path, lambda fd, p=op.path, e=end: self._exactly(fd, p, e))
            elif old != end.xattrs:
                changes = attributes.changes(old, end.xattrs)
                self._at_directory(op.path, lambda fd, p=op.path, c=changes: self._some(fd, p, c))

    def _exactly(self, fd: int, path: bytes, entry: Entry) -> None:
        if missing := attributes.set_all(fd, entry.xattrs):
            raise cannot_set(path, missing)

    def _some(self, fd: int, path: bytes, wanted: Mapping[bytes, bytes | None]) -> None:
        if missing := attributes.set_some(fd, wanted):
            raise cannot_set(path, missing)

    def _sync(self) -> None:
        if self._force:
            return
        for path in self._touched:
            self._at_directory(path, fsio.sync)
        fsio.sync(self._staging)

    def _at_directory(self, path: bytes, do: Callable[[int], None]) -> None:
        """Call `do` on a directory, if it still is one."""
        try:
            if self._force:
                do(self._folder(path))
                return
            named = machine.at(f"{self._root_path}/{os.fsdecode(path)}")
            with named, fsio.parent_of(self._root, path + b"/." if path else b".") as (fd, _):
                do(fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise


def sync_in_place(root: str, ops: tuple[Op, ...]) -> None:
    """Sync a switch: what it put in place and what it removed."""
    folders: dict[bytes, list[bytes]] = {}
    for op in ops:
        folder, _, name = op.path.rpartition(b"/")
        found = folders.setdefault(folder, [])
        if op.after is not None and op.after.kind is EntryKind.FILE:
            found.append(name)
    with suppress(FileNotFoundError), fsio.directory(root) as top:
        if len(ops) > MANY:
            fsio.sync_all(top)
            return
        for folder, names in folders.items():
            with suppress(FileNotFoundError, NotADirectoryError):
                _sync_folder(top, folder, names)


def _sync_folder(top: int, folder: bytes, names: list[bytes]) -> None:
    with fsio.parent_of(top, folder + b"/." if folder else b".") as (fd, _):
        for name in names:
            with suppress(FileNotFoundError):
                fsio.sync_file(name, fd)
        fsio.sync(fd)
