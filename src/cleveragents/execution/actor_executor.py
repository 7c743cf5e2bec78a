"""Run a plan whose steps are proposed while it runs: by a program, or by who holds it open.

What is asked for is recorded before it is acted on, checked like a step of a plan file, run like
one, and answered. An actor that starts anew is told what is done, its own state as of that moment,
and every guidance in force; whatever had been asked for and not done is gone: it decides anew.
"""

import os
import re
from typing import NamedTuple

import msgspec

from cleveragents import codec
from cleveragents.actors import KINDS
from cleveragents.actors.lines import LineActor
from cleveragents.actors.protocol import (
    Actor,
    DecisionProposal,
    Finished,
    Outcome,
    RevertProposal,
    Start,
    StateKept,
    StepDone,
    StepProposal,
    SubplanProposal,
)
from cleveragents.checkpoints import effects
from cleveragents.checkpoints.restoration import (
    restoration_to,
)
from cleveragents.context import Context
from cleveragents.errors import ActorFailed, UsageError
from cleveragents.execution import compensation
from cleveragents.execution.executor import PlanExecutor
from cleveragents.execution.preflight import impossible
from cleveragents.execution.tool_call import actor_context
from cleveragents.execution.use import read_child, step_of
from cleveragents.lease import LeasedPlan
from cleveragents.model.decision import GUIDES, Decision, DecisionKind, DecisionState
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Failure, OnFailure, Phase, State, Step
from cleveragents.model.plan_spec import StepSpec, SubplanSpec
from cleveragents.model.tool import CallState, ToolCall, ToolResult, ToolSpec
from cleveragents.model.triggers import nearest
from cleveragents.planfile import parse_steps
from cleveragents.planfile.steps import SUBPLAN
from cleveragents.sandbox.registry import kinds
from cleveragents.tools import BUILTINS, check_inputs, resolve_tool
from cleveragents.tools.builtin import inputs_of
from cleveragents.tools.conversation import conversation

MOST_REVERSIONS = 3
MOST_WITHOUT_STEP = 1000
LARGEST_STATE = 256 << 10
TAIL = 4000
_OWN_ID = re.compile(r"s(\d+)")


class Ran(NamedTuple):
    """A step that was asked for, as it ended."""

    step_id: str
    result: ToolResult
    goes_on: bool
    """False: the policy, or what had to be rolled back with it, ends the run."""


