"""Run a plan's steps in its sandboxes, with a checkpoint group at every decision."""

import os
import time
from collections.abc import Callable

import msgspec

from cleveragents.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.context import Context
from cleveragents.decision import Decision, DecisionKind
from cleveragents.errors import AgentsError, CheckpointFailed, SandboxError
from cleveragents.ids import new_id
from cleveragents.journal import EntryState, JournalEntry, Operation
from cleveragents.making import make_sandboxes
from cleveragents.plan import Failure, OnFailure, Phase, State, Step, StepState
from cleveragents.planspec import DecisionSpec, StepSpec
from cleveragents.preflight import confinement_warnings
from cleveragents.resource import Change
from cleveragents.restoring import Restoration
from cleveragents.rollback import changes_since, restoration_to
from cleveragents.sandbox.protocol import TakesSql
from cleveragents.sandboxes import PlanSandboxes
from cleveragents.session import Session
from cleveragents.snapshots import States
from cleveragents.tool import CallState, ToolCall, ToolResult, ToolSpec, Write
from cleveragents.tools import resolve_tool
from cleveragents.tools.confine import Bounds, cache_dir, in_force
from cleveragents.tools.runner import CallContext, end_leftovers, remove_temporary, run_tool
from cleveragents.tools.standin import StandIn

IDEMPOTENT_RETRIES = 3
BACK_OFF = (0.1, 0.5, 2.0)


