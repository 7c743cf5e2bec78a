"""What an adapter for a coding agent does, and the agents there are.

An adapter is one module with an `AGENT` that fits the protocol. Reading and answering are pure:
they know payloads and nothing of plans. A new agent is a module, a line in `MODULES`, one in
`_RESUMED` and a test.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from cleveragents.errors import NotFound
from cleveragents.integrations.events import Answer, Event
from cleveragents.model.conversation import Anchor, Conversation, Point
from cleveragents.model.triggers import nearest

MODULES = {
    "claude-code": "claude_code",
    "codex": "codex",
    "gemini": "gemini",
    "opencode": "opencode",
    "qwen": "qwen",
    "copilot": "copilot",
}
"""Name of an agent -> its module here; it is imported when somebody asks for it."""
COMMANDS = {"claude": "claude-code", **{name: name for name in MODULES if name != "claude-code"}}
"""What people type -> the agent."""
_RESUMED = {
    "claude-code": ("claude", "--resume"),
    "codex": ("codex", "resume"),
    "gemini": ("gemini", "--resume"),
    "opencode": ("opencode", "-s"),
    "qwen": ("qwen", "--resume"),
    "copilot": ("copilot", "--resume"),
}
"""What continues a session, in front of its id: told without the adapter, which takes as long to
import as the rest of a command."""


class SettingsChange(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file of the agent's with our hooks in it, or without them."""

    path: str
    before: bytes | None
    """None: there is no such file."""
    after: bytes | None
    """None: the file goes."""
    remark: str = ""
    """What the person still has to do, in words."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How `agents run` starts an agent with our hooks, for this run only."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """To be set for it."""
    pass_env: tuple[str, ...] = ()
    """Names of the person's variables that it needs; `*` at the end stands for any rest."""
    state: tuple[str, ...] = ()
    """Its own folders and files, which it may write; they are not rolled back."""


class Agent(Protocol):
    """One coding agent; every method is called with what that agent sent or installed."""

    name: str
    command: str
    tested: tuple[str, ...]
    """The versions whose payloads and session files were tried."""

    def read(self, payload: dict[str, Any], event: str) -> tuple[Event, ...]:
        """Translate a payload into our events; none for events that we ignore (pure).

        `event` is what the hook command was told, "" if the payload says it.
        """
        ...

    def answer(self, payload: dict[str, Any], event: str, answer: Answer) -> str:
        """The output of the hook; "" for none. Only keys that the agent knows (pure)."""
        ...

    def settings(
        self, scope: str, home: str, project: str, hook: Sequence[str] | None
    ) -> tuple[SettingsChange, ...]:
        """The settings files with hooks that run `hook`; None removes ours.

        `scope` is `user` or `project`. Nothing is written here.
        """
        ...

    def launch(self, argv: Sequence[str], hook: Sequence[str], private_dir: str) -> Launch:
        """The agent's command line with our hooks; `private_dir` may hold files for this run."""
        ...

    def interrupted(self, records: Sequence[dict[str, Any]]) -> frozenset[str]:
        """Calls that a person ended, by what its session file ends with (pure).

        Only for an agent that calls no hook then; which have ended in another way, its hooks tell.
        """
        ...

    def fork(self, anchor: Anchor, point: Point, env: Mapping[str, str]) -> Conversation:
        """A new session that ends at the anchor; the old one stays as it is.

        Raises `ConversationError`, having changed nothing, if that cannot be done.
        """
        ...


def agent_named(name: str) -> Agent:
    """The adapter of an agent, by its name or by its command."""
    module = importlib.import_module(f"cleveragents.integrations.{MODULES[_known(name)]}")
    return module.AGENT


def resume(name: str, session_id: str) -> tuple[str, ...]:
    """The command line that continues a session of an agent."""
    return (*_RESUMED[_known(name)], session_id)


def _known(name: str) -> str:
    known = COMMANDS.get(name, name)
    if known not in MODULES:
        raise NotFound(f"no agent {name!r}{nearest(name, MODULES)}", f"known: {', '.join(MODULES)}")
    return known


def agent_of_command(argv: Sequence[str]) -> str | None:
    """The name of the agent that a command line starts, if it is one."""
    return COMMANDS.get(os.path.basename(argv[0])) if argv else None
