-- The sessions of agents, each with the observed plan that follows it.

CREATE TABLE sessions (
    seq INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    agent TEXT NOT NULL,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    forked_from TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    background TEXT NOT NULL,
    created_at TEXT NOT NULL,
    UNIQUE (agent, session_id)
);
CREATE INDEX sessions_by_plan ON sessions (plan_id);
