"""A plan that runs: its output and its state as server-sent events.

The store is polled: the process that executes the plan, this one or another, saves its step's
output there.
"""

import json
import zlib
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import msgspec

from cleveragents.model.settings import Settings
from cleveragents.model.tool import ToolCall
from cleveragents.web.view.facts import Facts, facts_of
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.standing import sentence
from cleveragents.web.view.words import printed
from cleveragents.workspace import Workspace, open_workspace

EVERY = 0.4
TAIL = 1 << 14
"""Characters of what was printed that a page begins with."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The running call and its output."""

    call: ToolCall
    output: str

    @property
    def tail(self) -> str:
        return self.output[-TAIL:]


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's status at one moment."""

    sentence: str
    step: tuple[str, ...]
    """Changes when the line does."""
    call_id: str
    output: str


def running_call(ws: Workspace, plan_id: str) -> Running | None:
    """The newest call that has not ended, of the plan or of a child of it."""
    store = ws.ctx.store
    calls = store.calls.running(plan_id)
    for child in store.plans.children(plan_id):
        calls += store.calls.running(child.plan_id)
    return Running(call=calls[-1], output=printed(calls[-1].output)) if calls else None


def step_of(facts: Facts, now: Running | None) -> tuple[str, ...]:
    return (
        str(facts.plan.state),
        str(len(facts.groups)),
        str(sum(step.done for step in facts.steps)),
        str(facts.held),
        now.call.call_id if now else "",
    )


def mark(step: tuple[str, ...]) -> str:
    """What a page carries of the step it shows."""
    return f"{zlib.crc32(repr(step).encode()):08x}"


def look(settings: Settings, plan_id: str) -> Look:
    with open_workspace(settings=settings) as ws:
        facts = facts_of(ws, plan_id)
        now = running_call(ws, plan_id)
        return Look(
            sentence=sentence(facts, rows_of(facts)),
            step=step_of(facts, now),
            call_id=now.call.call_id if now else "",
            output=now.output if now else "",
        )


async def events(settings: Settings, plan_id: str, shown: str) -> AsyncIterator[str]:
    """`state`: the headline; `line`, `all`: output, more or anew; `step`: the line has changed."""
    before: Look | None = None
    while True:
        now = await anyio.to_thread.run_sync(look, settings, plan_id)
        for name, data in difference(before, now, shown):
            yield f"event: {name}\ndata: {json.dumps(data)}\n\n"
        before = now
        await anyio.sleep(EVERY)


def difference(before: Look | None, now: Look, shown: str = "") -> list[tuple[str, str]]:
    """What to tell somebody who knows `before`, or has just begun with a page that has the mark
    `shown`: by then the step may be another (pure).
    """
    found: list[tuple[str, str]] = []
    if before is None:
        found = [("step", "")] if shown != mark(now.step) else []
        return [("state", now.sentence), ("all", now.output[-TAIL:]), *found]
    if before.sentence != now.sentence:
        found.append(("state", now.sentence))
    if before.step != now.step:
        found.append(("step", ""))
    if before.call_id != now.call_id or not now.output.startswith(before.output):
        found.append(("all", now.output[-TAIL:]))
    elif len(now.output) > len(before.output):
        found.append(("line", now.output[len(before.output) :]))
    return found
