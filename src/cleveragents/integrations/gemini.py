"""Gemini CLI: hooks from a settings file, sessions as files of JSON lines that are replayed.

It gives calls no ids, so a call is identified by tool and input; it runs shells in parallel. Points
are found again by time: every event and every message has one.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cleveragents.integrations.agent import Launch, SettingsChange
from cleveragents.integrations.events import Answer, Event, Quiet, StepEnded
from cleveragents.integrations.files.payload import items, mapping, shown, text
from cleveragents.integrations.files.session_files import (
    not_in_it,
    not_understood,
    read_records,
    write_records,
)
from cleveragents.integrations.files.settings_files import (
    home_with_hooks,
    named_entries,
    with_hooks,
)
from cleveragents.integrations.files.translation import (
    NamesItsEvents,
    Readers,
    Tools,
    call_without_id,
    forked,
    new_session,
    over,
    prompt,
    started,
)
from cleveragents.model.conversation import Anchor, Conversation, Point

TOOLS = Tools(
    reads=frozenset(
        {
            *("read_file", "read_many_files", "list_directory", "glob", "grep_search", "web_fetch"),
            *("google_web_search", "update_topic", "list_background_processes", "write_todos"),
            *("read_background_output", "activate_skill", "enter_plan_mode", "ask_user"),
            *("invoke_agent", "search_file_content"),
        }
    ),
    writes=frozenset({"write_file", "replace"}),
    outside=frozenset({"web_fetch", "google_web_search"}),
)
SPEAKS = frozenset({"SessionStart", "BeforeAgent", "AfterTool"})
PASS_ENV = ("GEMINI_*", "GOOGLE_*", "CLOUDSDK_*")
_HOME = "GEMINI_CLI_HOME"
_OWN_HOME = "gemini-home"
_FOLDER, _SETTINGS = ".gemini", "settings.json"
_STATE = ("tmp", "history")
"""Folders with its sessions, which it would otherwise make where they are lost."""
_MESSAGES, _SET, _REWIND, _RESPONSE = "messages", "$set", "$rewindTo", "functionResponse"
_EXIT = re.compile(r"^Exit Code: (\d+)$", re.MULTILINE)


class Gemini(NamesItsEvents):
    name = "gemini"
    command = "gemini"
    tested: tuple[str, ...] = ("0.61.0",)

    def denied(self, event: str, answer: Answer) -> dict[str, Any]:
        refused = answer.refuse and event == "BeforeTool"
        return {"decision": "deny", "reason": answer.refuse} if refused else {}

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        folder = home if scope == "user" else project
        path = os.path.join(folder, _FOLDER, _SETTINGS)
        return (with_hooks(path, None if hook is None else _entries(hook)),)

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        real = os.path.join(os.environ.get(_HOME) or os.path.expanduser("~"), _FOLDER)
        home = os.path.join(private_dir, _OWN_HOME)
        home_with_hooks(_SETTINGS, real, os.path.join(home, _FOLDER), _STATE, _entries(hook))
        return Launch(argv=tuple(argv), env={_HOME: home}, pass_env=PASS_ENV, state=(real, home))

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """Copy the session file up to the anchor; no program runs and no model is asked."""
        del env
        new = new_session()
        head, kept = ({}, []) if not anchor.turn_id else cut(anchor, point)
        if kept:
            folder, name = os.path.split(anchor.transcript)
            stem = name.removesuffix(".jsonl").rpartition("-")[0]
            path = os.path.join(folder, f"{stem}-{new[:8]}.jsonl")
            write_records(path, [{**head, "sessionId": new}, *kept])
        return forked(self, anchor, new, bool(kept))


def _anchor(payload: dict[str, Any]) -> Anchor:
    """The anchor of a payload; `turn_id` is the event's time, `call_id` stands for an id."""
    return Anchor(
        agent=Gemini.name,
        session_id=text(payload, "session_id"),
        transcript=_real(text(payload, "transcript_path")),
        turn_id=text(payload, "timestamp"),
        call_id=call_without_id(text(payload, "tool_name"), payload.get("tool_input")),
    )


def _real(path: str) -> str:
    """The session's real path: during our runs it is named by a temporary folder."""
    return os.path.realpath(path) if f"/{_OWN_HOME}/" in path else path


