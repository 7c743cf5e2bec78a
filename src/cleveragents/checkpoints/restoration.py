"""What going back to an earlier moment means, as plain data, and the commit that ends it."""

import functools
from typing import Any, get_type_hints

import msgspec

from cleveragents import codec
from cleveragents.lease import Session
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.decision import Decision
from cleveragents.model.effect import EffectState, Outlook
from cleveragents.model.journal import JournalEntry, Moment
from cleveragents.model.plan import Plan, State, Step
from cleveragents.store import Store


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go and what the plan shall be afterwards; kept in the intent."""

    group_id: str
    plan: dict[str, Any]
    """Fields of the plan to set in the final commit."""
    steps: tuple[Step, ...] = ()
    removed_steps: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    entry: JournalEntry | None = None
    """The journal entry to close; its `after` is filled in by the final commit."""
    children: dict[str, "Restoration"] = {}
    """Child plans that go back to where they stood then, before the final commit."""
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
    store: Store, session: Session, todo: Restoration, group: CheckpointGroup, intent_id: str
) -> None:
    """The one commit after every sandbox was switched and verified."""
    first = store.checkpoints.first_of(group)
    with store.transaction(session.lease):
        came_from = todo.came_from or session.plan.head_group_id
        session.write(
            steps=todo.steps,
            decisions=todo.decisions,
            removed_steps=todo.removed_steps,
            view_changed=todo.made,
            head_group_id=group.group_id,
            last_checkpoint_id=first,
            **{name: codec.convert(value, _hints()[name]) for name, value in todo.plan.items()},
        )
        if todo.made:
            plan = session.plan
            store.checkpoints.stand_for(group.group_id, plan.version, plan.view_mark)
        if todo.correction_id is not None:
            store.corrections.restored(todo.correction_id)
        if todo.entry is not None:
            # Undo must find what was there just before, edits by hand included.
            before = Moment(came_from, todo.entry.before.version)
            entry = msgspec.structs.replace(todo.entry, before=before)
            store.journal.put(session.closed(entry))
        for state, effect_ids in todo.effects.items():
            store.effects.mark(effect_ids, EffectState(state), session.now())
        for child in todo.cancelled_children:
            cancel_child(store, store.plans.get(child))
        # After a power cut the files may not be what was committed: this tells what to do again.
        store.intents.done(
            intent_id,
            {
                "group_id": group.group_id,
                "version": session.plan.version,
                "boot_id": session.lease.boot_id,
            },
        )


def cancel_child(store: Store, child: Plan) -> None:
    if not child.is_final:
        store.plans.commit(msgspec.structs.replace(child, state=State.CANCELLED))
    for below in store.plans.children(child.plan_id):
        cancel_child(store, below)
