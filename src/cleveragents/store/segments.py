"""What of the content is in the bucket: the rows of segments, and which groups are there."""

from collections.abc import Iterable
from typing import NamedTuple

from cleveragents.store.database import Database
from cleveragents.store.leases import lost


class Behind(NamedTuple):
    """Groups of a plan that are not in the bucket yet."""

    groups: int
    since: str | None
    """When the oldest of them was made."""


class SegmentRepository:
    def __init__(self, db: Database) -> None:
        self._db = db

    def after(self, root: str | None, number: int) -> list[tuple[int, str, bytes]]:
        """Number, name and entries of the segments of a root plan, or of all, behind a number."""
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
        """Name, size and entries of what the bucket has taken."""
        self._db.executemany(
            "INSERT INTO segments (name, root_plan_id, size, entries, created_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
            [(name, root, size, entries, now) for name, size, entries in segments],
        )

    def mark(self, plan_id: str, group_ids: Iterable[str], now: str) -> None:
        """Everything that these groups need is there."""
        self._db.executemany(
            "INSERT INTO groups_there (group_id, plan_id, there_at) VALUES (?, ?, ?)"
            " ON CONFLICT (group_id) DO NOTHING",
            [(group_id, plan_id, now) for group_id in group_ids],
        )

    def require_epoch(self, plan_id: str, epoch: int) -> None:
        """Nobody has taken the plan since: only then may its groups be said to be there."""
        self._db.require(
            "SELECT 1 FROM leases WHERE plan_id = ? AND epoch = ? /*pg FOR UPDATE */",
            (plan_id, epoch),
            lost(plan_id),
        )

    def epoch(self, plan_id: str) -> int:
        asked = "SELECT epoch FROM leases WHERE plan_id = ?"
        row = self._db.execute(asked, (plan_id,)).fetchone()
        return row[0] if row else 0

    def there(self, plan_id: str) -> dict[str, str]:
        """The groups that are there, and since when."""
        asked = "SELECT group_id, there_at FROM groups_there WHERE plan_id = ?"
        return dict(self._db.execute(asked, (plan_id,)).fetchall())

    def pending(self, plan_id: str) -> list[str]:
        """The kept groups that are not there yet, oldest first."""
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
        """Every plan of which groups are not there yet, the one that waits longest first."""
        rows = self._db.execute(
            "SELECT g.plan_id, count(*), min(g.created_at) FROM checkpoint_groups g"
            " LEFT JOIN groups_there t ON t.group_id = g.group_id WHERE g.pruned_at IS NULL"
            " AND t.group_id IS NULL GROUP BY g.plan_id ORDER BY 3"
        )
        return [(plan_id, Behind(groups, since)) for plan_id, groups, since in rows]

    def root_of(self, plan_id: str) -> str:
        """The plan that is nobody's child, above this one."""
        asked = "SELECT parent_plan_id FROM plans WHERE plan_id = ?"
        while (row := self._db.execute(asked, (plan_id,)).fetchone()) and row[0] is not None:
            plan_id = row[0]
        return plan_id
