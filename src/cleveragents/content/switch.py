"""Bring a directory from one state to another: stage beside it, then switch name by name.

What is replaced or removed is moved into the staging directory, so every switch can be undone.
Each operation knows from the inode it staged whether it has happened, so both directions may be
repeated after a crash.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import msgspec

from cleveragents.content import fsio
from cleveragents.content.files import write_content
from cleveragents.content.trees import Difference, Entry, EntryKind
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.resource import show_path

_TYPES = {
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.SOCKET: stat.S_IFSOCK,
    EntryKind.CHARACTER: stat.S_IFCHR,
    EntryKind.BLOCK: stat.S_IFBLK,
}


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One name to switch."""

    number: int
    path: bytes
    before: Entry | None
    after: Entry | None
    staged: tuple[int, int, int] | None = None
    """Inode, size and mtime of the staged new file; None for directories and removals."""
    checked: bool = False
    """Whether only what is `expected` may be replaced: so in a target that is not ours."""
    expected: tuple[int, int, int] | None = None
    """Inode, size and mtime of what is to be replaced; None: nothing may be there."""

    def is_in_place(self, found: os.stat_result) -> bool:
        return self.staged is not None and self.staged[0] == found.st_ino

    @property
    def goes_first(self) -> bool:
        """Removals, and directories that make way for something else."""
        if self.before is None or (_is_dir(self.before) and _is_dir(self.after)):
            return False
        return self.after is None or _is_dir(self.before)

    @property
    def new(self) -> bytes:
        return b"n%d" % self.number

    @property
    def old(self) -> bytes:
        return b"o%d" % self.number


_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIRECTORY


MANY = 64
"""From this many files on, one sync of the file system is cheaper than one for each."""
Expected = dict[bytes, tuple[int, int, int]]


def stage(
    read: Callable[[bytes], bytes],
    differences: Iterable[Difference],
    staging: str,
    expected: Expected | None = None,
) -> tuple[Op, ...]:
    """Write everything new into the staging directory, durable and verified; nothing live moves."""
    fsio.make_private_dir(staging)
    ops: list[Op] = []
    with fsio.directory(staging) as fd:
        for number, item in enumerate(differences):
            op = Op(
                number,
                item.path,
                item.before,
                item.after,
                checked=expected is not None,
                expected=(expected or {}).get(item.path),
            )
            if item.after is not None and not _is_dir(item.after):
                _stage_entry(read, fd, op.new, item.after)
                op = msgspec.structs.replace(op, staged=identity(os.lstat(op.new, dir_fd=fd)))
            ops.append(op)
        if len(ops) > MANY:
            fsio.sync_all(fd)
        else:
            for op in ops:
                if op.after is not None and op.after.kind is EntryKind.FILE:
                    fsio.sync_file(op.new, fd)
        fsio.sync(fd)
    return tuple(ops)


def _stage_entry(read: Callable[[bytes], bytes], fd: int, name: bytes, entry: Entry) -> None:
    if entry.kind is EntryKind.FILE:
        write_content(read, entry.key, fd, name, entry.mode, entry.mtime_ns, durable=False)
    elif entry.kind is EntryKind.LINK:
        os.symlink(entry.key, name, dir_fd=fd)
    else:
        device = int(entry.key or b"0")
        try:
            os.mknod(name, _TYPES[entry.kind] | entry.mode, device, dir_fd=fd)
            os.chmod(name, entry.mode, dir_fd=fd)
        except PermissionError as error:
            raise SandboxError(f"a device file cannot be made again: {error}") from error


