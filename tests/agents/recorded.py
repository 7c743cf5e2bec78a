"""What real agents sent to their hooks, and what an adapter makes of it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from cleveragents.integrations.agent import Agent
from cleveragents.integrations.events import Event
from cleveragents.model.conversation import Anchor, Conversation

PAYLOADS = Path(__file__).with_name("payloads")


@cache
def rows(agent: str, scenario: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((PAYLOADS / agent / f"{scenario}.json").read_text()))


def events(agent: Agent, scenario: str) -> list[Event]:
    found = rows(agent.name, scenario)
    return [e for row in found for e in agent.read(row["payload"], row["event"])]


def anchors(agent: Agent, kind: type, scenario: str = "edit") -> list[Anchor]:
    """Where the events of a kind stood in the conversation."""
    return [event.anchor for event in of_type(events(agent, scenario), kind)]


def session_file(path: Path, agent: Agent) -> Path:
    """What the agent itself kept of that session."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(agent.name, "session")))
    return path


def is_resumed(agent: Agent, made: Conversation, forked_from: str) -> bool:
    """Whether a fork has words in it; else only its new name is given to the agent."""
    assert made.forked_from == forked_from
    word = made.continue_[1]
    assert made.continue_ == (agent.command, word, made.session_id)
    assert word in ("--resume", "--session-id")
    return word == "--resume"


def kinds(found: list[Event]) -> list[str]:
    return [type(event).__name__ for event in found]


def of_type(found: list[Event], *wanted: type) -> list[Any]:
    return [event for event in found if isinstance(event, wanted)]


HOSTILE: tuple[dict[str, Any], ...] = (
    {},
    {"hook_event_name": 7},
    {"hook_event_name": "NeverHeardOf"},
    *(
        {"hook_event_name": name, "tool_input": [1], "tool_response": 3, "background_tasks": "x"}
        for name in ("PreToolUse", "PostToolUse", "Stop", "BeforeTool", "AfterTool", "AfterAgent")
    ),
    {"hook_event_name": "PostToolBatch", "tool_calls": [None, 1, {"tool_use_id": 5}]},
    {"session_id": {"a": 1}, "cwd": None, "prompt": 4, "hook_event_name": "UserPromptSubmit"},
    {"hook_event_name": "PreToolUse", "tool_input": {"x": "y" * 1_000_000}},
)
"""Payloads that no agent should send and any may: an adapter reads them and does not raise."""
