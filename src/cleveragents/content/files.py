"""Files in and out of the store, large ones as chunks.

A file of more than CHUNK bytes is stored as chunks of that size and a list of their hashes, so a
small change in a large file costs one chunk. The list's hash is the file's key.
"""

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol

from blake3 import blake3

from cleveragents.content import attributes, fsio
from cleveragents.content.fsio import NO_TIME, Inode, bounded, inode_of
from cleveragents.content.keys import (
    BLOB,
    CHUNKS,
    GIT,
    git_algorithm,
    git_key,
    key_of,
    matches,
)
from cleveragents.content.native.compiled import walk as _walk
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import CheckpointFailed, ContentDamaged
from cleveragents.model.resource import show_path

CHUNK = 256 << 10
ATTEMPTS = 3
Stamp = tuple[int, int, int, int, int]
Seen = tuple[int, int, int, int, int, int, int, bytes | None, bool]
"""A stamp, links, the device number, the content if it was read, and if it has attributes."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Base = tuple[bytes, int]
"""Git key and size of a blob of the base commit."""


def stamp(found: os.stat_result) -> Stamp:
    """What changes when a file does: inode, size, mtime, ctime, mode."""
    mtime, ctime = bounded(found.st_mtime_ns), bounded(found.st_ctime_ns)
    return (found.st_ino, found.st_size, mtime, ctime, found.st_mode)


def python_look(dir_fd: int, name: bytes, limit: int) -> Seen | None:
    """The twin of `_walk.look`."""
    found, data = fsio.lstat_at(dir_fd, name), None
    if found is None:
        return None
    if stat.S_ISREG(found.st_mode) and found.st_size <= limit:
        data = _read_small(dir_fd, name, found)
    has = limit >= 0 and stat.S_ISREG(found.st_mode) and attributes.has_any(dir_fd, name)
    return (*stamp(found), found.st_nlink, found.st_rdev, data, has)


def _read_small(dir_fd: int, name: bytes, found: os.stat_result) -> bytes | None:
    try:
        fd = os.open(name, _READ, dir_fd=dir_fd)
    except OSError:
        return None
    try:
        if stamp(os.fstat(fd)) != stamp(found):
            return None
        # One byte more than there should be: a short answer is the end.
        data = os.read(fd, found.st_size + 1)
        return data if stamp(os.fstat(fd)) == stamp(found) and len(data) == found.st_size else None
    finally:
        os.close(fd)


look: Callable[[int, bytes, int], Seen | None] = _walk.look if _walk else python_look
"""What stat says of a name, and the content of a file of at most so many bytes.

The content is None if it is not a file, is larger, cannot be read or changed meanwhile.
"""


ZEROS = bytes(CHUNK)
"""A chunk of a hole."""
_PAGE = bytes(4096)


@functools.cache
def _digest_of_zeros() -> bytes:
    return blake3(ZEROS).digest()


def digest_of(block: bytes) -> bytes:
    return _digest_of_zeros() if block is ZEROS else blake3(block).digest()


def blocks(fd: int) -> Iterator[bytes]:
    """The blocks from the descriptor's position; holes are not read, their blocks are ZEROS."""
    found = os.fstat(fd)
    if found.st_blocks * 512 < found.st_size:
        yield from _sparse_blocks(fd, found.st_size)
    while block := os.read(fd, CHUNK):
        while len(block) < CHUNK and (more := os.read(fd, CHUNK - len(block))):
            block += more
        yield block


def _sparse_blocks(fd: int, size: int) -> Iterator[bytes]:
    """The whole blocks of a file with holes; leaves the descriptor after them."""
    at, data = os.lseek(fd, 0, os.SEEK_CUR), -1
    while at + CHUNK <= size:
        if data < at:
            data = _next_data(fd, at, size)
            os.lseek(fd, at, os.SEEK_SET)
        if data >= at + CHUNK:
            at = os.lseek(fd, at + CHUNK, os.SEEK_SET)
            yield ZEROS
            continue
        block = os.pread(fd, CHUNK, at)
        if len(block) < CHUNK:
            return
        at = os.lseek(fd, at + CHUNK, os.SEEK_SET)
        yield block


