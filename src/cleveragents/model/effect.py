"""What a call did outside the sandboxes, as the ledger has it: noted before the call is made."""

import re
from enum import StrEnum
from typing import Any

import msgspec


class EffectClass(StrEnum):
    COMPENSABLE = "compensable"
    IRREVERSIBLE = "irreversible"
    UNKNOWN = "unknown"
    """The step had network, or its tool is unsafe, and declared nothing."""


class EffectState(StrEnum):
    INTENDED = "intended"
    """The call was about to be made: it may have happened."""
    HAPPENED = "happened"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    FAILED = "failed"
    """Its compensation failed."""
    ACCEPTED = "accepted"
    """Somebody rolled back past it, and was told that it cannot be undone."""
    LOST = "lost"
    """The plan rolled back past it by its policy; nobody was asked."""


STANDING = (EffectState.INTENDED, EffectState.HAPPENED, EffectState.FAILED)
"""What the world still has of it belongs to what the plan counts as done."""


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
    seq: int = 0
    """Given by the store: which of two came first, also between plans."""


_NUMBERED = re.compile(r"(\D*)(\d*)")


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollback means for the world outside."""

    compensable: tuple[Effect, ...] = ()
    """Will be compensated, in this order: the last that happened first."""
    irreversible: tuple[Effect, ...] = ()
    unknown: tuple[Effect, ...] = ()
    returning: tuple[Effect, ...] = ()
    """The plan rolled back past it and now counts it as done again; it never went away."""
    not_repeated: tuple[Effect, ...] = ()
    """Was compensated, and its step counts as done again."""

    @property
    def unknown_steps(self) -> list[str]:
        """Those of which nobody knows what they did outside; `s2` stands before `s10`."""

        def place(name: str) -> list[tuple[str, int]]:
            return [(text, int(number or 0)) for text, number in _NUMBERED.findall(name)]

        return sorted({effect.step_id for effect in self.unknown}, key=place)

    @property
    def discarded(self) -> tuple[Effect, ...]:
        return (*self.compensable, *self.irreversible, *self.unknown)
