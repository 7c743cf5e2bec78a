"""Counts how much there is to copy beforehand."""

import errno
import os
import stat
from collections.abc import Callable

import msgspec

from cleveragents.content import fsio
from cleveragents.content.native import walker
from cleveragents.content.scope import Scope
from cleveragents.errors import SandboxError
from cleveragents.model.resource import show_path


class Census(msgspec.Struct):
    """How much there is to copy, and the largest folders."""

    files: int = 0
    size: int = 0
    folders: dict[bytes, int] = {}
    linked: int = 0
    """Files that have other names as well (hard links)."""

    def exceeds(self, size: int, files: int) -> bool:
        return self.size > size or self.files > files

    def largest(self, count: int = 3) -> list[tuple[str, int]]:
        ranked = sorted(self.folders.items(), key=lambda item: -item[1])
        return [(show_path(name), size) for name, size in ranked[:count]]


Known = Callable[[bytes], int | None]
"""The size under which a path is there already; None: it is not, -1: it does not come along."""


def census(root: str, scope: Scope, known: Known | None = None) -> Census:
    """Count everything to be copied, or with `known` only what is beyond that."""
    found = Census()
    try:
        with fsio.directory(root) as fd:
            for folder, blob in walker.walk(fd, scope.prune_names, scope.prune_paths):
                _add(fd, folder, blob, scope, found, known)
    except OSError as error:
        where = error.filename if error.filename is not None else root
        raise SandboxError(
            f"{show_path(os.fsencode(where))} cannot be read: {error.strerror}",
            "make it readable, or add it to the resource's exclude",
        ) from error
    return found


def _add(
    root: int,
    folder: bytes,
    blob: bytes | int,
    scope: Scope,
    found: Census,
    known: Known | None,
) -> None:
    if folder and scope.leaves_out(folder):
        return
    prefix = folder + b"/" if folder else b""
    if isinstance(blob, int):
        if blob == errno.EXDEV:
            with fsio.parent_of(root, prefix + b".") as (fd, _):
                _count(fd, prefix, scope, found, known)
        elif blob != errno.ENOENT:
            raise OSError(blob, os.strerror(blob), folder or ".")
        return
    found.linked += len(walker.linked(blob))
    top = prefix.partition(b"/")[0]
    is_whole = top and known is None and not scope.exclude
    if is_whole and not any(spot.startswith(prefix) for spot in scope.skip):
        files, size = walker.totals(blob)
        found.files += files
        found.size += size
        found.folders[top] = found.folders.get(top, 0) + size
        return
    for name, status in walker.unpack(blob).items():
        if stat.S_ISDIR(status[4]) or scope.leaves_out(prefix + name):
            continue
        _take(prefix + name, status[1], found, known)


def _take(path: bytes, size: int, found: Census, known: Known | None) -> None:
    there = known(path) if known is not None else None
    if there == -1:
        return
    found.files += there is None
    size = max(0, size - (there or 0))
    found.size += size
    if size or there is None:
        top = path.split(b"/", 1)[0]
        found.folders[top] = found.folders.get(top, 0) + size


def _count(fd: int, prefix: bytes, scope: Scope, found: Census, known: Known | None) -> None:
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            path = prefix + name
            if scope.leaves_out(path):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    with fsio.directory(name, fd) as below:
                        _count(below, path + b"/", scope, found, known)
                    continue
                size = entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            _take(path, size, found, known)
