"""Copying one file: whether it belongs, the copy itself, and its key."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator

from cleveragents.content import attributes, fsio
from cleveragents.content.copy.exchange import Known
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
    matches,
)
from cleveragents.content.native.filecopy import (
    BYTES,
    DIGEST,
    HASHES,
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


class FileCopier:
    """Copies files of a resource and records their keys.

    `base` has the blob that a file may turn out to be; other content goes into `batch`. `sha1`: the
    base's blobs are named by it. `progress` is called with the size of each file, `piece` with
    that of each part of a large one.
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
            # Quicker, where only git's own hash is needed.
            self._keep = DIGEST if sha1 and HASHES and batch is None else BYTES
        self._closed: list[tuple[bytes, int]] = []
        """Directories into which their own mode would not let us write."""
        self.not_copied: list[tuple[bytes, bytes]] = []
        """Path and name of each extended attribute that the copy could not be given."""

    def belongs(self, path: bytes, is_dir: bool) -> bool:
        return (
            path not in self._left_out
            and not self._scope.excludes(path)
            and self._wanted(path, is_dir)
        )

    def lacks(self, path: bytes, names: Iterable[bytes]) -> None:
        """Called by any thread."""
        self.not_copied.extend((path, name) for name in names)

    def copied(
        self, here: int, there: int, prefix: bytes, names: tuple[bytes, ...], buffer: memoryview
    ) -> list[Made | int]:
        made, more = copy_files(here, there, names, self._reflink, buffer, CHUNK, self._keep)
        self._reflink = self._reflink and more
        for number, one in enumerate(made):
            if not isinstance(one, int) and one[2]:
                given, missing = _attributed(here, there, names[number])
                self.lacks(prefix + names[number], missing)
                made[number] = (given, *one[1:])
        return made

    def key(self, path: bytes, data: memoryview) -> bytes | None:
        """The key of copied content, if it is needed."""
        base = self._base(path) if self._base is not None else None
        if base is not None and base[1] == len(data) and matches(base[0], data):
            return base[0]
        return key_of(BLOB, data) if self._batch is not None else None

    def blob(self, path: bytes, size: int, digest: bytes) -> bytes | None:
        """The base's key, if the copy has that content."""
        base = self._base(path) if self._base is not None else None
        key = GIT + digest
        return key if base == (key, size) else None

    def leave_open(self, there: int, path: bytes, mode: int) -> None:
        """Set a directory's mode, later if we could not write into it any more."""
        if mode & 0o700 == 0o700:
            os.fchmod(there, mode)
        else:
            self._closed.append((path, mode))

    def copy_large(self, here: int, there: int, path: bytes) -> None:
        try:
            with (
                fsio.parent_of(here, path) as (source, name),
                fsio.parent_of(there, path) as (target, _),
            ):
                copied = self._stream(source, target, name, path)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise refused(path, error) from error
        self._progress(copied)

    def _stream(self, here: int, there: int, name: bytes, path: bytes) -> int:
        source = open_source(name, here)
        try:
            mode = stat.S_IMODE(os.fstat(source).st_mode)
            target = fsio.create(name, mode & 0o777, there)
            try:
                key = self._pass_on(source, target, path)
                xattrs = attributes.of(source)
                self.lacks(path, attributes.set_on_copy(target, xattrs))
                made = stamp(finish(source, target, mode))
            finally:
                os.close(target)
        finally:
            os.close(source)
        if key is not None and not xattrs:
            self.known[path] = made, key
        return made[1]

    def _pass_on(self, source: int, target: int, path: bytes) -> bytes | None:
        """Copy the content; returns its key if it is the base's or in the batch."""
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
        """Yield the blocks of a file, each after writing it to the copy."""
        for block in blocks(source):
            write_block(target, block)
            self._piece(len(block))
            yield block
        end_blocks(target)


def _attributed(here: int, there: int, name: bytes) -> tuple[Stamp, list[bytes]]:
    """Copy a file's extended attributes; returns its stamp after that, and names that failed."""
    source, target = attributes.where(here, name), attributes.where(there, name)
    mode = stat.S_IMODE(os.lstat(target).st_mode)
    missing = attributes.set_on_copy(target, attributes.of(source))
    if stat.S_IMODE(os.lstat(target).st_mode) != mode:
        os.chmod(target, mode)  # an ACL is part of it
    return stamp(os.lstat(target)), missing


def changed(path: bytes) -> SandboxError:
    return SandboxError(
        f"{show_path(path)} changed while it was copied",
        "stop what changes it, and run the command again",
    )


def refused(path: bytes, error: PermissionError) -> SandboxError:
    return SandboxError(
        f"{show_path(path)} cannot be copied: {error.strerror}",
        f"make it readable, or add {show_path(path)!r} to the resource's exclude",
    )
