"""The plan's decision tree: what was asked, what was chosen, and what else might have been."""

from enum import StrEnum
from typing import Any

import msgspec


class DecisionKind(StrEnum):
    ROOT = "root"
    STEP = "step"
    ACTOR = "actor"
    USER_INTERVENTION = "user_intervention"
    REVERSION = "reversion"


GUIDES = frozenset({DecisionKind.USER_INTERVENTION, DecisionKind.REVERSION})
"""Kinds whose choice is a text for the next one to decide."""


class DecisionState(StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    decision_id: str
    plan_id: str
    kind: DecisionKind
    question: str
    chosen: str
    alternatives: tuple[str, ...] = ()
    rationale: str = ""
    confidence: float | None = None
    context: str = ""
    parent_id: str | None = None
    influences: tuple[str, ...] = ()
    phase: str = "execute"
    step_id: str | None = None
    attempt: int = 1
    state: DecisionState = DecisionState.ACTIVE
    created_at: str

    def superseded(self) -> "Decision":
        return msgspec.structs.replace(self, state=DecisionState.SUPERSEDED)


class CorrectionMode(StrEnum):
    REVERT = "revert"
    APPEND = "append"


class CorrectionState(StrEnum):
    PREPARED = "prepared"
    RESTORED = "restored"
    COMPLETE = "complete"
    ERRORED = "errored"


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `correction_attempts`: what was corrected, and what it had been."""

    correction_id: str
    plan_id: str
    decision_id: str
    mode: CorrectionMode
    guidance: str
    attempt: int
    state: CorrectionState = CorrectionState.PREPARED
    affected: tuple[str, ...] = ()
    """The decisions that went with it."""
    snapshot: dict[str, Any] = {}
    """Their rows, their steps and what they had written, as they were."""
    before_group_id: str | None = None
    """The old attempt's state."""
    group_id: str | None = None
    """What was left of it when the set was rolled back."""
    after_group_id: str | None = None
    """The new attempt's state."""
    child_plan_id: str | None = None
    created_at: str
    ended_at: str | None = None
