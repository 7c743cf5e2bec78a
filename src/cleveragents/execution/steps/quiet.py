"""Checkpoints while a silent command runs: made whenever its writes pause.

Such a group holds one moment: if something is written during the capture, it is dropped, and the
next pause is waited for. Half a file is kept as half a file, and a database with its journal, which
its next reader rolls back to the last commit.
"""

import time
from contextlib import suppress

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.errors import CheckpointFailed, MachineError, SandboxError
from cleveragents.execution.step_writes import writes_of
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.plan import Step
from cleveragents.model.resource import Change
from cleveragents.model.tool import ToolCall

QUIET = 1.0
"""Seconds without a write."""
SHARE = 20
"""A group may take one in so many parts of the time that the command runs."""


class NotNow(CheckpointFailed):
    """Something was written during the capture, or nothing is new."""


class QuietPoints:
    """Makes groups while one call runs; `look` is called repeatedly."""

    def __init__(self, ctx: Context, leased: LeasedPlan, call: ToolCall, step: Step) -> None:
        self._ctx = ctx
        self._leased = leased
        self._call = call
        self._step = step
        self._told = ctx.manager.drain(call.plan_id)
        self._written_at: float | None = None
        """When a write was last noticed that no group holds."""
        self._not_before = 0.0
        self.made: bool = False
        """Whether there is such a group."""

    def look(self) -> None:
        now, told = time.monotonic(), self._ctx.manager.drain(self._call.plan_id)
        if told != self._told:
            self._told, self._written_at = told, now
        elif (
            self._written_at is not None
            and now >= self._not_before
            and now - self._written_at >= QUIET
        ):
            self._make()
            ended = time.monotonic()
            self._not_before = ended + SHARE * (ended - now)

    def _make(self) -> None:
        self._written_at = None
        request = CheckpointRequest(
            decision_id=self._call.decision_id,
            step=self._step,
            reason="its writes fell quiet",
            prepare=self._require_still,
            record=lambda _before, now: self._remember(now),
        )
        # Failing to capture or keep a state must not end the running command.
        with (
            suppress(CheckpointFailed, SandboxError, MachineError),
            self._ctx.manager.unseen(),
        ):
            self._ctx.checkpoints.create_checkpoint(CheckpointType.ON_QUIET, self._leased, request)

    def _require_still(self, now: States) -> None:
        head = self._ctx.checkpoints.head(self._leased)
        known = self._ctx.checkpoints.states(head) if head else {}
        if all(
            rid in known and known[rid].state_hash == state.state_hash for rid, state in now.items()
        ):
            raise NotNow("nothing is new")
        if self._ctx.manager.drain(self._call.plan_id) != self._told:
            raise NotNow("something was written meanwhile")

    def _remember(self, now: States) -> None:
        store, call = self._ctx.store, self._call
        changes = self.written(now)
        store.calls.add_writes(writes_of(store.resources.of_plan(call.plan_id), call, changes))
        self.made = True

    def written(self, now: States) -> tuple[Change, ...]:
        """All changes of the call so far; replaces what was recorded of it before."""
        store, call = self._ctx.store, self._call
        store.calls.forget_writes(call.plan_id, call.call_id)
        assert call.group_id is not None
        before = self._ctx.checkpoints.states(store.checkpoints.group(call.group_id))
        return self._ctx.manager.changes(call.plan_id, before, now)
