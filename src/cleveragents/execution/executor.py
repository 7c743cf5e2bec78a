"""Run a plan's steps in its sandboxes, with a checkpoint group at every decision."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.checkpoints import effects
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.groups import About
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content import removal
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import AgentsError, CheckpointFailed, DiskFull, MergeConflict, SandboxError
from cleveragents.execution.child_plans import Brought, merge_children, run_children, spawn
from cleveragents.execution.failure import roll_back_failure
from cleveragents.execution.manual_edits import changes_since
from cleveragents.execution.preflight import confinement_warnings
from cleveragents.execution.sandboxes import make_sandboxes
from cleveragents.execution.step_writes import StepWrites
from cleveragents.execution.tool_call import (
    bounds_of,
    call_context,
    ended,
    is_bounded,
    out_of_scope,
)
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Ending, EntryState, JournalEntry, Operation
from cleveragents.model.plan import Failure, OnFailure, Phase, Plan, State, Step, StepState
from cleveragents.model.plan_spec import DecisionSpec, StepSpec
from cleveragents.model.resource import Change
from cleveragents.model.tool import CallState, ToolCall, ToolResult, ToolSpec, Write
from cleveragents.model.units import plural
from cleveragents.tools import resolve_tool
from cleveragents.tools.runner import CallContext, end_leftovers, remove_temporary, run_tool

IDEMPOTENT_RETRIES = 3
# What leaves the sandboxes is noted with the child's own steps.
SUBPLAN_TOOL = ToolSpec(name="subplan", network=False)
BACK_OFF = (0.1, 0.5, 2.0)


class PlanExecutor:
    """Executes one plan that this process holds."""

    def __init__(
        self, ctx: Context, leased: LeasedPlan, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._ctx = ctx
        self._leased = leased
        self._sleep = sleep
        self._root: str | None = None
        self._unsaved = StepWrites()
        self._steps: list[Step] = ctx.store.plans.steps(leased.plan.plan_id)

    def strategize(self) -> None:
        """Record the root decision; touches no resource."""
        leased = self._leased
        if leased.plan.phase is not Phase.STRATEGIZE:
            return
        leased.commit(state=State.PROCESSING)
        if self._root_decision() is None:
            self._record_root()
        leased.commit(state=State.COMPLETE)
        leased.commit(phase=Phase.EXECUTE, state=State.QUEUED)

    def _record_root(self) -> None:
        leased = self._leased
        root = Decision(
            decision_id=new_id(),
            plan_id=leased.plan.plan_id,
            kind=DecisionKind.ROOT,
            question=leased.plan.name,
            chosen=self._strategy(),
            rationale=leased.spec.description,
            phase=Phase.STRATEGIZE,
            attempt=leased.plan.attempt,
            created_at=self._ctx.now(),
        )
        leased.commit(decisions=(root,), view_changed=True)

    def _strategy(self) -> str:
        return plural(len(self._steps), "step")

    def prepare(self) -> None:
        """Sandboxes, and the group from before the first write."""
        leased = self._leased
        make_sandboxes(self._ctx, leased)
        self._ctx.manager.follow(leased.plan.plan_id)
        end_leftovers(leased.plan.plan_id)
        opened = self._ctx.manager.sandboxes(leased.plan.plan_id).opened.values()
        remove_temporary(
            f"{self._ctx.settings.sandboxes}/{leased.plan.plan_id}",
            [sandbox.place.root for sandbox in opened],
        )
        confine = self._ctx.settings.confine
        for text in confinement_warnings(leased.spec, bounds_of(self._ctx, leased), confine):
            self._ctx.talk.tell("warning", {"message": text})
        if not leased.plan.rollback_enabled and not self._ctx.checkpoints.origins(
            leased.plan.plan_id
        ):
            self._ctx.checkpoints.keep_origins(leased)
        self._ctx.checkpoints.auto_create_if_configured(CheckpointType.PRE_EXECUTE, leased)

    def execute(self, operation: Operation, entry: JournalEntry | None = None) -> None:
        """Run every step that is not done. A failure leaves the plan errored and resumable.

        `entry`: an operation that began before and ends with this.
        """
        leased = self._leased
        entry = entry or leased.opened(operation)
        with leased.transaction():
            self._ctx.store.journal.put(entry)
            leased.write(phase=Phase.EXECUTE, state=State.PROCESSING, error=None)
        try:
            if self._work():
                self._complete(entry)
            else:
                self._close(entry, Ending.FAILED)
        except KeyboardInterrupt:
            self._interrupted(entry)
            raise
        except AgentsError as error:
            self._stop(type(error).__name__, error.message, entry, error.hint)
            raise

    def _work(self) -> bool:
        """Everything that is to be done; False if it failed and the plan stopped."""
        for number in range(len(self._steps)):
            self._ctx.stop()
            if not self._steps[number].done and not self._run(number):
                return False
        return True

    def _complete(self, entry: JournalEntry) -> None:
        leased = self._leased
        self._ctx.checkpoints.auto_create_if_configured(
            CheckpointType.POST_EXECUTE,
            leased,
            CheckpointRequest(plan={"state": State.COMPLETE}),
        )
        self._close(entry)

    def _close(self, entry: JournalEntry, ending: Ending = Ending.DONE) -> None:
        plan, store = self._leased.plan, self._ctx.store
        with self._leased.transaction():
            store.journal.put(self._leased.closed(entry, outcome=str(ending)))
            store.corrections.end(plan, self._ctx.now())

    def _stop(self, kind: str, message: str, entry: JournalEntry, hint: str = "") -> None:
        leased = self._leased
        hint = hint or f"agents plan resume {leased.plan.plan_id}"
        ended = leased.closed(entry, outcome=str(Ending.FAILED))
        self._end(Failure(kind, message, hint), ended)

    def _interrupted(self, entry: JournalEntry) -> None:
        """By the user. What the step did stays until the plan is resumed, which undoes it."""
        leased = self._leased
        failure = Failure(
            "Interrupted",
            "interrupted by the user",
            f"agents plan resume {leased.plan.plan_id}",
            next((s.step_id for s in self._steps if s.state is StepState.PROCESSING), None),
        )
        self._end(failure, leased.closed(entry, EntryState.INTERRUPTED))

    def _end(self, failure: Failure, entry: JournalEntry) -> None:
        leased, store = self._leased, self._ctx.store
        with leased.transaction():
            leased.write(state=State.ERRORED, error=failure)
            store.journal.put(msgspec.structs.replace(entry, after=leased.moment()))
            store.calls.interrupt(leased.plan.plan_id, self._ctx.now())

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

    def _run(self, number: int) -> bool:
        if self._spec(number).subplan is not None:
            return self._run_children(self._side_by_side(number))
        return self._run_step(number)

    def _spec(self, number: int) -> StepSpec:
        return codec.convert(self._steps[number].spec, StepSpec)

    def _side_by_side(self, number: int) -> list[int]:
        """This child plan and those that follow in the same group and need nothing undone."""
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
        """Child plans to their end and merged; False if one failed or they conflict."""
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
            self._ctx.talk.tell("step", {"id": self._steps[number].step_id, "tool": "subplan"})
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
        # The one that failed by itself, not one that was stopped for it.
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
        """One step failed; the others wait for the next try, with what their children did."""
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
        """Bring the children's work into the sandboxes; conflicts are found before the first."""
        plan = self._leased.plan
        scratch = f"{self._ctx.staging}/{plan.plan_id}-merge"
        try:
            with self._ctx.manager.packs.looking() as batch:
                now = self._ctx.manager.create_checkpoint(plan.plan_id, batch, {})
                merge_children(self._ctx, plan, children, now, batch, scratch)
            for number, child, call in zip(numbers, children, calls, strict=True):
                self._merge_one(number, child, call, scratch)
        finally:
            removal.remove_tree(scratch)

    def _merge_one(self, number: int, child: Plan, call: ToolCall, scratch: str) -> None:
        """One child's work and the end of its step, in one switch."""
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
        ctx.talk.tell("done", {"id": step.step_id})

    def _begin(self, number: int, inputs: dict[str, Any], tool: ToolSpec) -> ToolCall:
        """Note that the step's tool runs."""
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
        with self._leased.transaction():
            self._ctx.store.calls.put(call)
            effects.note(self._ctx.store, tool, call, step.resource)
            self._leased.write(steps=(step,))
        return call

    def _run_step(self, number: int) -> bool:
        """One step to its end; False if it failed and the plan stopped."""
        spec = codec.convert(self._steps[number].spec, StepSpec)
        tool = resolve_tool(spec.tool, self._leased.spec.tools)
        self._decide(number, spec)
        self._trigger(CheckpointType.BEFORE_STEP, number)
        if tool.is_checkpointed:
            self._trigger(CheckpointType.BEFORE_TOOL_EXECUTE, number)
        if tool.writes:
            self._require_checkpoint(tool)
        safe = self._leased.plan.head_group_id
        self._ctx.talk.tell("step", {"id": spec.id, "tool": spec.tool})
        call = self._try(number, spec, tool)
        for attempt in range(self._retries(spec, tool)):
            if call.state is CallState.OK:
                break
            self._note(call)
            self._sleep(BACK_OFF[min(attempt, len(BACK_OFF) - 1)])
            call = self._try(number, spec, tool)
        if call.state is CallState.OK:
            try:
                self._succeed(number, spec, tool, call)
                return True
            except (CheckpointFailed, SandboxError, DiskFull) as error:
                # What cannot be kept must not stay: the step counts as failed.
                call = msgspec.structs.replace(call, state=CallState.FAILED, error=error.message)
        self._fail(number, spec, call, safe)
        return False

    def _try(self, number: int, spec: StepSpec, tool: ToolSpec) -> ToolCall:
        """One attempt; the call as it ended."""
        call, result = self._call(number, spec, tool)
        if result.ok and is_bounded(tool):
            result = self._require_in_scope(spec, tool, result)
        return ended(call, result, self._ctx.now())

    def _retries(self, spec: StepSpec, tool: ToolSpec) -> int:
        if spec.retries is not None:
            return spec.retries
        own = self._leased.spec.policy.max_retries_per_step
        if own is not None:
            return own
        return IDEMPOTENT_RETRIES if tool.idempotent else 0

    def _trigger(self, trigger: CheckpointType, number: int) -> CheckpointGroup | None:
        step = self._steps[number]
        request = CheckpointRequest(step=step, decision_id=step.decision_id)
        return self._ctx.checkpoints.auto_create_if_configured(trigger, self._leased, request)

    def _require_checkpoint(self, tool: ToolSpec) -> None:
        plan = self._leased.plan
        wanted = self._leased.spec.policy.require_checkpoints and plan.rollback_enabled
        if wanted and plan.head_group_id is None:
            raise CheckpointFailed(
                f"tool {tool.name!r} writes and no checkpoint exists from before it",
                "policy: {require_checkpoints: false} runs it anyway",
            )

    def _decide(self, number: int, spec: StepSpec) -> None:
        """Hang the step on its decision: the one it has, an earlier step's, or a new one."""
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
        """The one at the top that is in force; a correction of all takes the root's place."""
        if self._root is None:
            for decision in self._ctx.store.plans.decisions(self._leased.plan.plan_id):
                if decision.parent_id is None and decision.state is DecisionState.ACTIVE:
                    self._root = decision.decision_id
        return self._root

    def _put(self, number: int, **fields: object) -> Step:
        self._steps[number] = msgspec.structs.replace(self._steps[number], **fields)
        return self._steps[number]

    def _call(self, number: int, spec: StepSpec, tool: ToolSpec) -> tuple[ToolCall, ToolResult]:
        """Note that the tool runs, then run it."""
        call = self._begin(number, spec.inputs, tool)
        internal = self._ctx.internal_tools.get(tool.builtin or "")
        if internal is not None:
            return call, internal(self._ctx, self._leased, **spec.inputs)
        return call, run_tool(tool, spec.inputs, self._context(spec), spec.timeout)

    def _context(self, spec: StepSpec) -> CallContext:
        return call_context(self._ctx, self._leased, spec.id, spec.on)

    def _require_in_scope(self, spec: StepSpec, tool: ToolSpec, result: ToolResult) -> ToolResult:
        """A tool must not have changed what it says it does not."""
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

    def _note(self, call: ToolCall) -> None:
        with self._leased.transaction():
            self._ctx.store.calls.put(call)

    def _succeed(self, number: int, spec: StepSpec, tool: ToolSpec, call: ToolCall) -> None:
        """The step is done: in the same commit as the group that holds what it did."""
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
                call, unsaved or self._ctx.manager.changes(call.plan_id, before, after)
            ),
            plan={"last_completed_step": last},
        )
        self._ctx.checkpoints.auto_create_if_configured(trigger, self._leased, request)
        if tool.is_checkpointed:
            self._trigger(CheckpointType.AFTER_STEP, number)
        self._milestone(spec, step)
        self._ctx.talk.tell("done", {"id": spec.id})

    def _milestone(self, spec: StepSpec, step: Step) -> None:
        if spec.checkpoint and self._leased.plan.rollback_enabled:
            request = CheckpointRequest(
                decision_id=step.decision_id,
                step=step,
                label=spec.checkpoint,
                reason=f"milestone of step {step.step_id}",
            )
            self._ctx.checkpoints.create_checkpoint(CheckpointType.MILESTONE, self._leased, request)

    def _remember(self, call: ToolCall, changes: tuple[Change, ...]) -> None:
        """The call and what it wrote, inside the commit of its group."""
        store = self._ctx.store
        store.calls.put(call)
        store.effects.happened(call)
        ids = {r.name: r.resource_id for r in store.resources.of_plan(call.plan_id)}
        store.calls.add_writes(
            Write(
                plan_id=call.plan_id,
                step_id=call.step_id,
                call_id=call.call_id,
                resource_id=ids[change.resource],
                path=change.path,
                before=change.before,
                after=change.after,
            )
            for change in changes
        )

    def _fail(
        self,
        number: int,
        spec: StepSpec,
        call: ToolCall,
        safe: str | None,
        conflict: MergeConflict | None = None,
    ) -> None:
        """Keep the failed state for inspection, then do what the policy says.

        `safe`: the group from before the step; None if it changed nothing here.
        """
        leased = self._leased
        step = self._put(number, state=StepState.ERRORED, error=call.error)
        hint = f"agents plan resume {leased.plan.plan_id}"
        policy = spec.on_failure or leased.spec.policy.on_failure
        back = self._way_back(policy, safe)
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
        self._ctx.talk.tell("failed", {"id": spec.id, "error": call.error, "output": call.output})
        if back is not None:
            changes = roll_back_failure(self._ctx, leased)
            self._ctx.talk.tell("rolled_back", {"group": back, "changes": changes})

    def _keep_failed(self, step: Step, call: ToolCall, failure: Failure) -> CheckpointGroup | None:
        """The `on_error` group. What a step that filled the disk left need not be kept."""
        leased, store = self._leased, self._ctx.store
        request = CheckpointRequest(
            steps=(step,),
            decision_id=step.decision_id,
            step=step,
            record=lambda _before, _after: store.calls.put(call),
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

    def _way_back(self, policy: OnFailure, safe: str | None) -> str | None:
        if policy is OnFailure.ROLLBACK_STEP:
            return safe
        groups = self._ctx.store.checkpoints.groups(self._leased.plan.plan_id)
        return groups[0].group_id if groups and policy is OnFailure.ROLLBACK_PLAN else None
