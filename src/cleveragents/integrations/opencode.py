"""opencode: a plugin file that calls our hook, sessions forked by its own HTTP server.

A plugin runs inside opencode, so we write the whole file; it holds every call until our hook has
answered. Sub-agents are child sessions of the person's. Each answer of the model is a message with
all of its calls, so a point lies between messages.
"""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast
from urllib.parse import quote

from cleveragents.errors import ConfigError, ConversationError
from cleveragents.integrations.agent import Launch, SettingsChange, resume
from cleveragents.integrations.events import (
    Answer,
    Event,
    Prompt,
    Quiet,
    StepEnded,
)
from cleveragents.integrations.files.payload import items, mapping, text
from cleveragents.integrations.files.session_files import FILES_ONLY, inside_sub_agent, program
from cleveragents.integrations.files.settings_files import owned
from cleveragents.integrations.files.translation import Readers, Tools, events_in, started
from cleveragents.model.conversation import Anchor, Conversation, Point

TOOLS = Tools(
    reads=frozenset(
        {
            *("read", "glob", "grep", "list", "webfetch", "websearch", "codesearch", "todowrite"),
            *("todoread", "task", "skill", "question", "lsp"),
        }
    ),
    writes=frozenset({"write", "edit", "multiedit", "patch", "apply_patch"}),
    outside=frozenset({"webfetch", "websearch", "codesearch"}),
    name="tool",
    inputs="args",
)
PASS_ENV = (
    "OPENCODE_*",
    "ANTHROPIC_*",
    "OPENAI_*",
    "GEMINI_*",
    "GOOGLE_*",
    "OPENROUTER_*",
    "AWS_*",
)
_CONTENT = "OPENCODE_CONFIG_CONTENT"
_PLUGIN = "cleveragents.js"
_PATIENCE = 60.0


class OpenCode:
    name = "opencode"
    command = "opencode"
    tested: tuple[str, ...] = ("1.18.33",)

    def read(self, payload: dict[str, Any], event: str) -> tuple[Event, ...]:
        return events_in(payload, text(payload, "event") or event, READERS, _anchor)

    def answer(self, payload: dict[str, Any], event: str, answer: Answer) -> str:
        """Keys of our own plugin."""
        event = text(payload, "event") or event
        said: dict[str, str] = {}
        if answer.refuse and event == "tool.execute.before":
            said["refuse"] = answer.refuse
        if answer.context and event in {"chat.message", "tool.execute.after"}:
            said["context"] = answer.context
        return json.dumps(said) if said else ""

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        user = os.path.join(home, ".config", "opencode")
        folder = user if scope == "user" else os.path.join(project, ".opencode")
        path = os.path.join(folder, "plugins", _PLUGIN)
        return (owned(path, None if hook is None else plugin(hook)),)

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        path = os.path.join(private_dir, _PLUGIN)
        with open(path, "w", encoding="utf-8") as file:
            file.write(plugin(hook))
        config = _own_config()
        config["plugin"] = [*cast("list[Any]", config.get("plugin", [])), f"file://{quote(path)}"]
        home = os.path.expanduser("~")
        state = [
            os.environ.get(variable) or os.path.join(home, folder)
            for variable, folder in _STATE.items()
        ]
        return Launch(
            argv=tuple(argv),
            env={_CONTENT: json.dumps(config)},
            pass_env=PASS_ENV,
            state=tuple(os.path.join(folder, "opencode") for folder in state),
        )

    def interrupted(self, records: Sequence[dict[str, Any]]) -> frozenset[str]:
        """None: its hooks tell."""
        del records
        return frozenset()

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """Have opencode fork the session; its server runs just for that, on loopback."""
        with Server(program(self.command, env), env, anchor.transcript) as server:
            messages = server.call("GET", f"/session/{anchor.session_id}/message")
            end = end_of(items({"messages": messages}, "messages"), anchor, point)
            body = {"messageID": end} if end else {}
            made = text(server.call("POST", f"/session/{anchor.session_id}/fork", body), "id")
        if not made:
            raise ConversationError("opencode did not name the session it forked", FILES_ONLY)
        return Conversation(
            agent=self.name,
            session_id=made,
            forked_from=anchor.session_id,
            continue_=resume(self.name, made),
        )


