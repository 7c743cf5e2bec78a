"""Content-addressed objects in append-only packs.

A key is one letter for the kind and a hash of the content, so equal content is stored once.
One process at a time appends to a pack (flock); only what an index row points to counts, so a torn
tail is harmless. Format in docs/design.md.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from cleveragents import machine
from cleveragents.content import fsio
from cleveragents.content.background import Background
from cleveragents.content.keys import (
    TREE,
    key_of,
    matches,
    show_key,
)
from cleveragents.content.pack_file import (
    NEW,
    RAW,
    Location,
    PackWriter,
    Record,
    compressed,
    lock_pack,
    open_writer,
    payload_of,
)
from cleveragents.content.reserve import MARGIN, SIZE, Reserve
from cleveragents.errors import ContentDamaged, DiskFull, StoreError

FLUSH_AT = 4 << 20
COMPRESSED = 1 << 20
"""Bytes up to which what comes together is compressed: with more, time counts for more."""


class Index(Protocol):
    """Where objects are; part of the store, so that it changes in the checkpoint's own commit."""

    def find(self, key: bytes) -> Location | None: ...
    def has(self, key: bytes) -> bool: ...
    def locate(self, keys: Iterable[bytes]) -> dict[bytes, Location]:
        """The locations of the keys that are present."""
        ...

    def present(self, keys: Collection[bytes]) -> set[bytes]:
        """The keys that are present."""
        ...


