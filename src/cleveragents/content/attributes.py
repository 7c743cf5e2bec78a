"""A file's owner, extended attributes and ACLs.

Read and set by name in an open directory; no link is followed. User attributes, ACLs and
capabilities are part of a state; labels that the system sets (SELinux) are not.
"""

import errno
import os
import stat
from collections.abc import Mapping

import msgspec

from cleveragents import codec
from cleveragents.errors import ContentDamaged

_PARTS = (b"user.", b"system.posix_acl_")
CAPABILITY = b"security.capability"
_BOUND = (b"security.ima", b"security.evm")
"""Made for the very content of a file: never copied."""
_LABELS = b"security."
_NONE = (errno.ENOTSUP, errno.ENODATA, errno.ENOSYS, errno.ENOENT)
AVAILABLE = hasattr(os, "listxattr")


def is_part_of_state(name: bytes) -> bool:
    return name.startswith(_PARTS) or name == CAPABILITY


def where(dir_fd: int, name: bytes) -> bytes:
    """A path for calls that take no descriptor; the last name is not followed."""
    return b"/proc/self/fd/%d/%s" % (dir_fd, name)


def names(path: bytes | int) -> list[bytes]:
    if not AVAILABLE:
        return []
    try:
        follow = isinstance(path, int)
        return [os.fsencode(name) for name in os.listxattr(path, follow_symlinks=follow)]
    except OSError as error:
        if error.errno in _NONE:
            return []
        raise


def value(path: bytes | int, name: bytes) -> bytes | None:
    """The value; None if it is gone or unreadable."""
    try:
        return os.getxattr(path, name, follow_symlinks=isinstance(path, int))
    except OSError as error:
        if error.errno in (*_NONE, errno.EACCES, errno.EPERM):
            return None
        raise


def put(path: bytes | int, name: bytes, data: bytes | None) -> bool:
    """Set or remove one; False where the system does not allow it."""
    follow = isinstance(path, int)
    try:
        if data is None:
            os.removexattr(path, name, follow_symlinks=follow)
        else:
            os.setxattr(path, name, data, follow_symlinks=follow)
    except OSError as error:
        if data is None and error.errno == errno.ENODATA:
            return True
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL):
            return False
        raise
    return True


def packed(found: Mapping[bytes, bytes | None]) -> bytes:
    """Encoded for a manifest; empty if there are none."""
    pairs = sorted((name, data) for name, data in found.items() if data is not None)
    return msgspec.msgpack.encode(pairs) if pairs else b""


def unpacked(data: bytes) -> dict[bytes, bytes]:
    if not data:
        return {}
    try:
        return dict(codec.from_msgpack(data, list[tuple[bytes, bytes]]))
    except msgspec.MsgspecError as error:
        raise ContentDamaged(f"a manifest cannot be read: {error}") from error


def changes(before: bytes, after: bytes) -> dict[bytes, bytes | None]:
    """Name -> new value; None if removed."""
    if before == after:
        return {}
    old, new = unpacked(before), unpacked(after)
    return {
        name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)
    }


def has_any(dir_fd: int, name: bytes) -> bool:
    """Whether there are any that are part of a state."""
    return any(is_part_of_state(one) for one in names(where(dir_fd, name)))


def of(path: bytes | int) -> bytes:
    """The attributes that are part of a file's state, packed."""
    found = {name: value(path, name) for name in names(path) if is_part_of_state(name)}
    return packed(found) if found else b""


def set_all(path: bytes | int, wanted: bytes) -> list[bytes]:
    """Make them exactly that; returns the names that could not be set."""
    return set_some(path, changes(of(path), wanted))


def set_on_copy(path: bytes | int, wanted: bytes) -> list[bytes]:
    """As `set_all`, for a copy, whose file system may have less room for them."""
    missing: list[bytes] = []
    for name, data in changes(of(path), wanted).items():
        try:
            is_set = put(path, name, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT):
                raise
            is_set = False
        missing += () if is_set else (name,)
    return missing


def set_some(path: bytes | int, wanted: Mapping[bytes, bytes | None]) -> list[bytes]:
    return [name for name, data in wanted.items() if not put(path, name, data)]


def keep_owner(dir_fd: int, name: bytes, like: os.stat_result) -> bool:
    """Give a new file the owner and group of another; False where that is not allowed."""
    made = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if (made.st_uid, made.st_gid) == (like.st_uid, like.st_gid):
        return True
    try:
        os.chown(name, like.st_uid, like.st_gid, dir_fd=dir_fd, follow_symlinks=False)
    except PermissionError:
        keep_group(dir_fd, name, like.st_gid)
        return False
    return True


def keep_group(dir_fd: int, name: bytes, group: int) -> None:
    """Set the group if allowed: only groups of the user are."""
    try:
        os.chown(name, -1, group, dir_fd=dir_fd, follow_symlinks=False)
    except PermissionError:
        return


def copy(source: bytes, target: bytes) -> list[bytes]:
    """Copy attributes to a new file; returns the names that failed."""
    missing: list[bytes] = []
    for name in names(source):
        if name in _BOUND:
            continue
        data = value(source, name)
        is_label = name.startswith(_LABELS) and name != CAPABILITY
        if (data is None or not put(target, name, data)) and not is_label:
            missing.append(name)
    return missing


def inherit(
    staging: int,
    new: bytes,
    mode: int,
    parent: int,
    name: bytes,
    found: os.stat_result | None,
    changed: Mapping[bytes, bytes | None],
) -> list[str]:
    """Give a staged file owner and attributes of the file it will replace; returns what failed.

    A new file gets the group that its folder would give it. `changed`: attributes that the plan
    itself changed.
    """
    if found is None:
        above = os.fstat(parent)
        if above.st_mode & stat.S_ISGID:
            keep_group(staging, new, above.st_gid)
            _set_mode(staging, new, mode)
        return []
    lost: list[str] = []
    if not keep_owner(staging, new, found):
        lost.append(f"its owner ({found.st_uid}:{found.st_gid}) could not be kept")
    if stat.S_ISREG(found.st_mode):
        set_all(where(staging, new), of(where(parent, name)))
        missing = copy(where(parent, name), where(staging, new))
        missing += set_some(where(staging, new), changed)
        lost += [f"its attribute {os.fsdecode(one)} could not be kept" for one in missing]
        if found.st_nlink > 1:
            others = found.st_nlink - 1
            one = "1 other name (a hard link) has"
            many = f"{others} other names (hard links) have"
            lost.append(f"its {one if others == 1 else many} still the old content")
    # Last: a change of owner clears mode bits, and an ACL is part of the mode.
    _set_mode(staging, new, mode)
    return lost


def _set_mode(dir_fd: int, name: bytes, mode: int) -> None:
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) != mode:
        os.chmod(where(dir_fd, name), mode)
