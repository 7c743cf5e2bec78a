"""Copilot CLI: hooks from a file of their own, sessions as folders with a log of events.

It gives calls no ids, so a call is identified by tool and input, and found again by the time of its
event. The calls of one answer run in parallel and belong together.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cleveragents.content import fsio
from cleveragents.errors import ConversationError
from cleveragents.integrations.agent import Launch, SettingsChange
from cleveragents.integrations.events import Answer, Event, StepEnded
from cleveragents.integrations.files.payload import items, mapping, shown, text
from cleveragents.integrations.files.session_files import (
    FILES_ONLY,
    chained,
    next_prompt,
    not_in_it,
    not_understood,
    read_records,
    write_records,
)
from cleveragents.integrations.files.settings_files import (
    TIMEOUT,
    link_settings,
    shell_command,
    with_hooks,
)
from cleveragents.integrations.files.translation import (
    Readers,
    Tools,
    call_without_id,
    events_in,
    forked,
    new_session,
    over,
    prompt,
    quiet,
    started,
)
from cleveragents.model.conversation import Anchor, Conversation, Point

TOOLS = Tools(
    reads=frozenset(
        {
            *("view", "grep", "glob", "read_bash", "list_bash", "stop_bash", "skill", "task"),
            *("sql", "session_store_sql", "read_agent", "list_agents", "write_agent"),
            *("fetch_copilot_cli_documentation", "web_fetch", "web_search", "report_intent"),
        }
    ),
    writes=frozenset({"create", "edit", "apply_patch", "str_replace_editor"}),
    outside=frozenset({"web_fetch", "web_search"}),
    name="toolName",
    inputs="toolArgs",
)
SPEAKS = frozenset({"sessionStart", "userPromptSubmitted", "postToolUse"})
PASS_ENV = ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN", "GH_HOST")
_HOME, _OWN_HOME, _HOOKS, _FILE = "COPILOT_HOME", "copilot-home", "hooks", "cleveragents.json"
_STATE = ("session-state", "logs")
_LOG, _WORKSPACE = "events.jsonl", "workspace.yaml"
_NOT_SAID = ("hook.", "session.usage_record", "session.shutdown", "session.resume")
_ASKS, _ENDED = "assistant.message", "tool.execution_complete"
_EXIT = re.compile(r"completed with exit code ([1-9]\d*)>")


class Copilot:
    name = "copilot"
    command = "copilot"
    tested: tuple[str, ...] = ("1.0.102",)

    def read(self, payload: dict[str, Any], event: str) -> tuple[Event, ...]:
        return events_in(payload, event, READERS, _anchor)

    def answer(self, payload: dict[str, Any], event: str, answer: Answer) -> str:
        del payload
        if answer.refuse and event == "preToolUse":
            denied = {"permissionDecision": "deny", "permissionDecisionReason": answer.refuse}
            return json.dumps(denied)
        if answer.context and event in SPEAKS:
            return json.dumps({"additionalContext": answer.context})
        return ""

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        folder = f"{home}/.copilot" if scope == "user" else f"{project}/.github"
        path = os.path.join(folder, _HOOKS, _FILE)
        return (with_hooks(path, None if hook is None else _entries(hook), {"version": 1}),)

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        real, home = _home(os.environ), os.path.join(private_dir, _OWN_HOME)
        link_settings(_HOOKS, real, home, _STATE)
        own = os.path.join(home, _HOOKS)
        os.makedirs(os.path.join(real, _HOOKS), exist_ok=True)
        link_settings(_FILE, os.path.join(real, _HOOKS), own, ())
        with open(os.path.join(own, _FILE), "w", encoding="utf-8") as file:
            lists = {event: [entry] for event, entry in _entries(hook).items()}
            json.dump({"version": 1, "hooks": lists}, file)
        return Launch(argv=tuple(argv), env={_HOME: home}, pass_env=PASS_ENV, state=(real, home))

    def interrupted(self, records: Sequence[dict[str, Any]]) -> frozenset[str]:
        """None: its hooks tell."""
        del records
        return frozenset()

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """Copy the session's folder with the log up to the anchor; no model is asked."""
        new = new_session()
        folder = os.path.join(_home(env), _STATE[0])
        path = os.path.join(folder, anchor.session_id, _LOG)
        kept = cut(read_records(path), path, anchor, point) if anchor.turn_id else []
        if kept:
            _write(os.path.join(folder, new), kept, new, os.path.dirname(path))
        return forked(self, anchor, new, bool(kept))


def _home(env: Mapping[str, str]) -> str:
    return env.get(_HOME) or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".copilot")


