-- One more kind of checkpoint: `post_rollback`, what a rollback in place led to. Nobody edited that.

ALTER TABLE checkpoint_groups RENAME COLUMN checkpoint_type TO type_before;
ALTER TABLE checkpoint_groups ADD COLUMN checkpoint_type TEXT NOT NULL DEFAULT 'manual'
    CHECK (checkpoint_type IN (
        'before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision',
        'on_subplan_spawn', 'after_subplan', 'on_error', 'on_quiet', 'pre_execute', 'post_execute',
        'pre_apply', 'pre_rollback', 'post_rollback', 'manual', 'external_edit', 'milestone'));
UPDATE checkpoint_groups SET checkpoint_type = type_before;
ALTER TABLE checkpoint_groups DROP COLUMN type_before;

ALTER TABLE checkpoints RENAME COLUMN checkpoint_type TO type_before;
ALTER TABLE checkpoints ADD COLUMN checkpoint_type TEXT NOT NULL DEFAULT 'manual'
    CHECK (checkpoint_type IN (
        'before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision',
        'on_subplan_spawn', 'after_subplan', 'on_error', 'on_quiet', 'pre_execute', 'post_execute',
        'pre_apply', 'pre_rollback', 'post_rollback', 'manual', 'external_edit', 'milestone'));
UPDATE checkpoints SET checkpoint_type = type_before;
ALTER TABLE checkpoints DROP COLUMN type_before;
