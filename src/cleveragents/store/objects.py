"""The index of the packs: the location of each piece of content."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from cleveragents.content.pack_file import Location
from cleveragents.store.database import Database


class ObjectRepository:
    """Satisfies `content.packs.Index`."""

    def __init__(self, db: Database, begin: Callable[[], None]) -> None:
        self._db = db
        self._begin = begin
        """Called before a write: where the store is shared, this is another database."""

    def find(self, key: bytes) -> Location | None:
        row = self._db.execute(
            "SELECT p.name, o.offset, o.length FROM objects o JOIN packs p USING (pack_id)"
            " WHERE o.key = ?",
            (key,),
        ).fetchone()
        return Location(*row) if row else None

    def locate(self, keys: Iterable[bytes]) -> dict[bytes, Location]:
        """The locations of the keys that are present."""
        return {
            row[0]: Location(*row[1:])
            for row in self._some(
                "SELECT o.key, p.name, o.offset, o.length FROM objects o JOIN packs p"
                " USING (pack_id) WHERE o.key",
                keys,
            )
        }

    def has(self, key: bytes) -> bool:
        return (
            self._db.execute("SELECT 1 FROM objects WHERE key = ?", (key,)).fetchone() is not None
        )

    def present(self, keys: Collection[bytes]) -> set[bytes]:
        return {key for key, _ in self._condemned(keys)}

    def _condemned(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, str | None]]:
        """The keys that are present, and since when each is condemned."""
        return self._some("SELECT key, condemned_at FROM objects WHERE key", keys)

    def _some(self, asked: str, keys: Iterable[bytes]) -> Iterator[Any]:
        """The rows of many keys, a hundred per query.

        The last key is repeated to fill up a query, so that the statement is the same as before:
        SQLite takes longer to prepare a new one than to run it.
        """
        wanted = list(keys)
        wanted += wanted[-1:] * (-len(wanted) % 8)
        for start in range(0, len(wanted), 96):
            some = wanted[start : start + 96]
            yield from self._db.execute(f"{asked} IN ({','.join('?' * len(some))})", some)

    def add(self, located: Collection[tuple[bytes, Location]]) -> None:
        """Record locations of content; existing ones stay."""
        if not located:
            return
        self._begin()
        if self._insert(located) < len(located):  # a pack that is new here
            for name in {place.pack for _, place in located}:
                self._pack(name)
            self._insert(located)

    def _insert(self, located: Collection[tuple[bytes, Location]]) -> int:
        """Insert; returns how many have a location now, which needs a known pack."""
        done = self._db.executemany(
            "INSERT INTO objects (key, pack_id, offset, length)"
            " SELECT ?, pack_id, ?, ? FROM packs WHERE name = ?"
            " ON CONFLICT (key) DO UPDATE SET condemned_at = NULL",
            [(key, place.offset, place.length, place.pack) for key, place in located],
        )
        return done.rowcount

    def _pack(self, name: str) -> int:
        asked = "SELECT pack_id FROM packs WHERE name = ?"
        row = self._db.execute(asked, (name,)).fetchone()
        if row is None:
            self._db.execute("INSERT INTO packs (name) VALUES (?)", (name,))
            row = self._db.execute(asked, (name,)).fetchone()
        return row[0]

    def reuse(self, keys: Collection[bytes]) -> list[bytes]:
        """Take content off the condemned list; returns the keys that are already gone."""
        if not keys:
            return []
        self._begin()
        found = dict(self._condemned(keys))
        self.pardon(key for key, condemned in found.items() if condemned is not None)
        return [key for key in keys if key not in found]

    def all(self) -> Iterator[tuple[bytes, Location, str | None]]:
        rows = self._db.execute(
            "SELECT o.key, p.name, o.offset, o.length, o.condemned_at"
            " FROM objects o JOIN packs p USING (pack_id) ORDER BY p.name, o.offset"
        )
        for key, pack, offset, length, condemned in rows:
            yield key, Location(pack, offset, length), condemned

    def condemn(self, keys: Iterable[bytes], now: str) -> None:
        self._begin()
        self._db.executemany(
            "UPDATE objects SET condemned_at = ? WHERE key = ? AND condemned_at IS NULL",
            [(now, key) for key in keys],
        )

    def condemned(self) -> list[tuple[bytes, str]]:
        """(key, since when) of condemned content."""
        asked = "SELECT key, condemned_at FROM objects WHERE condemned_at IS NOT NULL"
        return self._db.execute(asked).fetchall()

    def condemn_since(self, rows: Iterable[tuple[bytes, str]]) -> None:
        self._begin()
        self._db.executemany(
            "UPDATE objects SET condemned_at = ? WHERE key = ?", [(at, key) for key, at in rows]
        )

    def pardon(self, keys: Iterable[bytes]) -> None:
        self._begin()
        self._db.executemany(
            "UPDATE objects SET condemned_at = NULL WHERE key = ?", [(key,) for key in keys]
        )

    def forget(self, keys: Iterable[bytes]) -> None:
        self._begin()
        self._db.executemany("DELETE FROM objects WHERE key = ?", [(key,) for key in keys])

    def move(self, located: Iterable[tuple[bytes, Location]]) -> None:
        """Point content at a new location, after it was copied there."""
        self._begin()
        for key, location in located:
            self._db.execute(
                "UPDATE objects SET pack_id = ?, offset = ?, length = ? WHERE key = ?",
                (self._pack(location.pack), location.offset, location.length, key),
            )

    def ends(self) -> dict[str, int]:
        """Pack name -> the end of its known content."""
        rows = self._db.execute(
            "SELECT p.name, max(o.offset + o.length) FROM packs p JOIN objects o USING (pack_id)"
            " GROUP BY p.name"
        )
        return dict(rows.fetchall())

    def packs(self) -> dict[str, int]:
        """Pack name -> bytes in it that are in use."""
        rows = self._db.execute(
            "SELECT p.name, coalesce(o.used, 0) FROM packs p LEFT JOIN"
            " (SELECT pack_id, sum(length) AS used FROM objects GROUP BY pack_id) o USING (pack_id)"
        )
        return dict(rows.fetchall())

    def forget_lost(self, there: Collection[str]) -> None:
        """Remove the rows of packs that are missing."""
        self._begin()
        for name in self.packs().keys() - set(there):
            asked = "SELECT pack_id FROM packs WHERE name = ?"
            self._db.execute(f"DELETE FROM objects WHERE pack_id IN ({asked})", (name,))
            self.forget_pack(name)

    def forget_pack(self, name: str) -> None:
        self._begin()
        self._db.execute("DELETE FROM packs WHERE name = ?", (name,))