class Packs:
    """The packs of one store: read by key, written through a `Batch`."""

    def __init__(
        self,
        directory: str,
        index: Index,
        budget: int = 0,
        reserve: Reserve | None = None,
        read_only: bool = False,
    ) -> None:
        self.directory = directory
        self.index = index
        self.budget = budget
        self.read_only = read_only
        self.if_missing = "agents check"
        self._reserve = reserve or Reserve(os.path.dirname(directory))
        self._readers: dict[str, int] = {}
        self._writer: PackWriter | None = None
        self._batches: list[Batch] = []
        self._full: list[int] = []
        """Locks on full packs, held until the batch that filled them is committed."""

    def get(self, key: bytes) -> bytes:
        """The content, checked against its key; also from an open batch."""
        for batch in self._batches:
            if (data := batch.peek(key)) is not None:
                return data
        location = self.index.find(key)
        if location is None:
            raise ContentDamaged(f"content {show_key(key)} is not in the store", self.if_missing)
        try:
            return self.read(key, location)
        except ContentDamaged:
            moved = self.index.find(key)
            if moved is None or moved == location:
                raise
            # A collection moved it to another pack between the two lookups.
            return self.read(key, moved)

    def reading(self, keys: Iterable[bytes]) -> tuple[Callable[[bytes], bytes], list[bytes]]:
        """A `get` for these keys, looked up in one go, and the keys that are missing."""
        wanted = list(dict.fromkeys(keys))
        places = self.index.locate(wanted)

        def read(key: bytes) -> bytes:
            place = places.get(key)
            if place is None:
                return self.get(key)
            try:
                return self.read(key, place)
            except ContentDamaged:
                return self.get(key)

        return read, [key for key in wanted if key not in places and not self.has(key)]

    def read(self, key: bytes, location: Location) -> bytes:
        try:
            record = os.pread(self._reader(location.pack), location.length, location.offset)
        except FileNotFoundError:
            raise ContentDamaged(f"pack {location.pack} is missing", "agents check") from None
        data = payload_of(record, key)
        if data is None or not matches(key, data):
            raise ContentDamaged(
                f"content {show_key(key)} is damaged in pack {location.pack}",
                "agents check --read-data",
            )
        return data

    def _reader(self, pack: str) -> int:
        if pack not in self._readers:
            path = f"{self.directory}/{pack}"
            self._readers[pack] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._readers[pack]

    def has(self, key: bytes) -> bool:
        return any(batch.holds(key) for batch in self._batches) or self.index.has(key)

    @contextmanager
    def batch(self, urgent: bool = False) -> Generator["Batch"]:
        """Collect content, readable through `get` until the block ends.

        `urgent` content may use the disk's reserve: it is needed to get out of a full disk.
        """
        yield from self._opened(Batch(self, urgent))

    @contextmanager
    def preview(self) -> Generator["Batch"]:
        """Like `batch`, to look at a state without storing it."""
        yield from self._opened(_PreviewBatch(self))

    def _opened(self, batch: "Batch") -> Iterator["Batch"]:
        self._batches.append(batch)
        try:
            yield batch
        finally:
            self._batches.remove(batch)
            self._release()

    def append(
        self, records: list["Record"], urgent: bool = False, avoid: Collection[str] = ()
    ) -> list[tuple[bytes, Location]]:
        """Append records to the current pack; durable only after `sync`.

        Packs named in `avoid` are not reused.
        """
        size = sum(len(record.payload) for record in records) + len(records) * 64
        try:
            if urgent:
                self._make_room(size)
            else:
                self._require_room(size)
        except DiskFull:
            if self._writer is not None:
                self._writer.drop_unsynced()
            raise
        try:
            if self._writer is None or self._writer.full:
                self._next_writer(avoid)
            assert self._writer is not None
            return self._writer.append(records)
        except OSError as error:
            # The pack's end is unknown now; a torn tail is harmless, a wrong offset is not.
            self._close_writer()
            raise machine.of_os(
                error, f"content could not be written to {self.directory}"
            ) from error

    def _next_writer(self, avoid: Collection[str]) -> None:
        self.sync()
        full, self._writer = self._writer, None
        if full is not None:
            self._full.append(full.fd)
        self._writer = open_writer(self.directory, avoid)

    def _release(self) -> None:
        if not self._batches:
            for fd in self._full:
                os.close(fd)
            self._full.clear()

    def _require_room(self, size: int) -> None:
        room = self._reserve.room() - MARGIN
        if size > room:
            raise DiskFull(
                f"the disk is full: {self.directory}: {size} bytes to store,"
                f" room for {max(room, 0)}, not counting a reserve of {SIZE}",
                machine.MAKE_ROOM,
            )
        if self.budget and self.size() + size > self.budget:
            raise StoreError(
                f"the store's budget of {self.budget} bytes is used up",
                "agents gc, or agents config set store.budget SIZE",
            )

    def _make_room(self, size: int) -> None:
        """Make room for urgent content: from the reserve, ignoring the budget."""
        self._reserve.release_below(size + MARGIN)
        free = machine.free_bytes(self.directory) - MARGIN
        if size > free:
            raise DiskFull(
                f"the disk is full: {self.directory}: {size} bytes to store,"
                f" room for {max(free, 0)}",
                machine.MAKE_ROOM,
            )

    def size(self) -> int:
        with os.scandir(self.directory) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".pack"))

    def remove_unnamed(self) -> None:
        """Remove packs whose writers died before naming them."""
        for name in os.listdir(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(NEW) and (fd := lock_pack(path)) is not None:
                fsio.unlink_if_there(path)
                os.close(fd)

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name.endswith(".pack"))

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()

    def try_lock(self, pack: str) -> int | None:
        """A descriptor that locks writers out of a pack; None while one is writing."""
        if self._writer is not None and self._writer.name == pack:
            return None
        return lock_pack(f"{self.directory}/{pack}")

    def release_pack(self) -> None:
        """Release the last pack if nothing is being written."""
        if not self._batches:
            self.sync()
            self._close_writer()

    def drop(self, pack: str) -> None:
        """Remove an unreferenced pack."""
        if pack in self._readers:
            os.close(self._readers.pop(pack))
        fsio.point("unlink")
        os.unlink(f"{self.directory}/{pack}")
        fsio.sync_dir(self.directory)

    def _close_writer(self) -> None:
        if self._writer is not None:
            os.close(self._writer.fd)
            self._writer = None

    def close(self) -> None:
        self._close_writer()
        self._release()
        for fd in self._readers.values():
            os.close(fd)
        self._readers.clear()


class Watch(Protocol):
    """Receives the progress of a capture; `total` gives the expected size."""

    total: Callable[[], int]

    def __call__(self, size: int, /) -> None: ...


