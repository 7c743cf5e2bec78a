"""What commands print that run, change or end a plan."""

from typing import Literal, NotRequired, TypedDict

from cleveragents.apply.database_backups import Held
from cleveragents.cli.outputs.values import Change, Conflict, Effect, Effects, PlanRun
from cleveragents.history.affected import Superseded
from cleveragents.integrations.conversation import Conversation
from cleveragents.model.retention import Verdict


class WouldResume(TypedDict):
    plan_id: str
    dry_run: bool
    resumed_from: str | None
    settled: str
    changes: list[Change]
    next_step: str | None
    compensated: list[Effect]
    in_doubt: list[Effect]


class ConversationResumed(TypedDict):
    plan_id: str
    name: str
    conversation: Conversation | None


class Prompt(TypedDict):
    decision_id: str
    prompt: str
    tool_calls: int
    files: int


class CommandRun(PlanRun):
    output: str
    exit_code: int | None
    prompts: NotRequired[list[Prompt]]
    not_rolled_back: NotRequired[list[str]]


class GoalRun(PlanRun):
    answer: str


class Pruned(TypedDict):
    plan_id: str
    dry_run: bool
    keep: list[Verdict]
    drop: list[Verdict]
    databases: list[Held]


class PatchLine(TypedDict):
    resource: str
    group_id: str
    decision_id: str | None
    subject: str
    files: int
    path: str | None
    patch: NotRequired[str]
    patch_b64: NotRequired[str]


class Patches(TypedDict):
    plan_id: str
    patches: list[PatchLine]


class PlanReport(TypedDict):
    plan_id: str
    form: Literal["html", "markdown"]
    path: str
    text: NotRequired[str]
    """Where it was not written to a file."""


class RollbackSummary(TypedDict):
    plan: str
    checkpoint: str
    group: str
    label: str | None
    files_reverted: int
    directories_reverted: int
    git_internals_reverted: int


class Impact(TypedDict):
    child_plans_invalidated: int
    sandbox: int
    decisions_after_cp: int
    tool_calls_after_cp: int


class StateAfter(TypedDict):
    phase: str
    state: str
    checkpoints_remaining: int


class OwnedPath(TypedDict):
    resource: str
    file: str
    owner: str
    action: str
    reason: str


class Rollback(TypedDict):
    rollback_summary: RollbackSummary
    changes_reverted: list[Change]
    impact: Impact
    post_rollback_state: StateAfter
    effects: Effects
    in_place: list[OwnedPath]
    conflicts: list[Conflict]
    dry_run: bool
    conversation: Conversation | None


class ConversationBack(TypedDict):
    conversation: Conversation | None


class Undo(Rollback):
    undone: str
    entry: str


class Redo(Rollback):
    redone: str
    entry: str


class CorrectionOutlook(TypedDict):
    plan_id: str
    decision_id: str | None
    superseded: list[Superseded]
    kept: list[str]
    steps_again: list[str]
    child_plans_cancelled: list[str]
    from_group: str | None
    changes: list[Change]
    effects: Effects
    dry_run: bool
    mode: str
    guidance: str


class Corrected(TypedDict):
    correction_id: str
    conversation: Conversation | None


class WouldAppend(TypedDict):
    plan_id: str
    decision_id: str
    dry_run: bool
    mode: str
    guidance: str
    superseded: list[Superseded]
    steps_again: list[str]


class Appended(PlanRun):
    correction_id: str
    decision_id: str
    mode: str
    guidance: str
    child_plan_id: str | None
    dry_run: bool


ToApply = TypedDict(
    "ToApply",
    {
        "resource": str,
        "as": str,
        "files": list[str],
        "merged": list[str],
        "ignored": int,
        "control_files": list[str],
        "notes": list[str],
    },
)


class WouldApply(TypedDict):
    plan_id: str
    dry_run: bool
    would_apply: list[ToApply]
    conflicts: list[Conflict]


class AppliedTo(TypedDict):
    resource: str
    files: int
    commit: str | None
    mode: str
    notes: list[str]
    control_files: list[str]


class Applied(TypedDict):
    plan_id: str
    applied: list[AppliedTo]
    conflicts: list[Conflict]
    applied_at: str


class Reverted(PlanRun):
    reverts: str
    left_alone: list[str]


class ShellEnded(TypedDict):
    plan_id: str
    step: str | None
    group_id: str | None
    exit_code: int
    output: str


class PlanDeleted(TypedDict):
    plan_id: str
    name: str
    deleted: bool
    unapplied_changes: int
    databases: list[Held]
