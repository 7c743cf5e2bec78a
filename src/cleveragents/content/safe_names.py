"""Checks names written by others: in a git tree, a manifest or a row.

A path that passes stays below its root, if it is then walked by directory descriptors.
"""

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

from cleveragents.errors import UnsafeName
from cleveragents.model.resource import show_path

if TYPE_CHECKING:
    import re

_AWAY = frozenset((b"", b".", b".."))
_UNSEEN = rb"(?:\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf)*"
"""Characters that HFS+ leaves out when it compares names."""
_HFS = _UNSEEN + _UNSEEN.join((rb"\.", b"[gG]", b"[iI]", b"[tT]")) + _UNSEEN + rb"(?=[/\0])"
_NTFS = rb"(?:\.[gG][iI][tT]|[gG][iI][tT]~1)[ .]*(?=[/\\:\0])"
_GIT = rb"(?:^|[/\\])(?:%s|%s)" % (_HFS, _NTFS)
_DOUBTFUL = rb"[\t/\\](?:%s|%s|\.{0,2}[/\0])" % (_HFS, _NTFS)
"""What a listing of git has in it if any of its names is refused, and seldom else."""


@functools.cache
def _pattern(text: bytes) -> "re.Pattern[bytes]":
    """Compiled on demand: most commands list nothing."""
    import re

    return re.compile(text)


def require_path(path: bytes, where: str) -> None:
    """Refuse a relative path that leaves its root."""
    if not _AWAY.isdisjoint(path.split(b"/")) or b"\0" in path:
        raise UnsafeName(f"{where} has the name {show_path(path)!r}, which leads out of it")


def is_name(name: bytes) -> bool:
    """Whether it is a plain name in a directory."""
    return name not in _AWAY and b"/" not in name and b"\0" not in name


def require_name(name: bytes, where: str) -> None:
    if not is_name(name):
        raise UnsafeName(f"{where} has the name {show_path(name)!r}, which leads out of it")


def require_git_paths(listed: bytes, paths: Collection[bytes], where: str) -> None:
    """Refuse a commit whose checkout would leave its folder.

    `listed`: the output of `git ls-tree -z` for these paths, searched in one go, as most are safe.
    """
    if _pattern(_DOUBTFUL).search(listed):
        for path in paths:
            require_path(path, where)
            if _pattern(_GIT).search(path + b"\0"):
                raise UnsafeName(
                    f"{where} has the name {show_path(path)!r}, which stands for a git directory"
                )
    known = set(paths)
    if len(known) != len(paths):
        twice = next(path for path in known if sum(path == other for other in paths) > 1)
        raise UnsafeName(f"{where} has the name {show_path(twice)!r} twice")
    folders = _above(known)
    while folders and folders != {b""}:
        if both := known & folders:
            shown = show_path(min(both))
            raise UnsafeName(f"{where} has {shown!r} as a folder and as something else")
        folders = _above(folders)


def _above(paths: set[bytes]) -> set[bytes]:
    return {path.rpartition(b"/")[0] for path in paths}
