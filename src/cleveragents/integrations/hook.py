"""A hook's input, read by the agent's adapter, and its output."""

import json
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cleveragents.context import Context
from cleveragents.errors import UsageError
from cleveragents.integrations import client
from cleveragents.integrations.agent import agent_named
from cleveragents.integrations.events import Answer, Event
from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import is_in_place, session_plan
from cleveragents.maintenance.sidecars import FOLDER
from cleveragents.model.conversation import Anchor
from cleveragents.model.plan import Plan
from cleveragents.model.resource import IN_PLACE
from cleveragents.model.settings import Settings
from cleveragents.workspace import open_workspace

SESSION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
"""What agents call a session: a UUID, or letters and a number."""


class Hooked(NamedTuple):
    """One call of a hook."""

    agent: str
    event: str
    payload: dict[str, Any]


def payload_in(data: bytes) -> dict[str, Any]:
    """What the agent sent; raises `UsageError` for what is no JSON object."""
    try:
        found = json.loads(data.decode("utf-8", "replace"))
        if b"\\u" in data:
            # Half of a surrogate pair cannot be stored; a mark replaces it.
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the input of a hook is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("the input of a hook is JSON, but not an object")
    return found  # pyright: ignore[reportUnknownVariableType]


def events_of(hooked: Hooked) -> tuple[Event, ...]:
    """Our events; events without a session are dropped."""
    found = agent_named(hooked.agent).read(hooked.payload, hooked.event)
    for session in {event.anchor.session_id for event in found} - {""}:
        # The id becomes a key of the store, part of a path, and a word of the command that resumes.
        if not SESSION_NAME.fullmatch(session):
            raise UsageError(f"a hook named a session that is not a valid id: {session[:40]!r}")
    return tuple(event for event in found if event.anchor.session_id)


def answer_of(hooked: Hooked, answer: Answer) -> str:
    return agent_named(hooked.agent).answer(hooked.payload, hooked.event, answer)


def hook_command(settings: Settings, agent: str) -> tuple[str, ...]:
    """The command that agents run at their events."""
    return hook_words(settings, agent, folder_of(settings))


def hook_words(settings: Settings, agent: str, folder: str) -> tuple[str, ...]:
    """The same, with the sidecar's socket in another folder."""
    words = (*client.command(), folder, agent)
    budget = (f"--budget={settings.hook_budget:g}",) if settings.hook_budget != 2.0 else ()
    return (*words, *budget, *(("--fail-closed",) if settings.fail_closed else ()))


def folder_of(settings: Settings) -> str:
    return os.path.join(settings.home, FOLDER)


@contextmanager
def observing(settings: Settings, wait: float = 60.0) -> Generator[Observer]:
    """An observer of sessions in place, with a store connection of its own."""
    with open_workspace(settings=settings) as ws:
        observer = Observer(ws.ctx, in_place_plan, follows_in_place, wait)
        try:
            yield observer
        finally:
            observer.close()


def follows_in_place(plan: Plan) -> bool:
    """Whether the plan is in place; not one of `agents run`, continued without its sandboxes."""
    return is_in_place(plan) and not plan.is_final


def in_place_plan(ctx: Context, anchor: Anchor, cwd: str) -> Plan:
    """A plan over the folder the agent works in, in place."""
    return session_plan(ctx, anchor, cwd, IN_PLACE, ctx.settings.session_resources)
