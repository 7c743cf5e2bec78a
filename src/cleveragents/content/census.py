"""How much there is to copy, before any of it is."""

import errno
import os
import stat

import msgspec

from cleveragents.content import fsio, walker
from cleveragents.content.scope import Scope
from cleveragents.errors import SandboxError
from cleveragents.resource import show_path


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
    if top and not scope.exclude and not any(spot.startswith(prefix) for spot in scope.skip):
        files, size = walker.totals(blob)
        found.files += files
        found.size += size
        found.folders[top] = found.folders.get(top, 0) + size
        return
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
