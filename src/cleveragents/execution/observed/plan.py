"""An observed plan in one process, leased while a call is open or an event is handled.

At quiet points it is not leased, so other commands simply work. The plan's version shows on the
next lease whether one of them changed it.
"""

import time
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from msgspec.structs import replace

from cleveragents.actors import CALLER, OBSERVED
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, PlanBusy
from cleveragents.execution.leasing import take
from cleveragents.execution.observed.executor import CallRequest, ObservedExecutor
from cleveragents.execution.reconcile import reconcile
from cleveragents.lease import LeasedPlan
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Phase
from cleveragents.model.tool import CallState, ToolResult

WAIT_SECONDS = 0.05


class ObservedPlan:
    """Follows one plan over many events."""

    def __init__(self, ctx: Context, plan_id: str, wait: float = 0.0) -> None:
        self._ctx = ctx
        self.plan_id = plan_id
        self._wait = wait
        """Seconds to wait for the plan's holder."""
        self._held: ExitStack | None = None
        self._executor: ObservedExecutor | None = None
        self._version = -1
        """The plan as this process left it."""

    @contextmanager
    def taken(self, verb: str) -> Generator[ObservedExecutor]:
        """Lease the plan for the block, and longer if a call is open at its end."""
        executor = self._take(verb)
        try:
            yield executor
        except BaseException:
            self.release()
            # Executor and trackers may have seen only half of what happened.
            self._executor = None
            self._ctx.manager.forget(self.plan_id)
            raise
        self._version = executor.leased.plan.version
        if not executor.open_calls:
            self.release()

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    @property
    def open_keys(self) -> frozenset[str]:
        """The calls for which this process holds the plan."""
        held = self._executor is not None and self._held is not None
        return self._executor.open_keys if held and self._executor else frozenset()

    def drain(self) -> None:
        """Read the trackers' events."""
        if self._executor is not None:
            self._ctx.manager.drain(self.plan_id)

    def _take(self, verb: str) -> ObservedExecutor:
        if self._held is not None and self._executor is not None:
            return self._executor
        with ExitStack() as stack:
            leased = self._lease(stack, verb)
            require_not_final(leased.plan, "continued")
            executor = self._bound(leased)
            self._held = stack.pop_all()
        return executor

    def _lease(self, stack: ExitStack, verb: str) -> LeasedPlan:
        deadline = time.monotonic() + self._wait
        while True:
            try:
                return stack.enter_context(take(self._ctx, self.plan_id, verb))
            except PlanBusy:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(WAIT_SECONDS)

    def _bound(self, leased: LeasedPlan) -> ObservedExecutor:
        if self._executor is not None and leased.plan.version == self._version:
            self._executor.rebind(leased)
            return self._executor
        if self._executor is not None:
            # Another process worked on it: what we knew of its files is invalid.
            self._ctx.manager.forget(self.plan_id)
        _require_kind(leased)
        if leased.plan.phase is Phase.STRATEGIZE:
            ObservedExecutor(self._ctx, leased).strategize()
        elif leased.spec.actor.kind == CALLER and leased.plan.head_group_id is not None:
            # A dead program repeats its step; an observed agent lives on.
            reconcile(self._ctx, leased, discard_edits=False)
        self._executor = ObservedExecutor(self._ctx, leased)
        self._executor.prepare()
        return self._executor


def _require_kind(leased: LeasedPlan) -> None:
    kind = leased.spec.actor.kind
    if kind not in (CALLER, OBSERVED):
        raise NotAllowed(
            f"the steps of plan {leased.plan.name!r} come from its actor ({kind})",
            f"agents plan execute {leased.plan.plan_id}",
        )


class ObservedStep:
    """A step while its block runs (`PlanHandle.step`)."""

    def __init__(self, step_id: str, state: Any) -> None:
        self.step_id = step_id
        self.text: str = ""
        self.state: Any = state

    def output(self, text: str) -> None:
        """Add output, kept with the call."""
        self.text += text

    def keep_state(self, state: Any) -> None:
        """Keep the program's own memory, as JSON, in the step's group and later ones."""
        self.state = state


@contextmanager
def observed_step(observed: ObservedPlan, request: CallRequest) -> Generator[ObservedStep]:
    """Record the block as a step; an exception makes it a failed step and propagates."""
    request = request if request.key else replace(request, key=uuid.uuid4().hex)
    with observed.taken(f"step {request.tool}") as executor:
        call = executor.begin(request)
    step = ObservedStep(call.step_id, executor.leased.plan.actor_state)
    try:
        yield step
    except BaseException as error:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _end(observed, request, step, text)
        raise
    _end(observed, request, step, None)


def _end(
    observed: ObservedPlan, request: CallRequest, step: ObservedStep, error: str | None
) -> None:
    result = ToolResult(
        ok=error is None,
        state=CallState.FAILED if error else CallState.OK,
        output=step.text,
        output_bytes=len(step.text.encode()),
        error=error,
    )
    with observed.taken(f"step {request.tool}") as executor:
        executor.end(request.key, result, step.state)
        if not executor.open_calls and executor.leased.spec.actor.kind == CALLER:
            executor.close()


def complete(ctx: Context, plan_id: str) -> None:
    """Mark the plan complete, ready to apply."""
    with ObservedPlan(ctx, plan_id).taken("plan complete") as executor:
        executor.complete()
