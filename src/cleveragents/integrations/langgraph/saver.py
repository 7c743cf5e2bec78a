"""A saver that notes with each checkpoint of the graph the group that holds its files."""

import uuid
from asyncio import to_thread
from collections.abc import (
    AsyncIterator,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver

from cleveragents.errors import NotFound
from cleveragents.integrations.plan_thread import PlanThread
from cleveragents.plan_handle import PlanHandle

LONGEST_PROMPT = 2000
GROUP = "cleveragents_group"
"""In a checkpoint's metadata."""
INHERITS = ("update", "fork")
"""Sources of checkpoints that nothing ran for: their files are the parent's."""


class PlanSaver(BaseCheckpointSaver[Any]):
    """Keeps the graph's checkpoints in `inner`, and the files of each in the plan."""

    def __init__(self, plan: PlanHandle, inner: BaseCheckpointSaver[Any] | None = None) -> None:
        self.inner: BaseCheckpointSaver[Any] = inner or InMemorySaver()
        super().__init__(serde=self.inner.serde)
        self.thread: PlanThread = PlanThread(plan)
        self._groups: dict[str, str] = {}
        """Checkpoint of the graph -> group, for those that something has run from."""
        self._at = ""
        """The checkpoint that the run is at; parallel calls begin at the same."""
        self._noted = ""
        """The newest group that has a checkpoint of the graph as its state."""

    def close(self) -> None:
        self.thread.close()

    def __enter__(self) -> "PlanSaver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def group_of(self, config: RunnableConfig) -> str:
        """The group that holds the files of a checkpoint of the graph; "" if there is none."""
        found = self.inner.get_tuple(config)
        return str(cast("dict[str, Any]", found.metadata).get(GROUP, "")) if found else ""

    def config(self) -> RunnableConfig:
        """The graph's checkpoint that matches the files now, also after a rollback."""
        state: dict[str, Any] = self.thread.ask(lambda plan: plan.actor_state) or {}
        if not state.get("checkpoint_id"):
            raise NotFound("the plan is not at a checkpoint of a graph")
        return {"configurable": {"checkpoint_ns": "", **state}}

    def travel(self, config: RunnableConfig) -> RunnableConfig:
        """Restore the files and databases of a checkpoint of the graph."""
        group = self.group_of(config)
        if not group:
            raise NotFound("no group is recorded for this checkpoint of the graph")
        self.thread.ask(lambda plan: _go_to(plan, group))
        return config

    def arrive(self, config: RunnableConfig) -> None:
        """Restore the files of the checkpoint that the graph is about to run from."""
        where = config.get("configurable", {})
        at: str = where.get("checkpoint_map", {}).get("", "")
        if not at or at == self._at:
            return
        own = {"thread_id": where["thread_id"], "checkpoint_ns": "", "checkpoint_id": at}
        group = self._groups.get(at) or self.group_of({"configurable": own})
        if group:
            self.thread.ask(lambda plan: _go_to(plan, group))
        self._groups[at] = group or self.thread.ask(lambda plan: plan.here())
        self._at = at

    @contextmanager
    def step(self, tool: str, inputs: Mapping[str, Any], config: RunnableConfig) -> Generator[None]:
        """For your own nodes: the block is a step of the plan."""
        self.arrive(config)
        with self.thread.step(uuid.uuid4().hex, tool, inputs):
            yield

    def _with_group(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> CheckpointMetadata:
        where = config.get("configurable", {})
        if where.get("checkpoint_ns"):
            return metadata
        parent, source = where.get("checkpoint_id", ""), metadata.get("source", "loop")
        group = self._groups.get(checkpoint["id"], "")
        if not group and source in INHERITS and parent:
            group = self.group_of(config)
        thread = where["thread_id"]
        if not group and source == "input":
            state = {"thread_id": thread, "checkpoint_id": parent}
            group = self.thread.ask(lambda plan: _prompted(plan, _words(checkpoint), state))
            self._noted = group
        if not group:
            state = {"thread_id": thread, "checkpoint_id": checkpoint["id"]}
            group = self.thread.ask(lambda plan: self._kept(plan, state))
        return cast("CheckpointMetadata", {**metadata, GROUP: group})

    def _kept(self, plan: PlanHandle, state: dict[str, str]) -> str:
        """The current group; its state is the graph's first checkpoint with these files."""
        if (group := plan.here()) != self._noted:
            group = self._noted = plan.here(state)
        return group

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        metadata = self._with_group(config, checkpoint, metadata)
        return self.inner.put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        metadata = await to_thread(self._with_group, config, checkpoint, metadata)
        return await self.inner.aput(config, checkpoint, metadata, new_versions)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self._starts(config)
        return self.inner.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self._starts(config)
        return await self.inner.aget_tuple(config)

    def _starts(self, config: RunnableConfig) -> None:
        """Whether a run is starting; a mere look has no such keys."""
        if any(key.startswith("__pregel_") for key in config.get("configurable", {})):
            self._at = ""

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self.inner.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        return self.inner.alist(config, filter=filter, before=before, limit=limit)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await self.inner.aput_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        self.inner.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        await self.inner.adelete_thread(thread_id)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)


def _go_to(plan: PlanHandle, group: str) -> None:
    """Roll back if any call was made since; a person's edits alone are no reason."""
    if plan.plan.head_group_id == group:
        return
    would = plan.preview_rollback(group)
    if would.changes or would.tool_calls_after:
        plan.rollback(group)


def _prompted(plan: PlanHandle, words: str, state: dict[str, str]) -> str:
    """A new input: ends the turn before, and `undo` returns here."""
    if state["checkpoint_id"]:
        plan.here(state)
    plan.prompt(words, state)
    return plan.plan.head_group_id or ""


def _words(checkpoint: Checkpoint) -> str:
    """The last message of the input, or the input itself."""
    given: Any = checkpoint["channel_values"].get("__start__")
    try:
        given = given["messages"][-1]
    except (TypeError, KeyError, IndexError):
        pass
    # A message, or its short form: a pair of role and text, a mapping.
    if type(given) is tuple:
        given = cast("tuple[Any, ...]", given)[-1]
    elif isinstance(given, dict) and "content" in given:
        given = cast("dict[str, Any]", given)["content"]
    text: Any = getattr(cast("Any", given), "content", cast("Any", given))
    return str(text)[:LONGEST_PROMPT] if text is not None else "input"
