"""What several commands print."""

from typing import NotRequired, TypedDict

from cleveragents.model.plan import Failure


class ErrorInfo(TypedDict):
    type: str
    message: str
    hint: str
    problems: NotRequired[list[str]]


class Conflict(TypedDict):
    resource: str
    path: str
    base: str
    ours: str
    theirs: str
    reason: str


class Change(TypedDict):
    resource: str
    file: str
    action: str
    file_b64: NotRequired[str]


Effect = TypedDict(
    "Effect",
    {
        "effect_id": str,
        "plan_id": str,
        "step": str,
        "tool": str,
        "class": str,
        "state": str,
        "side_effects": list[str],
        "attempts": int,
        "output": str,
        "error": str | None,
        "created_at": str,
        "ended_at": str | None,
    },
)


class Effects(TypedDict):
    compensated: list[Effect]
    irreversible: list[Effect]
    unknown: list[Effect]
    not_repeated: list[Effect]


class EffectsCount(TypedDict):
    compensable: int
    irreversible: int
    unknown: int
    not_compensated: int


class PlanStep(TypedDict):
    id: str
    index: int
    state: str
    tool: str
    attempts: int
    error: str | None


class CheckpointLine(TypedDict):
    id: str
    group: str
    type: str
    step_index: int
    label: str | None
    created_at: str
    state_hash: str


class PlanHead(TypedDict):
    plan_id: str
    name: str
    phase: str
    state: str
    attempt: int
    last_checkpoint_id: str | None


class PlanRun(PlanHead):
    resumed_from: str | None
    sandboxes: dict[str, str]
    steps: list[PlanStep]
    checkpoints: list[CheckpointLine]
    error: NotRequired[Failure]
