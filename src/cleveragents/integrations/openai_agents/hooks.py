"""Every tool call of a run is a step."""

import json
from collections.abc import Callable
from typing import Any, cast

from agents import Agent, RunContextWrapper, RunHooks, Tool

from cleveragents.integrations.plan_thread import PlanThread


class PlanHooks(RunHooks[Any]):
    """Every tool call of a run is a step of the session's plan."""

    def __init__(self, thread: PlanThread, state: Callable[[], dict[str, Any]]) -> None:
        self._thread = thread
        self._state = state

    async def on_tool_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> None:
        given = getattr(context, "tool_arguments", "")
        thread = self._thread
        await thread.aask(thread.begin(_key(context, tool), tool.name, inputs_of(given)))

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object
    ) -> None:
        thread, state = self._thread, self._state()
        await thread.aask(thread.end(_key(context, tool), str(result), state=state))


def _key(context: RunContextWrapper[Any], tool: Tool) -> str:
    return str(getattr(context, "tool_call_id", "") or tool.name)


def inputs_of(given: str) -> dict[str, Any]:
    try:
        inputs = json.loads(given)
    except ValueError:
        inputs = given
    return cast("dict[str, Any]", inputs) if isinstance(inputs, dict) else {"input": inputs}
