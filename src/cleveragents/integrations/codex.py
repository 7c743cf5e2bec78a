"""Codex CLI: hooks from `hooks.json` or the command line, threads forked by its own app server.

It runs the calls of one answer in parallel, so only the end of the last open one is a quiet point.
Its payloads do not say whether a command failed. It silently skips hooks that its user has not
trusted; our runs pass them on the command line, with an option that trusts them.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Self

from cleveragents.errors import ConversationError
from cleveragents.integrations.agent import Launch, SettingsChange, resume
from cleveragents.integrations.events import Event, StepEnded
from cleveragents.integrations.files.payload import mapping, shown, text
from cleveragents.integrations.files.session_files import (
    FILES_ONLY,
    not_in_it,
    not_understood,
    program,
    read_records,
)
from cleveragents.integrations.files.settings_files import HOOKS, TIMEOUT, shell_command, with_hooks
from cleveragents.integrations.files.translation import (
    NamesItsEvents,
    Readers,
    Tools,
    over,
    prompt,
    quiet,
    started,
)
from cleveragents.model.conversation import Anchor, Conversation, Point

TOOLS = Tools(
    reads=frozenset(
        {"view_image", "read_file", "list_dir", "grep_files", "update_plan", "web_search"}
    ),
    writes=frozenset({"apply_patch"}),
    outside=frozenset({"web_search"}),
)
SPEAKS = frozenset({"SessionStart", "UserPromptSubmit", "PostToolUse"})
PASS_ENV = ("OPENAI_*", "CODEX_*", "AZURE_OPENAI_*")
TRUSTED = "--dangerously-bypass-hook-trust"
"""It may be given only once."""
_LAST_HOOK_SECONDS = 3
"""Codex shortens the time of its last event to this, and complains if it is told another."""
_PATIENCE = 30.0


class Codex(NamesItsEvents):
    name = "codex"
    command = "codex"
    tested: tuple[str, ...] = ("0.166.0",)

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        folder = os.path.join(home if scope == "user" else project, ".codex")
        change = with_hooks(
            os.path.join(folder, "hooks.json"), None if hook is None else _entries(hook)
        )
        if hook is None:
            return (change,)
        remark = "start codex and trust the hooks in /hooks: until then it skips them silently"
        return (
            SettingsChange(
                path=change.path, before=change.before, after=change.after, remark=remark
            ),
        )

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        del private_dir
        options = [
            word
            for event, entry in _entries(hook).items()
            for word in ("-c", f"hooks.{event}=[{_inline(entry)}]")
        ]
        folder = os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
        trusted = () if TRUSTED in argv else (TRUSTED,)
        return Launch(
            argv=(argv[0], *options, *trusted, *argv[1:]),
            pass_env=(*PASS_ENV, *_keys_of_providers(folder)),
            state=(folder,),
        )

    def interrupted(self, records: Sequence[dict[str, Any]]) -> frozenset[str]:
        """Of a turn that was aborted. Its commands may run on: then until they have ended, too."""
        told = [mapping(record, "payload") for record in records]
        aborted = {text(one, "turn_id") for one in told if text(one, "type") == "turn_aborted"}
        return frozenset(
            text(one, "item", "id")
            for one in told
            if text(one, "type") == "item_completed" and text(one, "turn_id") in aborted
        )

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """Have codex fork the thread; for a point inside a turn, add the turn's items."""
        if not anchor.turn_id:
            return self._new(anchor)
        if not anchor.call_id and point is Point.BEFORE and _is_first(anchor):
            return self._new(anchor)
        with AppServer(program(self.command, env), env) as server:
            if anchor.call_id:
                added = items_until(read_records(anchor.transcript), anchor, point)
                made = server.fork(anchor.session_id, {"beforeTurnId": anchor.turn_id})
                server.call("thread/inject_items", {"threadId": made, "items": added})
            else:
                side = "lastTurnId" if point is Point.AFTER else "beforeTurnId"
                made = server.fork(anchor.session_id, {side: anchor.turn_id})
        return Conversation(
            agent=self.name,
            session_id=made,
            forked_from=anchor.session_id,
            continue_=resume(self.name, made),
        )

    def _new(self, anchor: Anchor) -> Conversation:
        return Conversation(
            agent=self.name,
            session_id="",
            forked_from=anchor.session_id,
            continue_=(self.command,),
        )


def _keys_of_providers(folder: str) -> list[str]:
    """The variables that hold providers' keys, according to codex's settings."""
    import tomllib

    try:
        with open(os.path.join(folder, "config.toml"), "rb") as file:
            providers = mapping(tomllib.load(file), "model_providers")
    except (OSError, ValueError):
        return []  # codex reports errors in its settings itself
    return [key for name in providers if (key := text(mapping(providers, name), "env_key"))]