class PlanExecutor:
    """Executes one plan that this process holds."""

    def __init__(
        self, ctx: Context, session: Session, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._ctx = ctx
        self._session = session
        self._sleep = sleep
        self._root: str | None = None
        self._steps: list[Step] = ctx.store.plans.steps(session.plan.plan_id)

    def strategize(self) -> None:
        """Record the root decision; touches no resource."""
        session = self._session
        if session.plan.phase is not Phase.STRATEGIZE:
            return
        session.commit(state=State.PROCESSING)
        if self._root_decision() is None:
            self._record_root()
        session.commit(state=State.COMPLETE)
        session.commit(phase=Phase.EXECUTE, state=State.QUEUED)

    def _record_root(self) -> None:
        session = self._session
        root = Decision(
            decision_id=new_id(),
            plan_id=session.plan.plan_id,
            kind=DecisionKind.ROOT,
            question=session.plan.name,
            chosen=f"{len(self._steps)} steps",
            rationale=session.spec.description,
            phase=Phase.STRATEGIZE,
            attempt=session.plan.attempt,
            created_at=self._ctx.now(),
        )
        session.commit(decisions=(root,), view_changed=True)

    def prepare(self) -> None:
        """Sandboxes, and the group from before the first write."""
        session = self._session
        make_sandboxes(self._ctx, session)
        self._ctx.manager.follow(session.plan.plan_id)
        end_leftovers(session.plan.plan_id)
        remove_temporary(f"{self._ctx.settings.sandboxes}/{session.plan.plan_id}")
        for text in confinement_warnings(session.spec, bounds_of(self._ctx, session)):
            self._ctx.talk.tell("warning", {"message": text})
        if not session.plan.rollback_enabled and not self._ctx.checkpoints.origins(
            session.plan.plan_id
        ):
            self._ctx.checkpoints.keep_origins(session)
        self._ctx.checkpoints.auto_create_if_configured(CheckpointType.PRE_EXECUTE, session)

    def execute(self, operation: Operation) -> None:
        """Run every step that is not done. A failure leaves the plan errored and resumable."""
        session = self._session
        entry = session.opened(operation)
        with self._ctx.store.transaction(session.lease):
            self._ctx.store.journal.put(entry)
            session.write(phase=Phase.EXECUTE, state=State.PROCESSING, error=None)
        try:
            for number, step in enumerate(self._steps):
                if not step.done and not self._run_step(number):
                    self._close(entry)
                    return
            self._complete(entry)
        except KeyboardInterrupt:
            self._stop("Interrupted", "interrupted by the user", entry)
            raise
        except AgentsError as error:
            self._stop(type(error).__name__, error.message, entry, error.hint)
            raise

    def _complete(self, entry: JournalEntry) -> None:
        session = self._session
        self._ctx.checkpoints.auto_create_if_configured(
            CheckpointType.POST_EXECUTE, session, state=State.COMPLETE
        )
        self._close(entry)

    def _close(self, entry: JournalEntry) -> None:
        with self._ctx.store.transaction(self._session.lease):
            self._ctx.store.journal.put(self._session.closed(entry))

    def _stop(self, kind: str, message: str, entry: JournalEntry, hint: str = "") -> None:
        session = self._session
        hint = hint or f"agents plan resume {session.plan.plan_id}"
        with self._ctx.store.transaction(session.lease):
            session.write(state=State.ERRORED, error=Failure(kind, message, hint))
            self._ctx.store.journal.put(session.closed(entry, EntryState.INTERRUPTED))

    def record_decision(self, decision: Decision, step: Step) -> None:
        """Record a decision before it is acted on, together with its group."""
        self._ctx.checkpoints.auto_create_if_configured(
            CheckpointType.ON_DECISION,
            self._session,
            steps=(step,),
            decisions=(decision,),
            view_changed=True,
            decision_id=decision.decision_id,
            step=step,
        )

    def _run_step(self, number: int) -> bool:
        """One step to its end; False if it failed and the plan stopped."""
        spec = msgspec.convert(self._steps[number].spec, StepSpec)
        tool = resolve_tool(spec.tool, self._session.spec.tools)
        self._decide(number, spec)
        self._trigger(CheckpointType.BEFORE_STEP, number)
        if tool.writes:
            self._trigger(CheckpointType.BEFORE_TOOL_EXECUTE, number)
            self._require_checkpoint(tool)
        safe = self._session.plan.head_group_id
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
            except (CheckpointFailed, SandboxError) as error:
                # What cannot be kept must not stay: the step counts as failed.
                call = msgspec.structs.replace(call, state=CallState.FAILED, error=error.message)
        self._fail(number, spec, call, safe)
        return False

    def _try(self, number: int, spec: StepSpec, tool: ToolSpec) -> ToolCall:
        """One attempt; the call as it ended."""
        call, result = self._call(number, spec, tool)
        if result.ok and not tool.writes:
            result = self._require_unchanged(tool, result)
        return ended(call, result, self._ctx.now())

    def _retries(self, spec: StepSpec, tool: ToolSpec) -> int:
        if spec.retries is not None:
            return spec.retries
        own = self._session.spec.policy.max_retries_per_step
        if own is not None:
            return own
        return IDEMPOTENT_RETRIES if tool.idempotent else 0

    def _trigger(self, trigger: CheckpointType, number: int) -> CheckpointGroup | None:
        step = self._steps[number]
        return self._ctx.checkpoints.auto_create_if_configured(
            trigger, self._session, step=step, decision_id=step.decision_id
        )

    def _require_checkpoint(self, tool: ToolSpec) -> None:
        plan = self._session.plan
        wanted = self._session.spec.policy.require_checkpoints and plan.rollback_enabled
        if wanted and plan.head_group_id is None:
            raise CheckpointFailed(
                f"tool {tool.name!r} writes and no checkpoint exists from before it",
                "policy: {require_checkpoints: false} runs it all the same",
            )

    def _decide(self, number: int, spec: StepSpec) -> None:
        """Hang the step on its decision: the one it has, an earlier step's, or a new one."""
        step = self._steps[number]
        if step.decision_id is not None:
            return
        by_step = {item.step_id: item.decision_id for item in self._steps}
        if isinstance(spec.decision, str):
            self._put(number, decision_id=by_step[spec.decision])
            self._session.commit(steps=(self._steps[number],))
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
            attempt=self._session.plan.attempt,
            created_at=self._ctx.now(),
        )
        self._put(number, decision_id=decision.decision_id)
        self.record_decision(decision, self._steps[number])

    def _root_decision(self) -> str | None:
        if self._root is None:
            for decision in self._ctx.store.plans.decisions(self._session.plan.plan_id):
                if decision.kind is DecisionKind.ROOT:
                    self._root = decision.decision_id
        return self._root

    def _put(self, number: int, **fields: object) -> Step:
        self._steps[number] = msgspec.structs.replace(self._steps[number], **fields)
        return self._steps[number]

    def _call(self, number: int, spec: StepSpec, tool: ToolSpec) -> tuple[ToolCall, ToolResult]:
        """Note that the tool runs, then run it."""
        step = self._put(
            number, state=StepState.PROCESSING, attempts=self._steps[number].attempts + 1
        )
        call = ToolCall(
            call_id=new_id(),
            plan_id=step.plan_id,
            step_id=step.step_id,
            attempt=step.attempts,
            tool=spec.tool,
            inputs=spec.inputs,
            state=CallState.RUNNING,
            started_at=self._ctx.now(),
        )
        with self._ctx.store.transaction(self._session.lease):
            self._ctx.store.calls.put(call)
            self._session.write(steps=(step,))
        return call, run_tool(tool, spec.inputs, self._context(spec), spec.timeout)

    def _context(self, spec: StepSpec) -> CallContext:
        return call_context(self._ctx, self._session, spec.id, spec.on)

    def _require_unchanged(self, tool: ToolSpec, result: ToolResult) -> ToolResult:
        """A tool that says it only reads must not have written."""
        head = self._ctx.checkpoints.head(self._session)
        if head is None or not tool.read_only:
            return result
        changed = changes_since(self._ctx, head)
        if not changed:
            return result
        shown = ", ".join(change.shown for change in changed[:3])
        return msgspec.structs.replace(
            result,
            ok=False,
            state=CallState.FAILED,
            error=f"{tool.name} says it is read-only and changed {shown}",
        )

    def _note(self, call: ToolCall) -> None:
        with self._ctx.store.transaction(self._session.lease):
            self._ctx.store.calls.put(call)

    def _succeed(self, number: int, spec: StepSpec, tool: ToolSpec, call: ToolCall) -> None:
        """The step is done: in the same commit as the group that holds what it did."""
        step = self._put(number, state=StepState.COMPLETE, error=None)
        trigger = CheckpointType.AFTER_TOOL_EXECUTE if tool.writes else CheckpointType.AFTER_STEP
        self._ctx.checkpoints.auto_create_if_configured(
            trigger,
            self._session,
            steps=(step,),
            view_changed=True,
            decision_id=step.decision_id,
            step=step,
            also=lambda before, after: self._remember(call, before, after),
            last_completed_step=max(step.index, self._session.plan.last_completed_step),
        )
        if tool.writes:
            self._trigger(CheckpointType.AFTER_STEP, number)
        if spec.checkpoint and self._session.plan.rollback_enabled:
            self._ctx.checkpoints.create_checkpoint(
                CheckpointType.MILESTONE,
                self._session,
                decision_id=step.decision_id,
                step=step,
                label=spec.checkpoint,
                reason=f"milestone of step {step.step_id}",
            )
        self._ctx.talk.tell("done", {"id": spec.id})

    def _remember(self, call: ToolCall, before: States, after: States) -> None:
        """The call and what it wrote, inside the commit of its group."""
        store = self._ctx.store
        store.calls.put(call)
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
            for change in self._ctx.manager.changes(call.plan_id, before, after)
        )

    def _fail(self, number: int, spec: StepSpec, call: ToolCall, safe: str | None) -> None:
        """Keep the failed state for inspection, then do what the policy says."""
        session = self._session
        step = self._put(number, state=StepState.ERRORED, error=call.error)
        hint = f"agents plan resume {session.plan.plan_id}"
        policy = spec.on_failure or session.spec.policy.on_failure
        back = None if safe is None or policy is OnFailure.STOP else self._way_back(policy, safe)
        message = f"step {spec.id}: {call.error}"
        failure = Failure("ToolFailed", message, hint, spec.id, undo_to=back)
        kept = self._ctx.checkpoints.auto_create_if_configured(
            CheckpointType.ON_ERROR,
            session,
            steps=(step,),
            decision_id=step.decision_id,
            step=step,
            also=lambda _before, _after: self._ctx.store.calls.put(call),
            state=State.ERRORED,
            error=failure,
        )
        if kept is not None:
            failure = msgspec.structs.replace(failure, group_id=kept.group_id)
            session.commit(error=failure)
        self._ctx.talk.tell("failed", {"id": spec.id, "error": call.error, "output": call.output})
        if back is not None:
            changes = take_back_failure(self._ctx, session)
            self._ctx.talk.tell("rolled_back", {"group": back, "changes": changes})

    def _way_back(self, policy: OnFailure, safe: str) -> str:
        if policy is not OnFailure.ROLLBACK_PLAN:
            return safe
        return self._ctx.store.checkpoints.groups(self._session.plan.plan_id)[0].group_id


