"""The plan's decision tree: what was asked, what was chosen, and what else might have been."""

from enum import StrEnum

import msgspec


class DecisionKind(StrEnum):
    ROOT = "root"
    STEP = "step"
    ACTOR = "actor"
    USER_INTERVENTION = "user_intervention"
    REVERSION = "reversion"


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
