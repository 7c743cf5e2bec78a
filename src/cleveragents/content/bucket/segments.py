"""Segments: what a group added to the packs, as one immutable object.

A segment is a pack with a head and records; its name is the hash of its bytes. The store's rows
have the position of each key, so nothing need be fetched to know what a segment holds.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.content.bucket.address import Bucket
from cleveragents.content.pack_file import MAGIC, Location
from cleveragents.errors import ContentDamaged

LIMIT = 16 << 20
"""Bytes after which the next record begins another segment: whole ones are fetched."""
AWAY = "segment:"
"""Before the name of a segment where a pack is named: it is not in a local pack."""
_ENTRIES = list[tuple[bytes, int]]


class Segment(NamedTuple):
    name: str
    data: bytes
    entries: bytes


def cut(folder: str, records: Iterable[tuple[bytes, bytes]]) -> Iterator[Segment]:
    """Split records into segments, in order; names start with the folder."""
    entries: list[tuple[bytes, int]] = []
    parts: list[bytes] = [MAGIC]
    size = 0
    for key, record in records:
        if size and size + len(record) > LIMIT:
            yield _segment(folder, parts, entries)
            entries, parts, size = [], [MAGIC], 0
        entries.append((key, len(record)))
        parts.append(record)
        size += len(record)
    if entries:
        yield _segment(folder, parts, entries)


def _segment(folder: str, parts: list[bytes], entries: list[tuple[bytes, int]]) -> Segment:
    data = b"".join(parts)
    return Segment(f"{folder}/{blake3(data).hexdigest()}", data, msgspec.msgpack.encode(entries))


def is_named(data: bytes, name: str) -> bool:
    """Whether these are the bytes of the segment of that name."""
    return blake3(data).hexdigest() == name.rpartition("/")[2]


def keys_of(entries: bytes) -> list[bytes]:
    """The keys of a segment, in order."""
    return [key for key, _ in codec.from_msgpack(entries, _ENTRIES)]


def locations(name: str, entries: bytes) -> Iterator[tuple[bytes, Location]]:
    """Each key of a segment and its location."""
    offset = len(MAGIC)
    for key, length in codec.from_msgpack(entries, _ENTRIES):
        yield key, Location(AWAY + name, offset, length)
        offset += length


class SegmentCache:
    """Segments on this disk, fetched on demand; above the limit the oldest are removed."""

    def __init__(self, bucket: Bucket, directory: str, limit: int) -> None:
        self.bucket = bucket
        self._directory = directory
        self.limit = limit

    def read(self, place: Location, *, anew: bool = False) -> bytes:
        """The record at a location; the caller checks it against its key.

        `anew`: from the bucket even if a copy is here: a power cut may have left half of it.
        """
        name = place.pack.removeprefix(AWAY)
        try:
            fd = -1 if anew else os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = -1
        if fd < 0:
            data = self.fetch(name)
            return data[place.offset : place.offset + place.length]
        try:
            return os.pread(fd, place.length, place.offset)
        finally:
            os.close(fd)

    def kept(self, name: str) -> bytes | None:
        """A whole segment that is here."""
        with suppress(OSError), open(self._path(name), "rb") as file:
            data = file.read()
            return data if is_named(data, name) else None
        return None

    def fetch(self, name: str) -> bytes:
        """A whole segment, checked against its name and cached."""
        data = self.bucket.get(name)
        if not is_named(data, name):
            raise ContentDamaged(
                f"segment {name} in {self.bucket.url} is not what it was",
                "agents check --read-data",
            )
        self._keep(name, data)
        return data

    def prefetch(self, names: Iterable[str]) -> None:
        """Fetch missing segments, several at a time."""
        missing = [name for name in names if not os.path.exists(self._path(name))]
        if not missing:
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=8) as pool:
            for _ in pool.map(self.fetch, missing):
                pass

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name.rpartition('/')[2]}"

    def _keep(self, name: str, data: bytes) -> None:
        """Cache a segment; if that fails, it is fetched again next time."""
        with suppress(OSError):
            fsio.make_private_dir(self._directory)
            self._shrink(len(data))
            unnamed = f"{self._path(name)}.{os.getpid()}-{time.monotonic_ns()}"
            with open(unnamed, "xb") as file:
                file.write(data)
            os.rename(unnamed, self._path(name))

    def _shrink(self, wanted: int) -> None:
        with os.scandir(self._directory) as found:
            files = sorted((e.stat().st_mtime_ns, e.stat().st_size, e.path) for e in found)
        size = sum(one[1] for one in files) + wanted
        for _, freed, path in files:
            if size <= self.limit:
                return
            fsio.unlink_if_there(path)
            size -= freed
