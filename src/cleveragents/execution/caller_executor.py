"""A plan driven by a Python program: each decision is a block, each call in it a step."""

import json
import keyword
import os
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from cleveragents.actors import CALLER, OBSERVED
from cleveragents.actors.protocol import DecisionProposal, StepProposal
from cleveragents.checkpoints import effects
from cleveragents.context import Context
from cleveragents.errors import AgentsError, NotAllowed, ToolFailed
from cleveragents.execution.actor_executor import ActorExecutor
from cleveragents.execution.leasing import work_on
from cleveragents.execution.reconcile import reconcile
from cleveragents.model.decision import Decision
from cleveragents.model.journal import Ending, JournalEntry, Operation
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Phase, Plan, State
from cleveragents.model.plan_spec import ActorSpec, PlanSpec
from cleveragents.model.tool import ToolResult
from cleveragents.planfile import parse_plan
from cleveragents.sandbox.recognize import kind_at
from cleveragents.sandbox.registry import kinds

ResourceGiven = str | os.PathLike[str] | Mapping[str, Any]
"""A path, whose kind is seen by looking at it, or the keys of a plan file's resource."""


def drafted(
    name: str, resources: Mapping[str, ResourceGiven], folder: str, parts: Mapping[str, Any]
) -> tuple[PlanSpec, str]:
    """A plan without steps, read by the rules of a plan file; and its text."""
    body = {
        "name": name,
        "resources": {key: _resource(given, folder) for key, given in resources.items()},
        **{key: value for key, value in parts.items() if value},
    }
    text = json.dumps(body, indent=1, ensure_ascii=False, default=os.fspath)
    placeholder = {**body, "actor": {"kind": "command", "command": ["caller"]}}
    asked = json.dumps(placeholder, indent=1, ensure_ascii=False, default=os.fspath)
    spec = parse_plan(asked, f"plan {name!r}", folder, kinds())
    return msgspec.structs.replace(spec, actor=ActorSpec(kind=CALLER)), text


def _resource(given: ResourceGiven, folder: str) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    path = os.path.join(folder, os.fspath(given))
    return {"kind": kind_at(path), "path": path}


class OpenDecision:
    """A decision while its block runs; every call is a step that depends on it."""

    def __init__(self, executor: "_CallerExecutor", decision: Decision) -> None:
        self._executor = executor
        self.decision_id: str = decision.decision_id

    def call(self, tool: str, /, *, on: str | None = None, **inputs: Any) -> ToolResult:
        """Run one tool now, in the sandbox, with its checkpoints; raises `ToolFailed`.

        An input that is a word of Python takes an underscore: `d.call("file.move", from_="a",
        to="b")`. A failed call is rolled back as `policy.on_failure` says before this raises.
        """
        given = {_plain(name): value for name, value in inputs.items()}
        asked = StepProposal(tool=tool, on=on, inputs=given)
        return self._executor.call(asked, self.decision_id)

    @contextmanager
    def decision(
        self,
        question: str,
        chosen: str = "",
        *,
        alternatives: Sequence[str] = (),
        rationale: str = "",
        confidence: float | None = None,
    ) -> Generator["OpenDecision"]:
        """A decision that follows from this one."""
        asked = DecisionProposal(
            question=question,
            chosen=chosen,
            alternatives=tuple(alternatives),
            rationale=rationale,
            confidence=confidence,
        )
        yield OpenDecision(self._executor, self._executor.decide(asked, self.decision_id))

    def keep_state(self, state: Any) -> None:
        """The program's own memory, as JSON: every group from now on has it."""
        self._executor.keep_state(state)


def _plain(name: str) -> str:
    bare = name.removesuffix("_")
    return bare if keyword.iskeyword(bare) else name


