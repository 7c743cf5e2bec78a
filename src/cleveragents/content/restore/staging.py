"""Prepares and verifies what a switch will put in place."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from cleveragents.content import attributes, fsio
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.files import place_content, write_content
from cleveragents.content.fsio import inode_of
from cleveragents.content.restore.links import Links, link_live
from cleveragents.content.restore.operation import (
    MANY,
    Expected,
    Op,
    cannot_set,
    is_directory,
    set_entry_times,
)
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.errors import SandboxError

_TYPES = {
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.SOCKET: stat.S_IFSOCK,
    EntryKind.CHARACTER: stat.S_IFCHR,
    EntryKind.BLOCK: stat.S_IFBLK,
}


def stage(
    read: Callable[[bytes], bytes],
    differences: Iterable[Difference],
    staging: str,
    expected: Expected | None = None,
    durable: bool = True,
    finish: Callable[[int, bytes, Difference], None] | None = None,
    links: Links | None = None,
    root: str = "",
) -> tuple[Op, ...]:
    """Write everything new into the staging directory; nothing live moves.

    Synced and compared, so that a switch can continue after a crash with what was staged. If not
    `durable`, recovery stages again, and `sync_in_place` must follow the switch. `finish` may add
    to a staged file what its state does not record. `links`: paths that are names of one file,
    which may exist at one of them below `root` already.
    """
    fsio.make_private_dir(staging)
    write = partial(write_content, durable=False) if durable else place_content
    ops: list[Op] = []
    links = links or Links()
    linked: dict[int, bytes] = {}
    with fsio.directory(staging) as fd:
        for number, item in enumerate(differences):
            new, after, staged, is_linked = b"n%d" % number, item.after, None, False
            if after is not None and after.kind is EntryKind.FILE:
                file = links.of.get(item.path)
                is_linked = file is not None and _linked(links, file, linked, root, fd, new)
                if is_linked:
                    staged = inode_of(os.lstat(new, dir_fd=fd))
                else:
                    staged = write(read, after.key, fd, new, after.mode, after.mtime_ns)
                    _set_attributes(fd, new, item.path, after)
                if file is not None:
                    linked[file] = new
            elif after is not None and not is_directory(after):
                _stage_entry(fd, new, after)
                staged = inode_of(os.lstat(new, dir_fd=fd))
            if staged is not None and finish is not None and not is_linked:
                finish(fd, new, item)
            own = (expected or {}).get(item.path)
            checked = expected is not None
            ops.append(Op(number, item.path, item.before, after, staged, checked, own))
        if durable:
            _sync_staged(ops, fd)
    if durable:
        fsio.sync_dir(os.path.dirname(staging))
    return tuple(ops)


def _linked(
    links: Links, file: int, linked: Mapping[int, bytes], root: str, fd: int, new: bytes
) -> bool:
    """Link the new name to a file that is staged or stays in place."""
    if file in linked:
        os.link(linked[file], new, src_dir_fd=fd, dst_dir_fd=fd)
        return True
    return file in links.live and link_live(root, links.live[file], fd, new)


def _sync_staged(ops: list[Op], fd: int) -> None:
    if len(ops) > MANY:
        fsio.sync_all(fd)
    else:
        for op in ops:
            if op.after is not None and op.after.kind is EntryKind.FILE:
                fsio.sync_file(op.new, fd)
    fsio.sync(fd)


def _set_attributes(fd: int, name: bytes, path: bytes, entry: Entry) -> None:
    """Set exactly the entry's attributes, whatever the staging directory adds to new files."""
    where = attributes.where(fd, name)
    has = attributes.of(where)
    if has == entry.xattrs:
        return
    if missing := attributes.set_all(where, entry.xattrs):
        raise cannot_set(path, missing)
    os.chmod(where, entry.mode)  # an ACL is part of it


def _stage_entry(fd: int, name: bytes, entry: Entry) -> None:
    if entry.kind is EntryKind.LINK:
        os.symlink(entry.key, name, dir_fd=fd)
        set_entry_times(fd, name, entry)
        return
    device = int(entry.key or b"0")
    try:
        os.mknod(name, _TYPES[entry.kind] | entry.mode, device, dir_fd=fd)
        os.chmod(name, entry.mode, dir_fd=fd)
    except PermissionError as error:
        raise SandboxError(f"a device file cannot be made again: {error}") from error
    set_entry_times(fd, name, entry)
