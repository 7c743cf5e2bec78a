"""One thread's walk through a tree to copy, a directory at a time."""

import errno
import os
import stat
from collections.abc import Iterable

from cleveragents.content import attributes, descent, fsio
from cleveragents.content.copy.each_file import FileCopier, changed, refused
from cleveragents.content.copy.exchange import CopyResult, Exchange
from cleveragents.content.keys import (
    BLOB,
)
from cleveragents.content.native.filecopy import (
    IS_LARGE,
    IS_OTHER,
    Made,
)


class Walk:
    """One thread's walk, with descriptors of the current source and target directories."""

    def __init__(
        self,
        copier: FileCopier,
        exchange: Exchange,
        buffer: memoryview,
        at: tuple[int, int],
        path: bytes,
        names: list[bytes] | None,
    ) -> None:
        self._copier = copier
        self._exchange = exchange
        self._buffer = buffer
        self._path = path
        self._names = names
        self._at = at

    def go(self) -> None:
        try:
            if self._names is None:
                self._names = self._contents(self._at, b"")
            while self._names and not self._exchange.over:
                self._step(self._names, self._names.pop())
        finally:
            close(self._at)

    def _step(self, names: list[bytes], name: bytes) -> None:
        """Copy one directory and continue inside it; another thread may do the rest of this one."""
        path = self._path + b"/" + name if self._path else name
        inner = self._enter(name, path)
        if inner is None:
            return
        try:
            below = self._contents(inner, path + b"/")
        except BaseException:
            close(inner)
            raise
        if not below:
            close(inner)
            if len(names) > 1 and self._exchange.has_idle_thread:
                half = len(names) // 2
                self._exchange.add((self._path, names[:half]))
                del names[:half]
            return
        if names:
            self._exchange.add((self._path, names))
        close(self._at)
        self._at, self._path, self._names = inner, path, below

    def _enter(self, name: bytes, path: bytes) -> tuple[int, int] | None:
        here, there = self._at
        try:
            source = os.open(name, fsio.DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise refused(path, error) from error
        except NotADirectoryError as error:
            raise changed(path) from error
        try:
            os.mkdir(name, 0o700, dir_fd=there)
            target = os.open(name, fsio.DIRECTORY, dir_fd=there)
            self._copier.lacks(path, attributes.set_on_copy(target, attributes.of(source)))
            self._copier.leave_open(target, path, stat.S_IMODE(os.fstat(source).st_mode))
        except BaseException:
            os.close(source)
            raise
        return source, target

    def _contents(self, at: tuple[int, int], prefix: bytes) -> list[bytes]:
        """Copy a directory's contents without its directories; returns their names."""
        folders, files, others = self._names_by_kind(at[0], prefix)
        for name in others:
            try:
                _other(*at, name)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                raise refused(prefix + name, error) from error
        while files and not self._exchange.over:
            made = self._copier.copied(*at, prefix, files, self._buffer)
            self._submit(prefix, zip(files, made, strict=False))
            files = files[len(made) :]
        return folders

    def _names_by_kind(
        self, here: int, prefix: bytes
    ) -> tuple[list[bytes], tuple[bytes, ...], list[bytes]]:
        """Names of directories, files and everything else that belongs to the resource."""
        folders: list[bytes] = []
        files: list[bytes] = []
        others: list[bytes] = []
        with os.scandir(here) as found:
            for entry in found:
                name = os.fsencode(entry.name)
                is_dir = entry.is_dir(follow_symlinks=False)
                if not self._copier.belongs(prefix + name, is_dir):
                    continue
                if is_dir:
                    folders.append(name)
                elif entry.is_file(follow_symlinks=False):
                    files.append(name)
                else:
                    others.append(name)
        return folders, tuple(sorted(files)), others

    def _submit(self, prefix: bytes, made: Iterable[tuple[bytes, Made | int]]) -> None:
        result = CopyResult([], {}, {}, [], 0)
        weight = at = 0
        for name, one in made:
            path = prefix + name
            if isinstance(one, int):
                self._not_copied(path, one, result)
                continue
            copy, count, has = one
            result.sizes.append(copy[1])
            weight += 1000
            if count is None or (has and isinstance(count, bytes)):
                continue
            if isinstance(count, bytes):
                if (key := self._copier.blob(path, copy[1], count)) is not None:
                    result.known[path] = copy, key
                continue
            data = self._buffer[at : at + count]
            at += count
            if (key := self._copier.key(path, data)) is None:
                continue
            if not has:  # else the first capture has to look at it
                result.known[path] = copy, key
            if key[:1] == BLOB:
                result.content[key] = bytes(data)
                weight += count
        self._exchange.submit(result._replace(weight=weight))

    def _not_copied(self, path: bytes, code: int, result: CopyResult) -> None:
        if code == IS_LARGE:
            result.large.append(path)
        elif code == IS_OTHER:
            raise changed(path)
        elif code in (errno.EACCES, errno.EPERM):
            raise refused(path, PermissionError(code, os.strerror(code)))
        elif code != errno.ENOENT:  # else it was removed while we were copying
            raise OSError(code, os.strerror(code), os.fsdecode(path))


def _other(here: int, there: int, name: bytes) -> None:
    """A link as its text; a pipe, socket or device as a new one of its kind."""
    found = os.stat(name, dir_fd=here, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    else:
        os.mknod(name, found.st_mode, found.st_rdev, dir_fd=there)
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=there)
    fsio.set_times(there, name, found.st_mtime_ns, found.st_atime_ns)


def opened(here: int, there: int, path: bytes) -> tuple[int, int]:
    source = descent.open_below(here, path)
    try:
        return source, descent.open_below(there, path)
    except BaseException:
        os.close(source)
        raise


def close(pair: tuple[int, int]) -> None:
    for fd in pair:
        os.close(fd)
