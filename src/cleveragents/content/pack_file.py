"""One pack: its records, and the process that appends to it. Format in docs/design.md."""

import fcntl
import itertools
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from cleveragents.content import fsio
from cleveragents.content.keys import (
    BLOB,
    GIT,
    matches,
)
from cleveragents.model.ids import new_id

MAGIC = b"CAPACK\x00\x01"


RECORD = struct.Struct(">2sBBQ")


RECORD_MARK = b"CO"


RAW, ZLIB = 0, 1


WORTH_SQUEEZING = range(2 << 10, 256 << 10)
"""Sizes of payloads that are compressed: smaller ones gain nothing, larger ones take too long."""


PACK_LIMIT = 256 << 20


NEW = ".new"
"""Behind the name of a pack that has no head yet."""


class Location(NamedTuple):
    pack: str
    offset: int
    length: int


class Record(NamedTuple):
    """Content as it lies in a pack."""

    key: bytes
    codec: int
    payload: bytes


def compressed(key: bytes, data: bytes) -> Record:
    """A record, compressed if that saves a quarter; not so for manifests, mostly hashes."""
    if key[:1] in (BLOB, GIT) and len(data) in WORTH_SQUEEZING:
        import zlib

        # With the usual window of 32 KB, allocating it takes longer than compressing.
        window = min(max((len(data) - 1).bit_length(), 12), 15)
        squeeze = zlib.compressobj(1, zlib.DEFLATED, window, window - 7)
        packed = squeeze.compress(data) + squeeze.flush()
        if len(packed) * 4 < len(data) * 3:
            return Record(key, ZLIB, packed)
    return Record(key, RAW, data)


def _unpacked(codec: int, payload: bytes) -> bytes | None:
    if codec != ZLIB:
        return payload if codec == RAW else None
    import zlib

    try:
        return zlib.decompress(payload)
    except zlib.error:
        return None


def payload_of(record: bytes, key: bytes) -> bytes | None:
    if len(record) < RECORD.size + len(key):
        return None
    mark, codec, key_length, size = RECORD.unpack_from(record)
    start = RECORD.size + key_length
    if mark != RECORD_MARK or record[RECORD.size : start] != key or len(record) != start + size:
        return None
    return _unpacked(codec, record[start:])


def records_after_all(directory: str, known: Mapping[str, int]) -> list[tuple[bytes, Location]]:
    """Records in a folder's packs after their known ends."""
    found: list[tuple[bytes, Location]] = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        path, start = f"{directory}/{name}", known.get(name, 0)
        if name.endswith(".pack") and os.path.getsize(path) > start:
            found += records_after(path, start)
    return found


def records_after(path: str, start: int) -> Iterator[tuple[bytes, Location]]:
    """Every whole record after an offset, skipping garbage, checked by its key."""
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read()
    at = data.find(RECORD_MARK)
    while at >= 0:
        length = _whole(data, at)
        if length:
            key = data[at + RECORD.size : at + RECORD.size + data[at + 3]]
            yield key, Location(os.path.basename(path), start + at, length)
        at = data.find(RECORD_MARK, at + max(length, 1))


def _whole(data: bytes, at: int) -> int:
    """The length of the record at an offset; 0 if there is none or it is torn."""
    if len(data) < at + RECORD.size:
        return 0
    _, _, key_length, size = RECORD.unpack_from(data, at)
    length = RECORD.size + key_length + size
    record = data[at : at + length]
    key = record[RECORD.size : RECORD.size + key_length]
    found = payload_of(record, key) if len(record) == length and key else None
    return length if found is not None and matches(key, found) else 0


class PackWriter:
    def __init__(self, name: str, fd: int, end: int) -> None:
        self.name = name
        self.fd = fd
        self._end = end
        self._synced = end
        self._dirty = False

    @property
    def full(self) -> bool:
        return self._end >= PACK_LIMIT

    def append(self, records: list[Record]) -> list[tuple[bytes, Location]]:
        parts: list[bytes] = []
        located: list[tuple[bytes, Location]] = []
        for key, codec, data in records:
            head = RECORD.pack(RECORD_MARK, codec, len(key), len(data)) + key
            length = len(head) + len(data)
            located.append((key, Location(self.name, self._end, length)))
            parts += (head, data)
            self._end += length
        self._dirty = True
        fsio.write_all(self.fd, b"".join(parts))
        return located

    def sync(self) -> None:
        if self._dirty:
            fsio.sync_data(self.fd)
            self._dirty = False
            self._synced = self._end

    def drop_unsynced(self) -> None:
        """Cut off what was written since the last sync: it has no rows and will get none."""
        with suppress(OSError):
            os.ftruncate(self.fd, self._synced)
        self._end = os.lseek(self.fd, 0, os.SEEK_END)
        self._dirty = False


def open_writer(directory: str, avoid: Collection[str]) -> PackWriter:
    """The newest pack that has room and no other writer, else a new one."""
    names = os.listdir(directory)
    packs = [name for name in names if name.endswith(".pack") and name not in avoid]
    # Names are not in order if a clock was set back: full packs must not hide one with room.
    roomy = (name for name in sorted(packs, reverse=True) if _has_room(f"{directory}/{name}"))
    for name in itertools.islice(roomy, 4):
        fd = lock_pack(f"{directory}/{name}")
        if fd is not None:
            end = os.lseek(fd, 0, os.SEEK_END)
            if len(MAGIC) <= end < PACK_LIMIT:
                return PackWriter(name, fd, end)
            os.close(fd)
    return _new_writer(directory, f"{new_id()}.pack")


def _has_room(path: str) -> bool:
    try:
        return os.stat(path).st_size < PACK_LIMIT
    except FileNotFoundError:
        return False


def _new_writer(directory: str, name: str) -> PackWriter:
    """Name a pack only once it is locked and has a head, or another writer might take it."""
    unnamed = f"{directory}/{name}{NEW}"
    fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    if not os.fstat(fd).st_nlink:  # a collection removed it, taking its writer for dead
        os.close(fd)
        return _new_writer(directory, f"{new_id()}.pack")
    try:
        fsio.write_all(fd, MAGIC)
        fsio.sync(fd)
        os.rename(unnamed, f"{directory}/{name}")
        fsio.sync_dir(directory)
    except BaseException:
        os.close(fd)
        fsio.unlink_if_there(unnamed)
        raise
    return PackWriter(name, fd, len(MAGIC))


def lock_pack(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(fd).st_ino:
            return fd
    except OSError:
        pass
    os.close(fd)
    return None
