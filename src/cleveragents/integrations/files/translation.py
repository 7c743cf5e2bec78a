"""Shared by adapters whose payloads and session files differ only in keys.

An adapter says what its agent's events mean, and where its payloads have things.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cleveragents.integrations.agent import Agent, resume
from cleveragents.integrations.events import (
    Answer,
    Event,
    Prompt,
    Quiet,
    SessionEnded,
    SessionStarted,
    StepBegins,
    StepEnded,
)
from cleveragents.integrations.files.payload import items, mapping, text
from cleveragents.model.conversation import Anchor, Conversation

Readers = Mapping[str, Callable[[dict[str, Any], Anchor], Event | tuple[Event, ...]]]
"""An agent's word for an event -> how it is read."""
_OUTPUT = "hookSpecificOutput"


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's own tools, and where its payloads name them."""

    reads: frozenset[str]
    """Tools that change no file themselves; what a sub-agent writes is in its own calls."""
    writes: frozenset[str]
    outside: frozenset[str]
    """Those of both that can act on the world outside; any other tool may."""
    name: str = "tool_name"
    inputs: str = "tool_input"

    def begins(self, payload: dict[str, Any], anchor: Anchor, parent: str = "") -> StepBegins:
        tool = text(payload, self.name)
        writes = True if tool in self.writes else False if tool in self.reads else None
        return StepBegins(
            anchor=anchor,
            cwd=text(payload, "cwd"),
            call=anchor.call_id,
            tool=tool,
            inputs=mapping(payload, self.inputs),
            writes=writes,
            network=writes is None or tool in self.outside,
            parent_call=parent,
        )


def event_of(payload: dict[str, Any], event: str) -> str:
    """The event that the payload names, else the hook command's."""
    return text(payload, "hook_event_name") or event


def events_in(
    payload: dict[str, Any], event: str, readers: Readers, anchor: Callable[[Any], Anchor]
) -> tuple[Event, ...]:
    read = readers.get(event)
    found = read(payload, anchor(payload)) if read else ()
    return found if isinstance(found, tuple) else (found,)


class NamesItsEvents:
    """An agent whose payloads name the event, and that takes answers in Claude Code's keys."""

    def __init__(
        self, readers: Readers, speaks: frozenset[str], anchor: Callable[[dict[str, Any]], Anchor]
    ) -> None:
        self._readers = readers
        self._speaks = speaks
        """Events at which it takes words into its conversation."""
        self._anchor = anchor

    def read(self, payload: dict[str, Any], event: str) -> tuple[Event, ...]:
        return events_in(payload, event_of(payload, event), self._readers, self._anchor)

    def answer(self, payload: dict[str, Any], event: str, answer: Answer) -> str:
        event = event_of(payload, event)
        return answered(event, answer, self._speaks, self.denied(event, answer))

    def interrupted(self, records: Sequence[dict[str, Any]]) -> frozenset[str]:
        """None: its hooks tell."""
        del records
        return frozenset()

    def denied(self, event: str, answer: Answer) -> dict[str, Any]:
        """Keys that keep the tool from running; none if it may run."""
        if not answer.refuse or event != "PreToolUse":
            return {}
        reason = {"permissionDecision": "deny", "permissionDecisionReason": answer.refuse}
        return {_OUTPUT: {"hookEventName": event, **reason}}


def started(payload: dict[str, Any], anchor: Anchor) -> Event:
    source = text(payload, "source") or "startup"
    return SessionStarted(anchor=anchor, cwd=text(payload, "cwd"), source=source)


def prompt(payload: dict[str, Any], anchor: Anchor) -> Event:
    return Prompt(anchor=anchor, cwd=text(payload, "cwd"), text=text(payload, "prompt"))


def failed(payload: dict[str, Any], anchor: Anchor) -> Event:
    error = text(payload, "error") or "failed"
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=False, error=error)


def quiet(payload: dict[str, Any], anchor: Anchor) -> Event:
    tasks = items(payload, "background_tasks")
    running = tuple(text(task, "id") for task in tasks if text(task, "status") == "running")
    return Quiet(anchor=anchor, said=text(payload, "last_assistant_message"), background=running)


def over(payload: dict[str, Any], anchor: Anchor) -> Event:
    return SessionEnded(anchor=anchor, reason=text(payload, "reason"))


def answered(event: str, answer: Answer, speaks: frozenset[str], denied: dict[str, Any]) -> str:
    """The output of a hook; `speaks`: events whose text goes into the conversation."""
    said = dict(denied)
    if not denied and answer.context and event in speaks:
        said[_OUTPUT] = {"hookEventName": event, "additionalContext": answer.context}
    if answer.notice:
        said["systemMessage"] = answer.notice
    return json.dumps(said) if said else ""


def call_without_id(tool: str, inputs: Any) -> str:
    """An id made of tool and input, for calls without one."""
    import hashlib

    whole = json.dumps(inputs, sort_keys=True).encode()
    return f"{tool}:{hashlib.sha256(whole).hexdigest()[:16]}" if tool else ""


def new_session() -> str:
    """A new session id."""
    from uuid import uuid4

    return str(uuid4())


def forked(agent: Agent, anchor: Anchor, new: str, is_said: bool) -> Conversation:
    """The fork of a session under a new id; if nothing was said yet, only the id."""
    return Conversation(
        agent=agent.name,
        session_id=new,
        forked_from=anchor.session_id,
        continue_=resume(agent.name, new) if is_said else (agent.command, "--session-id", new),
    )
