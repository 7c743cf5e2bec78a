"""The only module through which the engine changes files, so that faults can be injected here.

Everything below a root goes through directory descriptors: no symlink is followed, and no
existing inode is written to.
"""

import errno
import fcntl
import functools
import os
import stat
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

from cleveragents import machine
from cleveragents.content import faults
from cleveragents.content.native.compiled import walk as _walk
from cleveragents.content.safe_names import require_name, require_path
from cleveragents.errors import StoreError, UnsafeName
from cleveragents.model.resource import show_path

if TYPE_CHECKING:
    import ctypes

point: Callable[[str], None] = faults.point
arm: Callable[[Callable[[str], None] | int | None], None] = faults.arm
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXCHANGE = 2
_NOREPLACE = 1
NO_TIME = -(1 << 62)
"""An mtime that is not put back: the content is new."""
Inode = tuple[int, int, int]
"""Number, size and mtime: what stays the same when a file is only renamed."""


@functools.cache
def libc() -> "ctypes.CDLL":
    """libc, loaded on demand: most commands switch nothing."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def last_errno() -> int:
    import ctypes

    return ctypes.get_errno()


def make_private_dir(path: str) -> None:
    """Make a directory for this user only, and missing parents likewise.

    `os.makedirs` would leave those above to the umask.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        above = os.path.dirname(path)
        if above in ("", path):
            raise
        make_private_dir(above)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)  # only once: in /proc it never appears


def require_own(*paths: str, hint: str) -> None:
    """Refuse another user's directory: the owner controls its content."""
    for path in paths:
        with suppress(OSError):  # missing or unreachable: opening it will report that
            owner = os.stat(path).st_uid
            if owner != os.geteuid():
                raise StoreError(f"{path} belongs to {_user(owner)}, not to you", hint)


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def restrict(path: str) -> None:
    os.chmod(path, 0o600)


DEEP = 100
"""From this many levels on a tree is deep."""


def allow_deep() -> None:
    """Raise the limits for deep trees: each level takes a few frames and a descriptor."""
    import resource

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 50_000))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Opened:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)


def directory(path: str | bytes, dir_fd: int | None = None) -> AbstractContextManager[int]:
    """A directory's descriptor, for one block."""
    return _Opened(os.open(path, DIRECTORY, dir_fd=dir_fd))


def below(dir_fd: int, name: bytes) -> int:
    """Descriptor of a directory in another; follows no link."""
    require_name(name, "a path")
    return os.open(name, DIRECTORY, dir_fd=dir_fd)


@contextmanager
def parent_of(root: int, path: bytes) -> Generator[tuple[int, bytes]]:
    """Descriptor of the directory of `path`, opened step by step, and the last name."""
    if path != b".":
        require_path(path.removesuffix(b"/."), "a path")
    folder, _, name = path.rpartition(b"/")
    fd = _descend(root, folder) if folder else os.dup(root)
    try:
        yield fd, name
    finally:
        os.close(fd)


