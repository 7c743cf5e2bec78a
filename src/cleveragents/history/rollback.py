"""Go back to a group: everything that happened after it is taken back, together."""

from typing import Any

import msgspec

from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.context import Context
from cleveragents.errors import CheckpointPruned, NotAllowed, PlanBusy
from cleveragents.execution import compensation
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.lease import Session
from cleveragents.leases_only import holder
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, ChildMoment, RollbackResult
from cleveragents.model.decision import Decision, DecisionState
from cleveragents.model.effect import EffectState
from cleveragents.model.journal import Operation
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Phase, Plan, State, Step, StepState
from cleveragents.model.resource import Change
from cleveragents.store import Store, View


def rewound_steps(now: list[Step], then: dict[str, Step]) -> tuple[list[Step], list[str]]:
    """The steps as they shall be, and the ids of those that did not exist then (pure)."""
    changed: list[Step] = []
    for step in now:
        old = then.get(step.step_id)
        if old is None:
            continue
        state = StepState.COMPLETE if old.done else StepState.QUEUED
        back = msgspec.structs.replace(old, state=state, attempts=step.attempts, error=None)
        if back != step:
            changed.append(back)
    known = {step.step_id for step in now}
    changed += [step for step_id, step in then.items() if step_id not in known]
    return changed, [step.step_id for step in now if step.step_id not in then]


def rewound_decisions(now: list[Decision], then: dict[str, Decision]) -> list[Decision]:
    """Decisions whose state changes: later ones superseded, earlier ones in force again (pure)."""
    changed: list[Decision] = []
    for decision in now:
        old = then.get(decision.decision_id)
        state = old.state if old is not None else DecisionState.SUPERSEDED
        if state is not decision.state:
            changed.append(msgspec.structs.replace(decision, state=state))
    return changed


def restoration_to(store: Store, plan: Plan, group: CheckpointGroup, **fields: Any) -> Restoration:
    """What going back to a group means for the plan; `fields` are set besides."""
    return restoration(store, plan, group, store.plans.view_at(plan.plan_id, group.version), fields)


def restoration(
    store: Store, plan: Plan, group: CheckpointGroup, view: View, fields: dict[str, Any]
) -> Restoration:
    steps, removed = rewound_steps(store.plans.steps(plan.plan_id), view.steps)
    decisions = rewound_decisions(store.plans.decisions(plan.plan_id), view.decisions)
    back, later = _children(store, plan, group)
    values = {
        "phase": Phase.EXECUTE,
        "state": State.QUEUED,
        "error": None,
        "view_mark": view.standing.view_mark,
        "last_completed_step": view.standing.last_completed_step,
        "actor_state": group.actor_state,
        **fields,
    }
    if view.source.spec != plan.spec:
        values |= msgspec.to_builtins(view.source)
    own = compensation.outlook_at(store, plan.plan_id, group.group_id, view, later)
    outlook = compensation.joined(own, *(todo.outlook for todo in back.values()))
    return Restoration(
        group_id=group.group_id,
        plan=msgspec.to_builtins(values),
        steps=tuple(steps),
        removed_steps=tuple(removed),
        decisions=tuple(decisions),
        children={child: marked_above(todo) for child, todo in back.items()},
        cancelled_children=tuple(later),
        outlook=outlook,
        effects=compensation.marks(outlook, EffectState.LOST),
    )


def marked_above(todo: Restoration) -> Restoration:
    """A child plan's way back; what it did outside is marked with the parent's."""
    return msgspec.structs.replace(todo, effects={})


def _children(
    store: Store, plan: Plan, group: CheckpointGroup
) -> tuple[dict[str, Restoration], list[str]]:
    """Child plans that existed go back to where they stood; later ones are to be cancelled."""
    back: dict[str, Restoration] = {}
    later: list[str] = []
    for child in store.plans.children(plan.plan_id):
        moment = group.children.get(child.plan_id)
        if moment is None:
            later += [] if child.is_final else [child.plan_id]
        elif child.state is State.APPLIED or child.version == moment.version:
            continue
        elif (todo := _child_back(store, child, moment)) is not None:
            back[child.plan_id] = todo
    return back, later


def _child_back(store: Store, child: Plan, moment: ChildMoment) -> Restoration | None:
    """None if the child never had a group: there is nothing to bring back but its view."""
    groups = {g.group_id: g for g in store.checkpoints.groups(child.plan_id)}
    if not groups:
        return None
    target = moment.group_id or next(iter(groups))
    if target not in groups:
        raise CheckpointPruned(
            f"the child plan {child.name!r} stood at a checkpoint that was pruned",
            f"agents plan checkpoints {child.plan_id}",
        )
    view = store.plans.view_at(child.plan_id, moment.version)
    standing = view.standing
    state = State.QUEUED if standing.state is State.PROCESSING else standing.state
    fields = {
        "phase": standing.phase,
        "state": state,
        "error": standing.error,
        "attempt": standing.attempt,
        "actor_state": standing.actor_state,
    }
    return restoration(store, child, groups[target], view, fields)


