-- What of a plan's content is in the bucket: segments by root plan, and the groups that are there.

CREATE TABLE segments (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    root_plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    size INTEGER NOT NULL,
    entries BLOB NOT NULL,
    created_at TEXT NOT NULL
);
CREATE INDEX segments_by_root ON segments (root_plan_id);

CREATE TABLE groups_there (
    group_id TEXT NOT NULL PRIMARY KEY REFERENCES checkpoint_groups (group_id) ON DELETE CASCADE,
    plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
    there_at TEXT NOT NULL
);
CREATE INDEX groups_there_by_plan ON groups_there (plan_id);
