"""Checkpoint groups and the rows of `checkpoints`; rows are never changed after their commit."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cleveragents.errors import NotFound
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup
from cleveragents.store.database import Database
from cleveragents.store.tables import Table

GROUPS = Table("checkpoint_groups", CheckpointGroup, ("group_id",), skip="members")
CHECKPOINTS = Table("checkpoints", Checkpoint, ("checkpoint_id",))
MEMBERS = "INSERT INTO group_members (group_id, resource_id, checkpoint_id) VALUES (?, ?, ?)"


class CheckpointRepository:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._counts: dict[str, int] = {}
        """Of plans that this process holds: nobody else adds or prunes their groups."""

    def forget(self, plan_id: str) -> None:
        """Drop cached rows: the plan was leased again, or a commit failed."""
        self._counts.pop(plan_id, None)

    def add(self, group: CheckpointGroup, checkpoints: Iterable[Checkpoint]) -> None:
        if group.plan_id in self._counts:
            self._counts[group.plan_id] += 1
        self._db.insert(
            (GROUPS.insert, [GROUPS.row(group)]),
            (CHECKPOINTS.insert, [CHECKPOINTS.row(item) for item in checkpoints]),
            (MEMBERS, [(group.group_id, *member) for member in group.members.items()]),
        )

    def add_trigger(self, group: CheckpointGroup, trigger: str) -> CheckpointGroup:
        """Record that another trigger found the state that this group already holds."""
        names = tuple(dict.fromkeys((*group.triggers, str(trigger))))
        self._db.execute(
            "UPDATE checkpoint_groups SET triggers = ? WHERE group_id = ?",
            ("[" + ",".join(f'"{name}"' for name in names) + "]", group.group_id),
        )
        return msgspec.structs.replace(group, triggers=names)

    def stand_for(self, group_id: str, version: int, view_mark: int) -> None:
        """Set the view of a group that was made before the view was committed."""
        self._db.execute(
            "UPDATE checkpoint_groups SET version = ?, view_mark = ? WHERE group_id = ?",
            (version, view_mark, group_id),
        )

    def pin(self, group_id: str, pinned: bool) -> None:
        self._db.execute(
            "UPDATE checkpoint_groups SET pinned = ? WHERE group_id = ?", (int(pinned), group_id)
        )

    def group(self, group_id: str) -> CheckpointGroup:
        found = self._groups("WHERE group_id = ?", (group_id,))
        if not found:
            raise NotFound(f"no checkpoint group {group_id}")
        return found[0]

    def number(self, group_id: str) -> int:
        """The group's number in the order of decisions, groups, calls and effects."""
        asked = "SELECT seq FROM checkpoint_groups WHERE group_id = ?"
        row = self._db.execute(asked, (group_id,)).fetchone()
        if row is None:
            raise NotFound(f"no checkpoint group {group_id}")
        return row[0]

    def groups(self, plan_id: str) -> list[CheckpointGroup]:
        """The kept groups, oldest first."""
        return self._groups("WHERE plan_id = ? AND pruned_at IS NULL ORDER BY seq", (plan_id,))

    def superseded(self, plan_id: str) -> set[str]:
        """The decisions of kept groups that are no longer in force."""
        rows = self._db.execute(
            "SELECT decision_id FROM decisions WHERE state = 'superseded' AND decision_id IN"
            " (SELECT decision_id FROM checkpoint_groups WHERE plan_id = ? AND pruned_at IS NULL)",
            (plan_id,),
        )
        return {row[0] for row in rows}

    def note_count(self, plan_id: str, count: int) -> None:
        """Remember the number of kept groups; only under the plan's lease."""
        self._counts[plan_id] = count

    def count_held(self, plan_id: str) -> int:
        """The number of kept groups; only under the plan's lease."""
        if plan_id not in self._counts:
            self._counts[plan_id] = self.count(plan_id)
        return self._counts[plan_id]

    def count(self, plan_id: str) -> int:
        row = self._db.execute(
            "SELECT count(*) FROM checkpoint_groups WHERE plan_id = ? AND pruned_at IS NULL",
            (plan_id,),
        )
        return row.fetchone()[0]

    def _groups(self, where: str, parameters: tuple[Any, ...]) -> list[CheckpointGroup]:
        rows = self._db.execute(
            f"SELECT {GROUPS.selected} FROM checkpoint_groups {where}", parameters
        ).fetchall()
        members: dict[str, dict[str, str]] = {row[0]: {} for row in rows}
        for group_id, resource_id, checkpoint_id in self._db.execute(
            "SELECT m.group_id, m.resource_id, m.checkpoint_id FROM group_members m"
            " JOIN resources r ON r.resource_id = m.resource_id WHERE m.group_id IN"
            f" (SELECT group_id FROM checkpoint_groups {where}) ORDER BY +r.seq",
            parameters,
        ):
            if group_id in members:  # another process may have added one meanwhile
                members[group_id][resource_id] = checkpoint_id
        return [GROUPS.value(row, members=members[row[0]]) for row in rows]

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        found = CHECKPOINTS.select(self._db, "WHERE checkpoint_id = ?", (checkpoint_id,))
        if not found:
            raise NotFound(f"no checkpoint {checkpoint_id}")
        return found[0]

    def of_group(self, group_id: str) -> list[Checkpoint]:
        """The rows that the group itself made."""
        return CHECKPOINTS.select(self._db, "WHERE group_id = ? ORDER BY seq", (group_id,))

    def first_of(self, group: CheckpointGroup) -> str:
        """The first row that the group itself made, or else that it refers to."""
        row = self._db.execute(
            "SELECT checkpoint_id FROM checkpoints WHERE group_id = ? ORDER BY seq LIMIT 1",
            (group.group_id,),
        ).fetchone()
        return row[0] if row else next(iter(group.members.values()))

    def of_members(self, group: CheckpointGroup) -> dict[str, Checkpoint]:
        """Resource id -> the checkpoint that holds its state in this group."""
        return {resource: self.checkpoint(item) for resource, item in group.members.items()}

    def of_plan(self, plan_id: str) -> list[Checkpoint]:
        """The rows of every kept group, oldest first."""
        return CHECKPOINTS.select(
            self._db,
            "WHERE plan_id = ? AND group_id IN (SELECT group_id FROM checkpoint_groups"
            " WHERE plan_id = ? AND pruned_at IS NULL) ORDER BY seq",
            (plan_id, plan_id),
        )

    def hashes(self, plan_id: str) -> dict[str, str]:
        """Checkpoint -> hash of the state it holds, of all of a plan."""
        rows = self._db.execute(
            "SELECT checkpoint_id, state_hash FROM checkpoints WHERE plan_id = ?", (plan_id,)
        )
        return dict(rows.fetchall())

    def names(self) -> list[tuple[str, str, str, str | None, str | None]]:
        """(group id, plan id, checkpoint id, label, pruned at) of all, also of pruned groups."""
        return self._db.execute(
            "SELECT g.group_id, g.plan_id, coalesce(c.checkpoint_id, ''), g.label, g.pruned_at"
            " FROM checkpoint_groups g LEFT JOIN checkpoints c ON c.group_id = g.group_id"
            " ORDER BY g.seq, c.seq"
        ).fetchall()

    def prune(self, plan_id: str, group_ids: Sequence[str], now: str) -> None:
        """Prune groups: their content stays only if kept groups refer to it.

        The rows stay as names, so that a request for one can say what happened to it.
        """
        self.forget(plan_id)
        for group_id in group_ids:
            self._db.execute(
                "UPDATE checkpoint_groups SET pruned_at = ? WHERE group_id = ?", (now, group_id)
            )
            self._db.execute("DELETE FROM group_members WHERE group_id = ?", (group_id,))

    def roots(self) -> list[tuple[str, str, bytes]]:
        """(plan id, checkpoint id, content key) of every checkpoint a kept group needs."""
        return self._db.execute(
            "SELECT plan_id, checkpoint_id, root_key FROM checkpoints WHERE checkpoint_id IN"
            " (SELECT checkpoint_id FROM group_members)"
        ).fetchall()

    def roots_of(self, resource_id: str) -> list[bytes]:
        """The content keys that kept groups need of one resource."""
        rows = self._db.execute(
            "SELECT root_key FROM checkpoints WHERE resource_id = ? AND checkpoint_id IN"
            " (SELECT checkpoint_id FROM group_members)",
            (resource_id,),
        )
        return [row[0] for row in rows]

    def sizes(self, plan_id: str) -> dict[str, int]:
        """Group id -> bytes its checkpoints added to the store."""
        rows = self._db.execute(
            "SELECT c.group_id, CAST(sum(c.size_bytes) AS BIGINT) FROM checkpoint_groups g"
            " JOIN checkpoints c USING (group_id) WHERE g.plan_id = ? AND g.pruned_at IS NULL"
            " GROUP BY c.group_id",
            (plan_id,),
        )
        return dict(rows.fetchall())
