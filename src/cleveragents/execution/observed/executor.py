"""Steps performed elsewhere: recorded before, kept with their group after."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from cleveragents.actors.protocol import DecisionProposal
from cleveragents.checkpoints import effects
from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.execution.manual_edits import adopt_edits
from cleveragents.execution.observed.prompts import PromptedExecutor, first_line
from cleveragents.execution.step_writes import of_named, writes_of
from cleveragents.execution.tool_call import ended
from cleveragents.execution.use import step_of
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.decision import Decision
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Operation
from cleveragents.model.plan import Phase, State, Step, StepState
from cleveragents.model.plan_spec import StepSpec
from cleveragents.model.tool import CallState, ToolCall, ToolResult, ToolSpec

Late = Callable[[], str]
"""Why what is noted now may not be exact; "" if it is."""
ROOT_ALONE = "what its agent does"


def in_time() -> str:
    return ""


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call about to be made."""

    key: str
    """What names it until it has ended."""
    tool: str
    inputs: dict[str, Any] = {}
    on: str | None = None
    writes: bool = True
    paths: tuple[str, ...] = ()
    """The only files it writes, if it says so; in place, others are then somebody else's."""
    outside: bool = False
    """It can act on the world outside, and nobody says what it does there."""
    parent: str = ""
    """The key of the call whose sub-agent makes it."""


