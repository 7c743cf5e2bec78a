"""Packs with a bucket behind them: content is here, or it is there.

Nothing counts as present because another machine says that it has it: only what lies in this
machine's packs, or in a segment whose row was written after the bucket had taken it.
"""

import os
from collections.abc import Callable, Collection, Iterable

from cleveragents.content.bucket.segments import AWAY, SegmentCache, is_named, keys_of, places
from cleveragents.content.keys import matches
from cleveragents.content.pack_file import MAGIC, RAW, RECORD, RECORD_MARK, Location, payload_of
from cleveragents.content.packs import Index, Packs
from cleveragents.content.reserve import Reserve
from cleveragents.errors import ContentDamaged

Rows = list[tuple[int, str, bytes]]
"""Number, name and entries of segments."""


class There:
    """What the segments of root plans hold, read from the store's rows as far as it is asked."""

    def __init__(self, rows: Callable[[str | None, int], Rows]) -> None:
        self._rows = rows
        self._known: dict[str | None, tuple[int, dict[bytes, Location]]] = {}

    def of(self, root: str | None) -> dict[bytes, Location]:
        """Key -> where it lies, of one root plan; None: of all."""
        last, known = self._known.get(root, (0, {}))
        for number, name, entries in self._rows(root, last):
            known.update(places(name, entries))
            last = number
        self._known[root] = last, known
        return known

    def seen(self, root: str) -> dict[bytes, Location]:
        """The same without asking again."""
        return self._known[root][1] if root in self._known else self.of(root)

    def learn(self, root: str, name: str, entries: bytes) -> None:
        """A segment whose row this process itself has just written."""
        self.seen(root).update(places(name, entries))

    def forget(self) -> None:
        self._known.clear()


class BackedIndex:
    """Satisfies `Index`: this machine's packs first, then the segments."""

    def __init__(self, here: Index, there: There) -> None:
        self.here = here
        self.there = there
        self.root: str | None = None
        """The root plan that is worked on: only its segments are sure to stay."""

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
        """As far as the rows were read: whoever takes the plan reads them (`look_again`)."""
        return self.root is not None and key in self.there.seen(self.root)

    def look_again(self) -> None:
        """Another machine may have brought something since."""
        if self.root is not None:
            self.there.of(self.root)

    def locate(self, keys: Iterable[bytes]) -> dict[bytes, Location]:
        wanted = list(keys)
        found = self.here.locate(wanted)
        if self.root is not None and len(found) < len(wanted):
            there = self.there.of(self.root)
            found |= {key: there[key] for key in wanted if key not in found and key in there}
        return found

    def among(self, keys: Collection[bytes]) -> set[bytes]:
        found = self.here.among(keys)
        if self.root is not None and len(found) < len(keys):
            there = self.there.seen(self.root)
            found |= {key for key in keys if key in there}
        return found


class BackedPacks(Packs):
    """The packs of one machine; what they lack is read from the bucket."""

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
            # Damaged or lost here; the bucket may have it whole.
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
        """Fetch the segments of the plan that is worked on, if they fit into the cache."""
        assert self.index.root is not None
        places = self.index.there.of(self.index.root).values()
        sizes: dict[str, int] = {}
        for place in places:
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
        """Content as it lies in a pack, checked: what a segment is made of."""
        place = self.index.here.find(key)
        if place is not None:
            found = self._lying(place)
            data = payload_of(found, key)
            if data is not None and matches(key, data):
                return found
        data = self.get(key)
        return RECORD.pack(RECORD_MARK, RAW, len(key), len(data)) + key + data
