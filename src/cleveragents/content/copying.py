"""Copy a tree as it is: bytes, modes, mtimes, links as text; by reflink where the disk can."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable

import msgspec

from cleveragents.content import fsio, walker
from cleveragents.content.files import Base, Stamp, git_hash, stamp
from cleveragents.content.scope import Scope
from cleveragents.errors import SandboxError
from cleveragents.resource import show_path

_FICLONE = 0x40049409
_BLOCK = 1 << 20
Progress = Callable[[str, int, int], None]


class Census(msgspec.Struct):
    """How much there is to copy, and where most of it lies."""

    files: int = 0
    size: int = 0
    folders: dict[bytes, int] = {}

    def largest(self, count: int = 3) -> list[tuple[str, int]]:
        ranked = sorted(self.folders.items(), key=lambda item: -item[1])
        return [(show_path(name), size) for name, size in ranked[:count]]


def census(root: str, scope: Scope) -> Census:
    found = Census()
    try:
        with fsio.directory(root) as fd:
            for folder, blob in walker.walk(fd, scope.prune_names, scope.prune_paths):
                _add(fd, folder, blob, scope, found)
    except OSError as error:
        where = error.filename if error.filename is not None else root
        raise SandboxError(
            f"{show_path(os.fsencode(where))} cannot be read: {error.strerror}",
            "make it readable, or add it to the resource's exclude",
        ) from error
    return found


def _add(root: int, folder: bytes, blob: bytes | int, scope: Scope, found: Census) -> None:
    if folder and scope.leaves_out(folder):
        return
    prefix = folder + b"/" if folder else b""
    if isinstance(blob, int):
        if blob == errno.EXDEV:
            with fsio.parent_of(root, prefix + b".") as (fd, _):
                _count(fd, prefix, scope, found)
        elif blob != errno.ENOENT:
            raise OSError(blob, os.strerror(blob), folder or ".")
        return
    top, size = prefix.partition(b"/")[0], 0
    for name, status in walker.unpack(blob).items():
        if stat.S_ISDIR(status[4]) or scope.leaves_out(prefix + name):
            continue
        found.files += 1
        size += status[1]
        if not top:
            found.folders[name] = status[1]
    found.size += size
    if top:
        found.folders[top] = found.folders.get(top, 0) + size


def _count(fd: int, prefix: bytes, scope: Scope, found: Census) -> None:
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            path = prefix + name
            if scope.leaves_out(path):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    with fsio.directory(name, fd) as below:
                        _count(below, path + b"/", scope, found)
                    continue
                size = entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            found.files += 1
            found.size += size
            top = path.split(b"/")[0]
            found.folders[top] = found.folders.get(top, 0) + size


class Copier:
    """Copies what belongs to a resource into a new directory."""

    def __init__(
        self,
        scope: Scope,
        wanted: Callable[[bytes, bool], bool],
        progress: Callable[[int], None],
        base: Callable[[bytes], Base | None] = lambda _path: None,
    ) -> None:
        self._scope = scope
        self._base = base
        self.known: dict[bytes, tuple[Stamp, bytes]] = {}
        """Path -> stamp of the copy and key, where it is the blob that the base has there."""
        self._wanted = wanted
        self._progress = progress
        self._reflink = True

    def copy(self, source: str, target: str) -> None:
        with fsio.directory(source) as here, fsio.directory(target) as there:
            self._directory(here, there, b"")
            os.fchmod(there, stat.S_IMODE(os.fstat(here).st_mode))

    def _directory(self, here: int, there: int, prefix: bytes) -> None:
        with os.scandir(here) as found:
            names = [os.fsencode(item.name) for item in found]
        for name in names:
            path = prefix + name
            if self._scope.leaves_out(path):
                continue
            try:
                self._entry(here, there, name, path)
            except FileNotFoundError:
                continue  # somebody removed it while we were copying
            except PermissionError as error:
                raise SandboxError(
                    f"{show_path(path)} cannot be copied: {error.strerror}",
                    f"make it readable, or add {show_path(path)!r} to the resource's exclude",
                ) from error

    def _entry(self, here: int, there: int, name: bytes, path: bytes) -> None:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        if not self._wanted(path, stat.S_ISDIR(found.st_mode)):
            return
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(name, 0o700, dir_fd=there)
            with fsio.directory(name, here) as inner, fsio.directory(name, there) as copy:
                self._directory(inner, copy, path + b"/")
                os.fchmod(copy, mode)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
        elif stat.S_ISREG(found.st_mode):
            self._file(here, there, name, path, mode)
        else:
            os.mknod(name, found.st_mode, found.st_rdev, dir_fd=there)
            os.chmod(name, mode, dir_fd=there)

    def _file(self, here: int, there: int, name: bytes, path: bytes, mode: int) -> None:
        source = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here
        )
        try:
            target = fsio.create(name, 0o600, there)
            try:
                copied, key = self._content(source, target, self._base(path))
                found = os.fstat(source)
                os.fchmod(target, mode)
                os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
                if key is not None:
                    self.known[path] = stamp(os.fstat(target)), key
            finally:
                os.close(target)
        finally:
            os.close(source)
        self._progress(copied)

    def _content(self, source: int, target: int, base: Base | None) -> tuple[int, bytes | None]:
        """Bytes copied, and the key if they are those of the base: hashed as they pass by."""
        if self._reflink:
            try:
                fcntl.ioctl(target, _FICLONE, source)
                return os.fstat(target).st_size, None
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY):
                    raise
                self._reflink = False
        size, copied = os.fstat(source).st_size, 0
        digest = git_hash(base[0], size) if base is not None and base[1] == size else None
        # One byte more than there should be: a short answer is the end.
        while block := os.read(source, min(max(size - copied, 0) + 1, _BLOCK)):
            fsio.write_all(target, block)
            copied += len(block)
            if digest is not None:
                digest.update(block)
        if digest is None or base is None or copied != size:
            return copied, None
        return copied, base[0] if digest.digest() == base[0][1:] else None
