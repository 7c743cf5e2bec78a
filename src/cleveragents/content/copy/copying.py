"""Copy a tree as it is: bytes, modes, mtimes, links as text; by reflink where the disk can.

Two threads copy and hash, a directory at a time, small files in compiled code. The caller's thread
keeps the books: it tells of progress, puts content into packs, and copies large files by pieces.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator

from cleveragents.content import attributes, descent, fsio
from cleveragents.content.copy.exchange import Exchange, Handful, Known
from cleveragents.content.files import (
    CHUNK,
    Base,
    Stamp,
    blocks,
    end_blocks,
    git_hash,
    stamp,
    store_blocks,
    write_block,
)
from cleveragents.content.keys import (
    BLOB,
    GIT,
    key_of,
)
from cleveragents.content.native.filecopy import (
    BYTES,
    DIGEST,
    HASHES,
    IS_LARGE,
    IS_OTHER,
    NOTHING,
    Made,
    copy_files,
    finish,
    open_source,
    share_blocks,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.content.scope import Scope
from cleveragents.errors import SandboxError
from cleveragents.model.resource import show_path

THREADS = 2
AT_ONCE = 2 << 20
"""Bytes that a thread reads before it looks at them."""


class Copier:
    """Copies what belongs to a resource into a new directory.

    `base` names the blob that a file may turn out to be; what else is read goes into `batch`.
    `sha1`: the base's blobs are named by it. `progress` is told the size of each file, `piece` how
    much of a large one before.
    """

    def __init__(
        self,
        scope: Scope,
        wanted: Callable[[bytes, bool], bool],
        progress: Callable[[int], None],
        base: Callable[[bytes], Base | None] | None = None,
        batch: Batch | None = None,
        piece: Callable[[int], None] = lambda _size: None,
        sha1: bool = False,
    ) -> None:
        self._scope = scope
        self._left_out = frozenset((*scope.links, *scope.skip))
        self._base = base
        self._batch = batch
        self.known: dict[bytes, Known] = {}
        """Path -> stamp of the copy and key, where it is the base's blob or in the batch."""
        self._wanted = wanted
        self._progress = progress
        self._piece = piece
        self._reflink = True
        self._keep = NOTHING
        if base is not None or batch is not None:
            # The quicker way, where git's own hash is all that anybody asks for.
            self._keep = DIGEST if sha1 and HASHES and batch is None else BYTES
        self._closed: list[tuple[bytes, int]] = []
        """Directories into which their own mode would not let us write."""

    def copy(self, source: str, target: str) -> None:
        with fsio.directory(source) as here, fsio.directory(target) as there:
            attributes.set_all(there, attributes.of(here))
            exchange = Exchange((b"", None))
            threads = [
                threading.Thread(target=self._work, args=(here, there, exchange), daemon=True)
                for _ in range(THREADS)
            ]
            try:
                for thread in threads:
                    thread.start()
                for handful in exchange.handed():
                    self._note(here, there, handful)
            finally:
                exchange.stop()
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
            self._close_up(there)
            os.fchmod(there, stat.S_IMODE(os.fstat(here).st_mode))

    def _note(self, here: int, there: int, handful: Handful) -> None:
        fsio.point("copied")
        for key, data in handful.content.items():
            assert self._batch is not None
            self._batch.put_keyed(key, data)
        self.known.update(handful.known)
        for size in handful.sizes:
            self._progress(size)
        for path in handful.large:
            self._large(here, there, path)

    def _close_up(self, there: int) -> None:
        """Deepest first: a directory that is closed hides what is below it."""
        for path, mode in sorted(self._closed, key=lambda item: -item[0].count(b"/")):
            fd = descent.open_below(there, path)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def _work(self, here: int, there: int, exchange: Exchange) -> None:
        try:
            buffer = memoryview(bytearray(AT_ONCE + CHUNK))
            while (folder := exchange.take()) is not None:
                try:
                    at = _opened(here, there, folder[0])
                except FileNotFoundError:
                    at = None  # somebody removed it since it was put on the pile
                if at is not None:
                    _Descent(self, exchange, buffer, at, *folder).go()
                exchange.finished()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            exchange.stop(error)

    def belongs(self, path: bytes, is_dir: bool) -> bool:
        return (
            path not in self._left_out
            and not self._scope.excludes(path)
            and self._wanted(path, is_dir)
        )

    def copied(
        self, here: int, there: int, names: tuple[bytes, ...], buffer: memoryview
    ) -> list[Made | int]:
        made, more = copy_files(here, there, names, self._reflink, buffer, CHUNK, self._keep)
        self._reflink = self._reflink and more
        for number, one in enumerate(made):
            if not isinstance(one, int) and one[2]:
                made[number] = (_attributed(here, there, names[number]), *one[1:])
        return made

    def key(self, path: bytes, data: memoryview) -> bytes | None:
        """The name of what was copied, if anybody wants to know."""
        base = self._base(path) if self._base is not None else None
        if base is not None and base[1] == len(data):
            digest = git_hash(base[0], len(data))
            digest.update(data)
            if digest.digest() == base[0][1:]:
                return base[0]
        return key_of(BLOB, data) if self._batch is not None else None

    def blob(self, path: bytes, size: int, digest: bytes) -> bytes | None:
        """The base's key, if that is what was copied."""
        base = self._base(path) if self._base is not None else None
        key = GIT + digest
        return key if base == (key, size) else None

    def leave_open(self, there: int, path: bytes, mode: int) -> None:
        """Give a directory its mode, now if we can still write into it then."""
        if mode & 0o700 == 0o700:
            os.fchmod(there, mode)
        else:
            self._closed.append((path, mode))

    def _large(self, here: int, there: int, path: bytes) -> None:
        try:
            with (
                fsio.parent_of(here, path) as (source, name),
                fsio.parent_of(there, path) as (target, _),
            ):
                copied = self._stream(source, target, name, path)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise _refused(path, error) from error
        self._progress(copied)

    def _stream(self, here: int, there: int, name: bytes, path: bytes) -> int:
        source = open_source(name, here)
        try:
            mode = stat.S_IMODE(os.fstat(source).st_mode)
            target = fsio.create(name, mode & 0o777, there)
            try:
                key = self._pass_on(source, target, path)
                xattrs = attributes.of(source)
                attributes.set_all(target, xattrs)
                made = stamp(finish(source, target, mode))
            finally:
                os.close(target)
        finally:
            os.close(source)
        if key is not None and not xattrs:
            self.known[path] = made, key
        return made[1]

    def _pass_on(self, source: int, target: int, path: bytes) -> bytes | None:
        """Copy the content; its key if it is that of the base, or in the batch."""
        if self._reflink:
            self._reflink = share_blocks(source, target)
            if self._reflink:
                return None
        size = os.fstat(source).st_size
        base = self._base(path) if self._base is not None else None
        passing = self._passing(source, target)
        if base is not None and base[1] == size:
            digest, copied = git_hash(base[0], size), 0
            for block in passing:
                digest.update(block)
                copied += len(block)
            return base[0] if copied == size and digest.digest() == base[0][1:] else None
        if self._batch is not None:
            return store_blocks(passing, self._batch)[0]
        for _ in passing:
            pass
        return None

    def _passing(self, source: int, target: int) -> Iterator[bytes]:
        """The blocks of a file, each when it was written to the other."""
        for block in blocks(source):
            write_block(target, block)
            self._piece(len(block))
            yield block
        end_blocks(target)


