"""The bytes of a database file as chunks: recognized by stat data, else scanned.

What we know of the file is valid while its stat data stays the same. So that a write in the same
tick of the clock is noticed, the file's mtime is first set into the past: no write can set it there
again.
"""

import mmap
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.content.files import CHUNK, Stamp, stamp
from cleveragents.content.keys import (
    BLOB,
    CHUNKS,
    key_of,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import CheckpointFailed, ContentDamaged
from cleveragents.sandbox.sqlite.prints import Printing, Prints

VOLATILE = ((18, 20), (24, 28), (40, 44), (92, 100))
"""Header fields SQLite changes by itself: journal mode, change counter, schema cookie, version."""
Read = Callable[[bytes], bytes]
_BOOT = "/proc/sys/kernel/random/boot_id"
_THREADS = 4


class Image(msgspec.Struct, frozen=True):
    """The content of a database file: its key, its logical hash and its size."""

    root: bytes
    logical: str
    size: int


class Known(msgspec.Struct, frozen=True):
    """The content a file had with that stat data."""

    stamp: Stamp
    image: Image
    boot: str = ""
    """Stat data outlives a power cut that took the content; another boot proves nothing."""
    prints: Prints | None = None
    """In the note that is left for the next process."""


class Touched(msgspec.Struct, frozen=True):
    """The ranges written between two stat calls."""

    before: Stamp
    after: Stamp
    ranges: tuple[tuple[int, int], ...]
    """Where, in bytes: start and end."""


def load(path: str | None) -> Known | None:
    """Load the note of the process before; a lost or doubtful one is not used."""
    if path is None:
        return None
    try:
        with open(path, "rb") as found:
            data = found.read()
        if blake3(data[32:]).digest() != data[:32]:
            return None
        known = codec.from_msgpack(data[32:], Known)
    except (OSError, msgspec.MsgspecError):
        return None
    return known if known.boot and known.boot == _boot() else None


def keep(path: str | None, known: Known, prints: Prints | None) -> None:
    """Write a note for the next process."""
    if path is None:
        return
    data = msgspec.msgpack.encode(msgspec.structs.replace(known, boot=_boot(), prints=prints))
    data = blake3(data).digest() + data
    with suppress(OSError):
        fsio.make_private_dir(os.path.dirname(path))
        # Overwritten, not renamed: that would wait for the disk, and a hash detects a torn note.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)


def _boot() -> str:
    try:
        with open(_BOOT) as found:
            return found.read().strip()
    except OSError:
        return ""


def mark(fd: int) -> Stamp | None:
    """Set an mtime that no later write can produce; None if that is not possible."""
    found = os.fstat(fd)
    try:
        os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns - 1))
    except OSError:
        return None
    return stamp(os.fstat(fd))


def shows_mapped_writes(folder: str) -> bool:
    """Whether a write through a mapping changes stat data on this file system (not on tmpfs)."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        return False
    try:
        os.write(fd, b"0")
        os.utime(fd, ns=(0, 0))
        with mmap.mmap(fd, 1) as mapped:
            # Read first: then the page is mapped for writing too, and the write shows nowhere.
            mapped[0] ^= 1
        return os.fstat(fd).st_mtime_ns != 0
    finally:
        os.close(fd)


def digests_of(root: bytes, read: Read) -> list[bytes]:
    """The hashes of an image's chunks, in order; empty if the store no longer has it."""
    if root[:1] != CHUNKS:
        return [root[1:]] if root else []
    try:
        data = read(root)
    except ContentDamaged:
        return []
    return [data[start : start + 32] for start in range(0, len(data), 32)]


def take(
    fd: int,
    batch: Batch,
    old: bytes,
    read: Read,
    ranges: Iterable[tuple[int, int]] | None = None,
    prints: Prints | None = None,
) -> tuple[Image, Prints | None]:
    """The image of a file that nobody writes to; new chunks go into the batch.

    `old` is the key of an image in the store. With `ranges`, the file differs from it only there,
    and only those chunks are read. With `prints`, chunks are read but only changed ones hashed.
    """
    size = os.fstat(fd).st_size
    there = digests_of(old, read)
    if size < CHUNK:
        data = _pread(fd, 0, size)
        return Image(batch.put(BLOB, data), logical_of([], data), size), None
    count = (size + CHUNK - 1) // CHUNK
    making = Printing(count, prints, old if there else b"")
    found, changed = _look(fd, count, there if old[:1] == CHUNKS else [], ranges, making)
    if there:
        batch.rely_on(old)
    for at in changed:
        data = _pread(fd, at * CHUNK, CHUNK)
        found[at] = batch.put(BLOB, data)[1:]
        # Of the very bytes that were stored: a later scan compares with what the store has.
        making.put(at, making.of(data))
    root = batch.put(CHUNKS, b"".join(found))
    return Image(root, logical_of(found, _pread(fd, 0, CHUNK)), size), making.end(root)


def _look(
    fd: int,
    count: int,
    there: list[bytes],
    ranges: Iterable[tuple[int, int]] | None,
    making: Printing,
) -> tuple[list[bytes], Iterable[int]]:
    """The known hashes of the chunks, and the chunks without one."""
    found = (there + [b""] * count)[:count]
    if not there:
        return found, range(count)
    if ranges is None:
        # The last chunk, which may be shorter, is always read.
        differ = making.differing(fd, count - 1)
        if differ is not None:
            ranges = [(at * CHUNK, (at + 1) * CHUNK) for at in differ]
    if ranges is not None:
        return found, sorted(_chunks(ranges, len(there), count))
    known = set(there)
    for at, both in enumerate(scan(fd, range(count), lambda view: _digest(view) + making.of(view))):
        found[at] = both[:32]
        making.put(at, both[32:])
    return found, [at for at in range(count) if found[at] not in known]


