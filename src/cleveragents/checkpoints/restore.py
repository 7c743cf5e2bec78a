"""Restores the sandboxes and the plan to a group: stage, intent, switch, one commit."""

from collections.abc import Callable

import msgspec

from cleveragents import codec
from cleveragents.checkpoints import in_place
from cleveragents.checkpoints.create import CheckpointRequest, create, one_row
from cleveragents.checkpoints.groups import About, Groups
from cleveragents.checkpoints.manager import Staged, States
from cleveragents.checkpoints.restoration import Restoration, commit_restoration
from cleveragents.content import removal
from cleveragents.content.packs import Batch
from cleveragents.content.reserve import SIZE
from cleveragents.errors import DiskFull
from cleveragents.lease import LeasedPlan, hold
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.ids import new_id
from cleveragents.model.resource import Change
from cleveragents.store import Intent

REASON = "before the rollback"


def roll_back(
    groups: Groups,
    leased: LeasedPlan,
    restoration: Restoration,
    *,
    label: str | None = None,
    reason: str = REASON,
    lossy: bool = False,
) -> tuple[Change, ...]:
    """Roll every sandbox and the plan's view back to a group, all or nothing, verified.

    Resources in place stay as they are: they are rolled back only when a person asks for it, by
    owners (`history/rollback_in_place.py`).

    `lossy`: without room to keep the current state of the sandboxes, it is dropped.

    Everything that can fail happens before the intent is committed: capturing, reading the
    target's content, staging it. After that it only goes forward: `finish` completes it if this
    process dies.
    """
    plan_id, intent_id = leased.plan.plan_id, new_id()
    group = groups.store.checkpoints.group(restoration.group_id)
    targets = groups.states(group)
    staging = groups.manager.staging(plan_id, intent_id)
    intent = _intent(intent_id, plan_id, restoration, groups.now())
    staged: list[Staged] = []

    def prepare(now: States) -> None:
        targets.update(in_place.left(groups.manager, plan_id, now))
        staged.append(groups.manager.stage(plan_id, now, targets, staging))

    groups.store.reserve.release_below(SIZE)
    try:
        _keep_before(
            groups,
            leased,
            reason,
            prepare,
            lambda: groups.store.intents.replace(intent),
            lossy,
            label,
        )
    except BaseException:
        removal.remove_tree(staging)
        raise
    _switch(groups, leased, staged[-1], restoration, group, targets, intent_id)
    return staged[-1].changes


def _intent(intent_id: str, plan_id: str, todo: Restoration, now: str) -> Intent:
    return Intent(
        intent_id=intent_id,
        plan_id=plan_id,
        kind="restore",
        state="staged",
        body=msgspec.to_builtins(todo),
        created_at=now,
    )


def _keep_before(
    groups: Groups,
    leased: LeasedPlan,
    reason: str,
    prepare: Callable[[States], None],
    note: Callable[[], None],
    lossy: bool,
    label: str | None = None,
) -> None:
    """Keep the current state in a `pre_rollback` group; `note` is part of its commit."""
    try:
        request = CheckpointRequest(
            label=label, reason=reason, prepare=prepare, record=lambda _before, _now: note()
        )
        create(groups, CheckpointType.PRE_ROLLBACK, leased, request)
        return
    except DiskFull as error:
        if not lossy:
            raise DiskFull(
                f"the state of the sandboxes cannot be kept before the rollback: {error}",
                "free some space, or discard it: the same command with --accept-loss",
            ) from error
    with groups.manager.packs.preview() as batch:
        prepare(groups.manager.create_checkpoint(leased.plan.plan_id, batch, {}, strict=False))
        with leased.transaction():
            note()
    groups.warn("the disk is full: changes in the sandboxes since the last group were not kept")


def restore_made(
    groups: Groups,
    leased: LeasedPlan,
    about: About,
    make: Callable[[States, Batch], States],
    todo: Restoration,
    also: Callable[[CheckpointGroup], None] = lambda _now: None,
    check: Callable[[States, Batch], None] | None = None,
    spared: str | None = None,
) -> tuple[Change, ...]:
    """Bring the sandboxes to a new state, made from the current one.

    `make` gets the current states and may raise, with nothing changed; its result becomes the
    group `todo.group_id`. `also(now)` runs in the commit of that group and the intent, with the
    group that keeps the old state; from then on it is like a rollback. `check` gets the states
    first and may raise before anything is kept. `spared`: the group that `make` needs, which
    must not be pruned.
    """
    plan_id, intent_id = leased.plan.plan_id, new_id()
    # The sandboxes' current state: the last group if it holds that, else one more.
    request = CheckpointRequest(
        reason=f"before: {about.reason}", keeps_head=True, check=check, spares=spared
    )
    kept = create(groups, CheckpointType.PRE_ROLLBACK, leased, request)
    now = groups.states(kept)
    staging = groups.manager.staging(plan_id, intent_id)
    todo = msgspec.structs.replace(todo, made=True, came_from=kept.group_id)
    intent = _intent(intent_id, plan_id, todo, groups.now())
    try:
        with groups.manager.packs.batch() as batch:
            targets = make(now, batch)
            batch.seal()
            staged = groups.manager.stage(plan_id, now, targets, staging)
            changed = {
                rid: state
                for rid, state in targets.items()
                if now[rid].state_hash != state.state_hash
            }
            resources = groups.manager.sandboxes(plan_id).resources
            rows = changed or one_row(now, about.step, resources)
            first = next(iter(rows))
            rows[first] = msgspec.structs.replace(rows[first], added_bytes=batch.added_bytes)
            with leased.transaction():
                groups.keep_content(batch)
                ids = {rid: new_id() for rid in rows}
                state = todo.plan.get("actor_state", leased.plan.actor_state)
                group = groups.add(leased, todo.group_id, kept, rows, ids, about, state)
                also(kept)
                sandboxes = groups.manager.sandboxes(plan_id)
                groups.store.calls.add_writes(
                    in_place.restored(sandboxes, plan_id, todo.group_id, staged.changes)
                )
                groups.store.intents.replace(intent)
    except BaseException:
        groups.manager.discard_staging(plan_id)
        raise
    _switch(groups, leased, staged, todo, group, targets, intent_id)
    return staged.changes


