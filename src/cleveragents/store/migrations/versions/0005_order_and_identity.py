"""Order is a number that the store gives, and a store knows which one it is.

Numbers of old rows: each table in the order in which its rows were written; between tables what
their ids say, as far as no clock stepped back.
"""

from collections.abc import Iterator
from heapq import merge

from alembic import op

from cleveragents.store.database import statements

revision = "0005"
down_revision = "0004"

IDS = {
    "plans": "plan_id",
    "decisions": "decision_id",
    "resources": "resource_id",
    "sandboxes": "sandbox_id",
    "checkpoint_groups": "group_id",
    "checkpoints": "checkpoint_id",
    "tool_calls": "call_id",
    "journal": "entry_id",
    "correction_attempts": "correction_id",
    "effects": "effect_id",
    "intents": "intent_id",
}
SHARED = ("decisions", "checkpoint_groups", "tool_calls", "effects")
"""Their rows are compared with each other."""

SCHEMA = """
CREATE TABLE store (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE plans (
    seq INTEGER PRIMARY KEY,
    plan_id TEXT NOT NULL UNIQUE,
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
    updated_at TEXT NOT NULL,
    parent_step_id TEXT
);
CREATE INDEX plans_by_name ON plans (name);
CREATE INDEX plans_by_parent ON plans (parent_plan_id) WHERE parent_plan_id IS NOT NULL;
CREATE INDEX plans_by_state ON plans (state);

CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY,
    decision_id TEXT NOT NULL UNIQUE,
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
CREATE INDEX decisions_by_plan ON decisions (plan_id);
CREATE INDEX decisions_by_kind ON decisions (plan_id, kind);

CREATE TABLE resources (
    seq INTEGER PRIMARY KEY,
    resource_id TEXT NOT NULL UNIQUE,
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
    source TEXT NOT NULL DEFAULT '',
    UNIQUE (plan_id, name)
);

CREATE TABLE sandboxes (
    seq INTEGER PRIMARY KEY,
    sandbox_id TEXT NOT NULL UNIQUE,
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
    seq INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL UNIQUE,
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
    pruned_at TEXT,
    children TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX groups_by_plan ON checkpoint_groups (plan_id) WHERE pruned_at IS NULL;

CREATE TABLE checkpoints (
    seq INTEGER PRIMARY KEY,
    checkpoint_id TEXT NOT NULL UNIQUE,
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
CREATE INDEX checkpoints_by_plan ON checkpoints (plan_id);

CREATE TABLE tool_calls (
    seq INTEGER PRIMARY KEY,
    call_id TEXT NOT NULL UNIQUE,
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
    ended_at TEXT,
    decision_id TEXT,
    group_id TEXT
);
CREATE INDEX calls_by_plan ON tool_calls (plan_id);

CREATE TABLE journal (
    seq INTEGER PRIMARY KEY,
    entry_id TEXT NOT NULL UNIQUE,
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
CREATE INDEX journal_by_plan ON journal (plan_id);

CREATE TABLE correction_attempts (
    seq INTEGER PRIMARY KEY,
    correction_id TEXT NOT NULL UNIQUE,
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
CREATE INDEX corrections_by_plan ON correction_attempts (plan_id);

CREATE TABLE effects (
    seq INTEGER PRIMARY KEY,
    effect_id TEXT NOT NULL UNIQUE,
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
CREATE INDEX effects_by_plan ON effects (plan_id);
CREATE INDEX effects_by_step ON effects (plan_id, step_id);
CREATE INDEX effects_waiting ON effects (plan_id) WHERE state = 'compensating';

CREATE TABLE intents (
    seq INTEGER PRIMARY KEY,
    intent_id TEXT NOT NULL UNIQUE,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('restore', 'apply', 'remove')),
    state TEXT NOT NULL CHECK (state IN ('prepared', 'staged', 'committed', 'undoing')),
    body TEXT NOT NULL,
    created_at TEXT NOT NULL
);
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    numbered = {table: _alone(table) for table in IDS if table not in SHARED}
    numbered |= _together()
    for table, rows in numbered.items():
        run(f"CREATE TEMP TABLE numbers_{table} (old INTEGER PRIMARY KEY, seq INTEGER)")
        if rows:
            run(f"INSERT INTO numbers_{table} VALUES (?, ?)", rows)
        run(f"CREATE TEMP TABLE old_{table} AS SELECT rowid AS old, * FROM {table}")
        run(f"DROP TABLE {table}")
    for statement in statements(SCHEMA):
        run(statement)
    for table in IDS:
        found = run(f"SELECT name FROM pragma_table_info('{table}') WHERE name != 'seq'")
        columns = ", ".join(f'"{name}"' for (name,) in found)
        run(
            f"INSERT INTO {table} (seq, {columns}) SELECT seq, {columns}"
            f" FROM old_{table} JOIN numbers_{table} USING (old) ORDER BY seq"
        )
        run(f"DROP TABLE old_{table}")
        run(f"DROP TABLE numbers_{table}")


def _alone(table: str) -> list[tuple[int, int]]:
    """(rowid, number) of a table whose order matters only within it."""
    rows = op.get_bind().exec_driver_sql(f"SELECT rowid FROM {table} ORDER BY rowid")
    return [(row[0], number) for number, row in enumerate(rows, 1)]


def _together() -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {table: [] for table in SHARED}
    series = merge(*(_written(table) for table in SHARED))
    for number, (_, _, table, rowid) in enumerate(series, 1):
        found[table].append((rowid, number))
    return found


def _written(table: str) -> Iterator[tuple[str, str, str, int]]:
    """Rows as they were written; one with an id of a clock that stepped back comes no earlier."""
    latest = ""
    asked = f"SELECT {IDS[table]}, rowid FROM {table} ORDER BY rowid"
    for name, rowid in op.get_bind().exec_driver_sql(asked):
        latest = max(latest, name)
        yield latest, name, table, rowid
