"""Steps that are child plans: run in parallel, then merged one by one."""

import msgspec

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.groups import About
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content import removal
from cleveragents.content.packs import Batch
from cleveragents.errors import MergeConflict
from cleveragents.execution.child_plans import Brought, merge_children, run_children, spawn
from cleveragents.execution.steps.executor import StepExecutor
from cleveragents.execution.tool_call import (
    ended,
)
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Plan, StepState
from cleveragents.model.tool import CallState, ToolCall, ToolResult, ToolSpec

# Effects outside the sandboxes are recorded with the child's own steps.
SUBPLAN_TOOL = ToolSpec(name="subplan", network=False)


class ChildStepExecutor(StepExecutor):
    """Runs single steps and child plans of one leased plan."""

    def _run(self, number: int) -> bool:
        if self._spec(number).subplan is not None:
            return self._run_children(self._side_by_side(number))
        return self._run_step(number)

    def _side_by_side(self, number: int) -> list[int]:
        """This child plan and the following ones of its group that can run with it."""
        first = self._spec(number).subplan
        assert first is not None
        found = [number]
        done = {step.step_id for step in self._steps if step.done}
        for later in range(number + 1, len(self._steps)):
            spec = self._spec(later)
            if first.group is None or spec.subplan is None or spec.subplan.group != first.group:
                break
            if not self._steps[later].done and done.issuperset(spec.needs):
                found.append(later)
        return found

    def _run_children(self, numbers: list[int]) -> bool:
        """Run child plans and merge them; False if one failed or they conflict."""
        leased, policy = self._leased, self._leased.spec.policy
        calls: list[ToolCall] = []
        children: list[Plan] = []
        for number in numbers:
            spec = self._spec(number)
            self._decide(number, spec)
            self._trigger(CheckpointType.BEFORE_STEP, number)
            self._require_checkpoint(SUBPLAN_TOOL)
            children.append(spawn(self._ctx, leased, self._steps[number], spec))
            step = self._steps[number]
            request = CheckpointRequest(view_changed=True, step=step, decision_id=step.decision_id)
            self._ctx.checkpoints.auto_create_if_configured(
                CheckpointType.ON_SUBPLAN_SPAWN, leased, request
            )
        for number, child in zip(numbers, children, strict=True):
            self._tell("step", number)
            calls.append(self._begin(number, {"plan": child.plan_id}, SUBPLAN_TOOL))
        outcomes = run_children(
            self._ctx,
            children,
            at_once=policy.max_parallel,
            fail_fast=policy.fail_fast,
            retries=max(self._retries(self._spec(n), SUBPLAN_TOOL) for n in numbers),
        )
        failed = [n for n, outcome in enumerate(outcomes) if outcome.error]
        if not failed:
            try:
                self._merge(numbers, children, calls)
                return True
            except MergeConflict as error:
                first = ToolResult(
                    ok=False, state=CallState.FAILED, output="", output_bytes=0, error=error.message
                )
                self._give_up(numbers, calls, 0, first, error)
                return False
        # The child that failed itself, not one that was stopped because of it.
        at = next((n for n in failed if outcomes[n].hint), failed[0])
        told = ToolResult(
            ok=False,
            state=CallState.FAILED,
            output="",
            output_bytes=0,
            error=f"child plan {children[at].plan_id}: {outcomes[at].error}",
        )
        self._give_up(numbers, calls, at, told)
        return False

    def _give_up(
        self,
        numbers: list[int],
        calls: list[ToolCall],
        at: int,
        result: ToolResult,
        error: MergeConflict | None = None,
    ) -> None:
        """Fail one step; the others keep their children's work for the next try."""
        now = self._ctx.now()
        others = [number for number in numbers if number != numbers[at]]
        waiting = tuple(self._put(number, state=StepState.QUEUED) for number in others)
        with self._leased.transaction():
            for number, call in zip(numbers, calls, strict=True):
                if number != numbers[at]:
                    interrupted = msgspec.structs.replace(
                        call, state=CallState.INTERRUPTED, ended_at=now
                    )
                    self._ctx.store.calls.put(interrupted)
            self._leased.write(steps=waiting)
        number = numbers[at]
        self._fail(number, self._spec(number), ended(calls[at], result, now), None, error)

    def _merge(self, numbers: list[int], children: list[Plan], calls: list[ToolCall]) -> None:
        """Merge the children's work into the sandboxes, after checking all for conflicts."""
        plan = self._leased.plan
        scratch = f"{self._ctx.staging}/{plan.plan_id}-merge"
        try:
            with self._ctx.manager.packs.preview() as batch:
                now = self._ctx.manager.create_checkpoint(plan.plan_id, batch, {})
                merge_children(self._ctx, plan, children, now, batch, scratch)
            for number, child, call in zip(numbers, children, calls, strict=True):
                self._merge_one(number, child, call, scratch)
        finally:
            removal.remove_tree(scratch)

    def _merge_one(self, number: int, child: Plan, call: ToolCall, scratch: str) -> None:
        """Merge one child's work and end its step, in one switch."""
        leased, ctx = self._leased, self._ctx
        brought: list[Brought] = []

        def make(now: States, batch: Batch) -> States:
            brought.append(merge_children(ctx, leased.plan, (child,), now, batch, scratch))
            return brought[-1].states

        def note(kept: CheckpointGroup) -> None:
            whole = ToolResult(ok=True, state=CallState.OK, output="", output_bytes=0)
            merged = msgspec.structs.replace(ended(call, whole, ctx.now()), group_id=kept.group_id)
            self._remember(merged, brought[-1].changes[child.plan_id])

        step = msgspec.structs.replace(self._steps[number], state=StepState.COMPLETE, error=None)
        last = max(leased.plan.last_completed_step, step.index)
        todo = Restoration(group_id=new_id(), plan={"last_completed_step": last}, steps=(step,))
        reason = f"merged {child.name}"
        about = About(CheckpointType.AFTER_SUBPLAN, reason, step.decision_id, step)
        ctx.checkpoints.restore_made(leased, about, make, todo, note)
        self._steps[number] = step
        self._trigger(CheckpointType.AFTER_STEP, number)
        self._milestone(self._spec(number), step)
        self._tell("done", number)