def finish(groups: Groups, leased: LeasedPlan, intent: Intent) -> None:
    """Complete a restore after a crash: capture, stage and switch again."""
    plan_id = leased.plan.plan_id
    restoration = codec.convert(intent.body, Restoration)
    # The current state may be half of each: it is kept, but undo goes to the whole one.
    came_from = restoration.came_from or leased.plan.head_group_id
    restoration = msgspec.structs.replace(restoration, came_from=came_from)
    intent = msgspec.structs.replace(intent, body=msgspec.to_builtins(restoration))
    group = groups.store.checkpoints.group(restoration.group_id)
    targets = groups.states(group)
    staging = groups.manager.staging(plan_id, intent.intent_id)
    removal.remove_tree(staging)
    groups.store.reserve.release_below(SIZE)
    looked: list[States] = []
    _keep_before(
        groups,
        leased,
        "found after an interrupted rollback",
        looked.append,
        lambda: groups.store.intents.put(intent),
        lossy=True,
    )
    before = groups.states(groups.store.checkpoints.group(came_from)) if came_from else {}
    with groups.manager.packs.batch() as batch:
        way = in_place.Way(looked[-1], before, targets)
        targets.update(in_place.unfinished(groups.manager, plan_id, way, batch))
        batch.seal()
        with leased.transaction():
            groups.keep_content(batch)
    staged = groups.manager.stage(plan_id, looked[-1], targets, staging)
    _switch(groups, leased, staged, restoration, group, targets, intent.intent_id)


def confirm(groups: Groups, leased: LeasedPlan, intent: Intent) -> bool:
    """Verify a committed rollback that may not be on disk by reading, or repeat it.

    True if it was repeated. A successful sync proves nothing now: if one failed before, the kernel
    may have dropped the pages that it could not write.
    """
    plan, noted = leased.plan, intent.body
    if plan.version == noted["version"]:
        if leased.lease.boot_id == noted["boot_id"]:
            groups.manager.sync(plan.plan_id)
        groups.manager.distrust(plan.plan_id)
        if not groups.is_at(plan.plan_id, noted["group_id"], but_in_place=True):
            todo = Restoration(group_id=noted["group_id"], plan={})
            why = "found instead of a rollback"
            roll_back(groups, leased, todo, reason=why, lossy=True)
            leased.finish_background()
            return True
    with leased.transaction():
        groups.store.intents.remove(intent.intent_id)
    return False


def _switch(
    groups: Groups,
    leased: LeasedPlan,
    staged: Staged,
    restoration: Restoration,
    group: CheckpointGroup,
    targets: States,
    intent_id: str,
) -> None:
    plan_id = leased.plan.plan_id
    groups.manager.switch_in_place(
        plan_id, staged, lambda: _give_up(groups, leased, restoration, staged, intent_id)
    )
    groups.manager.rollback_to(plan_id, staged, targets)
    for child_id, todo in restoration.children.items():
        _restore_child(groups, child_id, todo)
    groups.remember_newest(plan_id, None)
    commit_restoration(groups.store, leased, restoration, group, intent_id)
    groups.manager.note_version(leased.plan)
    if not restoration.made:
        groups.remember_newest(plan_id, group)
    leased.run_in_background(intent_id, groups.manager.sync_switched(plan_id, staged))


def _give_up(
    groups: Groups, leased: LeasedPlan, todo: Restoration, staged: Staged, intent_id: str
) -> None:
    """Abandon a rollback whose resources in place could not be switched."""
    plan_id = leased.plan.plan_id
    with leased.transaction():
        groups.store.intents.remove(intent_id)
        groups.store.calls.forget_writes(plan_id, todo.group_id)
        if todo.made:
            groups.manager.delete_checkpoint(plan_id, [todo.group_id], groups.now())
    groups.manager.discard_staging(plan_id)
    removal.remove_tree(staged.directory)


def _restore_child(groups: Groups, plan_id: str, todo: Restoration) -> None:
    """A child plan is rolled back with its parent; repeatable after a crash."""
    with hold(groups.store, plan_id, "rollback of the parent plan", groups.now) as lease:
        leased = LeasedPlan(groups.store, groups.store.plans.get(plan_id), lease, groups.now)
        roll_back(groups, leased, todo, lossy=True)
        leased.finish_background()