class Batch:
    """Objects to store: written as they come, durable after `seal`."""

    def __init__(self, packs: Packs, urgent: bool = False) -> None:
        self._packs = packs
        self._urgent = urgent
        self._pending: dict[bytes, bytes] = {}
        self._compressed: dict[bytes, Record] = {}
        self._pending_bytes = 0
        self._unsure: list[bytes] = []
        """Pending, and not yet asked whether the store has them."""
        self._missing: set[bytes] = set()
        """Of those, what somebody has asked for already: it is not there."""
        self._added = 0
        self.located: dict[bytes, Location] = {}
        self.reused: set[bytes] = set()
        self.before_seal: list[Callable[[], None]] = []
        """What makes a state durable that is not kept in packs; not called when only looking."""
        self.watch: Watch | None = None
        self.after_commit: list[Callable[[], None]] = []
        """What to do once the index rows are committed."""

    def put(self, kind: bytes, data: bytes) -> bytes:
        key = key_of(kind, data)
        self.put_keyed(key, data)
        return key

    def put_keyed(self, key: bytes, data: bytes) -> None:
        if self.watch is not None:
            self.watch(len(data))
        if key in self._pending or key in self.located or key in self.reused:
            return
        self._pending[key] = data
        self._pending_bytes += len(data)
        self._unsure.append(key)
        if self._pending_bytes >= FLUSH_AT and not self._packs.read_only:
            self._flush()

    def put_missing(self, key: bytes, data: bytes) -> None:
        """The same, with content that the store is known to lack."""
        self._missing.add(key)
        self.put_keyed(key, data)

    def rely_on(self, key: bytes) -> None:
        """Require that content of the store is still there at the commit."""
        self.reused.add(key)

    @property
    def added_bytes(self) -> int:
        """The size of new content so far, as stored."""
        self.prepare()
        return self._added

    def prepare(self) -> None:
        """Drop what the store has already, and compress the rest."""
        asked = [key for key in self._unsure if key not in self._missing]
        there = self._packs.index.present(asked) if asked else set[bytes]()
        for key in self._unsure:
            size = len(self._pending[key])
            if key in there:
                del self._pending[key]
                self._pending_bytes -= size
            else:
                self._added += self._compress(key, size)
        self.reused |= there
        self._unsure.clear()

    def _compress(self, key: bytes, size: int) -> int:
        """Compress content unless there is too much of it; returns its stored size."""
        if self.located or self._pending_bytes >= COMPRESSED:
            return size
        record = compressed(key, self._pending[key])
        if record.codec != RAW:
            self._compressed[key] = record
        return len(record.payload)

    def holds(self, key: bytes) -> bool:
        return key in self._pending or key in self.located

    def peek(self, key: bytes) -> bytes | None:
        """Content of this batch; None for other keys."""
        if key in self._pending:
            return self._pending[key]
        return self._packs.read(key, self.located[key]) if key in self.located else None

    def _flush(self) -> None:
        self.prepare()
        if not self._pending:
            return
        records = [
            self._compressed.get(key) or Record(key, RAW, data)
            for key, data in self._pending.items()
        ]
        self.located.update(self._packs.append(records, self._urgent))
        self._pending, self._compressed = {}, {}
        self._pending_bytes = 0

    def seal(self) -> None:
        """Sync everything put so far; the index rows come after."""
        self.begin_seal()()

    def begin_seal(self) -> Callable[[], None]:
        """The same in the background; the commit has to call the returned function, which waits."""
        for keep in self.before_seal:
            keep()
        self._flush()
        return Background(self._packs.sync).wait if self.located else lambda: None


class _PreviewBatch(Batch):
    """Keeps only manifests, in memory, so that states can be compared."""

    def put_keyed(self, key: bytes, data: bytes) -> None:
        if self.watch is not None:
            self.watch(len(data))
        if key[:1] == TREE:
            self._pending[key] = data

    def begin_seal(self) -> Callable[[], None]:
        raise AssertionError("nothing that was only looked at is sealed")
