"""Correct a decision: it and its dependents are redone, everything else stays.

The affected set is a rule (`impact`). Every path it wrote returns to its content from before the
set's first call; the sandboxes go there as in a rollback, and the set's steps run again on top.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from cleveragents.actors import KINDS
from cleveragents.checkpoints import effects
from cleveragents.checkpoints.groups import About
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import (
    Restoration,
    marked_above,
    restoration_to,
)
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import CorrectionRefused
from cleveragents.execution import compensation
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.reconcile import reconcile
from cleveragents.execution.use import PlanFile, step_of
from cleveragents.history.dependents import Facts
from cleveragents.history.rollback import (
    require_children_free,
    require_own,
)
from cleveragents.lease import LeasedPlan, spec_of
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import (
    Correction,
    CorrectionMode,
    Decision,
    DecisionKind,
    DecisionState,
)
from cleveragents.model.effect import EffectState
from cleveragents.model.effect import Outlook as EffectOutlook
from cleveragents.model.ids import new_id
from cleveragents.model.impact import affected
from cleveragents.model.journal import Operation
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Phase, Plan, State, Step, StepState
from cleveragents.model.plan_spec import StepSpec
from cleveragents.model.resource import Change
from cleveragents.model.revision import Revision, revised
from cleveragents.store import Store
from cleveragents.tools import resolve_tool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    guidance: str
    plan_file: PlanFile | None = None
    cascade: bool = False
    accept_loss: bool = False
    """Roll back past effects that cannot be undone, and repeat what may have happened."""


class Superseded(msgspec.Struct, frozen=True, kw_only=True):
    decision_id: str
    question: str
    chosen: str
    steps: tuple[str, ...]
    why: str


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a correction means for the plan; `--dry-run` prints it."""

    plan_id: str
    decision_id: str | None
    superseded: tuple[Superseded, ...]
    kept: tuple[str, ...]
    """Decisions that stay in force."""
    steps: tuple[str, ...]
    """Steps that run again."""
    group_id: str | None
    """The group that the paths are rolled back to."""
    paths: dict[str, tuple[bytes, ...]]
    """Resource id -> paths that are rolled back."""
    changes: tuple[Change, ...] = ()
    """The files that differ from that now."""
    children: tuple[str, ...] = ()
    """Child plans that are rolled back and cancelled."""
    revision: Revision | None = None
    effects: EffectOutlook = EffectOutlook()
    """What it means for the world outside."""


def preview(ctx: Context, decision: Decision, request: Request) -> Outlook:
    """What `correct` would do; changes nothing."""
    plan = ctx.store.plans.get(decision.plan_id)
    require_rollback(plan)
    outlook = work_out(ctx, plan, (decision,), request)
    return msgspec.structs.replace(outlook, changes=_changes(ctx, plan, outlook))


def _changes(ctx: Context, plan: Plan, outlook: Outlook) -> tuple[Change, ...]:
    if plan.head_group_id is None:
        return ()
    before_looking(ctx, plan.plan_id)
    make = _maker(ctx, plan, outlook)
    with ctx.manager.packs.batch() as batch:
        now = ctx.manager.create_checkpoint(plan.plan_id, batch, {}, strict=False)
        return ctx.checkpoints.diff(plan.plan_id, now, make(now, batch))


def correct(ctx: Context, decision: Decision, request: Request) -> Correction:
    """Take the decision's set back and run it again; returns the row of this correction."""
    with work_on(ctx, decision.plan_id, "plan correct") as leased:
        require_rollback(leased.plan)
        require_own(ctx, leased.plan, "corrected")
        if not request.accept_loss:
            command = f"agents plan correct {decision.decision_id} --accept-loss"
            effects.require_repeatable(leased, (), command)
        reconcile(ctx, leased, discard_edits=False)
        roots = tuple(_current(ctx, leased.plan, decision))
        outlook = work_out(ctx, leased.plan, roots, request)
        return redo_dependents(ctx, leased, outlook, request)


