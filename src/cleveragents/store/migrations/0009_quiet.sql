-- One more kind of checkpoint: `on_quiet`, while a command runs. A CHECK belongs to its column.

ALTER TABLE checkpoint_groups RENAME COLUMN checkpoint_type TO type_before;
ALTER TABLE checkpoint_groups ADD COLUMN checkpoint_type TEXT NOT NULL DEFAULT 'manual'
    CHECK (checkpoint_type IN (
        'before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision',
        'on_subplan_spawn', 'after_subplan', 'on_error', 'on_quiet', 'pre_execute', 'post_execute',
        'pre_apply', 'pre_rollback', 'manual', 'external_edit', 'milestone'));
UPDATE checkpoint_groups SET checkpoint_type = type_before;
ALTER TABLE checkpoint_groups DROP COLUMN type_before;

ALTER TABLE checkpoints RENAME COLUMN checkpoint_type TO type_before;
ALTER TABLE checkpoints ADD COLUMN checkpoint_type TEXT NOT NULL DEFAULT 'manual'
    CHECK (checkpoint_type IN (
        'before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision',
        'on_subplan_spawn', 'after_subplan', 'on_error', 'on_quiet', 'pre_execute', 'post_execute',
        'pre_apply', 'pre_rollback', 'manual', 'external_edit', 'milestone'));
UPDATE checkpoints SET checkpoint_type = type_before;
ALTER TABLE checkpoints DROP COLUMN type_before;

-- What still runs is asked for with every group, in plans of thousands of calls.
CREATE INDEX running_calls ON tool_calls (plan_id, seq) WHERE state = 'running';
