"""The effect ledger: what calls did, or may have done, outside the sandboxes."""

from collections.abc import Iterable

from cleveragents.model.effect import STANDING, Effect, EffectState
from cleveragents.model.tool import ToolCall
from cleveragents.store.database import Database
from cleveragents.store.tables import Table

EFFECTS = Table("effects", Effect, ("effect_id",))


class EffectRepository:
    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, effect: Effect) -> None:
        self._db.execute(EFFECTS.upsert, EFFECTS.row(effect))

    def happened(self, call: ToolCall) -> None:
        """The call returned and succeeded."""
        self._db.execute(
            "UPDATE effects SET state = ?, ended_at = ?"
            " WHERE plan_id = ? AND step_id = ? AND call_id = ?",
            (EffectState.HAPPENED.value, call.ended_at, call.plan_id, call.step_id, call.call_id),
        )

    def replace_repeated(self, plan_id: str, step_id: str) -> None:
        """A repeated idempotent call replaces its step's earlier ones."""
        states = ", ".join(f"'{state.value}'" for state in STANDING)
        self._db.execute(
            f"DELETE FROM effects WHERE plan_id = ? AND step_id = ? AND state IN ({states})",
            (plan_id, step_id),
        )

    def mark(self, effect_ids: Iterable[str], state: EffectState, now: str) -> None:
        """Set a state; a compensated effect stays compensated."""
        self._db.executemany(
            "UPDATE effects SET state = ?, ended_at = ?"
            " WHERE effect_id = ? AND state != 'compensated'",
            [(state.value, now, effect_id) for effect_id in effect_ids],
        )

    def of_plan(self, plan_id: str) -> list[Effect]:
        """Oldest first."""
        return EFFECTS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def waiting(self, plan_id: str) -> list[Effect]:
        """Effects to compensate, newest first."""
        return EFFECTS.select(
            self._db,
            "WHERE plan_id = ? AND state = 'compensating' ORDER BY seq DESC",
            (plan_id,),
        )