class Switch:
    """Runs staged operations on a root, forwards or backwards."""

    def __init__(self, root: str, staging: str, ops: tuple[Op, ...], force: bool = False) -> None:
        self._root_path = root
        self._staging_path = staging
        self._ops = ops
        self._force = force
        """Make read-only directories writable while working in them: only in our own sandboxes."""
        self._touched: dict[bytes, None] = {}
        self._opened: dict[bytes, int] = {}

    def forward(self) -> None:
        with self._descriptors():
            for op in reversed(self._ops):
                if op.goes_first:
                    self._take_away(op)
            for op in self._ops:
                if op.after is not None:
                    self._put(op)
            self._set_modes((op.path, op.after) for op in reversed(self._ops))
            self._sync()

    def backward(self) -> None:
        """Undo whatever part of `forward` has happened."""
        with self._descriptors():
            for op in reversed(self._ops):
                if op.after is not None:
                    self._unput(op)
            for op in self._ops:
                if op.before is not None:
                    self._give_back(op)
            self._set_modes((op.path, op.before) for op in reversed(self._ops))
            self._sync()

    @contextmanager
    def _descriptors(self) -> Generator[None]:
        with fsio.directory(self._root_path) as root, fsio.directory(self._staging_path) as staging:
            self._root, self._staging = root, staging
            yield

    @contextmanager
    def _parent(self, path: bytes) -> Generator[tuple[int, bytes]]:
        with fsio.parent_of(self._root, path) as (fd, name):
            self._touched[path.rpartition(b"/")[0]] = None
            if self._force:
                self._open_up(fd, path.rpartition(b"/")[0])
            yield fd, name

    def _open_parent(self, path: bytes) -> tuple[int, bytes] | None:
        """Descriptor of the parent and the name; None if the way there is gone."""
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

    def _take_away(self, op: Op) -> None:
        parent = self._open_parent(op.path)
        if parent is None:
            return
        fd, name = parent
        try:
            found = fsio.lstat_at(fd, name)
            if found is None or op.is_in_place(found):
                return
            if _is_dir(op.before):
                if stat.S_ISDIR(found.st_mode):
                    self._remove_directory(fd, name, self._force)
                return
            self._require_expected(op, found)
            fsio.rename(name, fd, op.old, self._staging)
        finally:
            os.close(fd)

    def _remove_directory(self, fd: int, name: bytes, may_stay: bool) -> None:
        """Remove it; what is not ours to remove (excluded, or put there meanwhile) keeps it."""
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
            if _is_dir(op.after):
                self._make_directory(op, fd, name, found)
            elif found is None:
                fsio.rename(op.new, self._staging, name, fd)
            elif not op.is_in_place(found):
                self._require_expected(op, found)
                if stat.S_ISDIR(found.st_mode):
                    self._set_aside(fd, name)
                    fsio.rename(op.new, self._staging, name, fd)
                else:
                    fsio.exchange(op.new, self._staging, name, fd)
                    self._check_swapped(op, fd, name)

    def _set_aside(self, fd: int, name: bytes) -> None:
        """A directory that only holds what an exclude rule names keeps it, under another name."""
        for number in range(1, 1000):
            aside = name + b".kept-%d" % number
            if fsio.lstat_at(fd, aside) is None:
                fsio.rename(name, fd, aside, fd)
                return
        raise SandboxError(f"{show_path(name)} cannot make way: it holds excluded files")

    def _make_directory(self, op: Op, fd: int, name: bytes, found: os.stat_result | None) -> None:
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self._require_expected(op, found)
            fsio.rename(name, fd, op.old, self._staging)
            found = None
        if found is None:
            fsio.point("mkdir")
            os.mkdir(name, 0o700, dir_fd=fd)

    def _require_expected(self, op: Op, found: os.stat_result) -> None:
        if op.checked and op.expected != identity(found):
            raise ApplyRefused(
                f"{show_path(op.path)} changed while it was being applied",
                "nothing was applied; run the command again",
            )

    def _check_swapped(self, op: Op, fd: int, name: bytes) -> None:
        """What the exchange took out must be what we meant to take out."""
        found = fsio.lstat_at(self._staging, op.new)
        if not op.checked or (found is not None and identity(found) == op.expected):
            return
        fsio.exchange(op.new, self._staging, name, fd)
        raise ApplyRefused(
            f"{show_path(op.path)} changed while it was being applied",
            "nothing was applied; run the command again",
        )

    def _unput(self, op: Op) -> None:
        parent = self._open_parent(op.path)
        if parent is None:
            return
        fd, name = parent
        try:
            found = fsio.lstat_at(fd, name)
            if found is None:
                return
            if _is_dir(op.after):
                if not _is_dir(op.before) and stat.S_ISDIR(found.st_mode):
                    self._remove_directory(fd, name, op.before is None)
            elif op.is_in_place(found):
                self._take_back(op, fd, name, found)
        finally:
            os.close(fd)

    def _take_back(self, op: Op, fd: int, name: bytes, found: os.stat_result) -> None:
        has_old = fsio.lstat_at(self._staging, op.new) is not None
        if identity(found) != op.staged:
            # Somebody edited it meanwhile: theirs stays, what was there before goes beside it.
            if has_old:
                fsio.rename(op.new, self._staging, name + b".before-apply", fd)
        elif has_old:
            fsio.exchange(op.new, self._staging, name, fd)
        else:
            fsio.rename(name, fd, op.new, self._staging)

    def _give_back(self, op: Op) -> None:
        assert op.before is not None
        with self._parent(op.path) as (fd, name):
            if _is_dir(op.before):
                if fsio.lstat_at(fd, name) is None:
                    os.mkdir(name, 0o700, dir_fd=fd)
            elif fsio.lstat_at(self._staging, op.old) is not None:
                fsio.rename(op.old, self._staging, name, fd)

    def _set_modes(self, wanted: Iterable[tuple[bytes, Entry | None]]) -> None:
        final = {path: entry.mode for path, entry in wanted if entry and _is_dir(entry)}
        for path, mode in (self._opened | final).items():
            if not path:
                os.fchmod(self._root, mode)
                continue
            self._at_directory(path, lambda fd, mode=mode: os.fchmod(fd, mode))

    def _sync(self) -> None:
        for path in self._touched:
            self._at_directory(path, fsio.sync)
        fsio.sync(self._staging)

    def _at_directory(self, path: bytes, do: Callable[[int], None]) -> None:
        """Do something to a directory, if it still is one."""
        try:
            with fsio.parent_of(self._root, path + b"/." if path else b".") as (fd, _):
                do(fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise


def identity(found: os.stat_result) -> tuple[int, int, int]:
    """What stays the same when a file is only renamed."""
    return (found.st_ino, found.st_size, found.st_mtime_ns)