class _CallerExecutor(ActorExecutor):
    """Runs during a block of the caller's program, under the plan's lease."""

    completes = False
    _stopped = False

    def call(self, asked: StepProposal, decision_id: str) -> ToolResult:
        if self._stopped:
            raise NotAllowed(
                "the plan was stopped by its policy when a step failed",
                "leave the block and start a new decision",
            )
        ran = self.run(asked, decision_id)
        if ran.result.ok:
            return ran.result
        self._stopped = not ran.goes_on
        plan_id = self._leased.plan.plan_id
        failed = ToolFailed(
            f"step {ran.step_id}: {ran.result.error}", f"agents plan errors {plan_id}"
        )
        failed.add_note(ran.result.output)
        raise failed

    @contextmanager
    def held_open(self, operation: Operation) -> Generator[None]:
        """One operation for undo; an exception leaves the plan errored."""
        leased = self._leased
        entry = leased.opened(operation)
        with leased.transaction():
            self._ctx.store.journal.put(entry)
            leased.write(phase=Phase.EXECUTE, state=State.PROCESSING, error=None)
        try:
            self.drop_undone()
            yield
            if not self._stopped:
                # Failures that the block handled are over.
                self._remove_undone()
            if self.completes:
                self._complete(entry)
                return
        except BaseException as error:
            self._left_by(error, entry)
            raise
        if not self._stopped:
            leased.commit(state=State.QUEUED, error=None)
        self._close(entry, Ending.FAILED if self._stopped else Ending.DONE)

    def _left_by(self, error: BaseException, entry: JournalEntry) -> None:
        if isinstance(error, ToolFailed) and self._leased.plan.state is State.ERRORED:
            self._close(entry, Ending.FAILED)
        elif isinstance(error, AgentsError):
            self._stop(type(error).__name__, error.message, entry, error.hint)
        elif isinstance(error, KeyboardInterrupt):
            self._interrupted(entry)
        else:
            self._stop(type(error).__name__, str(error) or type(error).__name__, entry)


@contextmanager
def _held(
    ctx: Context, plan_id: str, verb: str, repeat: Collection[str] | None
) -> Generator[_CallerExecutor]:
    with work_on(ctx, plan_id, verb) as leased:
        require_not_final(leased.plan, "continued")
        if (kind := leased.spec.actor.kind) != CALLER:
            raise NotAllowed(
                f"the steps of plan {leased.plan.name!r} come from its actor ({kind})",
                f"agents plan execute {plan_id}",
            )
        if repeat is not None:
            hint = "say repeat=[...] with the steps whose work may be done a second time"
            effects.require_repeatable(leased, repeat, hint)
        started = leased.plan.head_group_id is not None
        _CallerExecutor(ctx, leased).strategize()
        if started:
            reconcile(ctx, leased, discard_edits=False)
        executor = _CallerExecutor(ctx, leased)
        executor.prepare()
        with executor.held_open(Operation.RESUME if started else Operation.EXECUTE):
            yield executor


@contextmanager
def deciding(
    ctx: Context, plan_id: str, asked: DecisionProposal, repeat: Collection[str] = ()
) -> Generator[OpenDecision]:
    """Record the decision and lease the plan while the block runs."""
    with _held(ctx, plan_id, "plan decision", repeat) as executor:
        yield OpenDecision(executor, executor.decide(asked))


def complete(ctx: Context, plan_id: str) -> None:
    """Mark the plan complete, ready to apply."""
    with _held(ctx, plan_id, "plan complete", None) as executor:
        executor.completes = True


def completes_when_applied(plan: Plan) -> bool:
    """Whether the plan only waits to be declared complete."""
    waits = (plan.phase, plan.state) == (Phase.EXECUTE, State.QUEUED)
    return waits and plan.spec["actor"]["kind"] in (CALLER, OBSERVED)


def as_applied(plan: Plan) -> Plan:
    """The plan as it would be applied."""
    if completes_when_applied(plan):
        return msgspec.structs.replace(plan, state=State.COMPLETE)
    return plan
