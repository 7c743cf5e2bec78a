"""Runs one step: decided, run, and kept with its group or undone."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.checkpoints import effects
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.errors import CheckpointFailed, DiskFull, MergeConflict, SandboxError
from cleveragents.execution import in_place_writes
from cleveragents.execution.failure import roll_back_failure
from cleveragents.execution.listening import Listener, meanwhile, with_listener
from cleveragents.execution.manual_edits import changes_since
from cleveragents.execution.step_writes import StepWrites, writes_of
from cleveragents.execution.steps.quiet import QuietPoints
from cleveragents.execution.tool_call import (
    call_context,
    ended,
    is_bounded,
    out_of_scope,
)
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.effect import EffectClass
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Failure, OnFailure, State, Step, StepState
from cleveragents.model.plan_spec import DecisionSpec, StepSpec
from cleveragents.model.resource import Change
from cleveragents.model.tool import CallState, ToolCall, ToolResult, ToolSpec
from cleveragents.tools import resolve_tool
from cleveragents.tools.runner import CallContext, run_tool

DECLARED = (EffectClass.COMPENSABLE, EffectClass.IRREVERSIBLE)
COMMAND = "run"
"""The tool of `agents run`: a whole program, of which nobody says when its single steps end."""
IDEMPOTENT_RETRIES = 3
BACK_OFF = (0.1, 0.5, 2.0)


class StepExecutor:
    """Runs single steps of one leased plan."""

    def __init__(
        self, ctx: Context, leased: LeasedPlan, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._ctx = ctx
        self._leased = leased
        self._sleep = sleep
        self._root: str | None = None
        self._unsaved = StepWrites()
        self._points: QuietPoints | None = None
        """Groups that are made while the call runs that is the latest."""
        self._steps: list[Step] = ctx.store.plans.steps(leased.plan.plan_id)

    def record_decision(self, decision: Decision, step: Step | None = None) -> None:
        """Record a decision before it is acted on, together with its group."""
        self._ctx.checkpoints.auto_create_if_configured(
            CheckpointType.ON_DECISION,
            self._leased,
            CheckpointRequest(
                steps=(step,) if step else (),
                decisions=(decision,),
                view_changed=True,
                decision_id=decision.decision_id,
                step=step,
            ),
        )

    def _spec(self, number: int) -> StepSpec:
        return codec.convert(self._steps[number].spec, StepSpec)

    def _run_step(self, number: int) -> bool:
        """Run one step to its end; False if it failed and the plan stopped."""
        spec = codec.convert(self._steps[number].spec, StepSpec)
        tool = resolve_tool(spec.tool, self._leased.spec.tools)
        self._decide(number, spec)
        self._trigger(CheckpointType.BEFORE_STEP, number)
        if tool.is_checkpointed:
            self._trigger(CheckpointType.BEFORE_TOOL_EXECUTE, number)
        if tool.writes:
            self._require_checkpoint(tool)
        safe = self._leased.plan.head_group_id
        self._tell("step", number)
        call = self._try(number, spec, tool)
        for attempt in range(self._retries(spec, tool)):
            if call.state is CallState.OK:
                break
            self._note(call)
            self._tell("retry", number, error=call.error)
            self._sleep(BACK_OFF[min(attempt, len(BACK_OFF) - 1)])
            call = self._try(number, spec, tool)
        if call.state is CallState.OK:
            try:
                self._succeed(number, spec, tool, call)
                return True
            except (CheckpointFailed, SandboxError, DiskFull) as error:
                # Changes that cannot be kept must not stay: the step counts as failed.
                call = msgspec.structs.replace(call, state=CallState.FAILED, error=error.message)
        self._fail(number, spec, call, safe)
        return False

    def _tell(self, event: str, number: int, **more: Any) -> None:
        """Report an event, with the number of steps if a file lists them."""
        step = self._steps[number]
        told: dict[str, Any] = {"id": step.step_id, "tool": step.tool, "number": number + 1}
        if self._leased.spec.actor.kind == "steps":
            told["of"] = len(self._steps)
        self._ctx.talk.tell(event, {**told, **more})

    def _try(self, number: int, spec: StepSpec, tool: ToolSpec) -> ToolCall:
        """Make one attempt; returns the ended call."""
        call, result = self._call(number, spec, tool)
        if result.ok and is_bounded(tool):
            result = self._require_in_scope(spec, tool, result)
        return ended(call, result, self._ctx.now())

    def _call(self, number: int, spec: StepSpec, tool: ToolSpec) -> tuple[ToolCall, ToolResult]:
        """Record that the tool runs, then run it."""
        call = self._begin(number, spec.inputs, tool)
        self._points = None
        internal = self._ctx.internal_tools.get(tool.builtin or "")
        if internal is not None:
            return call, internal(self._ctx, self._leased, **spec.inputs)
        context = self._context(spec)
        listener = Listener(self._ctx, self._leased, call, context.secrets)
        heard = with_listener(context, listener)
        if tool.builtin == COMMAND and self._are_points_wanted():
            self._points = QuietPoints(self._ctx, self._leased, call, self._steps[number])
            heard = meanwhile(heard, self._points.look)
        try:
            result = run_tool(tool, spec.inputs, heard, spec.timeout)
        except KeyboardInterrupt:
            listener.save()
            raise
        listener.end()
        return call, result

    def _are_points_wanted(self) -> bool:
        """Quiet points are wanted wherever a group after a writing tool is."""
        service, leased = self._ctx.checkpoints, self._leased
        return (
            service.is_configured(CheckpointType.AFTER_TOOL_EXECUTE, leased)
            and leased.plan.head_group_id is not None
        )

    def _begin(self, number: int, inputs: dict[str, Any], tool: ToolSpec) -> ToolCall:
        """Record that the step's tool runs; its outside effects must not be repeated elsewhere."""
        self._wait_if_outside(tool)
        step = self._put(
            number, state=StepState.PROCESSING, attempts=self._steps[number].attempts + 1
        )
        call = ToolCall(
            call_id=new_id(),
            plan_id=step.plan_id,
            step_id=step.step_id,
            attempt=step.attempts,
            tool=step.tool,
            inputs=inputs,
            state=CallState.RUNNING,
            started_at=self._ctx.now(),
            decision_id=step.decision_id,
            group_id=self._leased.plan.head_group_id,
        )
        with self._leased.transaction(by_write=True):
            self._leased.write(steps=(step,))
            self._ctx.store.calls.put(call)
            effects.note(self._ctx.store, tool, call, step.resource)
        return call

    def _wait_if_outside(self, tool: ToolSpec) -> None:
        """Wait for the bucket before and after: else a machine taking over would repeat it."""
        if effects.class_of(tool) in DECLARED:
            self._ctx.checkpoints.wait_until_uploaded(self._leased.plan.plan_id)

    def _context(self, spec: StepSpec) -> CallContext:
        return call_context(self._ctx, self._leased, spec.id, spec.on)

    def _require_in_scope(self, spec: StepSpec, tool: ToolSpec, result: ToolResult) -> ToolResult:
        """Fail a tool that changed something it declared not to change."""
        head = self._ctx.checkpoints.head(self._leased)
        if head is None:
            return result
        changed = out_of_scope(tool, spec.on, changes_since(self._ctx, head))
        if not changed:
            return result
        shown = ", ".join(f"{change.resource}: {change.shown}" for change in changed[:3])
        said = "is read-only" if tool.read_only else "stays in its scope"
        return msgspec.structs.replace(
            result,
            ok=False,
            state=CallState.FAILED,
            error=f"{tool.name} says it {said} and changed {shown}",
        )

    def _retries(self, spec: StepSpec, tool: ToolSpec) -> int:
        if spec.retries is not None:
            return spec.retries
        own = self._leased.spec.policy.max_retries_per_step
        if own is not None:
            return own
        return IDEMPOTENT_RETRIES if tool.idempotent else 0

    def _require_checkpoint(self, tool: ToolSpec) -> None:
        plan = self._leased.plan
        wanted = self._leased.spec.policy.require_checkpoints and plan.rollback_enabled
        if wanted and plan.head_group_id is None:
            raise CheckpointFailed(
                f"tool {tool.name!r} writes and no checkpoint exists from before it",
                "policy: {require_checkpoints: false} runs it anyway",
            )

    def _trigger(self, trigger: CheckpointType, number: int) -> CheckpointGroup | None:
        step = self._steps[number]
        request = CheckpointRequest(step=step, decision_id=step.decision_id)
        return self._ctx.checkpoints.auto_create_if_configured(trigger, self._leased, request)

    def _decide(self, number: int, spec: StepSpec) -> None:
        """Give the step its decision: the one it has, an earlier step's, or a new one."""
        step = self._steps[number]
        if step.decision_id is not None:
            return
        by_step = {item.step_id: item.decision_id for item in self._steps}
        if isinstance(spec.decision, str):
            self._put(number, decision_id=by_step[spec.decision])
            self._leased.commit(steps=(self._steps[number],))
            return
        given = spec.decision or DecisionSpec(question=spec.id, chosen=spec.tool)
        parent = by_step.get(given.parent or "") or self._root_decision()
        decision = Decision(
            decision_id=new_id(),
            plan_id=step.plan_id,
            kind=DecisionKind.STEP,
            question=given.question,
            chosen=given.chosen,
            alternatives=given.alternatives,
            rationale=given.rationale,
            confidence=given.confidence,
            parent_id=parent,
            influences=tuple(d for name in given.influences if (d := by_step.get(name))),
            step_id=step.step_id,
            attempt=self._leased.plan.attempt,
            created_at=self._ctx.now(),
        )
        self._put(number, decision_id=decision.decision_id)
        self.record_decision(decision, self._steps[number])

    def _root_decision(self) -> str | None:
        """The root decision in force; a correction of everything replaces it."""
        if self._root is None:
            for decision in self._ctx.store.plans.decisions(self._leased.plan.plan_id):
                if decision.parent_id is None and decision.state is DecisionState.ACTIVE:
                    self._root = decision.decision_id
        return self._root

    def _put(self, number: int, **fields: object) -> Step:
        self._steps[number] = msgspec.structs.replace(self._steps[number], **fields)
        return self._steps[number]

    def _note(self, call: ToolCall) -> None:
        with self._leased.transaction():
            self._ctx.store.calls.put(call)

    def _succeed(self, number: int, spec: StepSpec, tool: ToolSpec, call: ToolCall) -> None:
        """Mark the step done, in the same commit as the group with its changes."""
        step = self._put(number, state=StepState.COMPLETE, error=None)
        trigger = CheckpointType.AFTER_STEP
        if tool.is_checkpointed:
            trigger = CheckpointType.AFTER_TOOL_EXECUTE
        unsaved: tuple[Change, ...] = ()
        if tool.writes and not self._ctx.checkpoints.is_configured(trigger, self._leased):
            unsaved = self._unsaved.of_step(self._ctx, self._leased)
        last = max(step.index, self._leased.plan.last_completed_step)
        request = CheckpointRequest(
            steps=(step,),
            view_changed=True,
            decision_id=step.decision_id,
            step=step,
            record=lambda before, after: self._remember(
                call,
                unsaved or self._wrote(call, before, after),
                has_effect=effects.class_of(tool) is not None,
            ),
            plan={"last_completed_step": last},
        )
        self._ctx.checkpoints.auto_create_if_configured(trigger, self._leased, request)
        if tool.is_checkpointed:
            self._trigger(CheckpointType.AFTER_STEP, number)
        self._milestone(spec, step)
        self._wait_if_outside(tool)
        self._tell("done", number)

    def _milestone(self, spec: StepSpec, step: Step) -> None:
        if spec.checkpoint and self._leased.plan.rollback_enabled:
            request = CheckpointRequest(
                decision_id=step.decision_id,
                step=step,
                label=spec.checkpoint,
                reason=f"milestone of step {step.step_id}",
            )
            self._ctx.checkpoints.create_checkpoint(CheckpointType.MILESTONE, self._leased, request)

    def _wrote(self, call: ToolCall, before: States, after: States) -> tuple[Change, ...]:
        """The call's changes, even if groups were made while it ran."""
        if self._points is not None and self._points.made:
            return self._points.written(after)
        return self._ctx.manager.changes(call.plan_id, before, after)

    def _remember(
        self, call: ToolCall, changes: tuple[Change, ...], has_effect: bool = True
    ) -> None:
        """Record the call and its writes, in the commit of its group."""
        store = self._ctx.store
        store.calls.put(call)
        if has_effect:
            store.effects.happened(call)
        known = self._ctx.manager.sandboxes(call.plan_id).resources.values()
        store.calls.add_writes(writes_of(known, call, changes))

    def _fail(
        self,
        number: int,
        spec: StepSpec,
        call: ToolCall,
        safe: str | None,
        conflict: MergeConflict | None = None,
    ) -> None:
        """Keep the failed state for inspection, then follow the policy.

        `safe`: the group from before the step; None if it changed nothing here.
        """
        leased = self._leased
        step = self._put(number, state=StepState.ERRORED, error=call.error)
        hint = f"agents plan resume {leased.plan.plan_id}"
        policy = spec.on_failure or leased.spec.policy.on_failure
        back = self._after_failure(policy, safe)
        failure = Failure(
            "MergeConflict" if conflict else "ToolFailed",
            f"step {spec.id}: {call.error}",
            hint,
            spec.id,
            undo_to=back,
            conflicts=tuple(msgspec.to_builtins(conflict.conflicts)) if conflict else (),
        )
        kept = self._keep_failed(step, call, failure)
        if kept is not None:
            failure = msgspec.structs.replace(failure, group_id=kept.group_id)
            leased.commit(error=failure)
        self._tell("failed", number, error=call.error, output=call.output)
        if back is not None:
            changes = roll_back_failure(self._ctx, leased)
            self._ctx.talk.tell("rolled_back", {"group": back, "changes": changes})

    def _keep_failed(self, step: Step, call: ToolCall, failure: Failure) -> CheckpointGroup | None:
        """Make the `on_error` group; if the step filled the disk, go without."""
        leased, store = self._leased, self._ctx.store

        def record(before: States, now: States) -> None:
            store.calls.put(call)
            in_place_writes.remember(self._ctx, call, before, now)

        request = CheckpointRequest(
            steps=(step,),
            decision_id=step.decision_id,
            step=step,
            record=record,
            plan={"state": State.ERRORED, "error": failure},
        )
        try:
            return self._ctx.checkpoints.auto_create_if_configured(
                CheckpointType.ON_ERROR, leased, request
            )
        except DiskFull as error:
            text = f"the failed state of step {step.step_id} could not be kept: {error}"
            self._ctx.talk.tell("warning", {"message": text})
        with leased.transaction():
            store.calls.put(call)
            leased.write(steps=(step,), state=State.ERRORED, error=failure)
        return None

    def _after_failure(self, policy: OnFailure, safe: str | None) -> str | None:
        if policy is OnFailure.ROLLBACK_STEP:
            return safe
        groups = self._ctx.store.checkpoints.groups(self._leased.plan.plan_id)
        return groups[0].group_id if groups and policy is OnFailure.ROLLBACK_PLAN else None