def _current(ctx: Context, plan: Plan, decision: Decision) -> Iterable[Decision]:
    """As the store has it now that the plan is ours."""
    decisions = ctx.store.plans.decisions(plan.plan_id)
    return (d for d in decisions if d.decision_id == decision.decision_id)


def ended_row(ctx: Context, row: Correction) -> Correction:
    """As it is after the run, with the child plan that did the work."""
    rows = ctx.store.corrections.of_plan(row.plan_id)
    found = next(item for item in rows if item.correction_id == row.correction_id)
    children = [
        child.plan_id
        for child in ctx.store.plans.children(row.plan_id)
        if child.parent_step_id == f"append-{row.attempt}"
    ]
    if row.mode is CorrectionMode.APPEND and children:
        found = msgspec.structs.replace(found, child_plan_id=children[-1])
        with ctx.store.transaction():
            ctx.store.corrections.put(found)
    return found


def redo_dependents(
    ctx: Context, leased: LeasedPlan, outlook: Outlook, request: Request
) -> Correction:
    """Files first, all or nothing; then the steps, which may fail and be resumed."""
    plan = leased.plan
    if plan.head_group_id is None:
        raise CorrectionRefused(
            f"plan {plan.name!r} has not run yet: there is nothing to correct",
            f"agents plan execute {plan.plan_id}",
        )
    command = f"agents plan correct {outlook.decision_id}"
    effects.require_accepted(outlook.effects, request.accept_loss, command)
    correction, todo = _prepare(ctx, leased, outlook, request)
    require_children_free(ctx, todo)
    entry = leased.opened(
        Operation.CORRECT, correction=correction.correction_id, decision=correction.decision_id
    )
    intervention = todo.decisions[-1]

    def note(kept: CheckpointGroup) -> None:
        row = msgspec.structs.replace(correction, before_group_id=kept.group_id)
        ctx.store.corrections.put(row)
        ctx.store.journal.put(entry)

    about = About(
        CheckpointType.ON_DECISION,
        f"correction of {outlook.decision_id}",
        intervention.decision_id,
    )
    ctx.checkpoints.restore_made(leased, about, _maker(ctx, plan, outlook), todo, note)
    compensation.compensated(ctx, leased, todo)
    executor = executor_for(ctx, leased)
    executor.prepare()
    executor.execute(Operation.CORRECT, entry)
    return ended_row(ctx, correction)


def _prepare(
    ctx: Context, leased: LeasedPlan, outlook: Outlook, request: Request
) -> tuple[Correction, Restoration]:
    """The row and the plan as it will be; nothing is written yet."""
    plan, store = leased.plan, ctx.store
    gone = {item.decision_id for item in outlook.superseded}
    decisions = [d for d in store.plans.decisions(plan.plan_id) if d.decision_id in gone]
    steps = [s for s in store.plans.steps(plan.plan_id) if s.decision_id in gone]
    root = next((d for d in decisions if d.decision_id == outlook.decision_id), None)
    intervention = Decision(
        decision_id=new_id(),
        plan_id=plan.plan_id,
        kind=DecisionKind.USER_INTERVENTION,
        question=f"correct: {root.question}" if root else "a changed plan file",
        chosen=request.guidance,
        rationale="; ".join(f"{item.question}: {item.why}" for item in outlook.superseded),
        parent_id=root.parent_id if root else None,
        influences=(root.decision_id,) if root else (),
        attempt=plan.attempt + 1,
        created_at=ctx.now(),
    )
    group_id = new_id()
    children = children_of(ctx, plan, {step.step_id for step in steps})
    require_not_applied(children)
    correction = Correction(
        correction_id=new_id(),
        plan_id=plan.plan_id,
        decision_id=outlook.decision_id or "",
        mode=CorrectionMode.REVERT,
        guidance=request.guidance,
        attempt=plan.attempt + 1,
        affected=tuple(d.decision_id for d in decisions),
        snapshot=_snapshot(ctx, plan, decisions, steps),
        group_id=group_id,
        created_at=ctx.now(),
    )
    again, removed = _steps_after(ctx, leased, {s.step_id for s in steps}, request.plan_file)
    now = store.plans.steps(plan.plan_id)
    done = [s.index for s in _merged(now, again, removed) if s.done]
    others = tuple(d for d in left_behind(store, plan, again, removed) if d not in decisions)
    fields: dict[str, Any] = {
        "phase": Phase.EXECUTE,
        "state": State.QUEUED,
        "error": None,
        "attempt": plan.attempt + 1,
        "last_completed_step": max(done, default=-1),
    }
    if outlook.group_id is not None:
        # The actor's memory is rolled back with the files.
        fields["actor_state"] = store.checkpoints.group(outlook.group_id).actor_state
    if request.plan_file is not None:
        fields |= source_fields(request.plan_file)
    return correction, Restoration(
        group_id=group_id,
        plan=msgspec.to_builtins(fields),
        steps=tuple(again),
        removed_steps=tuple(removed),
        decisions=(*(d.superseded() for d in (*decisions, *others)), intervention),
        children={
            child.plan_id: back
            for child in children
            if (back := _cancelled(store, child)) is not None
        },
        cancelled_children=tuple(child.plan_id for child in children),
        correction_id=correction.correction_id,
        outlook=outlook.effects,
        effects=effects.marks(outlook.effects, EffectState.ACCEPTED),
    )


