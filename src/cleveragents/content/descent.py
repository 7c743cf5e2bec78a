"""Opens and makes directories below a root by descriptors; follows no link."""

import errno
import os
from contextlib import suppress
from typing import Self

from cleveragents.content.fsio import (
    DIRECTORY,
    below,
    parent_of,
)
from cleveragents.content.safe_names import require_name
from cleveragents.errors import UnsafeName
from cleveragents.model.resource import show_path


def open_below(root: int, path: bytes) -> int:
    """Descriptor of the directory at `path`, which may be empty, reached step by step."""
    with parent_of(root, path + b"/." if path else b".") as (fd, name):
        return os.open(name, DIRECTORY, dir_fd=fd)


class Descent:
    """Opens directories of a tree in turn, each from the last one if it is below that."""

    def __init__(self, root: int) -> None:
        self._root = self._fd = root
        self._path = b""

    def to(self, path: bytes) -> int:
        """A descriptor, valid until the next call."""
        start = self._path + b"/"
        if not (self._path and path.startswith(start)):
            self._back()
            start = b""
        fd = open_below(self._fd, path[len(start) :])
        self._back()
        self._fd, self._path = fd, path
        return fd

    def _back(self) -> None:
        if self._fd != self._root:
            os.close(self._fd)
            self._fd, self._path = self._root, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._back()


def make_below(root: int, path: bytes) -> int:
    """Descriptor of the directory at `path`, made where it is missing, reached step by step."""
    fd = os.dup(root)
    try:
        for part in path.split(b"/") if path else ():
            require_name(part, show_path(path))
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=fd)
            inner = below(fd, part)
            os.close(fd)
            fd = inner
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError) and error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise UnsafeName(f"{show_path(path)} is below a link or a file") from error
        raise
    return fd
