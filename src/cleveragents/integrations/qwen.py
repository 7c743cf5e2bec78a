"""Qwen Code: hooks as Claude Code has them, tools as Gemini CLI has them, sessions of its own.

A session is a file of JSON lines in order. Calls have the model's own ids there; prompts have no
lasting id, so a prompt is found by the time of its event.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cleveragents.integrations import gemini
from cleveragents.integrations.agent import Launch, SettingsChange
from cleveragents.integrations.claude_code import SPEAKS, ClaudeCode
from cleveragents.integrations.events import Event, StepEnded
from cleveragents.integrations.files.payload import items, mapping, shown, text
from cleveragents.integrations.files.session_files import (
    chained,
    next_prompt,
    not_in_it,
    not_understood,
    read_records,
    write_copy,
)
from cleveragents.integrations.files.settings_files import (
    home_with_hooks,
    named_entries,
    with_hooks,
)
from cleveragents.integrations.files.translation import (
    Readers,
    Tools,
    failed,
    forked,
    new_session,
    over,
    prompt,
    quiet,
    started,
)
from cleveragents.model.conversation import Anchor, Conversation, Point

TOOLS = Tools(
    reads=gemini.TOOLS.reads
    | {"todo_write", "exit_plan_mode", "skill", "agent", "task", "tool_search"},
    writes=frozenset({"write_file", "edit", "notebook_edit"}),
    outside=gemini.TOOLS.outside,
)
PASS_ENV = ("QWEN_*", "OPENAI_*", "DASHSCOPE_*", "ANTHROPIC_*", "GEMINI_*", "GOOGLE_*")
_HOME, _OWN_HOME, _SETTINGS = "QWEN_HOME", "qwen-home", "settings.json"
_STATE = ("projects", "tmp")
_CALL, _RESULT = "functionCall", "functionResponse"


class Qwen(ClaudeCode):
    """Answers hooks and resumes like Claude Code."""

    name = "qwen"
    command = "qwen"
    tested: tuple[str, ...] = ("0.24.4",)

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        folder = home if scope == "user" else project
        path = os.path.join(folder, ".qwen", _SETTINGS)
        return (with_hooks(path, None if hook is None else _entries(hook)),)

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        real = os.environ.get(_HOME) or os.path.expanduser("~/.qwen")
        home = os.path.join(private_dir, _OWN_HOME)
        home_with_hooks(_SETTINGS, real, home, _STATE, _entries(hook))
        return Launch(argv=tuple(argv), env={_HOME: home}, pass_env=PASS_ENV, state=(real, home))

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """Copy the session file up to the anchor; no program runs and no model is asked."""
        del env
        new = new_session()
        kept = cut(read_records(anchor.transcript), anchor, point) if anchor.turn_id else []
        write_copy(anchor.transcript, new, kept)
        return forked(self, anchor, new, bool(kept))


def _anchor(payload: dict[str, Any]) -> Anchor:
    """The anchor; `turn_id` is the event's time, the earliest for a session's start."""
    path = text(payload, "transcript_path")
    started = text(payload, "hook_event_name") == "SessionStart"
    return Anchor(
        agent=Qwen.name,
        session_id=text(payload, "session_id"),
        transcript=os.path.realpath(path) if f"/{_OWN_HOME}/" in path else path,
        turn_id="" if started else text(payload, "timestamp"),
        call_id=text(payload, "tool_call_id") or text(payload, "tool_use_id"),
    )


def _prompt(payload: dict[str, Any], anchor: Anchor) -> Event | tuple[Event, ...]:
    """A prompt event; Qwen also calls this hook without text whenever it asks the model again."""
    return prompt(payload, anchor) if text(payload, "prompt") else ()


def _ended(payload: dict[str, Any], anchor: Anchor) -> Event:
    output = shown(mapping(payload, "tool_response").get("llmContent"))
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=True, output=output)


READERS: Readers = {
    "SessionStart": started,
    "UserPromptSubmit": _prompt,
    "PreToolUse": TOOLS.begins,
    "PostToolUse": _ended,
    "PostToolUseFailure": failed,
    "Stop": quiet,
    "SessionEnd": over,
}


def _entries(hook: Sequence[str]) -> dict[str, Any]:
    return named_entries(READERS, hook)


def cut(records: list[dict[str, Any]], anchor: Anchor, point: Point) -> list[dict[str, Any]]:
    """The records that lead to a point, each linked to the one before; [] if nothing was said."""
    path = anchor.transcript
    if not all(text(one, "uuid") and text(one, "timestamp") for one in records):
        raise not_understood(path, "a record has no id or no time")
    kept = [one for one in records if text(one, "subtype") != "ui_telemetry"]
    if anchor.call_id:
        kept = _until_call(kept, anchor, point)
    else:
        kept = kept[: next_prompt(kept, "user", anchor.turn_id)]
    linked = chained(kept, "uuid", "parentUuid")
    return linked if any(text(one, "type") == "user" for one in linked) else []


def _until_call(
    records: list[dict[str, Any]], anchor: Anchor, point: Point
) -> list[dict[str, Any]]:
    """Keep only the calls up to the anchor, with their results, in the message that made them."""
    at = next((n for n, one in enumerate(records) if anchor.call_id in _ids(one, _CALL)), None)
    if at is None:
        raise not_in_it(anchor.transcript, f"call {anchor.call_id}")
    asked = _ids(records[at], _CALL)
    made = asked[: asked.index(anchor.call_id) + (point is Point.AFTER)]
    if not made:
        return records[:at]
    results = [one for one in records[at + 1 :] if not set(made).isdisjoint(_ids(one, _RESULT))]
    if len(results) < len(made):
        raise not_in_it(anchor.transcript, f"the result of call {anchor.call_id}")
    return [*records[:at], _with_calls(records[at], made), *results]


def _with_calls(record: dict[str, Any], made: list[str]) -> dict[str, Any]:
    message = mapping(record, "message")
    parts = [
        part
        for part in items(message, "parts")
        if _CALL not in part or text(part, _CALL, "id") in made
    ]
    return {**record, "message": {**message, "parts": parts}}


def _ids(record: dict[str, Any], kind: str) -> list[str]:
    parts = items(mapping(record, "message"), "parts")
    return [own for part in parts if (own := text(part, kind, "id"))]


AGENT = Qwen(READERS, SPEAKS, _anchor)
