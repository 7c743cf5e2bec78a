"""Pydantic-AI: the messages of a run are the state of the plan's groups.

`PlanCapability`, given to an agent, makes a prompt a decision and every tool call a step. After a
rollback or undo `messages()` is the conversation of that moment, for `message_history`.
"""

import json
from typing import Any

from cleveragents.errors import NotFound
from cleveragents.integrations import not_installed
from cleveragents.integrations.plan_thread import PlanThread
from cleveragents.plan_handle import PlanHandle

try:
    from pydantic_ai import ModelMessagesTypeAdapter, RunContext
    from pydantic_ai.capabilities import AbstractCapability, WrapToolExecuteHandler
    from pydantic_ai.messages import ModelMessage, ToolCallPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import ToolDefinition
except ModuleNotFoundError as _error:
    raise not_installed(_error, "model") from None

LONGEST_PROMPT = 2000
LARGEST_STATE = 256 << 10


class PlanCapability(AbstractCapability[Any]):
    """Follows the runs of an agent, one after the other."""

    def __init__(self, plan: PlanHandle) -> None:
        self.thread: PlanThread = PlanThread(plan)

    def close(self) -> None:
        self.thread.close()

    def messages(self) -> list[ModelMessage]:
        """The conversation when the files were as they are now, also after a rollback."""
        state: dict[str, Any] = self.thread.ask(lambda plan: plan.actor_state) or {}
        if "left_out" in state:
            raise NotFound(
                f"the conversation of {state['left_out']:,} bytes was too long to be kept",
                f"at most {LARGEST_STATE:,} bytes are; let the agent compact its history",
            )
        return ModelMessagesTypeAdapter.validate_python(state.get("messages", []))

    async def before_run(self, ctx: RunContext[Any]) -> None:
        state = _state(ctx.messages)
        await self.thread.aask(self.thread.here(state))
        words = ctx.prompt if isinstance(ctx.prompt, str) else "input"
        await self.thread.aask(lambda plan: plan.prompt(words[:LONGEST_PROMPT], state))

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        await self.thread.aask(self.thread.here(_state(request_context.messages)))
        return request_context

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        given = call.args_as_dict()
        async with self.thread.astep(call.tool_call_id, call.tool_name, given) as said:
            result = await handler(args)
            said.append(str(result))
            return result

    async def after_run(
        self, ctx: RunContext[Any], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        await self.thread.aask(self.thread.here(_state(result.all_messages())))
        return result


def _state(messages: list[ModelMessage]) -> dict[str, Any]:
    found = ModelMessagesTypeAdapter.dump_python(messages, mode="json", exclude_none=True)
    size = len(json.dumps(found))
    return {"messages": found} if size <= LARGEST_STATE else {"left_out": size}