class AppServer:
    """`codex app-server`: JSON lines on its standard input and output."""

    def __init__(self, path: str, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            (path, "app-server"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            text=True,
        )
        self._number = 0

    def __enter__(self) -> Self:
        from threading import Timer

        self._patience = Timer(_PATIENCE, self._process.kill)
        self._patience.start()
        try:
            client = {"name": "cleveragents", "version": "1"}
            capabilities = {"experimentalApi": True}
            self.call("initialize", {"clientInfo": client, "capabilities": capabilities})
            self._send({"method": "initialized"})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._patience.cancel()
        self._process.kill()
        self._process.communicate()

    def fork(self, thread: str, where: dict[str, str]) -> str:
        result = self.call("thread/fork", {"threadId": thread, "excludeTurns": True, **where})
        made = text(result, "thread", "id")
        if not made:
            raise ConversationError("codex did not name the thread that it forked", FILES_ONLY)
        return made

    def call(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                reply: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(reply, dict) and reply.get("id") == self._number:  # pyright: ignore
                if "error" in reply:
                    why = text(reply, "error", "message") or "no reason given"  # pyright: ignore
                    raise ConversationError(f"codex refused {method}: {why}", FILES_ONLY)
                return reply.get("result")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise ConversationError(f"codex ended before it answered {method}", FILES_ONLY)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:  # the next answer says that it is gone
            return


def _anchor(payload: dict[str, Any]) -> Anchor:
    return Anchor(
        agent=Codex.name,
        session_id=text(payload, "session_id"),
        transcript=text(payload, "transcript_path"),
        turn_id=text(payload, "turn_id"),
        call_id=text(payload, "tool_use_id"),
    )


def _ended(payload: dict[str, Any], anchor: Anchor) -> Event:
    output = shown(payload.get("tool_response"))
    return StepEnded(anchor=anchor, call=anchor.call_id, ok=True, output=output)


READERS: Readers = {
    "SessionStart": started,
    "UserPromptSubmit": prompt,
    "PreToolUse": TOOLS.begins,
    "PostToolUse": _ended,
    "Stop": quiet,
    "SessionEnd": over,
}


def _entries(hook: Sequence[str]) -> dict[str, Any]:
    return {
        event: {
            HOOKS: [
                {
                    "type": "command",
                    "command": shell_command(hook),
                    "timeout": _LAST_HOOK_SECONDS if event == "SessionEnd" else TIMEOUT,
                }
            ]
        }
        for event in READERS
    }


def _inline(value: Any) -> str:
    """A value as TOML on one line; JSON's strings are TOML's."""
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_inline(own)}" for key, own in value.items())  # pyright: ignore
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(own) for own in value)}]"  # pyright: ignore
    return json.dumps(value)


def _is_first(anchor: Anchor) -> bool:
    """Whether nothing was said before the anchor's turn."""
    turns = [_turn(record) for record in read_records(anchor.transcript)]
    return next((turn for turn in turns if turn), "") == anchor.turn_id


def _turn(record: dict[str, Any]) -> str:
    return text(record, "payload", "turn_id") if text(record, "type") == "turn_context" else ""


def items_until(
    records: list[dict[str, Any]], anchor: Anchor, point: Point
) -> list[dict[str, Any]]:
    """The items of the anchor's turn up to its call, for a thread that ends before that turn.

    Parallel calls belong together: before one is before all, after one has all results.
    """
    turn = _items_of_turn(records, anchor)
    waiting: set[str] = set()
    batch, found = 0, False
    for number, item in enumerate(turn):
        own = text(item, "call_id")
        if text(item, "type").endswith("_output"):
            waiting.discard(own)
            if found and not waiting:
                return turn[: number + 1]
        elif own:
            batch = batch if waiting else number
            waiting.add(own)
            if own == anchor.call_id and point is Point.BEFORE:
                return turn[:batch]
            found = found or own == anchor.call_id
    what = "the result of call" if found else "call"
    raise not_in_it(anchor.transcript, f"{what} {anchor.call_id}")


def _items_of_turn(records: list[dict[str, Any]], anchor: Anchor) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    inside = False
    for record in records:
        turn = _turn(record)
        if turn:
            inside = turn == anchor.turn_id
        elif inside and text(record, "type") == "response_item":
            item = mapping(record, "payload")
            found.append({key: own for key, own in item.items() if key not in _OF_THE_FILE})
    if not found:
        raise not_understood(anchor.transcript, f"it has no items of turn {anchor.turn_id}")
    return found


_OF_THE_FILE = ("id", "internal_chat_message_metadata_passthrough")
"""Keys that the app server sends and does not accept."""


AGENT = Codex(READERS, SPEAKS, _anchor)