def take_back_failure(ctx: Context, session: Session) -> tuple[Change, ...]:
    """Go back to where the failed step, or the plan, began; what failed stays known."""
    failure = session.plan.error
    assert failure is not None
    assert failure.undo_to is not None
    store, plan = ctx.store, session.plan
    target = store.checkpoints.group(failure.undo_to)
    done = msgspec.structs.replace(failure, undo_to=None)
    todo = restoration_to(store, plan, target, state=State.ERRORED, error=done)
    todo = _still_failed(todo, store.plans.steps(plan.plan_id), done)
    return ctx.checkpoints.rollback_to_checkpoint(session, todo)


def _still_failed(todo: Restoration, now: list[Step], failure: Failure) -> Restoration:
    """Going back takes back what the step did, not that it failed."""
    kept = {step.step_id: step for step in now} | {step.step_id: step for step in todo.steps}
    failed = next((s for s in now if s.step_id == failure.step), None)
    if failed is None:
        return todo
    shown = msgspec.structs.replace(
        kept[failed.step_id], state=StepState.ERRORED, error=failed.error, attempts=failed.attempts
    )
    others = tuple(step for step in todo.steps if step.step_id != failed.step_id)
    return msgspec.structs.replace(todo, steps=(*others, shown))


def ended(call: ToolCall, result: ToolResult, now: str) -> ToolCall:
    return msgspec.structs.replace(
        call,
        state=result.state,
        exit_code=result.exit_code,
        output=result.output,
        output_bytes=result.output_bytes,
        error=result.error,
        ended_at=now,
    )


