"""What commands print that only look at a plan."""

from typing import Any, Literal, NotRequired, TypedDict

from cleveragents.cli.outputs.values import Change, CheckpointLine, Effect, EffectsCount, PlanHead
from cleveragents.history.diff import Diff
from cleveragents.integrations.conversation import Conversation
from cleveragents.maintenance.databases import Cost
from cleveragents.model.journal import Moment
from cleveragents.model.plan import Failure


class Progress(TypedDict):
    step: str
    status: str
    tool: str
    attempts: int
    started_at: str | None
    duration_ms: int | None


class Execution(TypedDict):
    sandbox: str
    tool_calls: int
    files_modified: int | None
    child_plans: int
    checkpoints: int


class InPlace(TypedDict):
    resource: str
    path: str
    not_covered: dict[str, Any]


class Confinement(TypedDict):
    in_force: str
    setting: str
    plan_file: str | None


class InBucket(TypedDict):
    url: str
    groups: int
    bytes: int
    behind_groups: int
    behind_seconds: float


class PlanStatus(PlanHead):
    progress: list[Progress]
    checkpoints: list[CheckpointLine]
    execution: Execution
    effects: EffectsCount
    sandboxes: dict[str, str]
    rollback_enabled: bool
    exclude: dict[str, list[str]]
    in_place: list[InPlace]
    not_rolled_back: list[str]
    not_copied: dict[str, list[str]]
    databases: list[Cost]
    confinement: Confinement
    writable: list[str]
    held_by: str | None
    bucket: InBucket | None
    content_on: str | None
    conversation: Conversation | None
    created_at: str
    updated_at: str
    error: NotRequired[Failure]


class PlanLine(PlanHead):
    parent_plan_id: str | None
    created_at: str
    updated_at: str


class Plans(TypedDict):
    plans: list[PlanLine]


class TreeNode(TypedDict):
    decision_id: str
    question: str
    chosen: str
    state: str
    steps: list[str]
    children: "list[TreeNode]"


class Tree(TypedDict):
    tree: list[TreeNode]


class DecisionStep(TypedDict):
    id: str
    state: str
    tool: str


class Wrote(TypedDict):
    path: str
    step: str


class DecisionWork(TypedDict):
    steps: list[DecisionStep]
    groups: list[str]
    wrote: list[Wrote]


class CheckpointRow(TypedDict):
    checkpoint_id: str
    group_id: str
    resource: str
    type: str
    step_index: int
    decision_id: str | None
    label: str | None
    created_at: str
    state_hash: str
    size_bytes: int
    pinned: bool


class OwnedChange(Change):
    owner: Literal["agent", "somebody else", "both"]


class GroupRow(TypedDict):
    group_id: str
    type: str
    triggers: list[str]
    label: str | None
    pinned: bool
    created_at: str
    step: str | None
    decision_id: str | None
    question: str | None
    in_force: bool
    here: bool
    changes: list[OwnedChange]
    size_bytes: int


class Checkpoints(TypedDict):
    checkpoints: list[CheckpointRow]
    groups: list[GroupRow]


class Member(CheckpointRow):
    own: bool
    contents: dict[str, int]
    sandbox_ref: str
    filesystem_path: str
    metadata: dict[str, Any]


class Group(TypedDict):
    group_id: str
    plan_id: str
    type: str
    triggers: list[str]
    label: str | None
    pinned: bool
    decision_id: str | None
    step_index: int
    created_at: str
    checkpoints: list[Member]
    steps_done: list[str]
    decisions_in_force: list[str]


class CreatedGroup(Group):
    checkpoint_id: str


class Pinned(TypedDict):
    group_id: str
    pinned: bool


class GroupDeleted(TypedDict):
    group_id: str
    deleted: bool


class Call(TypedDict):
    step: str
    tool: str
    attempt: int
    state: str
    exit_code: int | None
    output: str
    output_bytes: int
    error: str | None
    started_at: str
    ended_at: str | None
    duration_ms: int | float | None


class Output(TypedDict):
    calls: list[Call]


class Errors(TypedDict):
    plan_id: str
    error: Failure | None
    step: str | None
    exit_code: int | None
    attempts: int
    output: str
    failed_state: str | None
    effects: list[Effect]
    not_compensated: list[Effect]
    diff: Diff | None
    get_back: str | None


class PlanEffects(TypedDict):
    plan_id: str
    effects: list[Effect]
    count: EffectsCount


class LogEntry(TypedDict):
    entry_id: str
    plan_id: str
    operation: str
    state: str
    before: Moment
    after: Moment | None
    target: str | None
    detail: dict[str, Any]
    started_at: str
    ended_at: str | None


class Log(TypedDict):
    entries: list[LogEntry]
