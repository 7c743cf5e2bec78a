-- When the holder of a plan was last heard of, by the database's clock. What is in a comment that
-- begins with pg is for PostgreSQL alone (store/postgres.py).

ALTER TABLE leases ADD COLUMN heard_at REAL NOT NULL DEFAULT 0;
/*pg CREATE INDEX leases_by_host ON leases (host) WHERE held = 1; */
/*pg CREATE SEQUENCE series; */
CREATE INDEX intents_by_plan ON intents (plan_id);