def children_of(ctx: Context, plan: Plan, steps: set[str]) -> list[Plan]:
    """The child plans that are the work of those steps now."""
    return [
        child
        for child in ctx.store.plans.children(plan.plan_id)
        if child.parent_step_id in steps and child.state is not State.CANCELLED
    ]


def require_not_applied(children: list[Plan]) -> None:
    applied = [child.plan_id for child in children if child.state is State.APPLIED]
    if applied:
        raise CorrectionRefused(
            f"child plans are applied and cannot be rolled back: {', '.join(applied)}",
            "revert them first: agents plan revert-applied PLAN",
        )


def _cancelled(store: Store, child: Plan) -> Restoration | None:
    """A child that ran is rolled back to where it began, and ends there."""
    groups = store.checkpoints.groups(child.plan_id)
    if not groups:
        return None
    return marked_above(restoration_to(store, child, groups[0], state=State.CANCELLED))


def source_fields(file: PlanFile) -> dict[str, Any]:
    """What a plan that continues with another plan file gets from it."""
    return {
        "spec": msgspec.to_builtins(file.spec),
        "source_path": file.path,
        "source_text": file.text,
    }


def _snapshot(
    ctx: Context, plan: Plan, decisions: list[Decision], steps: list[Step]
) -> dict[str, Any]:
    ids = {d.decision_id for d in decisions}
    names = {r.resource_id: r.name for r in ctx.store.resources.of_plan(plan.plan_id)}
    wrote = [
        {"resource": names[w.resource_id], "path": w.path.hex(), "step": w.step_id}
        for decision_id, w in ctx.store.calls.writes_by_decision(plan.plan_id)
        if decision_id in ids
    ]
    return {
        "decisions": msgspec.to_builtins(decisions),
        "steps": msgspec.to_builtins(steps),
        "wrote": wrote,
    }


def _steps_after(
    ctx: Context, leased: LeasedPlan, again: set[str], file: PlanFile | None
) -> tuple[list[Step], list[str]]:
    """The rows that change and the ids of those that go."""
    now = ctx.store.plans.steps(leased.plan.plan_id)
    if leased.spec.actor.kind in KINDS:
        # The actor decides anew what there is to do.
        return [], [step.step_id for step in now if step.step_id in again or not step.done]
    if file is None:
        return [fresh(step) for step in now if step.step_id in again], []
    return revised_steps(now, file.spec.steps, again, leased.plan.plan_id)


def fresh(step: Step) -> Step:
    """Not done, and not decided either."""
    return msgspec.structs.replace(step, state=StepState.QUEUED, error=None, decision_id=None)


