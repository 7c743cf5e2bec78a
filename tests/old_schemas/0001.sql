-- The store's first schema, as versions before 0005 made it. Never changed.

CREATE TABLE plans (
    plan_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    phase TEXT NOT NULL CHECK (phase IN ('strategize', 'execute', 'apply')),
    state TEXT NOT NULL CHECK (state IN
        ('queued', 'processing', 'complete', 'errored', 'cancelled', 'constrained', 'applied')),
    attempt INTEGER NOT NULL,
    rollback_enabled INTEGER NOT NULL,
    parent_plan_id TEXT REFERENCES plans (plan_id),
    plan_dir TEXT NOT NULL,
    source_path TEXT NOT NULL,
    source_text TEXT NOT NULL,
    spec TEXT NOT NULL,
    last_completed_step INTEGER NOT NULL,
    last_checkpoint_id TEXT,
    head_group_id TEXT,
    version INTEGER NOT NULL,
    view_mark INTEGER NOT NULL,
    actor_state TEXT NOT NULL,
    error TEXT NOT NULL,
    result TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE INDEX plans_by_name ON plans (name, plan_id);

CREATE TABLE steps (
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    step_id TEXT NOT NULL,
    "index" INTEGER NOT NULL,
    tool TEXT NOT NULL,
    resource TEXT,
    state TEXT NOT NULL CHECK (state IN ('queued', 'processing', 'complete', 'errored')),
    attempts INTEGER NOT NULL,
    decision_id TEXT,
    error TEXT,
    spec TEXT NOT NULL,
    PRIMARY KEY (plan_id, step_id)
);

CREATE TABLE decisions (
    decision_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('root', 'step', 'actor', 'user_intervention', 'reversion')),
    question TEXT NOT NULL,
    chosen TEXT NOT NULL,
    alternatives TEXT NOT NULL,
    rationale TEXT NOT NULL,
    confidence REAL,
    context TEXT NOT NULL,
    parent_id TEXT,
    influences TEXT NOT NULL,
    phase TEXT NOT NULL,
    step_id TEXT,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'superseded')),
    created_at TEXT NOT NULL
);
CREATE INDEX decisions_by_plan ON decisions (plan_id, decision_id);

CREATE TABLE resources (
    resource_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    path TEXT NOT NULL,
    strategy TEXT NOT NULL,
    carry TEXT NOT NULL,
    exclude TEXT NOT NULL,
    require_sandbox INTEGER NOT NULL,
    "outer" TEXT NOT NULL,
    place TEXT NOT NULL,
    UNIQUE (plan_id, name)
);

CREATE TABLE sandboxes (
    sandbox_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    resource_id TEXT NOT NULL REFERENCES resources (resource_id) ON DELETE CASCADE,
    strategy TEXT NOT NULL,
    path TEXT NOT NULL,
    root TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('creating', 'ready', 'removed')),
    identity TEXT NOT NULL,
    origin TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE INDEX sandboxes_by_plan ON sandboxes (plan_id);

CREATE TABLE checkpoint_groups (
    group_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    decision_id TEXT,
    checkpoint_type TEXT NOT NULL CHECK (checkpoint_type IN (
        'before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision',
        'on_subplan_spawn', 'after_subplan', 'on_error', 'pre_execute', 'post_execute',
        'pre_apply', 'pre_rollback', 'manual', 'external_edit', 'milestone')),
    triggers TEXT NOT NULL,
    label TEXT,
    step_index INTEGER NOT NULL,
    version INTEGER NOT NULL,
    view_mark INTEGER NOT NULL,
    pinned INTEGER NOT NULL,
    actor_state TEXT NOT NULL,
    created_at TEXT NOT NULL,
    pruned_at TEXT
);
CREATE INDEX groups_by_plan ON checkpoint_groups (plan_id, group_id) WHERE pruned_at IS NULL;

CREATE TABLE checkpoints (
    checkpoint_id TEXT NOT NULL PRIMARY KEY,
    group_id TEXT NOT NULL REFERENCES checkpoint_groups (group_id) ON DELETE CASCADE,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    resource_id TEXT NOT NULL,
    sandbox_ref TEXT NOT NULL REFERENCES sandboxes (sandbox_id),
    decision_id TEXT,
    checkpoint_type TEXT NOT NULL CHECK (checkpoint_type IN (
        'before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision',
        'on_subplan_spawn', 'after_subplan', 'on_error', 'pre_execute', 'post_execute',
        'pre_apply', 'pre_rollback', 'manual', 'external_edit', 'milestone')),
    step_index INTEGER NOT NULL,
    state_hash TEXT NOT NULL,
    label TEXT,
    filesystem_path TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    metadata_json TEXT NOT NULL,
    root_key BLOB NOT NULL
);
CREATE INDEX checkpoints_by_group ON checkpoints (group_id);
CREATE INDEX checkpoints_by_plan ON checkpoints (plan_id, checkpoint_id);

CREATE TABLE group_members (
    group_id TEXT NOT NULL REFERENCES checkpoint_groups (group_id) ON DELETE CASCADE,
    resource_id TEXT NOT NULL,
    checkpoint_id TEXT NOT NULL REFERENCES checkpoints (checkpoint_id),
    PRIMARY KEY (group_id, resource_id)
) WITHOUT ROWID;
CREATE INDEX members_by_checkpoint ON group_members (checkpoint_id);

CREATE TABLE tool_calls (
    call_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    step_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    tool TEXT NOT NULL,
    inputs TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'ok', 'failed', 'timeout', 'interrupted')),
    exit_code INTEGER,
    output TEXT NOT NULL,
    output_bytes INTEGER NOT NULL,
    error TEXT,
    started_at TEXT NOT NULL,
    ended_at TEXT
);
CREATE INDEX calls_by_plan ON tool_calls (plan_id, call_id);

CREATE TABLE writes (
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    step_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    resource_id TEXT NOT NULL,
    path BLOB NOT NULL,
    before TEXT NOT NULL,
    after TEXT NOT NULL
);
CREATE INDEX writes_by_plan ON writes (plan_id, step_id);

CREATE TABLE history (
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('plan', 'step', 'decision')),
    entity_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (plan_id, kind, entity_id, version)
) WITHOUT ROWID;

CREATE TABLE journal (
    entry_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    operation TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'done', 'interrupted')),
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    target TEXT,
    detail TEXT NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT
);
CREATE INDEX journal_by_plan ON journal (plan_id, entry_id);

CREATE TABLE intents (
    intent_id TEXT NOT NULL PRIMARY KEY,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('restore', 'apply', 'remove')),
    state TEXT NOT NULL CHECK (state IN ('prepared', 'staged', 'committed', 'undoing')),
    body TEXT NOT NULL,
    created_at TEXT NOT NULL
);

CREATE TABLE leases (
    plan_id TEXT NOT NULL PRIMARY KEY REFERENCES plans (plan_id) ON DELETE CASCADE,
    epoch INTEGER NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    verb TEXT NOT NULL,
    held INTEGER NOT NULL,
    renewed_at TEXT NOT NULL
);

CREATE TABLE packs (
    pack_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE objects (
    "key" BLOB NOT NULL PRIMARY KEY,
    pack_id INTEGER NOT NULL REFERENCES packs (pack_id),
    "offset" INTEGER NOT NULL,
    length INTEGER NOT NULL,
    condemned_at TEXT
) WITHOUT ROWID;
CREATE INDEX objects_by_pack ON objects (pack_id);
