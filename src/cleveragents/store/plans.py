"""Plans with their steps and decisions, and the history from which earlier views are read."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.errors import NotFound
from cleveragents.model.checkpoint import ChildMoment
from cleveragents.model.decision import GUIDES, Decision
from cleveragents.model.plan import Failure, Phase, Plan, State, Step
from cleveragents.store.database import Database
from cleveragents.store.leases import HELD, Lease, lost
from cleveragents.store.tables import Table

PLANS = Table("plans", Plan, ("plan_id",))
STEPS = Table("steps", Step, ("plan_id", "step_id"))
DECISIONS = Table("decisions", Decision, ("decision_id",))
GONE = "null"
"""In the history: from this version on the step is no longer part of the plan."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The versioned part of a plan."""

    phase: Phase
    state: State
    attempt: int
    last_completed_step: int
    view_mark: int
    actor_state: Any = None
    error: Failure | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The plan file in force, and its parsed form."""

    spec: dict[str, Any]
    source_path: str
    source_text: str


class View(msgspec.Struct, frozen=True):
    """A plan at one version."""

    standing: Standing
    source: Source
    steps: dict[str, Step]
    decisions: dict[str, Decision]


class PlanRepository:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._childless: set[str] = set()
        """Plans that this process holds: only their holder makes children of them."""

    def forget(self, plan_id: str | None) -> None:
        """Drop cached rows: the plan was leased again, a commit failed, or a child changed."""
        self._childless.discard(plan_id or "")

    def add(self, plan: Plan, steps: Iterable[Step]) -> Plan:
        self.forget(plan.parent_plan_id)
        self._db.execute(PLANS.insert, PLANS.row(plan))
        self._remember(plan, steps, (), new_source=True)
        return plan

    def commit(
        self,
        plan: Plan,
        *,
        steps: Iterable[Step] = (),
        decisions: Iterable[Decision] = (),
        removed_steps: Iterable[str] = (),
        view_changed: bool = False,
        new_source: bool = False,
        before: Plan | None = None,
        lease: Lease | None = None,
    ) -> Plan:
        """Write the plan and its changes as the next version.

        `before`: the current row, if known; then only the differences are written.
        `lease`: checked with the version, where the transaction did not.
        """
        self.forget(plan.parent_plan_id)
        version = plan.version + 1
        mark = version if view_changed else plan.view_mark
        plan = msgspec.structs.replace(plan, version=version, view_mark=mark)
        columns, values = PLANS.changes(before, plan)
        is_held = f" AND EXISTS ({HELD})" if lease else ""
        self._db.require(
            f"UPDATE plans SET {columns} WHERE plan_id = ? AND version = ?{is_held}",
            [*values, plan.plan_id, version - 1, *((lease.plan_id, lease.epoch) if lease else ())],
            lost(plan.plan_id),
        )
        self._remember(plan, steps, decisions, new_source)
        self._remove_steps(plan, removed_steps)
        return plan

    def _remove_steps(self, plan: Plan, step_ids: Iterable[str]) -> None:
        for step_id in step_ids:
            key = (plan.plan_id, step_id)
            self._db.execute("DELETE FROM steps WHERE plan_id = ? AND step_id = ?", key)
            self._db.execute(
                "INSERT INTO history (plan_id, kind, entity_id, version, body)"
                " VALUES (?, 'step', ?, ?, ?)",
                (*key, plan.version, GONE),
            )

    def _remember(
        self,
        plan: Plan,
        steps: Iterable[Step],
        decisions: Iterable[Decision],
        new_source: bool,
    ) -> None:
        standing = Standing(
            phase=plan.phase,
            state=plan.state,
            attempt=plan.attempt,
            last_completed_step=plan.last_completed_step,
            view_mark=plan.view_mark,
            actor_state=plan.actor_state,
            error=plan.error,
        )
        events: list[tuple[str, str, msgspec.Struct]] = [("plan", "", standing)]
        if new_source:
            source = Source(
                spec=plan.spec, source_path=plan.source_path, source_text=plan.source_text
            )
            events.append(("source", "", source))
        for step in steps:
            self._db.execute(STEPS.upsert, STEPS.row(step))
            events.append(("step", step.step_id, step))
        for decision in decisions:
            self._db.execute(DECISIONS.upsert, DECISIONS.row(decision))
            events.append(("decision", decision.decision_id, decision))
        self._db.executemany(
            "INSERT INTO history (plan_id, kind, entity_id, version, body) VALUES (?, ?, ?, ?, ?)",
            [
                (plan.plan_id, kind, entity, plan.version, msgspec.json.encode(body).decode())
                for kind, entity, body in events
            ],
        )

    def view_at(self, plan_id: str, version: int) -> View:
        """The plan after its commit number `version`."""
        rows = self._db.execute(
            "SELECT kind, entity_id, body FROM history JOIN (SELECT plan_id, kind, entity_id,"
            " max(version) AS version FROM history WHERE plan_id = ? AND version <= ?"
            " GROUP BY plan_id, kind, entity_id) newest"
            " USING (plan_id, kind, entity_id, version)",
            (plan_id, version),
        )
        bodies = {(kind, entity): body for kind, entity, body in rows if body != GONE}
        return View(
            codec.from_json(bodies["plan", ""], Standing),
            codec.from_json(bodies["source", ""], Source),
            {
                entity: codec.from_json(body, Step)
                for (kind, entity), body in bodies.items()
                if kind == "step"
            },
            {
                entity: codec.from_json(body, Decision)
                for (kind, entity), body in bodies.items()
                if kind == "decision"
            },
        )

    def steps_of(self, decision: Decision) -> list[Step]:
        """All steps that ever belonged to a decision, each as it last did."""
        rows = self._db.execute(
            "SELECT body FROM history WHERE plan_id = ? AND kind = 'step' AND body LIKE ?"
            " ORDER BY version",
            (decision.plan_id, f"%{decision.decision_id}%"),
        )
        found = [codec.from_json(body, Step) for (body,) in rows]
        steps = {s.step_id: s for s in found if s.decision_id == decision.decision_id}
        return sorted(steps.values(), key=lambda step: step.index)

    def get(self, plan_id: str) -> Plan:
        found = PLANS.select(self._db, "WHERE plan_id = ?", (plan_id,))
        if not found:
            raise NotFound(f"no plan {plan_id}", "agents plan list")
        return found[0]

    def all(self) -> list[Plan]:
        """Every plan, newest first."""
        return PLANS.select(self._db, "ORDER BY seq DESC")

    def count(self) -> int:
        return self._db.execute("SELECT count(*) FROM plans").fetchone()[0]

    def ids(self) -> list[str]:
        """The ids of all plans, oldest first."""
        return [row[0] for row in self._db.execute("SELECT plan_id FROM plans ORDER BY seq")]

    def newest(self) -> str | None:
        """The newest plan that is not a child."""
        row = self._db.execute(
            "SELECT plan_id FROM plans WHERE parent_plan_id IS NULL ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        return row[0] if row else None

    def newest_of(self, folder: str) -> str | None:
        """The newest such plan with a resource that is or holds this folder.

        Else one with a resource below it, or with none in any folder, but at addresses.
        """
        inside = f"{folder.rstrip('/')}/"
        row = self._db.execute(
            "SELECT plan_id, substr(?, 1, length(path) + 1) = path || '/' AS holds"
            " FROM plans JOIN resources USING (plan_id)"
            " WHERE parent_plan_id IS NULL AND (substr(?, 1, length(path) + 1) = path || '/'"
            " OR substr(path, 1, length(?)) = ? OR NOT EXISTS (SELECT 1 FROM resources other"
            " WHERE other.plan_id = plans.plan_id AND substr(other.path, 1, 1) = '/'))"
            " ORDER BY holds DESC, plans.seq DESC LIMIT 1",
            (inside, inside, inside, inside),
        ).fetchone()
        return row[0] if row else None

    def named(self, name: str) -> list[str]:
        """Ids of the plans of that name, newest first."""
        rows = self._db.execute(
            "SELECT plan_id FROM plans WHERE name = ? ORDER BY seq DESC", (name,)
        )
        return [row[0] for row in rows]

    def child_moments(self, plan_id: str) -> dict[str, ChildMoment]:
        """The current moment of each child plan that was not cancelled; only under the lease."""
        if plan_id in self._childless:
            return {}
        rows = self._db.execute(
            "SELECT plan_id, head_group_id, version FROM plans"
            " WHERE parent_plan_id = ? AND state != 'cancelled'",
            (plan_id,),
        )
        found = {child: ChildMoment(group, version) for child, group, version in rows}
        if not found:
            self._childless.add(plan_id)
        return found

    def children(self, plan_id: str) -> list[Plan]:
        return PLANS.select(self._db, "WHERE parent_plan_id = ? ORDER BY seq", (plan_id,))

    def delete(self, plan_id: str, repositories: Sequence[str] = ()) -> None:
        """Delete all rows of a plan; it is noted, to recognize leftovers of it as ours."""
        self._db.execute(
            "INSERT INTO store (name, value) VALUES (?, ?)",
            (f"deleted:{plan_id}", msgspec.json.encode(repositories).decode()),
        )
        self._db.execute(
            "DELETE FROM group_members WHERE group_id IN"
            " (SELECT group_id FROM checkpoint_groups WHERE plan_id = ?)",
            (plan_id,),
        )
        self._db.execute("DELETE FROM checkpoints WHERE plan_id = ?", (plan_id,))
        self._db.execute("DELETE FROM plans WHERE plan_id = ?", (plan_id,))

    def deleted(self) -> dict[str, list[str]]:
        """Deleted plans, and the repositories that each worked on."""
        rows = self._db.execute("SELECT name, value FROM store WHERE name LIKE 'deleted:%'")
        return {
            name.removeprefix("deleted:"): codec.from_json(value, list[str]) for name, value in rows
        }

    def steps(self, plan_id: str) -> list[Step]:
        return STEPS.select(self._db, 'WHERE plan_id = ? ORDER BY "index"', (plan_id,))

    def decisions(self, plan_id: str) -> list[Decision]:
        return DECISIONS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def guidance(self, plan_id: str) -> tuple[str, ...]:
        """Guidance by users and by the actor itself, oldest first."""
        marks = ", ".join("?" * len(GUIDES))
        rows = self._db.execute(
            "SELECT chosen FROM decisions WHERE plan_id = ? AND state = 'active'"
            # `+`: in order by the index of the kind, and not by that of the plan
            f" AND kind IN ({marks}) ORDER BY +seq",
            (plan_id, *sorted(GUIDES)),
        )
        return tuple(row[0] for row in rows)

    def superseded(self, decision_ids: set[str]) -> set[str]:
        """The decisions that are no longer in force."""
        if not decision_ids:
            return set()  # PostgreSQL has no empty list
        marks = ", ".join("?" * len(decision_ids))
        rows = self._db.execute(
            f"SELECT decision_id FROM decisions WHERE state = 'superseded'"
            f" AND decision_id IN ({marks})",
            tuple(decision_ids),
        )
        return {row[0] for row in rows}

    def all_decision_ids(self) -> list[tuple[str, str]]:
        """(decision id, plan id) of every decision in the store."""
        return self._db.execute("SELECT decision_id, plan_id FROM decisions").fetchall()
