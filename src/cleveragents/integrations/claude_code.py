"""Claude Code: hooks from a settings file, sessions as files of JSON lines.

It runs tools that write one by one, so every end of a call is a quiet point unless a sub-agent or a
shell continues in the background. A failed call has an event of its own. Calls of sub-agents carry
the sub-agent's id; their conversation is in another file and cannot be cut.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from cleveragents.content import fsio
from cleveragents.errors import ConfigError
from cleveragents.integrations.agent import Launch, SettingsChange
from cleveragents.integrations.events import Event, Prompt, StepEnded
from cleveragents.integrations.files.payload import items, mapping, shown, text
from cleveragents.integrations.files.session_files import (
    inside_sub_agent,
    not_in_it,
    not_understood,
    read_records,
    write_copy,
)
from cleveragents.integrations.files.settings_files import (
    HOOKS,
    TIMEOUT,
    read_settings,
    shell_command,
    with_hooks,
)
from cleveragents.integrations.files.translation import (
    NamesItsEvents,
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
    reads=frozenset(
        {
            *("Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "ToolSearch"),
            *("TodoWrite", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "TaskOutput"),
            *("AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "Skill", "Agent", "Task"),
            *("BashOutput", "ListAgents", "ReportFindings", "ScheduleWakeup"),
        }
    ),
    writes=frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"}),
    outside=frozenset({"WebFetch", "WebSearch"}),
)
SPEAKS = frozenset({"SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure"})
"""Events at which it takes words into its conversation."""
NOT_RUN = "the tool did not run"
_NOTICE = "<task-notification>"
"""What it submits itself when something in the background has ended."""
_SETTINGS, _PROJECTS = "--settings", "projects"
_FOLDER, _MEMORY = "CLAUDE_CONFIG_DIR", ".claude.json"
"""Where it keeps what it asked its person once: whom it trusts, the account, other tools."""


class ClaudeCode(NamesItsEvents):
    name = "claude-code"
    command = "claude"
    tested: tuple[str, ...] = ("2.1.325",)

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        # Our command names this machine's Python, so it must not go into the project's shared file.
        own = ".claude/settings.json" if scope == "user" else ".claude/settings.local.json"
        path = os.path.join(home if scope == "user" else project, own)
        return (with_hooks(path, None if hook is None else _entries(hook)),)

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        rest, settings = _own_settings(list(argv[1:]))
        hooks: dict[str, Any] = dict(mapping(settings, HOOKS))
        for event, entry in _entries(hook).items():
            hooks[event] = [*items(hooks, event), entry]
        path = os.path.join(private_dir, "claude-settings.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**settings, HOOKS: hooks}, file)
        folder = os.environ.get(_FOLDER) or os.path.expanduser("~/.claude")
        if not os.environ.get(_FOLDER):
            _memory_inside(os.path.expanduser(f"~/{_MEMORY}"), os.path.join(folder, _MEMORY))
        return Launch(
            argv=(argv[0], _SETTINGS, path, *rest),
            env={_FOLDER: folder},
            pass_env=PASS_ENV,
            state=(folder,),
        )

    def interrupted(self, records: Sequence[dict[str, Any]]) -> frozenset[str]:
        """It keeps the result of such a call as an error, and calls no hook."""
        parts = [
            part for record in records for part in items(mapping(record, "message"), "content")
        ]
        return frozenset(
            text(part, "tool_use_id")
            for part in parts
            if text(part, "type") == "tool_result" and part.get("is_error") is True
        )

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """Copy the session file up to the anchor; no program runs and no model is asked."""
        del env
        new = new_session()
        said = anchor.prompt_id or anchor.call_id
        kept = cut(read_records(anchor.transcript), anchor, point) if said else []
        write_copy(anchor.transcript, new, kept)
        return forked(self, anchor, new, bool(kept))


PASS_ENV = (
    "ANTHROPIC_*",
    "CLAUDE_*",
    "AWS_*",
    "CLOUD_ML_REGION",
    "VERTEX_*",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "API_TIMEOUT_MS",
    "BASH_*_TIMEOUT_MS",
    "MAX_*_TOKENS",
    "MCP_*",
    "DISABLE_*",
)


def _anchor(payload: dict[str, Any]) -> Anchor:
    """The anchor of a payload; `turn_id` is the sub-agent, whose calls are in another file."""
    return Anchor(
        agent=ClaudeCode.name,
        session_id=text(payload, "session_id"),
        transcript=text(payload, "transcript_path"),
        prompt_id=text(payload, "prompt_id"),
        turn_id=text(payload, "agent_id"),
        call_id=text(payload, "tool_use_id"),
    )


def _prompt(payload: dict[str, Any], anchor: Anchor) -> Event | tuple[Event, ...]:
    if text(payload, "prompt").startswith(_NOTICE):
        return ()
    return prompt(payload, anchor)


def _sub_agent(payload: dict[str, Any], anchor: Anchor) -> Event:
    kind, own = text(payload, "agent_type"), text(payload, "agent_id")
    cwd = text(payload, "cwd")
    return Prompt(anchor=anchor, cwd=cwd, text=f"sub-agent {kind}", parent_call=own)


def _begins(payload: dict[str, Any], anchor: Anchor) -> Event:
    return TOOLS.begins(payload, anchor, parent=text(payload, "agent_id"))


def _ended(payload: dict[str, Any], anchor: Anchor) -> Event:
    response = payload.get("tool_response")
    said = [text(response, name) for name in ("stdout", "stderr")]
    is_shell = isinstance(response, dict) and "stdout" in response
    output = "\n".join(filter(None, said)) if is_shell else shown(response)
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=True, output=output)


def _batch(payload: dict[str, Any], anchor: Anchor) -> tuple[Event, ...]:
    """The end of all parallel calls of one answer, including denied ones."""
    calls = [text(call, "tool_use_id") for call in items(payload, "tool_calls")]
    return tuple(
        StepEnded(anchor=replace(anchor, call_id=call), call=call, ok=False, error=NOT_RUN)
        for call in calls
    )


READERS: Readers = {
    "SessionStart": started,
    "UserPromptSubmit": _prompt,
    "PreToolUse": _begins,
    "PostToolUse": _ended,
    "PostToolUseFailure": failed,
    "PostToolBatch": _batch,
    "SubagentStart": _sub_agent,
    "Stop": quiet,
    "SessionEnd": over,
}


def _entries(hook: Sequence[str]) -> dict[str, Any]:
    entry = {"type": "command", "command": shell_command(hook), "timeout": TIMEOUT}
    return {event: {HOOKS: [entry]} for event in READERS}


def _own_settings(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The command line without `--settings`, and its value: it may be given only once."""
    for at, word in enumerate(argv):
        if word == _SETTINGS and at + 1 < len(argv):
            return [*argv[:at], *argv[at + 2 :]], _settings_in(argv[at + 1])
        if word.startswith(f"{_SETTINGS}="):
            return [*argv[:at], *argv[at + 1 :]], _settings_in(word.partition("=")[2])
    return argv, {}


