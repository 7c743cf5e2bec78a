"""A plan and its steps, as frozen values. Where they may go from here is in `lifecycle`."""

from enum import StrEnum
from typing import Any

import msgspec


class Phase(StrEnum):
    STRATEGIZE = "strategize"
    EXECUTE = "execute"
    APPLY = "apply"


class State(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETE = "complete"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    CONSTRAINED = "constrained"
    APPLIED = "applied"


FINAL = frozenset({State.APPLIED, State.CANCELLED})


class OnFailure(StrEnum):
    ROLLBACK_STEP = "rollback_step"
    ROLLBACK_PLAN = "rollback_plan"
    STOP = "stop"


class Failure(msgspec.Struct, frozen=True):
    """Why a plan stopped, in the words that were shown."""

    type: str
    message: str
    hint: str = ""
    step: str | None = None
    group_id: str | None = None
    """The group that kept the failed state, if one was made."""
    undo_to: str | None = None
    """The group to roll back to, as long as that has not been done."""
    conflicts: tuple[dict[str, Any], ...] = ()
    """Paths that a child plan and its parent both changed, with both sides."""
    output: str = ""
    """What the actor wrote to stderr, when it is the actor that failed."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    name: str
    phase: Phase = Phase.STRATEGIZE
    state: State = State.QUEUED
    attempt: int = 1
    rollback_enabled: bool = True
    parent_plan_id: str | None = None
    parent_step_id: str | None = None
    """The step of the parent plan that this plan is the work of."""
    plan_dir: str
    source_path: str
    source_text: str
    spec: dict[str, Any] = {}
    """The plan file as it was understood at `use`."""
    last_completed_step: int = -1
    last_checkpoint_id: str | None = None
    head_group_id: str | None = None
    """The group whose content the sandboxes had when we last looked."""
    version: int = 0
    """Counts commits on this plan; `history` keeps what each of them changed."""
    view_mark: int = 0
    """Names the current view (steps done, decisions in force); equal marks mean equal views."""
    actor_state: Any = None
    error: Failure | None = None
    result: dict[str, Any] | None = None
    created_at: str
    updated_at: str

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class StepState(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETE = "complete"
    ERRORED = "errored"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    step_id: str
    index: int
    tool: str
    resource: str | None
    state: StepState = StepState.QUEUED
    attempts: int = 0
    decision_id: str | None = None
    error: str | None = None
    spec: dict[str, Any] = {}
    """The step as the plan file or the actor gave it."""

    @property
    def done(self) -> bool:
        return self.state is StepState.COMPLETE