class _Descent:
    """One thread's way down a tree, with a pair of descriptors of where it is."""

    def __init__(
        self,
        copier: Copier,
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
            _close(self._at)

    def _step(self, names: list[bytes], name: bytes) -> None:
        """Copy one directory and continue inside it; somebody else may do the rest of this one."""
        path = self._path + b"/" + name if self._path else name
        inner = self._enter(name, path)
        if inner is None:
            return
        try:
            below = self._contents(inner, path + b"/")
        except BaseException:
            _close(inner)
            raise
        if not below:
            _close(inner)
            if len(names) > 1 and self._exchange.wanting:
                half = len(names) // 2
                self._exchange.add((self._path, names[:half]))
                del names[:half]
            return
        if names:
            self._exchange.add((self._path, names))
        _close(self._at)
        self._at, self._path, self._names = inner, path, below

    def _enter(self, name: bytes, path: bytes) -> tuple[int, int] | None:
        here, there = self._at
        try:
            source = os.open(name, fsio.DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise _refused(path, error) from error
        except NotADirectoryError as error:
            raise _changed(path) from error
        try:
            os.mkdir(name, 0o700, dir_fd=there)
            target = os.open(name, fsio.DIRECTORY, dir_fd=there)
            attributes.set_all(target, attributes.of(source))
            self._copier.leave_open(target, path, stat.S_IMODE(os.fstat(source).st_mode))
        except BaseException:
            os.close(source)
            raise
        return source, target

    def _contents(self, at: tuple[int, int], prefix: bytes) -> list[bytes]:
        """Copy what is in a directory, but for directories; returns their names."""
        folders, files, others = self._sorted_out(at[0], prefix)
        for name in others:
            try:
                _other(*at, name)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                raise _refused(prefix + name, error) from error
        while files and not self._exchange.over:
            made = self._copier.copied(*at, files, self._buffer)
            self._hand(prefix, zip(files, made, strict=False))
            files = files[len(made) :]
        return folders

    def _sorted_out(
        self, here: int, prefix: bytes
    ) -> tuple[list[bytes], tuple[bytes, ...], list[bytes]]:
        """Names of directories, of files, and of everything else that belongs to the resource."""
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

    def _hand(self, prefix: bytes, made: Iterable[tuple[bytes, Made | int]]) -> None:
        handful = Handful([], {}, {}, [], 0)
        weight = at = 0
        for name, one in made:
            path = prefix + name
            if isinstance(one, int):
                self._not_copied(path, one, handful)
                continue
            copy, count, has = one
            handful.sizes.append(copy[1])
            weight += 1000
            if count is None or (has and isinstance(count, bytes)):
                continue
            if isinstance(count, bytes):
                if (key := self._copier.blob(path, copy[1], count)) is not None:
                    handful.known[path] = copy, key
                continue
            data = self._buffer[at : at + count]
            at += count
            if (key := self._copier.key(path, data)) is None:
                continue
            if not has:  # else the first capture has to look at it
                handful.known[path] = copy, key
            if key[:1] == BLOB:
                handful.content[key] = bytes(data)
                weight += count
        self._exchange.hand(handful._replace(weight=weight))

    def _not_copied(self, path: bytes, code: int, handful: Handful) -> None:
        if code == IS_LARGE:
            handful.large.append(path)
        elif code == IS_OTHER:
            raise _changed(path)
        elif code in (errno.EACCES, errno.EPERM):
            raise _refused(path, PermissionError(code, os.strerror(code)))
        elif code != errno.ENOENT:  # else somebody removed it while we were copying
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


def _attributed(here: int, there: int, name: bytes) -> Stamp:
    """Copy the extended attributes of a file, as far as we may; its stamp after that."""
    source, target = attributes.where(here, name), attributes.where(there, name)
    mode = stat.S_IMODE(os.lstat(target).st_mode)
    attributes.set_all(target, attributes.of(source))
    if stat.S_IMODE(os.lstat(target).st_mode) != mode:
        os.chmod(target, mode)  # an ACL is part of it
    return stamp(os.lstat(target))


def _opened(here: int, there: int, path: bytes) -> tuple[int, int]:
    source = descent.open_below(here, path)
    try:
        return source, descent.open_below(there, path)
    except BaseException:
        os.close(source)
        raise


def _close(pair: tuple[int, int]) -> None:
    for fd in pair:
        os.close(fd)


def _changed(path: bytes) -> SandboxError:
    return SandboxError(
        f"{show_path(path)} changed while it was copied",
        "stop what changes it, and run the command again",
    )


def _refused(path: bytes, error: PermissionError) -> SandboxError:
    return SandboxError(
        f"{show_path(path)} cannot be copied: {error.strerror}",
        f"make it readable, or add {show_path(path)!r} to the resource's exclude",
    )
