"""Corrects a decision: it and its dependents are redone, everything else stays.

The affected set is a rule (`impact`). Every path it wrote returns to its content from before the
set's first call, as in a rollback, and the set's steps run again on top.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from cleveragents.actors import OBSERVED
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
from cleveragents.errors import CorrectionRefused, RollbackConflict
from cleveragents.execution import compensation
from cleveragents.execution.actor_executor import executor_for
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.reconcile import reconcile
from cleveragents.execution.use import PlanFile
from cleveragents.history import rollback_in_place as in_place
from cleveragents.history.affected import (
    Outlook,
    Request,
    children_of,
    find_affected,
    require_not_applied,
)
from cleveragents.history.rollback import (
    PLAIN,
    remembering,
    require_children_free,
    require_own,
)
from cleveragents.history.steps_again import failed_attempts, merged, source_fields, steps_after
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import (
    Correction,
    CorrectionMode,
    CorrectionState,
    Decision,
    DecisionKind,
)
from cleveragents.model.effect import EffectState
from cleveragents.model.ids import new_id
from cleveragents.model.journal import JournalEntry, Operation
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Phase, Plan, State, Step
from cleveragents.model.resource import Change
from cleveragents.store import Store


def preview(ctx: Context, decision: Decision, request: Request) -> Outlook:
    """What `correct` would do; changes nothing."""
    plan = ctx.store.plans.get(decision.plan_id)
    require_rollback(plan)
    outlook = find_affected(ctx, plan, (decision,), request)
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
    """Roll back the decision's affected set and run it again; returns the correction's row."""
    with work_on(ctx, decision.plan_id, "plan correct") as leased:
        require_rollback(leased.plan)
        require_own(ctx, leased.plan, "corrected")
        if not request.accept_loss:
            command = f"agents plan correct {decision.decision_id} --accept-loss"
            effects.require_repeatable(leased, (), command)
        reconcile(ctx, leased, discard_edits=False)
        roots = tuple(_current(ctx, leased.plan, decision))
        outlook = find_affected(ctx, leased.plan, roots, request)
        return redo_dependents(ctx, leased, outlook, request)


def _current(ctx: Context, plan: Plan, decision: Decision) -> Iterable[Decision]:
    """The decision, read again under the lease."""
    decisions = ctx.store.plans.decisions(plan.plan_id)
    return (d for d in decisions if d.decision_id == decision.decision_id)


def ended_row(ctx: Context, row: Correction) -> Correction:
    """The correction after the run, with the child plan that did the work."""
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
    """Roll back the files, all or nothing; then run the steps, which may fail and be resumed."""
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
    if "actor_state" in todo.plan:
        todo = remembering(todo, request.remember)
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
    if leased.spec.actor.kind == OBSERVED:
        _leave_to_the_agent(ctx, leased, correction, entry)
        return ended_row(ctx, correction)
    executor = executor_for(ctx, leased)
    executor.prepare()
    executor.execute(Operation.CORRECT, entry)
    return ended_row(ctx, correction)


def _leave_to_the_agent(
    ctx: Context, leased: LeasedPlan, correction: Correction, entry: JournalEntry
) -> None:
    """We cannot run the steps; the agent gets the guidance when the conversation continues."""
    ended = msgspec.structs.replace(
        ended_row(ctx, correction),
        state=CorrectionState.COMPLETE,
        after_group_id=leased.plan.head_group_id,
        ended_at=ctx.now(),
    )
    with leased.transaction():
        ctx.store.journal.put(leased.closed(entry))
        ctx.store.corrections.put(ended)


def _prepare(
    ctx: Context, leased: LeasedPlan, outlook: Outlook, request: Request
) -> tuple[Correction, Restoration]:
    """Prepare the row and the new plan; writes nothing yet."""
    plan, store = leased.plan, ctx.store
    gone = {item.decision_id for item in outlook.superseded}
    decisions = [d for d in store.plans.decisions(plan.plan_id) if d.decision_id in gone]
    steps = [s for s in store.plans.steps(plan.plan_id) if s.decision_id in gone]
    root = next((d for d in decisions if d.decision_id == outlook.decision_id), None)
    intervention = _intervention(ctx, plan, root, outlook, request)
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
    again, removed = steps_after(ctx, leased, {s.step_id for s in steps}, request.plan_file)
    now = store.plans.steps(plan.plan_id)
    done = [s.index for s in merged(now, again, removed) if s.done]
    others = tuple(d for d in failed_attempts(store, plan, again, removed) if d not in decisions)
    fields = _fields_after(store, plan, outlook, request.plan_file, max(done, default=-1))
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


def _intervention(
    ctx: Context, plan: Plan, root: Decision | None, outlook: Outlook, request: Request
) -> Decision:
    """The decision that replaces the superseded ones."""
    return Decision(
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


def _fields_after(
    store: Store, plan: Plan, outlook: Outlook, file: PlanFile | None, last_done: int
) -> dict[str, Any]:
    """The plan's own fields after the correction."""
    fields: dict[str, Any] = {
        "phase": Phase.EXECUTE,
        "state": State.QUEUED,
        "error": None,
        "attempt": plan.attempt + 1,
        "last_completed_step": last_done,
    }
    if outlook.group_id is not None:
        # The actor's memory is rolled back with the files.
        fields["actor_state"] = store.checkpoints.group(outlook.group_id).actor_state
    if file is not None:
        fields |= source_fields(file)
    return fields


def _cancelled(store: Store, child: Plan) -> Restoration | None:
    """Roll a child that ran back to its start, and cancel it."""
    groups = store.checkpoints.groups(child.plan_id)
    if not groups:
        return None
    return marked_above(restoration_to(store, child, groups[0], state=State.CANCELLED))


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


def _maker(ctx: Context, plan: Plan, outlook: Outlook) -> Callable[[States, Batch], States]:
    """A function that makes states with the set's paths as before and all others as now."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)

    def make(now: States, batch: Batch) -> States:
        if outlook.group_id is None:
            return now
        group = ctx.store.checkpoints.group(outlook.group_id)
        then = ctx.checkpoints.states(group)
        made = {
            rid: sandboxes[rid].grafted(
                state, then[rid], frozenset(outlook.paths.get(rid, ())), batch
            )
            for rid, state in now.items()
            if rid not in sandboxes.in_place
        }
        if sandboxes.in_place:
            # In place somebody else may have changed the same paths: their changes stay.
            found = in_place.outlook(ctx, plan, group, now, PLAIN, batch, outlook.paths)
            _require_no_conflict(found, plan, group)
            made |= {rid: found.states[rid] for rid in sandboxes.in_place}
        return made

    return make


def _require_no_conflict(found: in_place.Outlook, plan: Plan, group: CheckpointGroup) -> None:
    """Refuse on a conflict: a rollback can choose a side, but does something else."""
    if found.conflicts:
        refused = in_place.refusal(found.conflicts, plan.plan_id, group.group_id)
        remark = "; that undoes everything since, and the guidance is not told to anybody"
        raise RollbackConflict(refused.message, refused.conflicts, refused.hint + remark)
