"""A rollback to an earlier group as plain data, and the commit that ends it."""

import functools
from typing import Any, get_type_hints

import msgspec

from cleveragents import codec
from cleveragents.checkpoints import effects
from cleveragents.errors import CheckpointPruned
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, ChildMoment
from cleveragents.model.decision import Decision, DecisionState
from cleveragents.model.effect import EffectState, Outlook
from cleveragents.model.journal import JournalEntry, Moment
from cleveragents.model.plan import Phase, Plan, State, Step, StepState
from cleveragents.model.plan_spec import OBSERVED
from cleveragents.store import Store, View


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """The target group and the plan's view afterwards; kept in the intent."""

    group_id: str
    plan: dict[str, Any]
    """Fields of the plan to set in the final commit."""
    steps: tuple[Step, ...] = ()
    removed_steps: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    entry: JournalEntry | None = None
    """The journal entry to close; its `after` is filled in by the final commit."""
    children: dict[str, "Restoration"] = {}
    """Child plans that return to where they were then, before the final commit."""
    cancelled_children: tuple[str, ...] = ()
    made: bool = False
    """The group was made for this restore: it is a group of the plan as it is afterwards."""
    correction_id: str | None = None
    """The correction that this restores for."""
    came_from: str | None = None
    """The group of what was there before; None: the plan's newest when the commit comes."""
    outlook: Outlook = Outlook()
    """What going there means for the world outside."""
    effects: dict[str, tuple[str, ...]] = {}
    """State -> the effects that come into it with the final commit."""


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Plan)


def commit_restoration(
    store: Store, leased: LeasedPlan, todo: Restoration, group: CheckpointGroup, intent_id: str
) -> None:
    """The one commit after every sandbox was switched and verified."""
    first = store.checkpoints.first_of(group)
    with leased.transaction():
        came_from = todo.came_from or leased.plan.head_group_id
        leased.write(
            steps=todo.steps,
            decisions=todo.decisions,
            removed_steps=todo.removed_steps,
            view_changed=todo.made,
            head_group_id=group.group_id,
            last_checkpoint_id=first,
            **{name: codec.convert(value, _hints()[name]) for name, value in todo.plan.items()},
        )
        if todo.made:
            plan = leased.plan
            store.checkpoints.stand_for(group.group_id, plan.version, plan.view_mark)
        if todo.correction_id is not None:
            store.corrections.restored(todo.correction_id)
        if todo.entry is not None:
            # Undo must find the state just before, manual edits included.
            before = Moment(came_from, todo.entry.before.version)
            entry = msgspec.structs.replace(todo.entry, before=before)
            store.journal.put(leased.closed(entry))
        for state, effect_ids in todo.effects.items():
            store.effects.mark(effect_ids, EffectState(state), leased.now())
        for child in todo.cancelled_children:
            cancel_child(store, store.plans.get(child))
        # After a power cut the files may differ from the commit: this says what to repeat.
        store.intents.done(
            intent_id,
            {
                "group_id": group.group_id,
                "version": leased.plan.version,
                "boot_id": leased.lease.boot_id,
            },
        )


def cancel_child(store: Store, child: Plan) -> None:
    if not child.is_final:
        store.plans.commit(msgspec.structs.replace(child, state=State.CANCELLED))
    for below in store.plans.children(child.plan_id):
        cancel_child(store, below)


def rewound_steps(
    now: list[Step], then: dict[str, Step], keeps_failed: bool = False
) -> tuple[list[Step], list[str]]:
    """The steps afterwards, and the ids of those that did not exist then (pure).

    `keeps_failed`: steps that had failed by then are not done again.
    """
    changed: list[Step] = []
    for step in now:
        old = then.get(step.step_id)
        if old is None:
            continue
        if keeps_failed and old.state is StepState.ERRORED:
            back = msgspec.structs.replace(old, attempts=step.attempts)
        else:
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
    """The restoration of a plan to a group; `fields` are set too."""
    return restoration(store, plan, group, store.plans.view_at(plan.plan_id, group.version), fields)


def restoration(
    store: Store, plan: Plan, group: CheckpointGroup, view: View, fields: dict[str, Any]
) -> Restoration:
    # An observed agent does not repeat a failed step; its next call is another step.
    is_observed = plan.spec["actor"]["kind"] == OBSERVED
    keeps_failed = is_observed or fields.get("state") is State.ERRORED
    steps, removed = rewound_steps(store.plans.steps(plan.plan_id), view.steps, keeps_failed)
    decisions = rewound_decisions(store.plans.decisions(plan.plan_id), view.decisions)
    back, later = _children(store, plan, group)
    values = {
        "phase": Phase.EXECUTE,
        "state": State.COMPLETE if _is_in_last_step(group, view) else State.QUEUED,
        "error": None,
        "view_mark": view.standing.view_mark,
        "last_completed_step": view.standing.last_completed_step,
        "actor_state": group.actor_state,
        **fields,
    }
    if view.source.spec != plan.spec:
        values |= msgspec.to_builtins(view.source)
    own = effects.outlook_at(store, plan.plan_id, group.group_id, view, later)
    outlook = effects.joined(own, *(todo.outlook for todo in back.values()))
    return Restoration(
        group_id=group.group_id,
        plan=msgspec.to_builtins(values),
        steps=tuple(steps),
        removed_steps=tuple(removed),
        decisions=tuple(decisions),
        children={child: marked_above(todo) for child, todo in back.items()},
        cancelled_children=tuple(later),
        outlook=outlook,
        effects=effects.marks(outlook, EffectState.LOST),
    )


def _is_in_last_step(group: CheckpointGroup, view: View) -> bool:
    """Whether the group was made while the last step ran; its work so far can be applied."""
    return group.checkpoint_type is CheckpointType.ON_QUIET and all(
        step.done or step.state is StepState.PROCESSING for step in view.steps.values()
    )


def marked_above(todo: Restoration) -> Restoration:
    """A child plan's restoration; its outside effects are marked with the parent's."""
    return msgspec.structs.replace(todo, effects={})


def _children(
    store: Store, plan: Plan, group: CheckpointGroup
) -> tuple[dict[str, Restoration], list[str]]:
    """The child plans to roll back, and later ones to cancel."""
    back: dict[str, Restoration] = {}
    later: list[str] = []
    for child in store.plans.children(plan.plan_id):
        moment = group.children.get(child.plan_id)
        if moment is None:
            later += [] if child.is_final else [child.plan_id]
        elif child.state is State.APPLIED or child.version == moment.version:
            continue
        elif (todo := _child_restoration(store, child, moment)) is not None:
            back[child.plan_id] = todo
    return back, later


def _child_restoration(store: Store, child: Plan, moment: ChildMoment) -> Restoration | None:
    """A child's restoration; None if it never had a group: then only its view is restored."""
    groups = {g.group_id: g for g in store.checkpoints.groups(child.plan_id)}
    if not groups:
        return None
    target = moment.group_id or next(iter(groups))
    if target not in groups:
        raise CheckpointPruned(
            f"the child plan {child.name!r} was at a checkpoint that was pruned",
            f"agents plan checkpoints {child.plan_id}",
        )
    view = store.plans.view_at(child.plan_id, moment.version)
    return restoration(store, child, groups[target], view, fields_then(view))


def fields_then(view: View) -> dict[str, Any]:
    """The plan's own fields at that moment, with no work in progress."""
    standing = view.standing
    state = State.QUEUED if standing.state is State.PROCESSING else standing.state
    return {
        "phase": standing.phase,
        "state": state,
        "error": standing.error,
        "attempt": standing.attempt,
        "actor_state": standing.actor_state,
    }