def _anchor(payload: dict[str, Any]) -> Anchor:
    """The anchor of a payload; `turn_id` is the event's time, `call_id` stands for an id."""
    session = text(payload, "sessionId")
    call = call_without_id(text(payload, "toolName"), payload.get("toolArgs"))
    return Anchor(agent=Copilot.name, session_id=session, turn_id=_moment(payload), call_id=call)


def _moment(payload: dict[str, Any]) -> str:
    """The event's time in the log's format, to compare as text."""
    at = payload.get("timestamp")
    if not isinstance(at, int) or not 0 <= at < 1 << 47:
        return ""
    whole = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{at % 1000:03d}Z"


def _ended(payload: dict[str, Any], anchor: Anchor) -> Event:
    result = mapping(payload, "toolResult")
    output = shown(result.get("textResultForLlm"))
    code = _EXIT.search(output)
    failed = text(result, "resultType") not in {"", "success"}
    error = f"exit code {code[1]}" if code else output or "failed" if failed else ""
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=not error, output=output, error=error)


def _failed(payload: dict[str, Any], anchor: Anchor) -> Event:
    error = shown(payload.get("error")) or "failed"
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=False, error=error)


READERS: Readers = {
    "sessionStart": started,
    "userPromptSubmitted": prompt,
    "preToolUse": TOOLS.begins,
    "postToolUse": _ended,
    "postToolUseFailure": _failed,
    "agentStop": quiet,
    "sessionEnd": over,
}


def _entries(hook: Sequence[str]) -> dict[str, Any]:
    return {
        event: {"type": "command", "bash": shell_command(hook, event), "timeoutSec": TIMEOUT}
        for event in READERS
    }


def cut(
    records: list[dict[str, Any]], path: str, anchor: Anchor, point: Point
) -> list[dict[str, Any]]:
    """The events that lead to a point, each linked to the one before; [] if nothing was said."""
    if not records or text(records[0], "type") != "session.start":
        raise not_understood(path, "it does not begin with the start of a session")
    if not all(text(one, "id") and text(one, "timestamp") for one in records):
        raise not_understood(path, "an event has no id or no time")
    said = [one for one in records if not text(one, "type").startswith(_NOT_SAID)]
    kept = said[: _end(said, path, anchor, point)]
    linked = chained(kept, "id", "parentId")
    return linked if any(text(one, "type") == "user.message" for one in linked) else []


def _end(said: list[dict[str, Any]], path: str, anchor: Anchor, point: Point) -> int:
    if not anchor.call_id:
        return next_prompt(said, "user.message", anchor.turn_id)
    asked = [n for n, one in enumerate(said) if _asks_for(one, anchor)]
    if not asked:
        raise not_in_it(path, f"call {anchor.call_id.partition(':')[0]} at {anchor.turn_id}")
    if point is Point.BEFORE:
        before = said[asked[-1] - 1]
        return asked[-1] - (text(before, "type") == "assistant.turn_start")
    waiting = {text(call, "toolCallId") for call in _requests(said[asked[-1]])}
    for number, one in enumerate(said[asked[-1] :], asked[-1]):
        if text(one, "type") == _ENDED:
            waiting.discard(text(one, "data", "toolCallId"))
        if not waiting:
            return number + 1
    raise not_in_it(path, f"the result of {anchor.call_id.partition(':')[0]} at {anchor.turn_id}")


def _asks_for(record: dict[str, Any], anchor: Anchor) -> bool:
    if text(record, "type") != _ASKS or text(record, "timestamp") > anchor.turn_id:
        return False
    calls = _requests(record)
    return any(
        call_without_id(text(c, "name"), c.get("arguments")) == anchor.call_id for c in calls
    )


def _requests(record: dict[str, Any]) -> list[dict[str, Any]]:
    return items(mapping(record, "data"), "toolRequests")


def _write(folder: str, kept: list[dict[str, Any]], session: str, old: str) -> None:
    first = {**kept[0], "data": {**mapping(kept[0], "data"), "sessionId": session}}
    try:
        with open(os.path.join(old, _WORKSPACE), encoding="utf-8") as file:
            about = file.read()
        os.mkdir(folder, 0o700)
        own = re.sub(r"^id: .*$", f"id: {session}", about, flags=re.MULTILINE)
        fsio.write_new(os.path.join(folder, _WORKSPACE), own.encode())
    except OSError as error:
        raise ConversationError(
            f"cannot copy the session folder {old}: {error.strerror}", FILES_ONLY
        ) from None
    write_records(os.path.join(folder, _LOG), [first, *kept[1:]])


AGENT = Copilot()