def _chunks(ranges: Iterable[tuple[int, int]], before: int, now: int) -> set[int]:
    """The chunks that the ranges touch, and those at the end of a file that grew or shrank."""
    found = set(range(max(min(before, now) - 1, 0), now))
    for start, end in ranges:
        found.update(range(start // CHUNK, min((end - 1) // CHUNK + 1, now)))
    return found


def _digest(content: memoryview) -> bytes:
    # `update` releases the GIL, the constructor does not.
    hasher = blake3()
    hasher.update(content)
    return hasher.digest()


def scan(
    fd: int, chunks: Iterable[int], of: Callable[[memoryview], bytes] = _digest
) -> list[bytes]:
    """The hashes of these chunks, computed by several threads."""
    wanted = list(chunks)
    found = [b""] * len(wanted)
    errors: list[BaseException] = []
    threads = min(_THREADS, os.cpu_count() or 1, len(wanted) // 16 + 1)

    def work(first: int) -> None:
        buffer = bytearray(CHUNK)
        view = memoryview(buffer)
        try:
            for at in range(first, len(wanted), threads):
                length = os.preadv(fd, [buffer], wanted[at] * CHUNK)
                found[at] = of(view[:length])
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors.append(error)

    others = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(1, threads)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return found


def logical_of(digests: list[bytes], first: bytes) -> str:
    """A hash of an image without the header fields that SQLite itself updates."""
    masked = bytearray(first)
    for start, end in VOLATILE:
        masked[start:end] = bytes(min(end, len(masked)) - min(start, len(masked)))
    return blake3(b"".join((blake3(masked).digest(), *digests[1:]))).hexdigest()


def logical_of_file(fd: int) -> str:
    """The same of a file that nobody writes to."""
    count = (os.fstat(fd).st_size + CHUNK - 1) // CHUNK
    return logical_of(scan(fd, range(count)), _pread(fd, 0, CHUNK))


def logical_of_root(root: bytes, read: Read) -> str:
    """The same of an image in the store."""
    digests = digests_of(root, read)
    first = read(root if root[:1] != CHUNKS else BLOB + digests[0])
    return logical_of(digests, first)


def differing(before: bytes, after: bytes, read: Read) -> list[int] | None:
    """The chunks in which two images differ; None if unknown."""
    if before[:1] != CHUNKS or after[:1] != CHUNKS:
        return None
    old, new = digests_of(before, read), digests_of(after, read)
    if not old or not new:
        return None
    return [at for at in range(len(new)) if at >= len(old) or old[at] != new[at]]


def write(
    fd: int, target: bytes, chunks: list[int], read: Read, prints: Prints | None
) -> Prints | None:
    """Write these chunks of an image, and its size, into a file; synced and read back.

    `prints` are those of the file's old image; returns those of the new one.
    """
    digests = digests_of(target, read)
    last = read(BLOB + digests[-1])
    os.ftruncate(fd, (len(digests) - 1) * CHUNK + len(last))
    making = Printing(len(digests), prints, prints.root if prints else b"")
    for at in chunks:
        data = read(BLOB + digests[at])
        making.put(at, making.of(data))
        _pwrite(fd, data, at * CHUNK)
    fsio.sync(fd)
    if scan(fd, chunks) != [digests[at] for at in chunks]:
        raise CheckpointFailed("the database was not written correctly")
    return making.end(target)


def is_at(path: str, known: Known | None) -> bool:
    """Whether the file is unchanged and has no log waiting to be folded in."""
    if known is None:
        return False
    for side in ("-wal", "-journal"):
        with suppress(FileNotFoundError):
            if os.lstat(path + side).st_size:
                return False
    try:
        return stamp(os.lstat(path)) == known.stamp
    except OSError:
        return False


def _pread(fd: int, start: int, length: int) -> bytes:
    data = os.pread(fd, length, start)
    while len(data) < length and (more := os.pread(fd, length - len(data), start + len(data))):
        data += more
    return data


def _pwrite(fd: int, data: bytes, start: int) -> None:
    fsio.point("write")
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, start)
        view, start = view[written:], start + written


def copied(
    source: int, target: int | None, batch: Batch | None, piece: Callable[[int], None]
) -> tuple[Image, Prints | None]:
    """Copy a file that nobody writes to; unless blocks are shared, content goes into the batch."""
    size, digests, first = os.fstat(source).st_size, list[bytes](), b""
    making = Printing((size + CHUNK - 1) // CHUNK)
    for at, start in enumerate(range(0, size, CHUNK)):
        data = _pread(source, start, CHUNK)
        first = first or data
        digests.append((batch.put(BLOB, data) if batch else key_of(BLOB, data))[1:])
        making.put(at, making.of(data))
        if target is not None:
            fsio.write_all(target, data)
        piece(len(data))
    if size < CHUNK:
        root = batch.put(BLOB, first) if batch else key_of(BLOB, first)
        return Image(root, logical_of([], first), size), None
    listed = b"".join(digests)
    root = batch.put(CHUNKS, listed) if batch else key_of(CHUNKS, listed)
    return Image(root, logical_of(digests, first), size), making.end(root)