def _next_data(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        # A hole up to the end, or a file system without support for holes.
        return size if error.errno == errno.ENXIO else at


def write_block(fd: int, block: bytes) -> None:
    """Write at the descriptor, leaving pages of zeros as holes; `end_blocks` comes last."""
    if block is ZEROS:
        os.lseek(fd, len(block), os.SEEK_CUR)
        return
    if _PAGE not in block:
        fsio.write_all(fd, block)
        return
    start = 0
    for at in range(0, len(block), len(_PAGE)):
        if block.startswith(_PAGE, at):
            if start < at:
                fsio.write_all(fd, block[start:at])
            start = at + len(_PAGE)
            os.lseek(fd, len(_PAGE), os.SEEK_CUR)
    if start < len(block):
        fsio.write_all(fd, block[start:])


def end_blocks(fd: int) -> None:
    """End the file at its descriptor, also after a hole."""
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


def chunk_list_key(digests: list[bytes]) -> bytes:
    return key_of(CHUNKS, b"".join(digests))


def store_blocks(source: Iterator[bytes], batch: Batch) -> tuple[bytes, int]:
    """Store a file given as blocks of CHUNK bytes; returns key and size."""
    first = next(source, b"")
    if len(first) < CHUNK:
        return batch.put(BLOB, first), len(first)
    digests = [_put_block(first, batch)]
    size = len(first)
    for block in source:
        digests.append(_put_block(block, batch))
        size += len(block)
    return batch.put(CHUNKS, b"".join(digests)), size


def _put_block(block: bytes, batch: Batch) -> bytes:
    digest = digest_of(block)
    batch.put_keyed(BLOB + digest, block)
    return digest


def capture_file(
    dir_fd: int,
    name: bytes,
    path: bytes,
    batch: Batch,
    base: tuple[bytes, int] | None = None,
) -> tuple[bytes, os.stat_result] | None:
    """Store a file's content; returns its key and stat, or None if it is gone.

    `base` is the git key and size of the base commit's blob at this path: if the content is the
    same, the key is git's and nothing is stored.
    """
    for _ in range(ATTEMPTS):
        fd = _open(dir_fd, name, path)
        if fd is None:
            return None
        try:
            before = os.fstat(fd)
            key = _read(fd, before.st_size, batch, base)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if stamp(before) == stamp(after):
            return key, after
    raise CheckpointFailed(
        f"{show_path(path)} changed {ATTEMPTS} times while it was read",
        "stop what is writing it, or add it to the resource's exclude",
    )


def _open(dir_fd: int, name: bytes, path: bytes) -> int | None:
    try:
        return os.open(name, _READ, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise CheckpointFailed(
            f"{show_path(path)} cannot be read: {error.strerror}",
            f"chmod u+r it, or add {show_path(path)!r} to the resource's exclude",
        ) from None


def store_small(data: bytes, batch: Batch, base: Base | None) -> bytes:
    """The key of a file of less than CHUNK bytes, which is stored unless the base has it."""
    if base is not None and base[1] == len(data) and matches(base[0], data):
        return base[0]
    return batch.put(BLOB, data)


def _read(fd: int, size: int, batch: Batch, base: tuple[bytes, int] | None) -> bytes:
    if base is not None and base[1] == size:
        if hash_git(blocks(fd), size, base[0]) == base[0]:
            return base[0]
        os.lseek(fd, 0, os.SEEK_SET)
    return store_blocks(blocks(fd), batch)[0]


class Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


def git_hash(like: bytes, size: int) -> Digest:
    """A git blob hash for that size, with the algorithm of the key `like`."""
    import hashlib

    return hashlib.new(git_algorithm(like), b"blob %d\0" % size, usedforsecurity=False)


def hash_git(source: Iterator[bytes], size: int, like: bytes) -> bytes:
    """The git key of content of that size, by the algorithm of the key `like`."""
    if size < CHUNK:
        return git_key(next(source, b""), git_algorithm(like))
    digest = git_hash(like, size)
    for block in source:
        digest.update(block)
    return GIT + digest.digest()


def hash_as(source: Iterator[bytes], size: int, like: bytes) -> bytes:
    """The key of content, made in the same way as the key `like`."""
    if like[:1] == GIT:
        return hash_git(source, size, like)
    digests = [digest_of(block) for block in source]
    if not digests or (len(digests) == 1 and size < CHUNK):
        return BLOB + (digests[0] if digests else blake3(b"").digest())
    return chunk_list_key(digests)


def hash_file_as(dir_fd: int, name: bytes, like: bytes) -> bytes:
    fd = os.open(name, _READ, dir_fd=dir_fd)
    try:
        return hash_as(blocks(fd), os.fstat(fd).st_size, like)
    finally:
        os.close(fd)


def content_blocks(read: Callable[[bytes], bytes], key: bytes) -> Iterator[bytes]:
    """The content of a file in pieces, each checked against its hash."""
    if key[:1] == CHUNKS:
        digests = read(key)
        for start in range(0, len(digests), 32):
            digest = digests[start : start + 32]
            yield ZEROS if digest == _digest_of_zeros() else read(BLOB + digest)
    else:
        yield read(key)


def write_content(
    read: Callable[[bytes], bytes],
    key: bytes,
    dir_fd: int,
    name: bytes,
    mode: int,
    mtime_ns: int = NO_TIME,
    durable: bool = True,
) -> Inode:
    """Write a new file with the content of `key`, synced if `durable`, read back and compared."""
    made = place_content(read, key, dir_fd, name, mode, mtime_ns)
    if durable:
        fsio.sync_file(name, dir_fd)
    if hash_file_as(dir_fd, name, key) != key:
        raise ContentDamaged(f"{show_path(name)} was not written correctly")
    return made


def place_content(
    read: Callable[[bytes], bytes], key: bytes, dir_fd: int, name: bytes, mode: int, mtime_ns: int
) -> Inode:
    """The same, for callers that sync and compare afterwards."""
    if key[:1] != CHUNKS:
        return fsio.put(dir_fd, name, read(key), mode, mtime_ns)
    fd = fsio.create(name, 0o600, dir_fd)
    try:
        for block in content_blocks(read, key):
            write_block(fd, block)
        end_blocks(fd)
        os.fchmod(fd, mode)
        if mtime_ns != NO_TIME:
            os.utime(fd, ns=(mtime_ns, mtime_ns))
        return inode_of(os.fstat(fd))
    finally:
        os.close(fd)