def revised_steps(
    now: list[Step], specs: tuple[StepSpec, ...], again: set[str], plan_id: str
) -> tuple[list[Step], list[str]]:
    """The rows of a changed plan file: what is done and not to be done again stays done (pure)."""
    known = {step.step_id: step for step in now}
    changed: list[Step] = []
    for index, spec in enumerate(specs):
        wanted = step_of(plan_id, index, spec)
        old = known.get(spec.id)
        if old is not None and old.step_id not in again and old.done:
            wanted = msgspec.structs.replace(old, index=index)
        elif old is not None:
            wanted = msgspec.structs.replace(wanted, attempts=old.attempts)
        if wanted != old:
            changed.append(wanted)
    kept = {spec.id for spec in specs}
    return changed, [step.step_id for step in now if step.step_id not in kept]


def left_behind(
    store: Store, plan: Plan, changed: list[Step], removed: list[str]
) -> tuple[Decision, ...]:
    """Decisions of attempts that failed, when the step is to be decided anew or goes."""
    now = store.plans.steps(plan.plan_id)
    left = {step.decision_id for step in now}
    left -= {step.decision_id for step in _merged(now, changed, removed)}
    return tuple(
        decision
        for decision in store.plans.decisions(plan.plan_id)
        if decision.decision_id in left
        and decision.kind is DecisionKind.STEP
        and decision.state is DecisionState.ACTIVE
    )


def _merged(now: list[Step], changed: list[Step], removed: list[str]) -> Iterable[Step]:
    rows = {step.step_id: step for step in now} | {step.step_id: step for step in changed}
    return (step for name, step in rows.items() if name not in removed)


def _maker(ctx: Context, plan: Plan, outlook: Outlook) -> Callable[[States, Batch], States]:
    """Makes the states in which the set's paths are as they were and all others as they are."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)

    def make(now: States, batch: Batch) -> States:
        if outlook.group_id is None:
            return now
        then = ctx.checkpoints.states(ctx.store.checkpoints.group(outlook.group_id))
        return {
            rid: sandboxes[rid].grafted(
                state, then[rid], frozenset(outlook.paths.get(rid, ())), batch
            )
            for rid, state in now.items()
        }

    return make


def work_out(ctx: Context, plan: Plan, roots: tuple[Decision, ...], request: Request) -> Outlook:
    """The dependents of decisions, and what is rolled back. Reads, and writes nothing."""
    for root in roots:
        if root.state is not DecisionState.ACTIVE:
            raise CorrectionRefused(
                f"decision {root.decision_id} is already superseded",
                f"agents plan tree {plan.plan_id} shows those in force",
            )
    revision = None
    if request.plan_file is not None:
        revision = revised(spec_of(plan), request.plan_file.spec, resolve_tool)
    facts = Facts(ctx, plan)
    names = {root.decision_id for root in roots} | facts.decisions_of(_undone(facts, revision))
    found = affected(facts.deeds, names, cascade=request.cascade)
    group, paths = facts.way_back(set(found))
    by_id = {d.decision_id: d for d in facts.decisions}
    steps = facts.steps_of(set(found))
    again = [s.step_id for s in facts.steps if s.step_id in steps or not s.done]
    children = children_of(ctx, plan, steps)
    require_not_applied(children)
    if revision is not None:
        again = [name for name in again if name not in revision.removed] + list(revision.added)
    return Outlook(
        plan_id=plan.plan_id,
        decision_id=roots[0].decision_id if roots else next(iter(found), None),
        superseded=tuple(
            Superseded(
                decision_id=name,
                question=by_id[name].question,
                chosen=by_id[name].chosen,
                steps=tuple(s.step_id for s in facts.steps if s.decision_id == name),
                why=why,
            )
            for name, why in found.items()
        ),
        kept=tuple(name for name in by_id if name not in found),
        steps=tuple(again),
        group_id=group,
        paths={rid: tuple(sorted(some)) for rid, some in paths.items()},
        children=tuple(child.plan_id for child in children),
        revision=revision,
        effects=effects.after(
            ctx.store,
            plan.plan_id,
            decision_ids=set(found),
            children=[child.plan_id for child in children],
        ),
    )


def _undone(facts: Facts, revision: Revision | None) -> set[str]:
    """Steps that a changed plan file makes wrong although they are done."""
    if revision is None:
        return set()
    done = {step.step_id for step in facts.steps if step.done}
    return done & {*revision.changed, *revision.removed}
