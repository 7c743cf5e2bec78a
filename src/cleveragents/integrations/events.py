"""The events of a working agent, the same for every agent."""

import os
import re
from typing import Any

import msgspec

from cleveragents.model.conversation import Anchor

LARGEST_INPUTS = 16 << 10
LARGEST_OUTPUT = 64 << 10
LARGEST_PROMPT = 64 << 10
_SHORTEST = 64
"""No text of a tool's inputs is cut below this, however many there are."""


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    anchor: Anchor
    cwd: str
    source: str = "startup"
    """How it began, in the agent's word: startup, resume, fork, compact, ..."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """A prompt by a person, or for a sub-agent."""

    anchor: Anchor
    cwd: str
    text: str
    parent_call: str = ""
    """The call whose sub-agent is asked, or the sub-agent's own id; "" for the person's words."""


class StepBegins(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    anchor: Anchor
    cwd: str
    call: str
    """Names the call within its session."""
    tool: str
    inputs: dict[str, Any]
    writes: bool | None = None
    """Whether the tool may change files; None: nobody knows."""
    network: bool | None = None
    """Whether it can act on the world outside; None: what its inputs are called tells."""
    parent_call: str = ""
    """The sub-agent that makes it, by the call that started it or by its own id."""


class StepEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    anchor: Anchor
    call: str
    ok: bool
    output: str = ""
    error: str = ""


class Quiet(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """No tool call is open: conversation and files match."""

    anchor: Anchor
    said: str = ""
    """The agent's last words."""
    background: tuple[str, ...] = ()
    """What it left running."""


class SessionEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    anchor: Anchor
    reason: str = ""


Event = SessionStarted | Prompt | StepBegins | StepEnded | Quiet | SessionEnded


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Our answer to the agent; an adapter puts it into the agent's own keys."""

    context: str = ""
    """For the agent: it becomes part of its conversation."""
    notice: str = ""
    """For the person, where the agent can show it."""
    refuse: str = ""
    """Why the tool must not run; only with `session.fail-closed`."""


_NAMES = ("file_path", "filePath", "path", "notebook_path", "absolute_path")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.MULTILINE)


def named_paths(inputs: dict[str, Any], cwd: str) -> tuple[str, ...]:
    """The absolute paths that an editing tool names; none if it names none."""
    texts = {name: value for name, value in inputs.items() if isinstance(value, str)}
    found = [texts[name] for name in _NAMES if texts.get(name)]
    if not found:
        found = [path for value in texts.values() for path in _PATCHED.findall(value)]
    return tuple(dict.fromkeys(os.path.normpath(os.path.join(cwd, path)) for path in found))


OWN_TOOLS = re.compile(
    r"(?:.*[^a-z]|.*agents)?(?:checkpoint_(?:create|list|diff)|plan_(?:status|rollback|undo)"
    r"|record_decision)"
)
"""The tools of `agents mcp`, whatever an agent puts in front: no steps, and the plan stays free."""


def bounded(text: str, limit: int) -> str:
    """At most `limit` characters: the beginning, the end and the full length."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text)} characters) ...\n{text[-half:]}"


def bounded_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """A tool's inputs for the record: long texts are cut until everything fits."""
    longest = LARGEST_INPUTS // 2
    kept = inputs
    while len(msgspec.json.encode(kept)) > LARGEST_INPUTS:
        if longest < _SHORTEST:
            return {"inputs": bounded(msgspec.json.encode(inputs).decode(), LARGEST_INPUTS // 2)}
        kept = {name: _cut(value, longest) for name, value in inputs.items()}
        longest //= 2
    return kept


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return bounded(value, longest)
    if isinstance(value, dict):
        items: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {key: _cut(item, longest) for key, item in items.items()}
    if isinstance(value, list):
        found: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [_cut(item, longest) for item in found]
    return value
