"""The sessions of agents, and the plan that follows each."""

from cleveragents.model.conversation import Session
from cleveragents.store.database import Database
from cleveragents.store.tables import Table

SESSIONS = Table("sessions", Session, ("agent", "session_id"))


class SessionRepository:
    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, session: Session) -> None:
        self._db.execute(SESSIONS.upsert, SESSIONS.row(session))

    def get(self, agent: str, session_id: str) -> Session | None:
        found = SESSIONS.select(self._db, "WHERE agent = ? AND session_id = ?", (agent, session_id))
        return found[0] if found else None

    def of_plan(self, plan_id: str) -> list[Session]:
        """Oldest first."""
        return SESSIONS.select(self._db, "WHERE plan_id = ? ORDER BY seq", (plan_id,))

    def newest(self, agent: str) -> Session | None:
        """The session of an agent that was seen last."""
        found = SESSIONS.select(self._db, "WHERE agent = ? ORDER BY seq DESC LIMIT 1", (agent,))
        return found[0] if found else None

    def plans_of(self, session_id: str) -> list[str]:
        """The plans that followed a session of that id, newest first."""
        rows = self._db.execute(
            "SELECT plan_id FROM sessions WHERE session_id = ? ORDER BY seq DESC", (session_id,)
        )
        return [row[0] for row in rows]
