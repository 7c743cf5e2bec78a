"""A plan that a framework uses from any thread or task.

All work happens in one thread with a connection of its own, one call after the other.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from cleveragents.integrations.events import LARGEST_OUTPUT, bounded, bounded_inputs
from cleveragents.plan_handle import PlanHandle

if TYPE_CHECKING:
    from cleveragents.execution.observed.plan import ObservedStep

T = TypeVar("T")


class PlanThread:
    """Opened on first use; `close` ends it."""

    def __init__(self, plan: PlanHandle) -> None:
        self.plan_id: str = plan.plan_id
        self._plan = plan
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self._stack = ExitStack()
        self._own: PlanHandle | None = None
        self._open: dict[str, tuple[AbstractContextManager[Any], ObservedStep]] = {}

    def ask(self, function: Callable[[PlanHandle], T]) -> T:
        """Run a function on the plan, and wait for its result."""
        return self._thread.submit(self._do, function).result()

    async def aask(self, function: Callable[[PlanHandle], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(self._do, function))

    def _do(self, function: Callable[[PlanHandle], T]) -> T:
        if self._own is None:
            self._own = self._stack.enter_context(self._plan.another())
        return function(self._own)

    def close(self) -> None:
        if self._open:
            self.ask(self.here())
        self._thread.submit(self._stack.close).result()
        self._thread.shutdown()

    def begin(self, key: str, tool: str, inputs: Mapping[str, Any]) -> Callable[[PlanHandle], None]:
        """The function to `ask` when a call begins; `key` names the call until it ends."""
        given = bounded_inputs(dict(inputs))

        def begun(plan: PlanHandle) -> None:
            block = plan.step(tool, given)
            self._open[key] = block, block.__enter__()

        return begun

    def end(
        self, key: str, output: str = "", error: BaseException | None = None, state: Any = None
    ) -> Callable[[PlanHandle], None]:
        """The function to `ask` when a call has ended; does nothing for one that never began."""

        def ended(plan: PlanHandle) -> None:
            if key not in self._open:
                return
            block, step = self._open.pop(key)
            step.output(bounded(output, LARGEST_OUTPUT))
            if state is not None:
                step.keep_state(state)
            block.__exit__(type(error) if error else None, error, None)

        return ended

    def here(self, state: Any = None) -> Callable[[PlanHandle], str]:
        """The function to `ask` when no call is open any more: calls without an end have failed."""

        def settled(plan: PlanHandle) -> str:
            for key in tuple(self._open):
                self.end(key, error=InterruptedError("no end was told"))(plan)
            return plan.here(state)

        return settled

    @contextmanager
    def step(self, key: str, tool: str, inputs: Mapping[str, Any]) -> Generator[list[str]]:
        """The block is a step; append its output to the list."""
        said: list[str] = []
        self.ask(self.begin(key, tool, inputs))
        try:
            yield said
        except BaseException as error:
            self.ask(self.end(key, "".join(said), error))
            raise
        self.ask(self.end(key, "".join(said)))

    @asynccontextmanager
    async def astep(
        self, key: str, tool: str, inputs: Mapping[str, Any]
    ) -> AsyncGenerator[list[str]]:
        said: list[str] = []
        await self.aask(self.begin(key, tool, inputs))
        try:
            yield said
        except BaseException as error:
            await self.aask(self.end(key, "".join(said), error))
            raise
        await self.aask(self.end(key, "".join(said)))
