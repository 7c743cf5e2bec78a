"""Child plans: real plans in sandboxes made from the parent's, and merged back.

Children of one group run in parallel. When all are complete they are merged in the order of their
steps, each in one switch of the parent's sandboxes; conflicts are checked for all of them before
the first is merged.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from cleveragents.checkpoints.manager import States
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import AgentsError, MergeConflict, Stopped, ValidationFailed
from cleveragents.execution.leasing import work_on
from cleveragents.execution.sandboxes import make_sandboxes
from cleveragents.execution.use import Parent, use_plan
from cleveragents.execution.validate import validate
from cleveragents.lease import (
    LeasedPlan,
    hold,
)
from cleveragents.model.plan import Plan, State, Step
from cleveragents.model.plan_spec import ActorSpec, ApplySpec, PlanSpec, StepSpec
from cleveragents.model.resource import Change, SandboxState
from cleveragents.model.units import plural
from cleveragents.sandbox.protocol import Conflict

Execute = Callable[[Context, str], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a child plan."""

    plan_id: str
    error: str | None = None
    hint: str = ""


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """The changes merged into the parent, child by child."""

    states: States
    changes: dict[str, tuple[Change, ...]]
    """Child plan -> what its work changes in the parent."""


def child_spec(parent: PlanSpec, step: StepSpec) -> PlanSpec:
    """The plan of a step that is a child plan (pure)."""
    sub = step.subplan
    assert sub is not None
    if sub.plan is not None:
        return sub.plan
    return msgspec.structs.replace(
        parent,
        name=f"{parent.name}/{step.id}",
        description="",
        steps=sub.steps,
        validate=(),
        apply=ApplySpec(),
        actor=ActorSpec(),
    )


def child_of(ctx: Context, plan_id: str, step_id: str) -> Plan | None:
    """A step's current child plan; cancelled ones belong to earlier attempts."""
    found = [
        child
        for child in ctx.store.plans.children(plan_id)
        if child.parent_step_id == step_id and child.state is not State.CANCELLED
    ]
    return found[-1] if found else None


def spawn(ctx: Context, leased: LeasedPlan, step: Step, spec: StepSpec) -> Plan:
    """Make the step's child plan, with sandboxes copied from the parent's as they are now."""
    child = child_of(ctx, leased.plan.plan_id, step.step_id) or _use(ctx, leased, spec)
    records = ctx.store.resources.sandboxes(child.plan_id)
    wanted = len(ctx.store.resources.of_plan(child.plan_id))
    if len(records) < wanted or any(r.state is SandboxState.CREATING for r in records):
        with hold(ctx.store, child.plan_id, "plan execute", ctx.now) as lease:
            make_sandboxes(ctx, LeasedPlan(ctx.store, child, lease, ctx.now))
    return child


def _use(ctx: Context, leased: LeasedPlan, spec: StepSpec) -> Plan:
    plan, sub = leased.plan, spec.subplan
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    resources = tuple(
        msgspec.structs.replace(item, source=sandboxes[rid].place.path)
        for rid, item in sandboxes.resources.items()
    )
    file = sub.file if sub else None
    return use_plan(
        ctx,
        child_spec(leased.spec, spec),
        source_path=file or plan.source_path,
        source_text="",
        plan_dir=os.path.dirname(file) if file else plan.plan_dir,
        parent=Parent(plan_id=plan.plan_id, step_id=spec.id, resources=resources),
    )


def run_children(
    ctx: Context, children: Sequence[Plan], *, at_once: int, fail_fast: bool, retries: int
) -> tuple[Outcome, ...]:
    """Run children, in parallel if several; manual edits in a complete one are adopted."""
    waiting = [c for c in children if c.state is not State.APPLIED]
    if len(waiting) <= 1 or at_once == 1:
        found = _one_by_one(ctx, waiting, fail_fast, retries)
    else:
        found = _side_by_side(ctx, waiting, at_once, fail_fast, retries)
    return tuple(found.get(c.plan_id) or Outcome(plan_id=c.plan_id) for c in children)


def _one_by_one(
    ctx: Context, children: Iterable[Plan], fail_fast: bool, retries: int
) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for child in children:
        if fail_fast and any(outcome.error for outcome in found.values()):
            found[child.plan_id] = _not_run(child)
        else:
            found[child.plan_id] = _run(ctx, child, retries, ctx.execute)
    return found


def _not_run(child: Plan) -> Outcome:
    return Outcome(plan_id=child.plan_id, error="stopped: another child plan failed")


def _named(ctx: Context, child: Plan) -> Context:
    """The same context, whose progress names the child plan."""
    tell = ctx.talk.tell

    def named(event: str, data: dict[str, Any]) -> None:
        within = (child.parent_step_id, *data.get("within", ()))
        tell(event, {"plan": child.name, **data, "within": within})

    return msgspec.structs.replace(ctx, talk=msgspec.structs.replace(ctx.talk, tell=named))