_STATE = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
}


class Server:
    """`opencode serve` in the folder of a session."""

    def __init__(self, path: str, env: Mapping[str, str], folder: str) -> None:
        if not os.path.isdir(folder):
            raise ConversationError(f"the session's folder {folder} is not there", FILES_ONLY)
        self._folder = folder
        self._process = subprocess.Popen(
            (path, "serve", "--port", "0", "--hostname", "127.0.0.1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            cwd=folder,
            text=True,
        )
        self._base = ""

    def __enter__(self) -> Self:
        from threading import Timer

        self._patience = Timer(_PATIENCE, self._process.kill)
        self._patience.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "http://" in line:
                self._base = "http://" + line.partition("http://")[2].split()[0].rstrip("/")
                return self
        self.__exit__()
        raise ConversationError("opencode's server did not start", FILES_ONLY)

    def __exit__(self, *_: object) -> None:
        self._patience.cancel()
        self._process.kill()
        self._process.communicate()

    def call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        where = f"{self._base}{path}?directory={quote(self._folder)}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(where, data, headers, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=_PATIENCE) as reply:
                return json.loads(reply.read() or b"null")
        except (OSError, ValueError) as error:
            code = error.code if isinstance(error, urllib.error.HTTPError) else error
            raise ConversationError(
                f"opencode refused {method} {path}: {code}", FILES_ONLY
            ) from None


def end_of(messages: list[dict[str, Any]], anchor: Anchor, point: Point) -> str:
    """The first message after the anchor; "" if there is none."""
    ids = [text(message, "info", "id") for message in messages]
    if anchor.call_id:
        own = [n for n, one in enumerate(messages) if _has_call(one, anchor.call_id)]
        if not own:
            raise _not_there(f"call {anchor.call_id}", anchor)
        at = own[-1] + (point is Point.AFTER)
        return ids[at] if at < len(ids) else ""
    if not anchor.message_id:
        return ids[0] if ids else ""
    if anchor.message_id not in ids:
        raise _not_there(f"message {anchor.message_id}", anchor)
    at = ids.index(anchor.message_id)
    if point is Point.BEFORE:
        return ids[at]
    later = [n for n, one in enumerate(messages) if n > at and text(one, "info", "role") == "user"]
    return ids[later[0]] if later else ""


def _has_call(message: dict[str, Any], call: str) -> bool:
    return any(text(part, "callID") == call for part in items(message, "parts"))


def _not_there(what: str, anchor: Anchor) -> ConversationError:
    if anchor.turn_id:
        return inside_sub_agent()
    return ConversationError(
        f"{what} is not in opencode's session {anchor.session_id}",
        f"choose a checkpoint before or after it, or {FILES_ONLY}",
    )


def _anchor(payload: dict[str, Any]) -> Anchor:
    """The anchor; `transcript` is the session's folder, `turn_id` a sub-agent's session."""
    return Anchor(
        agent=OpenCode.name,
        version=text(payload, "version"),
        session_id=text(payload, "session_id"),
        transcript=text(payload, "cwd"),
        turn_id=text(payload, "child"),
        call_id=text(payload, "call_id"),
        message_id=text(payload, "message_id"),
    )


def _prompt(payload: dict[str, Any], anchor: Anchor) -> Event:
    return Prompt(
        anchor=anchor,
        cwd=text(payload, "cwd"),
        text=text(payload, "text"),
        parent_call=text(payload, "child"),
    )


def _begins(payload: dict[str, Any], anchor: Anchor) -> Event:
    return TOOLS.begins(payload, anchor, parent=text(payload, "child"))


def _ended(payload: dict[str, Any], anchor: Anchor) -> Event:
    code = payload.get("exit")
    error = f"exit code {code}" if isinstance(code, int) and code else ""
    return StepEnded(
        anchor=anchor,
        call=anchor.call_id,
        ok=not error,
        output=text(payload, "output"),
        error=error,
    )


def _quiet(payload: dict[str, Any], anchor: Anchor) -> Event:
    return Quiet(anchor=anchor, said=text(payload, "text"))


READERS: Readers = {
    "session.created": started,
    "chat.message": _prompt,
    "tool.execute.before": _begins,
    "tool.execute.after": _ended,
    "session.idle": _quiet,
}


def _own_config() -> dict[str, Any]:
    """The person's own value of the variable that we use."""
    given = os.environ.get(_CONTENT)
    try:
        found: Any = json.loads(given) if given else {}
    except ValueError:
        raise ConfigError(f"{_CONTENT} is not JSON") from None
    return mapping({"config": found}, "config")


def plugin(hook: Sequence[str]) -> str:
    return PLUGIN.replace("HOOK", json.dumps(list(hook)))


PLUGIN = """\
// Written by cleveragents, which it tells about every tool call.
// To remove it: agents hook uninstall opencode
import { spawn } from "node:child_process"
const hook = HOOK

// The answer of our hook; it never fails, and keeps a tool from running only where it fails closed.
const nothing = hook.includes("--fail-closed") ? { refuse: "no checkpoint could be made" } : {}
const tell = (payload) => new Promise((resolve) => {
  try {
    const child = spawn(hook[0], hook.slice(1), { stdio: ["pipe", "pipe", "pipe"] })
    let said = "", why = ""
    const timer = setTimeout(() => { child.kill(); resolve(nothing) }, 30000)
    const done = (code) => {
      clearTimeout(timer)
      if (code !== 0) return resolve(nothing.refuse && why ? { refuse: why.trim() } : nothing)
      try { resolve(said ? JSON.parse(said) : {}) } catch { resolve({}) }
    }
    child.stdout.on("data", (part) => { said += part })
    child.stderr.on("data", (part) => { why += part })
    child.on("error", done)
    child.on("close", done)
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify(payload))
  } catch { resolve(nothing) }
})

export const CleverAgents = async ({ directory }) => {
  const parents = new Map()   // session of a sub-agent -> the session that started it
  const asked = new Map()     // session -> the person's newest message
  const said = new Map()      // session -> the newest words of the model
  const base = (event, id) => {
    let root = id
    while (parents.has(root)) root = parents.get(root)
    const child = root === id ? "" : id
    return { event, session_id: root, child, cwd: directory, message_id: asked.get(root) ?? "" }
  }
  return {
    event: async ({ event }) => {
      const properties = event.properties ?? {}
      if (event.type === "session.created") {
        const info = properties.info ?? {}
        if (info.parentID) parents.set(info.id, info.parentID)
        else await tell(base(event.type, info.id))
      }
      const part = properties.part
      if (event.type === "message.part.updated" && part?.type === "text") {
        said.set(part.sessionID, part.text)
      }
      const id = properties.sessionID
      if (event.type === "session.idle" && !parents.has(id)) {
        await tell({ ...base(event.type, id), text: said.get(id) ?? "" })
      }
    },
    "chat.message": async (input, output) => {
      const id = output.message?.id ?? ""
      if (!parents.has(input.sessionID)) asked.set(input.sessionID, id)
      const parts = output.parts ?? []
      const text = parts.filter((part) => part.type === "text").map((part) => part.text).join("\\n")
      const answer = await tell({ ...base("chat.message", input.sessionID), text })
      const first = parts.find((part) => part.type === "text")
      if (answer.context && first) first.text += "\\n\\n" + answer.context
    },
    "tool.execute.before": async (input, output) => {
      const call = { tool: input.tool, call_id: input.callID, args: output.args }
      const answer = await tell({ ...base("tool.execute.before", input.sessionID), ...call })
      if (answer.refuse) throw new Error(answer.refuse)
    },
    "tool.execute.after": async (input, output) => {
      const result = { exit: output.metadata?.exit, output: output.output }
      const call = { tool: input.tool, call_id: input.callID, ...result }
      const answer = await tell({ ...base("tool.execute.after", input.sessionID), ...call })
      if (answer.context) output.output += "\\n\\n" + answer.context
    },
  }
}
"""


AGENT = OpenCode()
