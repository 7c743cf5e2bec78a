"""A session of the OpenAI Agents SDK that is rolled back with the plan's files."""

from typing import Any, cast

from agents import TResponseInputItem
from agents.memory import Session, SessionABC, SessionSettings

from cleveragents.integrations.openai_agents.hooks import PlanHooks
from cleveragents.integrations.plan_thread import PlanThread
from cleveragents.plan_handle import PlanHandle

LONGEST_PROMPT = 2000


class PlanSession(SessionABC):
    """Keeps the conversation in `inner`, and the files of each moment in the plan."""

    def __init__(self, plan: PlanHandle, inner: Session) -> None:
        self.session_id: str = inner.session_id
        self.session_settings: SessionSettings | None = inner.session_settings
        self.inner = inner
        self.thread: PlanThread = PlanThread(plan)
        self.hooks: PlanHooks = PlanHooks(self.thread, self.state)
        self.length: int = 0
        self._popped: list[TResponseInputItem] = []
        """What a rollback took off the end, for an undo of it; the next to come back is last."""

    def close(self) -> None:
        self.thread.close()

    def state(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "items": self.length}

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        await self._follow()
        return await self.inner.get_items(limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        self.length = len(await self.inner.get_items())
        asked = [text for item in items if (text := _prompt(item))]
        if asked:
            state = self.state()
            await self.thread.aask(self.thread.here(state))
            await self.thread.aask(lambda plan: plan.prompt(asked[-1], state))
        await self.inner.add_items(items)
        self._popped.clear()
        self.length += len(items)
        await self.thread.aask(self.thread.here(self.state()))

    async def pop_item(self) -> TResponseInputItem | None:
        return await self.inner.pop_item()

    async def clear_session(self) -> None:
        await self.inner.clear_session()

    async def _follow(self) -> None:
        """Cut the session to the number of items that the plan's current group had."""
        state: dict[str, Any] = await self.thread.aask(lambda plan: plan.actor_state) or {}
        self.length = len(await self.inner.get_items())
        if state.get("session_id") != self.session_id:
            return
        while self.length > state["items"] and (item := await self.inner.pop_item()) is not None:
            self._popped.append(item)
            self.length -= 1
        while self.length < state["items"] and self._popped:
            await self.inner.add_items([self._popped.pop()])
            self.length += 1


def _prompt(item: TResponseInputItem) -> str:
    """The user's text in an item; "" for other items."""
    if item.get("role") != "user":
        return ""
    content: Any = item.get("content")
    if not isinstance(content, str):
        parts = cast("list[dict[str, Any]]", content)
        content = "\n".join(str(part.get("text", "")) for part in parts)
    return content[:LONGEST_PROMPT] or "input"
