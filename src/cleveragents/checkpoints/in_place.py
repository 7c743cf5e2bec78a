"""Resources in place during a rollback: left alone, unless somebody asked for it."""

from collections.abc import Callable
from typing import NamedTuple

from cleveragents.checkpoints.manager import CheckpointManager, States
from cleveragents.checkpoints.sandboxes import PlanSandboxes
from cleveragents.content.packs import Batch
from cleveragents.model.resource import Change
from cleveragents.model.tool import Write
from cleveragents.sandbox.protocol import InPlace

RESTORE = "@restore"
"""In place of a step's id: what a rollback, an undo or a correction wrote; no step is called so."""


class Way(NamedTuple):
    """The current state, and the two states of an interrupted rollback."""

    now: States
    before: States
    targets: States


def left(manager: CheckpointManager, plan_id: str, now: States) -> States:
    """The resources that stay as they are."""
    return {rid: now[rid] for rid in manager.sandboxes(plan_id).in_place if rid in now}


def unfinished(manager: CheckpointManager, plan_id: str, way: Way, batch: Batch) -> States:
    """The states that finish it: unswitched paths are switched, all others stay.

    A path in neither state was written by somebody since the crash.
    """
    found: States = {}
    sandboxes = manager.sandboxes(plan_id)
    for rid in sandboxes.in_place:
        now, before, target = way.now[rid], way.before.get(rid), way.targets[rid]
        if before is None:
            found[rid] = now
            continue
        sandbox = sandboxes[rid]
        assert isinstance(sandbox, InPlace)
        owned = sandbox.by_owner([now, before, target], batch, scratch="")
        wanted, left_over = sandbox.changes(before, target), sandbox.changes(now, target)
        waiting = still_to_do(wanted, left_over, owned.meaning)
        found[rid] = sandbox.grafted(now, target, waiting, batch)
    return found


def still_to_do(
    wanted: tuple[Change, ...],
    left_over: tuple[Change, ...],
    meaning: Callable[[bytes, str], str],
) -> frozenset[bytes]:
    """Paths that mean what they did before the rollback began (pure).

    One that changes between folder and file is nothing in between: it went to make way.
    """
    now = {change.path: change.before for change in left_over}

    def waits(one: Change) -> bool:
        if not now[one.path] and one.makes_way:
            return True
        return meaning(one.path, now[one.path]) == meaning(one.path, one.before)

    return frozenset(one.path for one in wanted if one.path in now and waits(one))


def restored(
    sandboxes: PlanSandboxes, plan_id: str, group_id: str, changes: tuple[Change, ...]
) -> list[Write]:
    """Record a restore's writes in place, under the group that it makes."""
    ids = {sandboxes.resources[rid].name: rid for rid in sandboxes.in_place}
    return [
        Write(
            plan_id=plan_id,
            step_id=RESTORE,
            call_id=group_id,
            resource_id=ids[change.resource],
            path=change.path,
            before=change.before,
            after=change.after,
        )
        for change in changes
        if change.resource in ids
    ]
