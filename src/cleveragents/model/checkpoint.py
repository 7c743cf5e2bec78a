"""Checkpoints and the groups they are taken in, as frozen values."""

from enum import StrEnum
from typing import Any

import msgspec

from cleveragents.model.effect import Outlook
from cleveragents.model.resource import Change

RESERVED = ("first", "last")
"""Words that name a checkpoint in every plan and so cannot be labels."""


class CheckpointType(StrEnum):
    """Closed set: the model and the table refuse anything else."""

    BEFORE_STEP = "before_step"
    AFTER_STEP = "after_step"
    BEFORE_TOOL_EXECUTE = "before_tool_execute"
    AFTER_TOOL_EXECUTE = "after_tool_execute"
    ON_DECISION = "on_decision"
    ON_SUBPLAN_SPAWN = "on_subplan_spawn"
    AFTER_SUBPLAN = "after_subplan"
    ON_ERROR = "on_error"
    ON_QUIET = "on_quiet"
    PRE_EXECUTE = "pre_execute"
    POST_EXECUTE = "post_execute"
    PRE_APPLY = "pre_apply"
    PRE_ROLLBACK = "pre_rollback"
    POST_ROLLBACK = "post_rollback"
    MANUAL = "manual"
    EXTERNAL_EDIT = "external_edit"
    MILESTONE = "milestone"


class SandboxCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox says of its own state: the address of the content and its hash."""

    resource_id: str
    root: bytes
    """Key of the manifest or image in the content store."""
    state_hash: str
    added_bytes: int = 0
    metadata: dict[str, Any] = {}


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `checkpoints`: one sandbox at one moment."""

    checkpoint_id: str
    group_id: str
    plan_id: str
    resource_id: str
    sandbox_ref: str
    decision_id: str | None
    checkpoint_type: CheckpointType
    step_index: int
    state_hash: str
    label: str | None
    filesystem_path: str
    size_bytes: int
    created_at: str
    metadata_json: dict[str, Any]
    root_key: bytes

    @property
    def snapshot(self) -> SandboxCheckpoint:
        return SandboxCheckpoint(
            resource_id=self.resource_id,
            root=self.root_key,
            state_hash=self.state_hash,
            metadata=self.metadata_json.get("snapshot", {}),
        )


class ChildMoment(msgspec.Struct, frozen=True):
    """Where a child plan stood when a group of its parent was made."""

    group_id: str | None
    version: int


class CheckpointGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints taken together at one decision point, and the plan's view at that moment."""

    group_id: str
    plan_id: str
    decision_id: str | None
    checkpoint_type: CheckpointType
    triggers: tuple[str, ...]
    """Every trigger that found this state, the one that made the group first."""
    label: str | None
    step_index: int
    version: int
    """The plan's version whose history is this group's view."""
    view_mark: int
    members: dict[str, str]
    """Resource id -> the checkpoint that holds its state, its own or an earlier group's."""
    children: dict[str, "ChildMoment"] = {}
    """Child plan -> where it stood."""
    pinned: bool = False
    actor_state: Any = None
    created_at: str
    pruned_at: str | None = None


class OwnedPath(msgspec.Struct, frozen=True):
    """Who changed a path in place since a checkpoint, and what a rollback does with it."""

    resource: str
    path: bytes
    owner: str
    action: str
    reason: str = ""


class RollbackResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollback did, as measured."""

    plan_id: str
    group_id: str
    checkpoint_id: str
    label: str | None
    changes: tuple[Change, ...]
    child_plans_invalidated: int
    decisions_after: int
    tool_calls_after: int
    sandboxes: dict[str, str]
    phase: str
    state: str
    checkpoints_remaining: int
    dry_run: bool = False
    effects: Outlook = Outlook()
    """What it did to the world outside; `compensable` as each of them ended."""
    in_place: tuple[OwnedPath, ...] = ()
    """Every path of what is worked on in place that changed since, with its owner."""
    conflicts: tuple[Any, ...] = ()
    """Where the agent and somebody else changed the same thing; only a preview has them."""
    notes: tuple[str, ...] = ()