class ActorExecutor(PlanExecutor):
    """Executes one plan whose steps come one by one."""

    def __init__(self, ctx: Context, leased: LeasedPlan) -> None:
        super().__init__(ctx, leased)
        self._names: dict[str, str] = {}
        """What the actor calls a decision -> its id."""
        self._last_decision: str | None = None
        self._last_call: ToolCall | None = None
        self._failure: Failure | None = None
        """The last step failed, and none has succeeded since."""
        self._state = leased.plan.actor_state
        numbers = [_OWN_ID.fullmatch(n) for n in ctx.store.calls.step_ids(leased.plan.plan_id)]
        self._number = max((int(found[1]) for found in numbers if found), default=0)

    def _strategy(self) -> str:
        spec = self._leased.spec.actor
        return f"what {spec.target or ' '.join(spec.command) or 'the caller'} decides"

    def decide(self, asked: DecisionProposal, parent: str | None = None) -> Decision:
        """Record a decision, with its group; later steps depend on it."""
        self._go_on()
        if asked.parent is not None:
            parent = self._named(asked.parent)
        decision = Decision(
            decision_id=new_id(),
            plan_id=self._leased.plan.plan_id,
            kind=DecisionKind.ACTOR,
            question=asked.question,
            chosen=asked.chosen,
            alternatives=asked.alternatives,
            rationale=asked.rationale,
            confidence=asked.confidence,
            parent_id=parent or self._root_decision(),
            influences=tuple(self._named(name) for name in asked.influences),
            attempt=self._leased.plan.attempt,
            created_at=self._ctx.now(),
        )
        self.record_decision(decision)
        self._last_decision = decision.decision_id
        if asked.id is not None:
            self._names[asked.id] = decision.decision_id
        return decision

    def run(self, asked: StepProposal, decision_id: str | None = None) -> Ran:
        """Check it, add it to the plan, run it; a failure is rolled back as the policy says."""
        spec = self._checked(asked)
        if decision_id is None and asked.decision is not None:
            decision_id = self._named(asked.decision)
        return self._run_asked(spec, decision_id)

    def run_child(self, asked: SubplanProposal) -> Ran:
        """A child plan to its end, merged back."""
        decision_id = self._named(asked.decision) if asked.decision else None
        child = self._child(asked)
        step_id = asked.id or self._next_id({step.step_id for step in self._steps})
        return self._run_asked(StepSpec(id=step_id, tool=SUBPLAN, subplan=child), decision_id)

    def _child(self, asked: SubplanProposal) -> SubplanSpec:
        plan, spec = self._leased.plan, self._leased.spec
        if (asked.file is None) is (not asked.steps):
            raise UsageError("a subplan has either 'file' or 'steps'")
        if asked.file is not None:
            read = read_child(self._ctx, plan, os.path.join(plan.plan_dir, asked.file))
            return SubplanSpec(file=read.path, plan=read.spec)
        text = msgspec.json.encode({"steps": asked.steps}).decode()
        steps = parse_steps(text, "the child plan", plan.plan_dir, spec, kinds())
        self._require_possible(steps)
        return SubplanSpec(steps=steps)

    def _run_asked(self, spec: StepSpec, decision_id: str | None) -> Ran:
        self._go_on()
        self._last_call = None
        number = self._add(spec, decision_id or self._last_decision)
        ok = self._run(number)
        result = _result_of(self._last_call, self._steps[number].error)
        if ok:
            self._failure = None
            return Ran(spec.id, result, goes_on=True)
        self._failure = self._leased.plan.error
        policy = spec.on_failure or self._leased.spec.policy.on_failure
        whole = self._reload()
        return Ran(spec.id, result, whole and policy is OnFailure.ROLLBACK_STEP)

    def keep_state(self, state: object) -> None:
        """The actor's own memory: part of every group from now on."""
        if state == self._leased.plan.actor_state:
            return
        size = len(msgspec.json.encode(state))
        if size > LARGEST_STATE:
            raise UsageError(
                f"a state of {size:,} bytes: at most {LARGEST_STATE:,} are kept with each group",
                "keep what is large in a file of a sandbox: it is rolled back with the files",
            )
        self._go_on()
        self._leased.commit(actor_state=state, view_changed=True)
        self._state = state

    def forget_undone(self) -> None:
        """What was asked for and not done is asked for anew, or not at all."""
        leased, store = self._leased, self._ctx.store
        plan_id = leased.plan.plan_id
        done = {step.step_id for step in self._steps if step.done}
        order, good = store.order_of(plan_id), store.calls.last_good(plan_id)
        last = max((good[name] for name in done if name in good), default=0)
        used = {step.decision_id for step in self._steps if step.done}
        open_ended = tuple(
            decision.superseded()
            for decision in store.plans.decisions(plan_id)
            if decision.kind in (DecisionKind.ACTOR, DecisionKind.STEP)
            and decision.state is DecisionState.ACTIVE
            and decision.decision_id not in used
            and order[decision.decision_id] > last
        )
        self._remove_undone(open_ended)

    def _remove_undone(self, decisions: tuple[Decision, ...]) -> None:
        """But not what a user appended: that is not the actor's to decide anew."""
        leased = self._leased
        known = self._ctx.store.plans.decisions(leased.plan.plan_id)
        users = {d.decision_id for d in known if d.kind is DecisionKind.USER_INTERVENTION}
        gone = {s.step_id for s in self._steps if not s.done and s.decision_id not in users}
        made = tuple(
            d.superseded()
            for d in known
            if d.kind is DecisionKind.STEP
            and d.state is DecisionState.ACTIVE
            and d.step_id in gone
            and d.decision_id not in {item.decision_id for item in decisions}
        )
        decisions = (*decisions, *self._failed_attempts(known, gone, decisions))
        if not gone and not decisions:
            return
        with leased.transaction():
            leased.write(
                decisions=(*decisions, *made), removed_steps=tuple(gone), view_changed=True
            )
            for child in self._ctx.store.plans.children(leased.plan.plan_id):
                if child.parent_step_id in gone and not child.is_final:
                    ended = msgspec.structs.replace(child, state=State.CANCELLED)
                    self._ctx.store.plans.commit(ended)
        self._steps = [step for step in self._steps if step.step_id not in gone]

    def _failed_attempts(
        self, known: list[Decision], gone: set[str], others: tuple[Decision, ...]
    ) -> tuple[Decision, ...]:
        """Decisions of the actor of which nothing came but steps that failed."""
        tried = {s.decision_id for s in self._steps if s.step_id in gone}
        used = {s.decision_id for s in self._steps if s.step_id not in gone}
        used |= {d.parent_id for d in known if d.state is DecisionState.ACTIVE}
        left = tried - used - {d.decision_id for d in others}
        return tuple(
            d.superseded()
            for d in known
            if d.decision_id in left
            and d.kind is DecisionKind.ACTOR
            and d.state is DecisionState.ACTIVE
        )

    def _go_on(self) -> None:
        """A failure that the actor was told of, and that did not end the plan, is behind it."""
        leased = self._leased
        if leased.plan.state is State.ERRORED:
            leased.commit(
                state=State.PROCESSING, error=None, actor_state=self._state, view_changed=True
            )

    def _reload(self) -> bool:
        """The plan as a rollback left it; False if it took more back than the last step."""
        done = {step.step_id for step in self._steps if step.done}
        plan_id = self._leased.plan.plan_id
        self._steps = self._ctx.store.plans.steps(plan_id)
        known = {*self._names.values(), *filter(None, [self._last_decision])}
        gone = self._ctx.store.plans.superseded(known) if known else set[str]()
        self._names = {name: d for name, d in self._names.items() if d not in gone}
        if self._last_decision in gone:
            self._last_decision = None
        return done <= {step.step_id for step in self._steps if step.done}

    def _named(self, name: str) -> str:
        """The decision that the actor calls so, or that the step of this id depends on."""
        by_step = {step.step_id: step.decision_id for step in self._steps}
        found = self._names.get(name) or by_step.get(name)
        if found is None:
            near = nearest(name, (*self._names, *by_step))
            raise UsageError(f"no decision and no step is called {name!r}{near}")
        return found

    def _checked(self, asked: StepProposal) -> StepSpec:
        if (asked.tool is None) == (asked.run is None):
            raise UsageError("a step has either 'tool' or 'run'")
        if asked.run is not None and asked.inputs:
            raise UsageError("'with' is for a 'tool' only")
        name, inputs = asked.tool or "", asked.inputs
        if asked.run is not None:
            is_text = isinstance(asked.run, str)
            name = "shell" if is_text else "run"
            inputs = {"command": asked.run} if is_text else {"argv": list(asked.run)}
        tool = resolve_tool(name, self._leased.spec.tools)
        if problems := check_inputs(tool, inputs):
            raise UsageError("; ".join(problems))
        ids = {step.step_id for step in self._steps}
        for need in asked.needs:
            if need not in ids:
                raise UsageError(f"unknown step {need!r} in 'needs'{nearest(need, ids)}")
        spec = StepSpec(
            id=asked.id or self._next_id(ids),
            tool=name,
            on=self._resource(asked.on),
            inputs=inputs,
            needs=asked.needs,
            checkpoint=asked.checkpoint,
            timeout=asked.timeout,
            on_failure=asked.on_failure,
            retries=asked.retries,
        )
        self._require_possible((spec,))
        return spec

    def _require_possible(self, steps: tuple[StepSpec, ...]) -> None:
        """What preflight asks of the steps of a plan file."""
        if problems := impossible(msgspec.structs.replace(self._leased.spec, steps=steps)):
            raise UsageError("; ".join(problems))

    def _resource(self, name: str | None) -> str:
        known = [resource.name for resource in self._leased.spec.resources]
        if name is None and len(known) == 1:
            return known[0]
        if name is None:
            raise UsageError(f"'on' is missing, name one of: {', '.join(known)}")
        if name not in known:
            raise UsageError(f"unknown resource {name!r}{nearest(name, known)}")
        return name

    def _next_id(self, taken: set[str]) -> str:
        """An id that no step of this plan ever had: what it wrote is kept under it."""
        self._number += 1
        while f"s{self._number}" in taken:
            self._number += 1
        return f"s{self._number}"

    def _add(self, spec: StepSpec, decision_id: str | None) -> int:
        """The step as part of the plan; one that failed may be asked for again by its id."""
        plan_id = self._leased.plan.plan_id
        number = next((n for n, s in enumerate(self._steps) if s.step_id == spec.id), None)
        if number is None:
            index = self._steps[-1].index + 1 if self._steps else 0
            step = step_of(plan_id, index, spec)
            number = len(self._steps)
            self._steps.append(step)
        elif self._steps[number].done:
            raise UsageError(f"there is a step {spec.id!r} already, and it is done")
        else:
            old = self._steps[number]
            step = msgspec.structs.replace(step_of(plan_id, old.index, spec), attempts=old.attempts)
        self._steps[number] = msgspec.structs.replace(step, decision_id=decision_id)
        if decision_id is not None:
            self._leased.commit(steps=(self._steps[number],), view_changed=True)
        return number

    def _try(self, number: int, spec: StepSpec, tool: ToolSpec) -> ToolCall:
        self._last_call = super()._try(number, spec, tool)
        return self._last_call

    def _work(self) -> bool:
        try:
            while True:
                self.forget_undone()
                if not super()._work():
                    return False
                ended = self._converse()
                if isinstance(ended, bool):
                    return ended
                self._revert(ended.reason)
        except ActorFailed as error:
            self._actor_failed(error)
            return False

    def _converse(self) -> bool | RevertProposal:
        """From `start` to `done`; False if the plan stopped."""
        spec, settings = self._leased.spec.actor, self._ctx.settings
        call = actor_context(self._ctx, self._leased)
        argv = KINDS[spec.kind].argv_of(spec)
        with conversation(argv, call, settings.answer_timeout) as channel:
            try:
                return self._follow(LineActor(channel))
            except ActorFailed as error:
                error.output = channel.errors
                raise

    def _follow(self, actor: Actor) -> bool | RevertProposal:
        actor.begin(self._start())
        since = 0
        while not isinstance(asked := actor.ask(), Finished | RevertProposal):
            since = 0 if isinstance(asked, StepProposal | SubplanProposal) else since + 1
            if since > MOST_WITHOUT_STEP:
                raise ActorFailed(f"{actor.where}: {MOST_WITHOUT_STEP} messages without a step")
            try:
                ran = self._give(asked)
            except UsageError as error:
                raise ActorFailed(f"{actor.where}: {error.message}", error.hint) from error
            if ran is not None:
                if not ran.goes_on:
                    return False
                actor.tell(self._outcome(ran))
        if isinstance(asked, RevertProposal):
            return asked
        if self._failure is not None:
            self._leased.commit(state=State.ERRORED, error=self._failure)
            return False
        # A plan that is complete has no steps that are not.
        self._remove_undone(())
        return True

    def _give(
        self, asked: DecisionProposal | StepProposal | SubplanProposal | StateKept
    ) -> Ran | None:
        if isinstance(asked, StepProposal):
            return self.run(asked)
        if isinstance(asked, SubplanProposal):
            return self.run_child(asked)
        if isinstance(asked, StateKept):
            self.keep_state(asked.state)
        else:
            self.decide(asked)
        return None

    def _outcome(self, ran: Ran) -> Outcome:
        return Outcome(
            step=ran.step_id,
            ok=ran.result.ok,
            output=ran.result.output,
            error=ran.result.error,
            undone=not ran.result.ok and self._leased.plan.head_group_id is not None,
        )

    def _start(self) -> Start:
        leased, store = self._leased, self._ctx.store
        plan, spec = leased.plan, leased.spec
        finished = store.calls.finished(plan.plan_id, TAIL)
        return Start(
            plan={
                "id": plan.plan_id,
                "name": plan.name,
                "description": spec.description,
                "attempt": plan.attempt,
                "resources": {item.name: item.kind for item in spec.resources},
                "tools": {
                    name: _tool_data(tool) for name, tool in {**BUILTINS, **spec.tools}.items()
                },
            },
            guidance=store.plans.guidance(plan.plan_id),
            done=tuple(_step_done(step, finished) for step in self._steps if step.done),
            state=plan.actor_state,
        )

    def _revert(self, reason: str) -> None:
        """Execute -> strategize: everything is rolled back, the reason stays as guidance."""
        leased, store = self._leased, self._ctx.store
        plan = leased.plan
        if not plan.rollback_enabled:
            raise ActorFailed("the actor asks to revert, and rollback_enabled is false")
        decisions = store.plans.decisions(plan.plan_id)
        if sum(d.kind is DecisionKind.REVERSION for d in decisions) >= MOST_REVERSIONS:
            raise ActorFailed(
                f"the actor asks to revert for the {MOST_REVERSIONS + 1}th time: {reason}",
                f"agents plan tree {plan.plan_id} --show-superseded",
            )
        reversion = Decision(
            decision_id=new_id(),
            plan_id=plan.plan_id,
            kind=DecisionKind.REVERSION,
            question="begin anew",
            chosen=reason,
            parent_id=self._root_decision(),
            attempt=plan.attempt,
            created_at=self._ctx.now(),
        )
        first = store.checkpoints.groups(plan.plan_id)[0]
        todo = restoration_to(store, plan, first, phase=Phase.STRATEGIZE)
        if todo.outlook.irreversible:
            lost = "; ".join(effects.shown(effect) for effect in todo.outlook.irreversible)
            raise ActorFailed(
                f"the actor asks to revert what cannot be undone: {lost}",
                f"agents plan rollback {plan.plan_id} first --accept-loss",
            )
        superseded = tuple(d for d in todo.decisions if d.kind not in GUIDES)
        todo = msgspec.structs.replace(todo, decisions=(*superseded, reversion))
        self._ctx.talk.tell("reverted", {"reason": reason})
        changes = self._ctx.checkpoints.rollback_to_checkpoint(leased, todo)
        compensation.compensated(self._ctx, leased, todo)
        self._ctx.talk.tell("rolled_back", {"group": first.group_id, "changes": changes})
        self._reload()
        self._state = leased.plan.actor_state
        self._failure = None
        self.strategize()
        leased.commit(state=State.PROCESSING, view_changed=True)

    def _actor_failed(self, error: ActorFailed) -> None:
        leased, failed = self._leased, self._failure
        message = f"{failed.message}; then {error.message}" if failed else error.message
        failure = Failure(
            type(error).__name__ if failed is None else failed.type,
            message,
            error.hint or f"agents plan resume {leased.plan.plan_id}",
            step=failed.step if failed else None,
            group_id=failed.group_id if failed else None,
            output=error.output,
        )
        leased.commit(state=State.ERRORED, error=failure)
        self._ctx.talk.tell("failed", {"id": "actor", "error": message, "output": error.output})