class ObservedExecutor(PromptedExecutor):
    """Follows one leased plan, call by call."""

    def __init__(self, ctx: Context, leased: LeasedPlan) -> None:
        super().__init__(ctx, leased)
        by_step = {call.step_id: call for call in self._of_open_steps()}
        self._calls = {
            step.spec.get("call", ""): by_step[step.step_id]
            for step in self._steps
            if step.step_id in by_step
        }
        """Key -> the call, for all that no group holds yet; also those that have ended."""
        self._number = self._last_number()
        self.late: Late = in_time

    def _of_open_steps(self) -> list[ToolCall]:
        return self._ctx.store.calls.of_open_steps(self._leased.plan.plan_id)

    def _last_number(self) -> int:
        """The last step number; ids are never reused, because writes are kept under them."""
        ids = self._ctx.store.calls.step_ids(self._leased.plan.plan_id)
        return max((int(name[1:]) for name in ids if name[1:].isdigit()), default=0)

    def rebind(self, leased: LeasedPlan) -> None:
        """Continue with a new lease of the same, unchanged plan."""
        self._leased = leased

    @property
    def leased(self) -> LeasedPlan:
        return self._leased

    def _strategy(self) -> str:
        return ROOT_ALONE

    def prepare(self) -> None:
        """Make sandboxes and the first group; leave processes running in them alone."""
        if self._leased.plan.head_group_id is None:
            super().prepare()
        else:
            self._ctx.manager.follow(self._leased.plan.plan_id)

    @property
    def open_calls(self) -> list[ToolCall]:
        """Those that have begun and not ended."""
        return [call for call in self._calls.values() if call.state is CallState.RUNNING]

    @property
    def open_keys(self) -> frozenset[str]:
        running = CallState.RUNNING
        return frozenset(key for key, call in self._calls.items() if call.state is running)

    def prompt(self, text: str, state: Any, parent: str = "") -> Decision:
        """A person asks for something: a decision, and an operation that is undone as one."""
        if parent:
            return self._below(parent, text)
        if (known := self._told_before(text, state)) is not None:
            return known
        self.interrupt(state=None)
        self.close()
        if self._edited():
            adopt_edits(self._ctx, self._leased)
        decision = self._decision(text, self._root_decision())
        shown = first_line(text)
        entry = self._leased.opened(Operation.PROMPT, prompt=shown, decision=decision.decision_id)
        request = CheckpointRequest(
            decisions=(decision,),
            view_changed=True,
            decision_id=decision.decision_id,
            reason=self._reason(CheckpointType.ON_DECISION),
            plan={"actor_state": state, **_AT_WORK},
            record=lambda _before, _after: self._ctx.store.journal.put(entry),
        )
        self._make(CheckpointType.ON_DECISION, request)
        return decision

    def decide(self, proposal: DecisionProposal) -> Decision:
        """A decision of the agent's own, below the prompt that it works for."""
        above = self._current() or self._root_decision()
        decision = msgspec.structs.replace(
            self._decision(proposal.question, above, proposal.rationale),
            chosen=proposal.chosen,
            alternatives=proposal.alternatives,
            confidence=proposal.confidence,
        )
        request = CheckpointRequest(
            decisions=(decision,),
            view_changed=True,
            decision_id=decision.decision_id,
            reason=self._reason(CheckpointType.ON_DECISION),
        )
        self._make(CheckpointType.ON_DECISION, request)
        return decision

    def begin(self, request: CallRequest, state: Any = None) -> ToolCall:
        """Note that a call is about to be made; edits from before it are the person's."""
        known = self._calls.get(request.key)
        if known is not None and known.state is CallState.RUNNING:
            return known  # told twice, by somebody who got no answer the first time
        decision_id = self._decision_for(request.parent)
        if request.writes and not self._busy():
            self._keep_edits(state)
        step = self._step(request, decision_id)
        call = ToolCall(
            call_id=new_id(),
            plan_id=step.plan_id,
            step_id=step.step_id,
            attempt=1,
            tool=request.tool,
            inputs=request.inputs,
            state=CallState.RUNNING,
            started_at=self._ctx.now(),
            decision_id=decision_id,
            group_id=self._leased.plan.head_group_id,
        )
        tool = ToolSpec(name=request.tool, unsafe=request.outside, network=request.outside)
        with self._leased.transaction():
            self._continue_operation(anew=True)
            self._ctx.store.calls.put(call)
            effects.note(self._ctx.store, tool, call, step.resource)
            self._leased.write(steps=(step,), view_changed=True, **_AT_WORK)
        self._steps.append(step)
        self._calls[request.key] = call
        return call

    def end(self, key: str, result: ToolResult, state: Any) -> None:
        """A call ended; the last one that was open makes the group of all."""
        call = self._calls.get(key)
        if call is None or call.state is not CallState.RUNNING:
            return
        self._calls[key] = ended(call, result, self._ctx.now())
        if self._busy():
            with self._leased.transaction():
                self._ctx.store.calls.put(self._calls[key])
            return
        self._settle(state)

    def interrupt(self, state: Any) -> None:
        """Calls of which nobody will say any more how they ended, end here."""
        for key, call in self._calls.items():
            if call.state is CallState.RUNNING:
                self._calls[key] = msgspec.structs.replace(
                    call,
                    state=CallState.INTERRUPTED,
                    error="interrupted",
                    ended_at=self._ctx.now(),
                )
        if self._calls:
            self._settle(state)

    def quiet(self, state: Any, said: str = "", background: bool = False) -> None:
        """No call is open: the end of a turn is a point to return to."""
        if self.open_calls and background:
            return
        self.interrupt(state)
        plan = self._leased.plan
        if self._edited():
            self._adopt(state, self._last_call() if background else None)
        decisions = self._answered(said)
        head = self._ctx.checkpoints.head(self._leased)
        same = head is not None and (state is None or head.actor_state == state)
        if decisions or not same or head is None or head.view_mark != plan.view_mark:
            request = CheckpointRequest(
                decisions=decisions,
                decision_id=self._current(),
                view_changed=True,
                reason=self._reason(CheckpointType.POST_EXECUTE),
                plan={} if state is None else {"actor_state": state},
                record=lambda _before, _after: self._continue_operation(),
            )
            self._make(CheckpointType.POST_EXECUTE, request)
        self.close()

    def complete(self) -> None:
        """Nothing more is to come: the plan can be applied."""
        self.quiet(None)
        request = CheckpointRequest(plan={"state": State.COMPLETE})
        self._make(CheckpointType.POST_EXECUTE, request)

    def _settle(self, state: Any) -> None:
        """A quiet point: one group with all that ended since the last, and what they wrote."""
        kept = {
            key: call for key, call in self._calls.items() if call.state is not CallState.RUNNING
        }
        if not kept:
            return
        steps = tuple(self._finished(call) for call in kept.values())
        done = [step.index for step in steps if step.state is StepState.COMPLETE]
        plan: dict[str, Any] = {
            "last_completed_step": max([*done, self._leased.plan.last_completed_step])
        }
        if state is not None:
            plan["actor_state"] = state
        by_id = {step.step_id: step for step in self._steps}

        def record(before: States, after: States) -> None:
            self._continue_operation()
            changes = self._ctx.manager.changes(self._leased.plan.plan_id, before, after)
            resources = self._ctx.store.resources.of_plan(self._leased.plan.plan_id)
            for call in kept.values():
                spec = by_id[call.step_id].spec
                wrote = of_named(resources, spec.get("paths", ()), changes)
                self._keep(call, wrote if spec.get("writes", True) else ())

        request = CheckpointRequest(
            steps=steps,
            view_changed=True,
            decision_id=steps[-1].decision_id,
            step=steps[-1],
            reason=self._reason(CheckpointType.AFTER_TOOL_EXECUTE),
            plan=plan,
            record=record,
        )
        if any(by_id[call.step_id].spec.get("writes", True) for call in kept.values()):
            self._make(CheckpointType.AFTER_TOOL_EXECUTE, request)
        else:
            with self._leased.transaction():
                self._leased.write(steps=steps, view_changed=True, **plan)
                record({}, {})
        changed = {step.step_id: step for step in steps}
        self._steps = [changed.get(step.step_id, step) for step in self._steps]
        for key in kept:
            del self._calls[key]

    def _keep(self, call: ToolCall, changes: Iterable[Any]) -> None:
        store = self._ctx.store
        store.calls.put(call)
        if call.state is not CallState.INTERRUPTED:
            store.effects.happened(call)
        store.calls.add_writes(writes_of(store.resources.of_plan(call.plan_id), call, changes))

    def _finished(self, call: ToolCall) -> Step:
        step = next(step for step in self._steps if step.step_id == call.step_id)
        ok = call.state is CallState.OK
        state = StepState.COMPLETE if ok else StepState.ERRORED
        return msgspec.structs.replace(step, state=state, error=None if ok else call.error)

    def _make(self, trigger: CheckpointType, request: CheckpointRequest) -> None:
        self._ctx.checkpoints.auto_create_if_configured(trigger, self._leased, request)

    def _reason(self, what: str) -> Callable[[States, States], str]:
        """Asked when the group is written: only then is it known how late that is."""

        def reason(_before: States, _after: States) -> str:
            late = self.late()
            return f"{what}, late: {late}" if late else what

        return reason

    def _busy(self) -> bool:
        """Whether a call that may write is open; one that only waits for its sub-agent is not."""
        by_id = {step.step_id: step for step in self._steps}
        parents = {step.spec.get("parent_call", "") for step in self._steps}
        return any(
            call.state is CallState.RUNNING
            and key not in parents
            and by_id[call.step_id].spec.get("writes", True)
            for key, call in self._calls.items()
        )

    def _edited(self) -> bool:
        plan = self._leased.plan
        head = plan.head_group_id
        return head is not None and not self._ctx.checkpoints.is_at(plan.plan_id, head)

    def _keep_edits(self, state: Any) -> None:
        if self._edited():
            self._adopt(state, None)

    def _adopt(self, state: Any, by: ToolCall | None) -> None:
        """A group of what changed while no call was open: the person's, or `by` in background."""
        trigger = CheckpointType.AFTER_TOOL_EXECUTE if by else CheckpointType.EXTERNAL_EDIT

        def record(before: States, after: States) -> None:
            self._continue_operation()
            if by is not None:
                changes = self._ctx.manager.changes(by.plan_id, before, after)
                store = self._ctx.store
                wrote = [*writes_of(store.resources.of_plan(by.plan_id), by, changes)]
                # Also under this group: the call is from before what was written after it.
                now = self._leased.plan.head_group_id or ""
                later = [msgspec.structs.replace(write, call_id=now) for write in wrote]
                store.calls.add_writes((*wrote, *later))

        request = CheckpointRequest(
            reason=self._reason(str(trigger) if by else "manual edit"),
            view_changed=True,
            plan={} if state is None else {"actor_state": state},
            record=record,
        )
        self._ctx.checkpoints.create_checkpoint(trigger, self._leased, request)

    def _last_call(self) -> ToolCall | None:
        calls = self._ctx.store.calls.of_plan(self._leased.plan.plan_id)
        return calls[-1] if calls else None

    def _step(self, request: CallRequest, decision_id: str | None) -> Step:
        self._number += 1
        spec = StepSpec(
            id=f"s{self._number}", tool=request.tool, on=request.on, inputs=request.inputs
        )
        index = self._steps[-1].index + 1 if self._steps else 0
        step = step_of(self._leased.plan.plan_id, index, spec)
        own: dict[str, Any] = {
            "call": request.key,
            "writes": request.writes,
            "paths": request.paths,
            "parent_call": request.parent,
        }
        return msgspec.structs.replace(
            step,
            state=StepState.PROCESSING,
            attempts=1,
            decision_id=decision_id,
            spec={**step.spec, **own},
        )


_AT_WORK: dict[str, Any] = {"phase": Phase.EXECUTE, "state": State.QUEUED, "error": None}
"""A plan that is observed is never `processing`: its agent lives on when our process does not."""