def _memory_inside(own: str, inside: str) -> None:
    """A copy of its memory in the folder that it may write, for runs in a sandbox.

    It replaces the file as a whole, for which it would need all of the person's home. What it
    learned in a sandbox stays there; where the person's own file is newer, it counts again.
    """
    with suppress(OSError, ValueError, ConfigError):
        known, kept = read_settings(own), read_settings(inside)
        newer = kept is not None and os.stat(inside).st_mtime_ns >= os.stat(own).st_mtime_ns
        if known is None or newer:
            return
        read = {"own": json.loads(known), "kept": json.loads(kept or b"{}")}
        there, before = mapping(read, "own"), mapping(read, "kept")
        projects = {**mapping(before, _PROJECTS), **mapping(there, _PROJECTS)}
        merged = {**before, **there, **({_PROJECTS: projects} if projects else {})}
        os.makedirs(os.path.dirname(inside), mode=0o700, exist_ok=True)
        made = f"{inside}.{new_session()}"
        fsio.write_new(made, json.dumps(merged, indent=2, ensure_ascii=False).encode())
        os.replace(made, inside)


def _settings_in(value: str) -> dict[str, Any]:
    """Settings from a JSON text, or from a file."""
    try:
        if value.lstrip().startswith("{"):
            return json.loads(value)
        with open(value, "rb") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read claude's {_SETTINGS} {value[:80]}: {error}") from None


def cut(records: list[dict[str, Any]], anchor: Anchor, point: Point) -> list[dict[str, Any]]:
    """The records of a session that lead to a point, oldest first; [] if nothing comes before it.

    Records form a tree by `parentUuid`. Results of parallel calls are children of their own calls,
    so the path from the last record misses the others; they are added.
    """
    path = anchor.transcript
    known = {text(record, "uuid"): record for record in records if text(record, "uuid")}
    if not known or not all("sessionId" in record for record in known.values()):
        raise not_understood(path, "it has no messages with a session id")
    at = _end(records, anchor, point)
    kept: set[str] = set()
    while at:
        if at not in known:
            raise not_understood(path, f"message {at} is missing")
        kept.add(at)
        at = text(known[at], "parentUuid") or text(known[at], "logicalParentUuid")
    last = max((n for n, one in enumerate(records) if text(one, "uuid") in kept), default=-1)
    called = {call for own in kept for call in _calls(known[own])}
    return [
        record
        for record in records[: last + 1]
        if text(record, "uuid") in kept
        or (text(record, "uuid") and not called.isdisjoint(_results(record)))
    ]


def _end(records: list[dict[str, Any]], anchor: Anchor, point: Point) -> str:
    """The last message of the conversation at the anchor; "" for none."""
    if anchor.call_id:
        return _end_of_call(records, anchor, point)
    asked = [
        record
        for record in records
        if text(record, "type") == "user"
        and text(record, "promptId") == anchor.prompt_id
        and not _results(record)
    ]
    if not asked:
        raise not_in_it(anchor.transcript, f"prompt {anchor.prompt_id}")
    if point is Point.BEFORE:
        return text(asked[0], "parentUuid")
    end = text(asked[-1], "uuid")
    for record in records[records.index(asked[-1]) :]:
        if text(record, "promptId") not in {"", anchor.prompt_id}:
            break
        if text(record, "type") == "assistant":
            end = text(record, "uuid")
    return end


def _end_of_call(records: list[dict[str, Any]], anchor: Anchor, point: Point) -> str:
    if point is Point.BEFORE:
        found = [record for record in records if anchor.call_id in _calls(record)]
        if found:
            return text(found[-1], "parentUuid")
    else:
        found = [record for record in records if anchor.call_id in _results(record)]
        if found:
            return text(found[-1], "uuid")
    if anchor.turn_id:
        raise inside_sub_agent()
    raise not_in_it(anchor.transcript, f"call {anchor.call_id}")


def _calls(record: dict[str, Any]) -> set[str]:
    parts = items(record.get("message"), "content")
    return {text(part, "id") for part in parts if text(part, "type") == "tool_use"}


def _results(record: dict[str, Any]) -> set[str]:
    parts = items(record.get("message"), "content")
    return {text(part, "tool_use_id") for part in parts if text(part, "type") == "tool_result"}


AGENT = ClaudeCode(READERS, SPEAKS, _anchor)