def executor_for(ctx: Context, leased: LeasedPlan) -> PlanExecutor:
    """Who runs this plan: the steps it has, or what its actor asks for."""
    kind = ActorExecutor if leased.spec.actor.kind in KINDS else PlanExecutor
    return kind(ctx, leased)


def _result_of(call: ToolCall | None, error: str | None) -> ToolResult:
    """What came back; a step may also fail after its call, if what it did cannot be kept."""
    if call is None:
        state = CallState.FAILED if error else CallState.OK
        return ToolResult(ok=not error, state=state, output="", output_bytes=0, error=error)
    state = CallState.FAILED if error and call.state is CallState.OK else call.state
    return ToolResult(
        ok=state is CallState.OK,
        state=state,
        output=call.output,
        output_bytes=call.output_bytes,
        exit_code=call.exit_code,
        error=error,
    )


def _step_done(step: Step, finished: dict[str, tuple[str, str]]) -> StepDone:
    spec = codec.convert(step.spec, StepSpec)
    _, output = finished.get(step.step_id, ("", ""))
    return StepDone(id=spec.id, tool=spec.tool, on=spec.on, inputs=spec.inputs, output=output)


def _tool_data(tool: ToolSpec) -> dict[str, object]:
    inputs = inputs_of(tool)
    return {
        "description": tool.description,
        "read_only": tool.read_only,
        "with": None
        if inputs is None
        else {each.name: {"type": each.type, "required": each.required} for each in inputs},
    }