def call_context(ctx: Context, session: Session, step_id: str, on: str | None) -> CallContext:
    """Where a tool starts and what it is told."""
    sandboxes = ctx.manager.sandboxes(session.plan.plan_id)
    name = on or next(iter(sandboxes.paths))
    sandbox = sandboxes.named(name)
    place = sandbox.place
    is_database = place.resource.kind == "sqlite"
    addresses, secrets = addresses_of(sandboxes)
    return CallContext(
        plan_id=session.plan.plan_id,
        step_id=step_id,
        plan_dir=session.plan.plan_dir,
        cwd=place.root if is_database or isinstance(sandbox, TakesSql) else place.path,
        database=place.path if is_database else None,
        run_sql=sandbox.run_sql if isinstance(sandbox, TakesSql) else None,
        sandboxes=addresses,
        secrets=secrets,
        links=place.links,
        temp_parent=f"{ctx.settings.sandboxes}/{session.plan.plan_id}",
        output_limit=ctx.settings.output_limit,
        environ=dict(os.environ),
        bounds=bounds_of(ctx, session),
        meanwhile=lambda: ctx.manager.drain(session.plan.plan_id),
    )


def addresses_of(sandboxes: PlanSandboxes) -> tuple[dict[str, str], tuple[str, ...]]:
    """What tools are told of each sandbox, and what of that must not be kept or shown."""
    found, secrets = sandboxes.paths, list[str]()
    for sandbox in sandboxes.opened.values():
        if isinstance(sandbox, TakesSql):
            found[sandbox.place.resource.name], secret = sandbox.tool_address()
            secrets.append(secret)
    return {name: one for name, one in found.items() if one}, tuple(filter(None, secrets))


def bounds_of(ctx: Context, session: Session) -> Bounds:
    """What the plan's tools may touch."""
    settings = ctx.settings
    places = [one.place for one in ctx.manager.sandboxes(session.plan.plan_id).opened.values()]
    return Bounds(
        confine=in_force(settings.confine, session.spec.policy.confine),
        hidden=(settings.home, settings.sandboxes),
        writable=settings.writable,
        cache=cache_dir(os.environ),
        stand_ins=tuple(
            StandIn(
                name=place.resource.name,
                own=place.resource.path,
                root=place.root,
                path=place.path,
                links=place.links,
            )
            for place in places
        ),
    )
