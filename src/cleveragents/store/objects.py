"""Where each piece of content lies: the index of the packs."""

import sqlite3
from collections.abc import Iterable, Iterator

from cleveragents.content.packs import Location


class ObjectRepository:
    """Satisfies `content.packs.Index`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def find(self, key: bytes) -> Location | None:
        row = self._db.execute(
            "SELECT p.name, o.offset, o.length FROM objects o JOIN packs p USING (pack_id)"
            " WHERE o.key = ?",
            (key,),
        ).fetchone()
        return Location(*row) if row else None

    def has(self, key: bytes) -> bool:
        return (
            self._db.execute("SELECT 1 FROM objects WHERE key = ?", (key,)).fetchone() is not None
        )

    def add(self, located: Iterable[tuple[bytes, Location]]) -> None:
        """Record where content lies; what is there already stays where it is."""
        packs: dict[str, int] = {}
        for key, location in located:
            if location.pack not in packs:
                packs[location.pack] = self._pack(location.pack)
            self._db.execute(
                "INSERT INTO objects (key, pack_id, offset, length) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET condemned_at = NULL",
                (key, packs[location.pack], location.offset, location.length),
            )

    def _pack(self, name: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO packs (name) VALUES (?)", (name,))
        row = self._db.execute("SELECT pack_id FROM packs WHERE name = ?", (name,)).fetchone()
        return row[0]

    def reuse(self, keys: Iterable[bytes]) -> list[bytes]:
        """Take content off the condemned list; returns the keys that are gone already."""
        missing: list[bytes] = []
        for key in keys:
            found = self._db.execute("SELECT condemned_at FROM objects WHERE key = ?", (key,))
            row = found.fetchone()
            if row is None:
                missing.append(key)
            elif row[0] is not None:
                self.pardon((key,))
        return missing

    def all(self) -> Iterator[tuple[bytes, Location, str | None]]:
        rows = self._db.execute(
            "SELECT o.key, p.name, o.offset, o.length, o.condemned_at"
            " FROM objects o JOIN packs p USING (pack_id) ORDER BY p.name, o.offset"
        )
        for key, pack, offset, length, condemned in rows:
            yield key, Location(pack, offset, length), condemned

    def condemn(self, keys: Iterable[bytes], now: str) -> None:
        self._db.executemany(
            "UPDATE objects SET condemned_at = ? WHERE key = ? AND condemned_at IS NULL",
            [(now, key) for key in keys],
        )

    def pardon(self, keys: Iterable[bytes]) -> None:
        self._db.executemany(
            "UPDATE objects SET condemned_at = NULL WHERE key = ?", [(key,) for key in keys]
        )

    def forget(self, keys: Iterable[bytes]) -> None:
        self._db.executemany("DELETE FROM objects WHERE key = ?", [(key,) for key in keys])

    def move(self, located: Iterable[tuple[bytes, Location]]) -> None:
        """Point content at a new place, after it was copied there."""
        for key, location in located:
            self._db.execute(
                "UPDATE objects SET pack_id = ?, offset = ?, length = ? WHERE key = ?",
                (self._pack(location.pack), location.offset, location.length, key),
            )

    def packs(self) -> dict[str, int]:
        """Pack name -> bytes in it that are in use."""
        rows = self._db.execute(
            "SELECT p.name, coalesce(sum(o.length), 0) FROM packs p"
            " LEFT JOIN objects o USING (pack_id) GROUP BY p.pack_id"
        )
        return dict(rows.fetchall())

    def forget_pack(self, name: str) -> None:
        self._db.execute("DELETE FROM packs WHERE name = ?", (name,))