def _run(ctx: Context, child: Plan, retries: int, execute: Execute) -> Outcome:
    outcome = Outcome(plan_id=child.plan_id)
    ctx = _named(ctx, child)
    for _ in range(retries + 1):
        ctx.stop()
        try:
            execute(ctx, child.plan_id)
        except Stopped:
            return _not_run(child)
        except AgentsError as error:
            outcome = Outcome(plan_id=child.plan_id, error=error.message, hint=error.hint)
            continue
        ended = ctx.store.plans.get(child.plan_id)
        if ended.state is State.COMPLETE:
            return _validated(ctx, ended)
        message = ended.error.message if ended.error else f"it is {ended.phase}/{ended.state}"
        outcome = Outcome(
            plan_id=child.plan_id, error=message, hint=f"agents plan errors {child.plan_id}"
        )
    return outcome


def _validated(ctx: Context, child: Plan) -> Outcome:
    """Run a child's own validations before its work is merged."""
    try:
        with work_on(ctx, child.plan_id, "plan execute") as leased:
            validate(ctx, leased)
    except ValidationFailed as error:
        hint = f"agents plan diff {child.plan_id}"
        return Outcome(plan_id=child.plan_id, error=error.message, hint=hint)
    return Outcome(plan_id=child.plan_id)


def _side_by_side(
    ctx: Context, children: Sequence[Plan], at_once: int, fail_fast: bool, retries: int
) -> dict[str, Outcome]:
    """Each in a thread with its own store; Ctrl-C, and with `fail_fast` a failure, end all.

    This process leases one at a time; another process may run the others meanwhile.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    ended, own = threading.Event(), threading.Lock()

    def stop() -> None:
        ctx.stop()
        if ended.is_set():
            raise Stopped("stopped: another child plan failed", "resume the parent plan")

    def work(child: Plan) -> Outcome:
        if ended.is_set():
            return _not_run(child)
        is_own = own.acquire(blocking=False)
        try:
            with ctx.another() as opened:
                mine = msgspec.structs.replace(opened, stop=stop, execute_child=ctx.execute_child)
                return _run(mine, child, retries, mine.execute if is_own else mine.execute_child)
        finally:
            if is_own:
                own.release()

    ran: dict[str, Outcome] = {}
    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="child") as pool:
        futures = [pool.submit(work, child) for child in children]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                ran[outcome.plan_id] = outcome
                if outcome.error and fail_fast:
                    ended.set()
        except BaseException:
            ended.set()
            raise
    return ran


def merge_children(
    ctx: Context, plan: Plan, children: Sequence[Plan], now: States, batch: Batch, scratch: str
) -> Brought:
    """The parent's states with every child's work, in order; reports all conflicts at once."""
    parents = ctx.manager.sandboxes(plan.plan_id)
    by_name = {item.name: rid for rid, item in parents.resources.items()}
    states, changes = dict(now), dict[str, tuple[Change, ...]]()
    conflicts: list[Conflict] = []
    for child in children:
        before = dict(states)
        began, ended = _both_ends(ctx, child, batch)
        for mine, resource in ctx.manager.sandboxes(child.plan_id).resources.items():
            rid = by_name.get(resource.name)
            if not resource.source or rid not in states or mine not in began:
                continue
            merged = parents[rid].merged(began[mine], ended[mine], states[rid], batch, scratch)
            conflicts += merged.conflicts
            states[rid] = merged.state
        changes[child.plan_id] = ctx.checkpoints.diff(plan.plan_id, before, states)
    if conflicts:
        raise _conflict(children, conflicts)
    return Brought(states=states, changes=changes)


def _both_ends(ctx: Context, child: Plan, batch: Batch) -> tuple[States, States]:
    """The child's first and current states."""
    child = ctx.store.plans.get(child.plan_id)
    # The child ran with its own store: our cached rows are older.
    ctx.manager.forget(child.plan_id)
    began = ctx.checkpoints.initial_states(child.plan_id)
    if child.head_group_id is None:
        # Without groups: `rollback_enabled: false`.
        return began, ctx.manager.create_checkpoint(child.plan_id, batch, {})
    return began, ctx.checkpoints.states(ctx.store.checkpoints.group(child.head_group_id))


def _conflict(children: Sequence[Plan], conflicts: list[Conflict]) -> MergeConflict:
    names = ", ".join(child.name for child in children)
    shown = ", ".join(f"{c.resource}:{c.path}" for c in conflicts[:5])
    return MergeConflict(
        f"{plural(len(conflicts), 'path was', 'paths were')} changed by {names} and elsewhere:"
        f" {shown}",
        tuple(conflicts),
        "resolve them in one of the sandboxes, then resume the plan",
    )