def python_descend(root: int, path: bytes) -> int:
    """The twin of `_walk.open_below`, which takes many steps in one call."""
    fd = os.dup(root)
    for part in path.split(b"/"):
        try:
            below = os.open(part, DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


_descend = _walk.open_below if _walk else python_descend

EARLIEST, LATEST = -(1 << 61), (1 << 64) - (1 << 61) - 1
"""Moments in ns that one number of 64 bits can tell apart: from 1896 to 2481."""


def bounded(moment: int) -> int:
    return min(max(moment, EARLIEST), LATEST)


def inode_of(found: os.stat_result) -> Inode:
    return (found.st_ino, found.st_size, bounded(found.st_mtime_ns))


def link(dir_fd: int, name: bytes, text: bytes, path: bytes) -> None:
    """Make a link; `path` is its name in an error."""
    if not text or b"\0" in text:
        raise UnsafeName(f"{show_path(path)} is a link with the text {text!r}, which cannot be")
    os.symlink(text, name, dir_fd=dir_fd)


def lstat_at(dir_fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def sync(fd: int) -> None:
    """fsync; a failure is fatal and never retried: the kernel has dropped the pages."""
    point("fsync")
    try:
        os.fsync(fd)
    except OSError as error:
        raise machine.of_os(error, "could not flush data to disk") from error


def sync_data(fd: int) -> None:
    point("fdatasync")
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise machine.of_os(error, "could not flush data to disk") from error


def sync_file(name: bytes, dir_fd: int) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        sync(fd)
    finally:
        os.close(fd)


def sync_all(fd: int) -> None:
    """Sync the whole file system of this descriptor: quicker than many single files."""
    point("syncfs")
    if libc().syncfs(fd) != 0:
        code = last_errno()
        error = OSError(code, os.strerror(code))
        raise machine.of_os(error, "could not flush data to disk") from error


def drop_pages(root: str) -> None:
    """Drop cached pages below, so that they are read from disk; unwritten ones stay."""
    for _, _, names, fd in os.fwalk(root):
        for name in names:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                continue
            with suppress(PermissionError):
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                try:
                    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(opened)


def sync_dir(path: str) -> None:
    with directory(path) as fd:
        sync(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    point("write")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def create(name: str | bytes, mode: int, dir_fd: int | None = None) -> int:
    """Descriptor of a new file; an existing one is an error, never opened."""
    return os.open(name, _FRESH, mode, dir_fd=dir_fd)


def python_put(dir_fd: int, name: bytes, data: bytes, mode: int, mtime_ns: int) -> Inode:
    """The twin of `_walk.put`."""
    fd = create(name, 0o600, dir_fd)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, mode)
        if mtime_ns != NO_TIME:
            os.utime(fd, ns=(mtime_ns, mtime_ns))
        return inode_of(os.fstat(fd))
    finally:
        os.close(fd)


_put = _walk.put if _walk else python_put


def put(dir_fd: int, name: bytes, data: bytes, mode: int, mtime_ns: int = NO_TIME) -> Inode:
    """A new file with that content, mode and mtime."""
    point("write")
    return _put(dir_fd, name, data, mode, mtime_ns)


def set_mode(fd: int, mode: int) -> None:
    """Only if it differs: what is immutable may be right already."""
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def set_times(dir_fd: int, name: bytes, mtime_ns: int, atime_ns: int | None = None) -> None:
    """Set an mtime; of a link, not of its target."""
    if mtime_ns != NO_TIME:
        times = (mtime_ns if atime_ns is None else atime_ns, mtime_ns)
        os.utime(name, ns=times, dir_fd=dir_fd, follow_symlinks=False)


def write_new(path: str, data: bytes, mode: int = 0o600) -> None:
    """A new file with that content, on disk when this returns."""
    fd = create(path, mode)
    try:
        write_all(fd, data)
        sync(fd)
    finally:
        os.close(fd)


def unlink_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def rename(source: bytes, source_fd: int, target: bytes, target_fd: int) -> None:
    """Move; the target must not exist."""
    point("rename")
    if _renameat2(source_fd, source, target_fd, target, _NOREPLACE):
        return
    if lstat_at(target_fd, target) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target))
    os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)


def exchange(source: bytes, source_fd: int, target: bytes, target_fd: int) -> None:
    """Swap two names in one step; without kernel support, keep the old one beside the new."""
    point("exchange")
    if _renameat2(source_fd, source, target_fd, target, _EXCHANGE):
        return
    aside = source + b".old"
    os.rename(target, aside, src_dir_fd=target_fd, dst_dir_fd=source_fd)
    os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    os.rename(aside, source, src_dir_fd=source_fd, dst_dir_fd=source_fd)


def _renameat2(source_fd: int, source: bytes, target_fd: int, target: bytes, flags: int) -> bool:
    """False if the kernel or the file system does not know the call."""
    call = getattr(libc(), "renameat2", None)
    if call is None:
        return False
    if call(source_fd, source, target_fd, target, flags) == 0:
        return True
    code = last_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), os.fsdecode(target))


UNKNOWN_BOOT = "unknown"


def boot_id() -> str:
    """The id of the machine's current boot, where the system has one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as found:
            return found.read().strip().decode()
    except OSError:
        return UNKNOWN_BOOT


def mount_id(path: str) -> str:
    """The boot and the mount of a path's file system, where the kernel tells.

    Unsynced data is gone after a change of either: a disk can fail while the machine runs.
    """
    boot = boot_id()
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    try:
        device = os.stat(path).st_dev
        shown = os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        for kind in ("ext4", "xfs", "f2fs"):
            with suppress(OSError):  # assigned when mounted, never reused
                return f"{boot} {os.stat(f'/sys/fs/{kind}/{os.path.basename(shown)}').st_ino}"
    except OSError:
        pass
    return boot


def is_same_mount(one: str, other: str) -> bool:
    """Compare mounts; if a container cannot see them, only the boot counts."""
    (boot, *mount), (other_boot, *other_mount) = one.split(), other.split()
    return boot == other_boot and (not mount or not other_mount or mount == other_mount)


def identity(path: str) -> str:
    """An inode's device and number."""
    found = os.stat(path, follow_symlinks=False)
    return f"{found.st_dev}:{found.st_ino}"


def is_inode(path: str, known: str) -> bool:
    """Whether a path still has that inode; the device's number may have changed.

    Devices are renumbered at boot (btrfs, NFS, device mapper), and every sandbox was refused
    after one. Another directory put in its place is detected by the mark beside it.
    """
    return identity(path).partition(":")[2] == known.partition(":")[2]


@contextmanager
def locked(path: str) -> Generator[None]:
    """Hold an exclusive lock on a file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