def accepted(todo: Restoration, accept_loss: bool, command: str) -> Restoration:
    """The same, asked for by somebody who knows what cannot be undone; else refused."""
    compensation.require_accepted(todo.outlook, accept_loss, command)
    marks = compensation.marks(todo.outlook, EffectState.ACCEPTED)
    return msgspec.structs.replace(todo, effects=marks)


def require_own(ctx: Context, plan: Plan, verb: str) -> None:
    """A child plan whose work is merged is part of its parent: it is changed there."""
    parent = plan.parent_plan_id
    if parent is None:
        return
    steps = {step.step_id: step for step in ctx.store.plans.steps(parent)}
    step = steps.get(plan.parent_step_id or "")
    if step is not None and step.done and plan.state is State.COMPLETE:
        raise NotAllowed(
            f"child plan {plan.name!r} is merged into its parent and cannot be {verb}",
            f"correct or roll back the parent: agents plan tree {parent}",
        )


def require_children_free(ctx: Context, todo: Restoration) -> None:
    """Nobody works on a child plan that has to go back."""
    for child in (*todo.children, *todo.cancelled_children):
        held = holder(ctx.store, child, ctx.now())
        if held is not None:
            raise PlanBusy(
                f"child plan {child} is held by `{held.verb}` (process {held.pid})",
                f"wait for it, or end it: kill {held.pid}",
            )
    for below in todo.children.values():
        require_children_free(ctx, below)


def preview(ctx: Context, plan: Plan, group: CheckpointGroup) -> RollbackResult:
    """What a rollback would do; changes nothing."""
    require_rollback(plan)
    ctx.checkpoints.require_readable(group)
    before_looking(ctx, plan.plan_id)
    todo = restoration_to(ctx.store, plan, group)
    targets = ctx.checkpoints.states(group)

    def reverted(now: States) -> tuple[Change, ...]:
        return ctx.checkpoints.diff(plan.plan_id, now, targets)

    changes = ctx.checkpoints.look(plan.plan_id, reverted)
    return _result(ctx, plan, group, todo, changes, dry_run=True)


def rollback(
    ctx: Context, plan: Plan, group: CheckpointGroup, *, accept_loss: bool = False
) -> RollbackResult:
    with work_on(ctx, plan.plan_id, "plan rollback", whatever_waits=True) as session:
        require_rollback(session.plan)
        require_own(ctx, session.plan, "rolled back")
        # Found before the plan was ours: another process may have pruned it since.
        group = find_group(ctx.store, session.plan, group.group_id)
        ctx.checkpoints.require_readable(group)
        entry = session.opened(Operation.ROLLBACK, to=group.group_id)
        command = f"agents plan rollback {plan.plan_id} {group.group_id}"
        todo = accepted(restoration_to(ctx.store, session.plan, group), accept_loss, command)
        # What a failed step left is nobody's work: going back from it must not need room.
        lossy = accept_loss or session.plan.state is State.ERRORED
        todo = msgspec.structs.replace(todo, entry=entry)
        return go_back(ctx, session, group, todo, lossy)


def go_back(
    ctx: Context,
    session: Session,
    group: CheckpointGroup,
    todo: Restoration,
    lossy: bool = False,
) -> RollbackResult:
    """Do it, and say what was done as it was counted before and measured after."""
    require_children_free(ctx, todo)
    counted = _result(ctx, session.plan, group, todo, (), dry_run=False)
    changes = ctx.checkpoints.rollback_to_checkpoint(session, todo, lossy=lossy)
    outcome = compensation.compensated(ctx, session, todo)
    return msgspec.structs.replace(
        counted,
        changes=changes,
        effects=msgspec.structs.replace(counted.effects, compensable=outcome),
        phase=str(session.plan.phase),
        state=str(session.plan.state),
        checkpoints_remaining=ctx.store.checkpoints.count(session.plan.plan_id),
    )


def _result(
    ctx: Context,
    plan: Plan,
    group: CheckpointGroup,
    todo: Restoration,
    changes: tuple[Change, ...],
    dry_run: bool,
) -> RollbackResult:
    rows = ctx.store.checkpoints.of_group(group.group_id)
    return RollbackResult(
        plan_id=plan.plan_id,
        group_id=group.group_id,
        checkpoint_id=rows[0].checkpoint_id,
        label=group.label,
        changes=changes,
        child_plans_invalidated=len(todo.cancelled_children) + len(todo.children),
        decisions_after=sum(d.state is DecisionState.SUPERSEDED for d in todo.decisions),
        tool_calls_after=ctx.store.calls.count(
            plan.plan_id, after=ctx.store.checkpoints.number(group.group_id)
        ),
        sandboxes=ctx.manager.sandboxes(plan.plan_id).paths,
        phase=todo.plan["phase"],
        state=todo.plan["state"],
        checkpoints_remaining=ctx.store.checkpoints.count(plan.plan_id),
        dry_run=dry_run,
        effects=todo.outlook,
    )
