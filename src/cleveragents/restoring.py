"""Bring sandboxes and view to an earlier moment as one transaction.

Everything that could fail happens before the intent is written: capture, reading the target's
content, staging it verified. After that the way is forward only: a crash is finished by the next
command, which finds the intent and goes the rest of the way.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from cleveragents.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.content import fsio
from cleveragents.context import Session
from cleveragents.decision import Decision
from cleveragents.ids import new_id
from cleveragents.journal import JournalEntry, Moment
from cleveragents.plan import Plan, Step
from cleveragents.resource import Change
from cleveragents.snapshots import CheckpointManager, States
from cleveragents.store import Intent, Store

if TYPE_CHECKING:
    from cleveragents.checkpoints import CheckpointService


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go and what the plan shall be afterwards; plain data, kept in the intent."""

    group_id: str
    plan: dict[str, Any]
    """Fields of the plan to set in the final commit."""
    steps: tuple[Step, ...] = ()
    removed_steps: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    entry: JournalEntry | None = None
    """The journal entry to close; its `after` is filled in by the final commit."""
    cancelled_children: tuple[str, ...] = ()


def restore(
    store: Store,
    manager: CheckpointManager,
    checkpoints: "CheckpointService",
    session: Session,
    todo: Restoration,
) -> tuple[Change, ...]:
    plan_id = session.plan.plan_id
    group = store.checkpoints.group(todo.group_id)
    targets = checkpoints.states(group)
    intent_id = new_id()
    staging = staging_of(manager, plan_id, intent_id)
    outcome: dict[str, Any] = {}

    def stage(current: States) -> None:
        outcome["staged"], outcome["changes"] = manager.stage(plan_id, current, targets, staging)

    def intend(_before: States, _current: States) -> None:
        store.intents.put(
            Intent(
                intent_id=intent_id,
                plan_id=plan_id,
                kind="restore",
                state="staged",
                body=msgspec.to_builtins(todo),
                created_at=session.now(),
            )
        )

    try:
        checkpoints.create_checkpoint(
            CheckpointType.PRE_ROLLBACK,
            session,
            prepare=stage,
            also=intend,
            reason="before going back",
        )
    except BaseException:
        fsio.remove_tree(staging)
        raise
    manager.rollback_to(plan_id, outcome["staged"], staging, targets)
    _finish(store, session, todo, group, intent_id)
    fsio.remove_tree(staging)
    return outcome["changes"]


def staging_of(manager: CheckpointManager, plan_id: str, intent_id: str) -> str:
    """Beside the plan's sandboxes: renames must not cross a file system."""
    return f"{manager.sandbox_home}/{plan_id}/.staging-{intent_id}"


def _finish(
    store: Store, session: Session, todo: Restoration, group: CheckpointGroup, intent_id: str
) -> None:
    rows = store.checkpoints.of_group(group.group_id) or list(
        store.checkpoints.of_members(group).values()
    )
    with store.transaction(session.lease):
        came_from = session.plan.head_group_id
        store.plans.remove_steps(session.plan.plan_id, todo.removed_steps)
        fields = msgspec.convert({**msgspec.to_builtins(session.plan), **todo.plan}, Plan)
        session.write(
            steps=todo.steps,
            decisions=todo.decisions,
            head_group_id=group.group_id,
            last_checkpoint_id=rows[0].checkpoint_id,
            **{name: getattr(fields, name) for name in todo.plan},
        )
        if todo.entry is not None:
            # Undo must find what was there just before, edits by hand included.
            before = Moment(came_from, todo.entry.before.version)
            entry = msgspec.structs.replace(todo.entry, before=before)
            store.journal.put(session.closed(entry))
        for child in todo.cancelled_children:
            cancel_child(store, store.plans.get(child))
        store.intents.remove(intent_id)


def cancel_child(store: Store, child: Plan) -> None:
    if not child.is_final:
        store.plans.commit(msgspec.structs.replace(child, state="cancelled"))


def finish_restore(
    store: Store,
    manager: CheckpointManager,
    checkpoints: "CheckpointService",
    session: Session,
    intent: Intent,
) -> None:
    """Go the rest of the way after a crash: look at what is there, stage and switch again."""
    todo = msgspec.convert(intent.body, Restoration)
    plan_id = session.plan.plan_id
    group = store.checkpoints.group(todo.group_id)
    targets = checkpoints.states(group)
    staging = staging_of(manager, plan_id, intent.intent_id)
    fsio.remove_tree(staging)
    with manager.packs.looking() as batch:
        current = manager.create_checkpoint(plan_id, batch, {}, strict=False)
        staged, _ = manager.stage(plan_id, current, targets, staging)
    manager.rollback_to(plan_id, staged, staging, targets)
    _finish(store, session, todo, group, intent.intent_id)
    fsio.remove_tree(staging)
