"""The content of the bucket: rows of segments, and which groups are complete there."""

from collections.abc import Iterable
from typing import NamedTuple

from cleveragents.store.database import Database
from cleveragents.store.leases import lost


class Behind(NamedTuple):
    """Groups of a plan that are not in the bucket yet."""

    groups: int
    since: str | None
    """When the oldest of them was made."""


class PendingUpload(NamedTuple):
    """The part of a plan that is not in the bucket yet."""

    epoch: int
    """Of the plan's lease at that moment."""
    groups: list[str]
    """Oldest first."""
    roots: list[bytes]
    """What they are made of."""
    resources: set[str]


class SegmentRepository:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._above: dict[str, str] = {}
        """Plan -> the one that is nobody's child, which never changes."""

    def after(self, root: str | None, number: int) -> list[tuple[int, str, bytes]]:
        """Number, name and entries of segments of a root plan, or of all, after a number."""
        which, given = ("root_plan_id = ? AND ", (root, number)) if root else ("", (number,))
        return self._db.execute(
            f"SELECT seq, name, entries FROM segments WHERE {which}seq > ? ORDER BY seq", given
        ).fetchall()

    def names(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT name FROM segments ORDER BY seq")]

    def size(self, root: str) -> int:
        row = self._db.execute(
            "SELECT CAST(coalesce(sum(size), 0) AS BIGINT) FROM segments WHERE root_plan_id = ?",
            (root,),
        )
        return row.fetchone()[0]

    def add(self, root: str, segments: Iterable[tuple[str, int, bytes]], now: str) -> None:
        """Add segments that the bucket has stored: name, size and entries."""
        self._db.executemany(
            "INSERT INTO segments (name, root_plan_id, size, entries, created_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
            [(name, root, size, entries, now) for name, size, entries in segments],
        )

    def mark(self, plan_id: str, group_ids: Iterable[str], now: str) -> None:
        """Record that the bucket has everything that these groups need."""
        self._db.executemany(
            "INSERT INTO groups_there (group_id, plan_id, there_at) VALUES (?, ?, ?)"
            " ON CONFLICT (group_id) DO NOTHING",
            [(group_id, plan_id, now) for group_id in group_ids],
        )

    def require_same(self, plan_id: str, epoch: int, name: str, value: str) -> None:
        """Ensure that nobody has taken the plan since, and that a note of the store is unchanged.

        Only then may its groups be recorded as complete.
        """
        self._db.require(
            "SELECT 1 FROM leases WHERE plan_id = ? AND epoch = ? AND EXISTS"
            " (SELECT 1 FROM store WHERE name = ? AND value = ?) /*pg FOR UPDATE */",
            (plan_id, epoch, name, value),
            lost(plan_id),
        )

    def to_upload(self, plan_id: str) -> PendingUpload:
        """The kept groups that are not in the bucket yet, and what is needed to upload them."""
        rows = self._db.execute(
            "SELECT g.group_id, m.resource_id, c.root_key,"
            " (SELECT epoch FROM leases WHERE plan_id = g.plan_id)"
            " FROM checkpoint_groups g LEFT JOIN group_members m ON m.group_id = g.group_id"
            " LEFT JOIN checkpoints c ON c.checkpoint_id = m.checkpoint_id"
            " LEFT JOIN groups_there t ON t.group_id = g.group_id"
            " WHERE g.plan_id = ? AND g.pruned_at IS NULL AND t.group_id IS NULL ORDER BY g.seq",
            (plan_id,),
        ).fetchall()
        return PendingUpload(
            epoch=rows[0][3] or 0 if rows else 0,
            groups=list(dict.fromkeys(row[0] for row in rows)),
            roots=list(dict.fromkeys(row[2] for row in rows if row[2])),
            resources={row[1] for row in rows if row[1]},
        )

    def there(self, plan_id: str) -> dict[str, str]:
        """The groups that are in the bucket, and since when."""
        asked = "SELECT group_id, there_at FROM groups_there WHERE plan_id = ?"
        return dict(self._db.execute(asked, (plan_id,)).fetchall())

    def pending(self, plan_id: str) -> list[str]:
        """The kept groups that are not in the bucket yet, oldest first."""
        rows = self._db.execute(
            "SELECT g.group_id FROM checkpoint_groups g LEFT JOIN groups_there t"
            " ON t.group_id = g.group_id WHERE g.plan_id = ? AND g.pruned_at IS NULL"
            " AND t.group_id IS NULL ORDER BY g.seq",
            (plan_id,),
        )
        return [row[0] for row in rows]

    def behind(self, plan_id: str) -> Behind:
        row = self._db.execute(
            "SELECT count(*), min(g.created_at) FROM checkpoint_groups g LEFT JOIN groups_there t"
            " ON t.group_id = g.group_id WHERE g.plan_id = ? AND g.pruned_at IS NULL"
            " AND t.group_id IS NULL",
            (plan_id,),
        )
        return Behind(*row.fetchone())

    def all_behind(self) -> list[tuple[str, Behind]]:
        """Every plan with groups not in the bucket yet, longest waiting first."""
        rows = self._db.execute(
            "SELECT g.plan_id, count(*), min(g.created_at) FROM checkpoint_groups g"
            " LEFT JOIN groups_there t ON t.group_id = g.group_id WHERE g.pruned_at IS NULL"
            " AND t.group_id IS NULL GROUP BY g.plan_id ORDER BY 3"
        )
        return [(plan_id, Behind(groups, since)) for plan_id, groups, since in rows]

    def root_of(self, plan_id: str) -> str:
        """The root plan above this one."""
        if (known := self._above.get(plan_id)) is not None:
            return known
        asked, above = "SELECT parent_plan_id FROM plans WHERE plan_id = ?", plan_id
        while (row := self._db.execute(asked, (above,)).fetchone()) and row[0] is not None:
            above = row[0]
        self._above[plan_id] = above
        return above
