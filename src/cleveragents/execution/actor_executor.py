"""Runs a plan whose steps are proposed while it runs, by an actor or a caller.

A proposal is recorded before it is acted on, checked and run like a step of a plan file, and
answered. An actor that starts again gets the done steps, its own state as of then, and all guidance
in force; proposals that were not done are dropped, and it decides again.
"""

import re
from typing import NamedTuple

import msgspec

from cleveragents.actors import KINDS, MODEL
from cleveragents.actors.lines import LineActor
from cleveragents.actors.protocol import (
    Actor,
    DecisionProposal,
    Finished,
    Outcome,
    RevertProposal,
    StateKept,
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
from cleveragents.execution.actor.messages import result_of, start_message
from cleveragents.execution.actor.proposals import checked_child, checked_step
from cleveragents.execution.actor.undone import open_ended, undone_steps, without_result
from cleveragents.execution.executor import PlanExecutor
from cleveragents.execution.tool_call import actor_context
from cleveragents.execution.use import step_of
from cleveragents.lease import LeasedPlan
from cleveragents.model.decision import GUIDES, Decision, DecisionKind
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Failure, OnFailure, Phase, State
from cleveragents.model.plan_spec import StepSpec
from cleveragents.model.tool import ToolCall, ToolResult, ToolSpec
from cleveragents.model.triggers import nearest
from cleveragents.planfile.steps import SUBPLAN
from cleveragents.tools.conversation import conversation

MOST_REVERSIONS = 3
MOST_WITHOUT_STEP = 1000
LARGEST_STATE = 256 << 10
_OWN_ID = re.compile(r"s(\d+)")


class Ran(NamedTuple):
    """The result of a proposed step."""

    step_id: str
    result: ToolResult
    goes_on: bool
    """False: the policy, or what had to be rolled back with it, ends the run."""


class ActorExecutor(PlanExecutor):
    """Executes one plan whose steps are proposed one by one."""

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
        who = spec.target or " ".join(spec.command) or spec.model or "the caller"
        return f"what {who} decides"

    def decide(self, asked: DecisionProposal, parent: str | None = None) -> Decision:
        """Record a decision, with its group; later steps depend on it."""
        self._clear_failure()
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
        """Check the step, add it to the plan and run it; failures are handled by the policy."""
        ids = {step.step_id for step in self._steps}
        spec = checked_step(asked, self._leased.spec, asked.id or self._next_id(ids), ids)
        if decision_id is None and asked.decision is not None:
            decision_id = self._named(asked.decision)
        return self._run_proposed(spec, decision_id)

    def run_child(self, asked: SubplanProposal) -> Ran:
        """Run a child plan to its end and merge it."""
        decision_id = self._named(asked.decision) if asked.decision else None
        child = checked_child(self._ctx, self._leased, asked)
        step_id = asked.id or self._next_id({step.step_id for step in self._steps})
        return self._run_proposed(StepSpec(id=step_id, tool=SUBPLAN, subplan=child), decision_id)

    def _run_proposed(self, spec: StepSpec, decision_id: str | None) -> Ran:
        self._clear_failure()
        self._last_call = None
        number = self._add(spec, decision_id or self._last_decision)
        ok = self._run(number)
        result = result_of(self._last_call, self._steps[number].error)
        if ok:
            self._failure = None
            return Ran(spec.id, result, goes_on=True)
        self._failure = self._leased.plan.error
        policy = spec.on_failure or self._leased.spec.policy.on_failure
        whole = self._reload()
        return Ran(spec.id, result, whole and policy is OnFailure.ROLLBACK_STEP)

    def keep_state(self, state: object) -> None:
        """Keep the actor's own memory, in every group from now on."""
        if state == self._leased.plan.actor_state:
            return
        size = len(msgspec.json.encode(state))
        if size > LARGEST_STATE:
            raise UsageError(
                f"a state of {size:,} bytes: at most {LARGEST_STATE:,} are kept with each group",
                "keep what is large in a file of a sandbox: it is rolled back with the files",
            )
        self._clear_failure()
        self._leased.commit(actor_state=state, view_changed=True)
        self._state = state

    def drop_undone(self) -> None:
        """Drop proposals that were not done: the actor proposes again."""
        store, plan_id = self._ctx.store, self._leased.plan.plan_id
        decisions = store.plans.decisions(plan_id)
        good = store.calls.last_good(plan_id)
        self._remove_undone(open_ended(decisions, self._steps, store.order_of(plan_id), good))

    def _remove_undone(self, also: tuple[Decision, ...] = ()) -> None:
        """Remove undone steps, and decisions left without steps; `also`: other decisions."""
        leased = self._leased
        known = self._ctx.store.plans.decisions(leased.plan.plan_id)
        gone = undone_steps(known, self._steps)
        ended = {d.decision_id: d for d in (*also, *without_result(known, self._steps, gone))}
        if not gone and not ended:
            return
        decisions = tuple(decision.superseded() for decision in ended.values())
        with leased.transaction():
            leased.write(decisions=decisions, removed_steps=tuple(gone), view_changed=True)
            for child in self._ctx.store.plans.children(leased.plan.plan_id):
                if child.parent_step_id in gone and not child.is_final:
                    cancelled = msgspec.structs.replace(child, state=State.CANCELLED)
                    self._ctx.store.plans.commit(cancelled)
        self._steps = [step for step in self._steps if step.step_id not in gone]

    def _clear_failure(self) -> None:
        """Clear a failure that the actor was told of and that did not end the plan."""
        leased = self._leased
        if leased.plan.state is State.ERRORED:
            leased.commit(
                state=State.PROCESSING, error=None, actor_state=self._state, view_changed=True
            )

    def _reload(self) -> bool:
        """Reload the plan after a rollback; False if that reached beyond the last step."""
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
        """The decision of this name, or the one that the step of this id depends on."""
        by_step = {step.step_id: step.decision_id for step in self._steps}
        found = self._names.get(name) or by_step.get(name)
        if found is None:
            near = nearest(name, (*self._names, *by_step))
            raise UsageError(f"no decision and no step is called {name!r}{near}")
        return found

    def _next_id(self, taken: set[str]) -> str:
        """An id that no step of this plan ever had: its writes are kept under it."""
        number = self._number + 1
        while f"s{number}" in taken:
            number += 1
        return f"s{number}"

    def _add(self, spec: StepSpec, decision_id: str | None) -> int:
        """Add the step to the plan; a failed one may be proposed again by its id."""
        if own := _OWN_ID.fullmatch(spec.id):
            self._number = max(self._number, int(own[1]))
        plan_id = self._leased.plan.plan_id
        number = next((n for n, s in enumerate(self._steps) if s.step_id == spec.id), None)
        if number is None:
            index = self._steps[-1].index + 1 if self._steps else 0
            step = step_of(plan_id, index, spec)
            number = len(self._steps)
            self._steps.append(step)
        elif self._steps[number].done:
            raise UsageError(f"step {spec.id!r} already exists and is done")
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
                self.drop_undone()
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
        actor.begin(start_message(self._ctx, self._leased, self._steps))
        since = 0
        while not isinstance(asked := actor.ask(), Finished | RevertProposal):
            since = 0 if isinstance(asked, StepProposal | SubplanProposal) else since + 1
            if since > MOST_WITHOUT_STEP:
                raise ActorFailed(f"{actor.where}: {MOST_WITHOUT_STEP} messages without a step")
            try:
                ran = self._give(asked)
            except UsageError as error:
                if isinstance(asked, StepProposal) and self._leased.spec.actor.kind == MODEL:
                    actor.tell(Outcome(step="", ok=False, output="", error=error.message))
                    continue
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
        # A complete plan has no undone steps.
        self._remove_undone()
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

    def _revert(self, reason: str) -> None:
        """Execute -> strategize: roll everything back and keep the reason as guidance."""
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
    """The executor for a plan: of its fixed steps, or of its actor's proposals."""
    kind = ActorExecutor if leased.spec.actor.kind in KINDS else PlanExecutor
    return kind(ctx, leased)
