"""What a call did outside the sandboxes, as the ledger has it: noted before the call is made."""

from enum import StrEnum
from typing import Any

import msgspec


class EffectClass(StrEnum):
    COMPENSABLE = "compensable"
    IRREVERSIBLE = "irreversible"
    UNKNOWN = "unknown"
    """The step had network and declared nothing."""


class EffectState(StrEnum):
    INTENDED = "intended"
    """The call was about to be made: it may have happened."""
    HAPPENED = "happened"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    FAILED = "failed"
    """Its compensation failed."""
    ACCEPTED = "accepted"
    """Somebody went back over it with --accept-loss."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `effects`."""

    effect_id: str
    plan_id: str
    step_id: str
    call_id: str
    decision_id: str | None
    effect_class: EffectClass
    side_effects: tuple[str, ...]
    tool: str
    inputs: dict[str, Any]
    resource: str | None
    compensate: tuple[str, ...] | str | None
    state: EffectState
    attempts: int = 0
    output: str = ""
    error: str | None = None
    created_at: str
    ended_at: str | None = None
