"""Where an agent's own conversation stood at some moment, and one that goes on from there."""

from enum import StrEnum
from typing import Any

import msgspec

from cleveragents import codec


class Anchor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The raw ids that an agent gave; "" if it did not. Nothing else of a transcript is kept.

    They are stored with each group and understood only when one goes back: while a hook runs the
    tool's result is not yet in the transcript.
    """

    agent: str
    version: str = ""
    session_id: str = ""
    transcript: str = ""
    """A path of the agent's own; it may hold secrets, so it is named and never copied."""
    prompt_id: str = ""
    turn_id: str = ""
    call_id: str = ""
    message_id: str = ""


class Point(StrEnum):
    """Which side of what an anchor names."""

    BEFORE = "before"
    AFTER = "after"


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of the agent's that can be continued."""

    agent: str
    session_id: str
    forked_from: str = ""
    """The session it was made from; that one is never changed."""
    continue_: tuple[str, ...] = msgspec.field(default=(), name="continue")
    """What to run to go on in it."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `sessions`: a conversation of an agent's and the plan that follows it."""

    session_id: str
    agent: str
    plan_id: str
    forked_from: str = ""
    pid: int = 0
    """The agent's process; 0 if nobody knows it."""
    started: str = ""
    """When that process began, in the kernel's ticks: pids are used again."""
    background: tuple[str, ...] = ()
    """What the agent had left running when it last fell quiet."""
    created_at: str


def state_at(anchor: Anchor, point: Point = Point.AFTER) -> dict[str, Any]:
    """An anchor as a plan and its groups keep it."""
    kept: dict[str, Any] = msgspec.to_builtins(anchor)
    return {**kept, "point": str(point)} if point is Point.BEFORE else kept


def anchor_in(state: Any) -> tuple[Anchor, Point] | None:
    """The anchor that a plan or a group keeps; None if its actor keeps something else."""
    if not isinstance(state, dict) or "agent" not in state:
        return None
    try:
        anchor = codec.convert(state, Anchor)  # pyright: ignore[reportUnknownArgumentType]
        return anchor, Point(state.get("point", Point.AFTER))  # pyright: ignore
    except (msgspec.ValidationError, ValueError):
        return None