def _ended(payload: dict[str, Any], anchor: Anchor) -> Event:
    response = mapping(payload, "tool_response")
    output = shown(response.get("llmContent"))
    code = _EXIT.search(output)
    error = shown(response.get("error")) or (f"exit code {code.group(1)}" if code else "")
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=not error, output=output, error=error)


def _quiet(payload: dict[str, Any], anchor: Anchor) -> Event:
    return Quiet(anchor=anchor, said=text(payload, "prompt_response"))


READERS: Readers = {
    "SessionStart": started,
    "BeforeAgent": prompt,
    "BeforeTool": TOOLS.begins,
    "AfterTool": _ended,
    "AfterAgent": _quiet,
    "SessionEnd": over,
}


def _entries(hook: Sequence[str]) -> dict[str, Any]:
    return named_entries(READERS, hook)


def cut(anchor: Anchor, point: Point) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the messages that lead to a point; no messages if nothing was said.

    The file is a log, replayed up to the moment: when a session is resumed, all of its messages are
    written again with new times.
    """
    path = anchor.transcript
    records = read_records(path)
    end = next((n for n, one in enumerate(records) if _moment(one) > anchor.turn_id), len(records))
    if anchor.call_id and point is Point.AFTER:
        end = _end_of_call(records, end, anchor)
    head, messages = replayed(records[:end], path)
    if anchor.call_id and point is Point.BEFORE and text(messages[-1], "type") == "gemini":
        messages.pop()  # it asks for the call
    said = any(text(one, "type") == "user" and not _is_context(one) for one in messages)
    return head, _each_result_once(messages) if said else []


def _moment(record: dict[str, Any]) -> str:
    times = [text(call, "timestamp") for call in items(record, "toolCalls")]
    return max(text(record, "timestamp"), text(record, _SET, "lastUpdated"), *times, "")


def _end_of_call(records: list[dict[str, Any]], start: int, anchor: Anchor) -> int:
    """The position after the results, written when all calls of one message have ended."""
    tool = anchor.call_id.partition(":")[0]
    asked = False
    for number, record in enumerate(records[start:], start):
        if _MESSAGES in mapping(record, _SET):
            break
        asked = asked or any(text(call, "name") == tool for call in items(record, "toolCalls"))
        if asked and _results(record):
            return number + 1
    raise not_in_it(anchor.transcript, f"the result of {tool} at {anchor.turn_id}")


def _results(message: dict[str, Any]) -> set[str]:
    parts = items(message, "content")
    return {text(mapping(part, _RESPONSE), "id") for part in parts if _RESPONSE in part}


def _each_result_once(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop doubled results, which are beside their calls and in a message of their own."""
    known: set[str] = set()
    kept: list[dict[str, Any]] = []
    for message in messages:
        known |= {text(c, "id") for c in items(message, "toolCalls") if c.get("result")}
        results = _results(message)
        if not results or not results <= known:
            kept.append(message)
        known |= results
    return kept


def _is_context(message: dict[str, Any]) -> bool:
    """Whether a message is the agent's own introduction of the machine."""
    parts = items(message, "content")
    return any(text(part, "text").startswith("<session_context>") for part in parts)


def replayed(
    records: list[dict[str, Any]], path: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and messages of a replayed session file; later records replace earlier."""
    head: dict[str, Any] = {}
    messages: dict[str, dict[str, Any]] = {}
    for record in records:
        if _SET in record:
            change = mapping(record, _SET)
            if _MESSAGES in change:
                messages = {text(one, "id"): one for one in items(change, _MESSAGES)}
            head |= {key: value for key, value in change.items() if key != _MESSAGES}
        elif _REWIND in record:
            ids = list(messages)
            if record[_REWIND] in messages:
                for own in ids[ids.index(record[_REWIND]) :]:
                    del messages[own]
        elif "sessionId" in record:
            head |= record
        elif text(record, "id") and text(record, "timestamp"):
            messages[text(record, "id")] = record
        else:
            raise not_understood(path, "a message has no id or no time")
    if not head or not messages:
        raise not_understood(path, "it has no header or no messages")
    return head, list(messages.values())


AGENT = Gemini(READERS, SPEAKS, _anchor)
