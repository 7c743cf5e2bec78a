"""Every tool call of a LangChain agent is a step, on the files of the checkpoint it runs from."""

import uuid
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langgraph.config import get_config

from cleveragents.integrations.langgraph.saver import PlanSaver


class PlanMiddleware(AgentMiddleware[Any, Any]):
    """Every tool call of a LangChain agent is a step of the saver's plan."""

    def __init__(self, saver: PlanSaver) -> None:
        super().__init__()
        self._saver = saver

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self._saver.arrive(get_config())
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        await to_thread(self._saver.arrive, get_config())
        return await handler(request)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self._saver.arrive(request.runtime.config)
        call = request.tool_call
        with self._saver.thread.step(uuid.uuid4().hex, call["name"], call["args"]) as said:
            result = handler(request)
            said.append(str(getattr(result, "content", "")))
            return result

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        await to_thread(self._saver.arrive, request.runtime.config)
        call = request.tool_call
        async with self._saver.thread.astep(uuid.uuid4().hex, call["name"], call["args"]) as said:
            result = await handler(request)
            said.append(str(getattr(result, "content", "")))
            return result
