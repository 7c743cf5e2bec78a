"""Packs backed by a bucket: content is on this machine or in the bucket.

Content counts as present only if it is in this machine's packs, or in a segment whose row was
written after the bucket had stored it; never because another machine says so.
"""

import os
from collections.abc import Callable, Collection, Iterable

from cleveragents.content.bucket.segments import (
    AWAY,
    SegmentCache,
    is_named,
    keys_of,
    locations,
)
from cleveragents.content.keys import matches
from cleveragents.content.pack_file import MAGIC, RAW, RECORD, RECORD_MARK, Location, payload_of
from cleveragents.content.packs import Index, Packs
from cleveragents.content.reserve import Reserve
from cleveragents.errors import ContentDamaged

Rows = list[tuple[int, str, bytes]]
"""Number, name and entries of segments."""


class RemoteIndex:
    """The content of root plans' segments, read from the store's rows on demand."""

    def __init__(self, rows: Callable[[str | None, int], Rows]) -> None:
        self._rows = rows
        self._known: dict[str | None, tuple[int, dict[bytes, Location]]] = {}

    def of(self, root: str | None) -> dict[bytes, Location]:
        """Key -> location, for one root plan; None: for all."""
        last, known = self._known.get(root, (0, {}))
        for number, name, entries in self._rows(root, last):
            known.update(locations(name, entries))
            last = number
        self._known[root] = last, known
        return known

    def seen(self, root: str) -> dict[bytes, Location]:
        """The same, without asking the store again."""
        return self._known[root][1] if root in self._known else self.of(root)

    def learn(self, root: str, name: str, entries: bytes) -> None:
        """Add a segment whose row this process has just written."""
        self.seen(root).update(locations(name, entries))

    def forget(self) -> None:
        self._known.clear()


class BackedIndex:
    """Satisfies `Index`: this machine's packs first, then the segments."""

    def __init__(self, here: Index, there: RemoteIndex) -> None:
        self.here = here
        self.there = there
        self.root: str | None = None
        """The root plan in use: only its segments are certain to stay."""

    def find(self, key: bytes) -> Location | None:
        return self.here.find(key) or self.away(key)

    def away(self, key: bytes) -> Location | None:
        for root in (self.root, None) if self.root else (None,):
            if (place := self.there.of(root).get(key)) is not None:
                return place
        return None

    def has(self, key: bytes) -> bool:
        return self.here.has(key) or self._counts(key)

    def _counts(self, key: bytes) -> bool:
        """Whether the known rows have it; taking a plan reads them again (`refresh`)."""
        return self.root is not None and key in self.there.seen(self.root)

    def refresh(self) -> None:
        """Read rows that another machine may have added."""
        if self.root is not None:
            self.there.of(self.root)

    def locate(self, keys: Iterable[bytes]) -> dict[bytes, Location]:
        wanted = list(keys)
        found = self.here.locate(wanted)
        if self.root is not None and len(found) < len(wanted):
            there = self.there.of(self.root)
            found |= {key: there[key] for key in wanted if key not in found and key in there}
        return found

    def present(self, keys: Collection[bytes]) -> set[bytes]:
        found = self.here.present(keys)
        if self.root is not None and len(found) < len(keys):
            there = self.there.seen(self.root)
            found |= {key for key in keys if key in there}
        return found


class BackedPacks(Packs):
    """The packs of one machine; missing content is read from the bucket."""

    index: BackedIndex

    def __init__(
        self,
        directory: str,
        index: BackedIndex,
        cache: SegmentCache,
        budget: int = 0,
        reserve: Reserve | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(directory, index, budget, reserve, read_only)
        self.cache = cache

    def read(self, key: bytes, location: Location) -> bytes:
        if location.pack.startswith(AWAY):
            return self._checked(key, location)
        try:
            return super().read(key, location)
        except ContentDamaged:
            # Damaged or lost here; the bucket may have it intact.
            if (place := self.index.away(key)) is None:
                raise
            return self._checked(key, place)

    def _checked(self, key: bytes, place: Location) -> bytes:
        for anew in (False, True):
            data = payload_of(self.cache.read(place, anew=anew), key)
            if data is not None and matches(key, data):
                return data
        raise ContentDamaged(
            f"segment {place.pack.removeprefix(AWAY)} in {self.cache.bucket.url} is damaged",
            "agents check --read-data lists everything that is",
        )

    def prefetch(self) -> None:
        """Fetch the segments of the plan in use, if they fit into the cache."""
        assert self.index.root is not None
        locations = self.index.there.of(self.index.root).values()
        sizes: dict[str, int] = {}
        for place in locations:
            name = place.pack.removeprefix(AWAY)
            sizes[name] = sizes.get(name, 0) + place.length
        if sum(sizes.values()) <= self.cache.limit // 2:
            self.cache.prefetch(sizes)

    def segment(self, name: str, entries: bytes) -> bytes | None:
        """A whole segment as this machine has it; None: it has not all of it."""
        if (data := self.cache.kept(name)) is not None:
            return data
        found = self.index.here.locate(keys := keys_of(entries))
        if len(found) < len(keys):
            return None
        data = b"".join([MAGIC, *(self._lying(found[key]) for key in keys)])
        return data if is_named(data, name) else None

    def _lying(self, place: Location) -> bytes:
        try:
            return os.pread(self._reader(place.pack), place.length, place.offset)
        except FileNotFoundError:
            return b""

    def record(self, key: bytes) -> bytes:
        """A checked pack record, for a segment."""
        place = self.index.here.find(key)
        if place is not None:
            found = self._lying(place)
            data = payload_of(found, key)
            if data is not None and matches(key, data):
                return found
        data = self.get(key)
        return RECORD.pack(RECORD_MARK, RAW, len(key), len(data)) + key + data
