"""The Claude Agent SDK: the groups of a plan know the session and the message they belong to.

`ClaudePlan.hooks` go into the options, `follow` goes around the stream of messages, and `resume()`
gives the options that continue the conversation where the plan stands, also after a rollback.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar, cast

from cleveragents.integrations import not_installed
from cleveragents.integrations.plan_thread import PlanThread
from cleveragents.plan_handle import PlanHandle

try:
    from claude_agent_sdk import AssistantMessage, HookMatcher, ResultMessage, UserMessage
except ModuleNotFoundError as _error:
    raise not_installed(_error, "claude-agent-sdk") from None

EVENTS = ("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure")
LONGEST_PROMPT = 2000
T = TypeVar("T")


class ClaudePlan:
    """Follows the sessions of one client, one after the other."""

    def __init__(self, plan: PlanHandle) -> None:
        self.thread: PlanThread = PlanThread(plan)
        self._session = ""
        self._message = ""

    def close(self) -> None:
        self.thread.close()

    @property
    def hooks(self) -> dict[Any, list[HookMatcher]]:
        """For `ClaudeAgentOptions(hooks=...)`."""
        return {event: [HookMatcher(hooks=[self._hook])] for event in EVENTS}

    def resume(self) -> dict[str, Any]:
        """For `ClaudeAgentOptions`: a session of its own that continues where the plan stands."""
        state: dict[str, Any] = self.thread.ask(lambda plan: plan.actor_state) or {}
        if not state.get("session_id"):
            return {}
        at = {"resume_session_at": state["message_id"]} if state.get("message_id") else {}
        return {"resume": state["session_id"], **at, "fork_session": True}

    async def follow(self, messages: AsyncIterator[T]) -> AsyncGenerator[T]:
        """The same messages; where the model has all results, files and conversation agree."""
        async for message in messages:
            if isinstance(message, UserMessage | AssistantMessage) and message.uuid:
                self._message = message.uuid
            if isinstance(message, UserMessage | ResultMessage):
                await self.thread.aask(lambda plan: plan.here(self._state()))
            yield message

    def _state(self) -> dict[str, str] | None:
        if not self._session:
            return None
        return {"session_id": self._session, "message_id": self._message}

    async def _hook(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        told, thread = cast("dict[str, Any]", given), self.thread
        key, event = tool_use_id or "", told["hook_event_name"]
        if event == "UserPromptSubmit":
            before = self._state()
            await thread.aask(thread.here(before))
            words = str(told.get("prompt", ""))[:LONGEST_PROMPT]
            await thread.aask(lambda plan: plan.prompt(words, before))
            self._session = told["session_id"]
        elif event == "PreToolUse":
            await thread.aask(thread.begin(key, told["tool_name"], told["tool_input"]))
        elif event == "PostToolUse":
            await thread.aask(thread.end(key, str(told.get("tool_response", ""))))
        else:
            error = RuntimeError(str(told.get("error", "failed")))
            await thread.aask(thread.end(key, error=error))
        return {}
