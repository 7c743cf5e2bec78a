-- Added to 0002.
ALTER TABLE plans ADD COLUMN parent_step_id TEXT;
CREATE INDEX plans_by_parent ON plans (parent_plan_id) WHERE parent_plan_id IS NOT NULL;
CREATE INDEX decisions_by_kind ON decisions (plan_id, kind);
ALTER TABLE checkpoint_groups ADD COLUMN children TEXT NOT NULL DEFAULT '{}';
ALTER TABLE tool_calls ADD COLUMN decision_id TEXT;
ALTER TABLE tool_calls ADD COLUMN group_id TEXT;
ALTER TABLE resources ADD COLUMN source TEXT NOT NULL DEFAULT '';
CREATE TABLE history_new (
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('plan', 'step', 'decision', 'source')),
    entity_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (plan_id, kind, entity_id, version)
) WITHOUT ROWID;
INSERT INTO history_new SELECT * FROM history;
INSERT OR IGNORE INTO history_new SELECT plan_id, 'source', '', 0,
    json_object('spec', json(spec), 'source_path', source_path, 'source_text', source_text)
    FROM plans;
DROP TABLE history;
ALTER TABLE history_new RENAME TO history;
CREATE TABLE correction_attempts (
    correction_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    decision_id TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode IN ('revert', 'append')),
    guidance TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('prepared', 'restored', 'complete', 'errored')),
    affected TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    before_group_id TEXT,
    group_id TEXT,
    after_group_id TEXT,
    child_plan_id TEXT,
    created_at TEXT NOT NULL,
    ended_at TEXT
);
CREATE INDEX corrections_by_plan ON correction_attempts (plan_id, correction_id);
CREATE TABLE effects (
    effect_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    step_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    decision_id TEXT,
    effect_class TEXT NOT NULL CHECK (effect_class IN ('compensable', 'irreversible', 'unknown')),
    side_effects TEXT NOT NULL,
    tool TEXT NOT NULL,
    inputs TEXT NOT NULL,
    resource TEXT,
    compensate TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN
        ('intended', 'happened', 'compensating', 'compensated', 'failed', 'accepted', 'lost')),
    attempts INTEGER NOT NULL,
    output TEXT NOT NULL,
    error TEXT,
    created_at TEXT NOT NULL,
    ended_at TEXT
);
CREATE INDEX effects_by_plan ON effects (plan_id, effect_id);
CREATE INDEX effects_by_step ON effects (plan_id, step_id);
CREATE INDEX effects_waiting ON effects (plan_id) WHERE state = 'compensating';
