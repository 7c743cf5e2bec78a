"""Continues a plan whose sandboxes are on another machine: they are made here, from the bucket.

Other machines see only groups in the bucket. Steps after the newest of those count as not done; a
step with declared effects is never among them, because it waited for the bucket.
"""

import os
from typing import Any

import msgspec

from cleveragents import machine
from cleveragents.checkpoints.backed import newest_uploaded
from cleveragents.checkpoints.groups import Groups
from cleveragents.checkpoints.restoration import (
    Restoration,
    cancel_child,
    commit_restoration,
    restoration_to,
)
from cleveragents.checkpoints.sandboxes import PlanSandboxes, layout, open_sandboxes
from cleveragents.content import fsio, removal
from cleveragents.content.bucket.backed import BackedPacks
from cleveragents.errors import NotInBucket, SandboxError, SandboxNotOurs
from cleveragents.lease import LeasedPlan, hold, host_name
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, SandboxCheckpoint
from cleveragents.model.decision import DecisionState
from cleveragents.model.plan import Plan, State, StepState
from cleveragents.model.resource import SandboxRecord, SandboxState
from cleveragents.model.units import plural
from cleveragents.sandbox.marks import put_mark
from cleveragents.sandbox.protocol import CreatesFromState
from cleveragents.sandbox.registry import traits_of

BEGINNING = (
    CheckpointType.PRE_EXECUTE,
    CheckpointType.ON_DECISION,
    CheckpointType.BEFORE_STEP,
    CheckpointType.BEFORE_TOOL_EXECUTE,
)
"""Groups that hold no work: a process that died before its first step did not say that it runs."""
GIVES_UP = ("plan rollback", "plan undo")
"""Verbs by which a person chose where to go, whatever comes after it."""


def move_here(groups: Groups, leased: LeasedPlan, verb: str) -> None:
    """Make the sandboxes of a plan on this machine, if they are on another."""
    plan_id = leased.plan.plan_id
    current = _refreshed(groups, plan_id)
    here, away = current.home_id, [r for r in current.elsewhere if r.state is SandboxState.READY]
    if not away:
        return
    _require_movable(current, away)
    origin = away[0].origin
    made_on = origin.get("is_on") or origin.get("made_on", "another machine")
    group = newest_uploaded(groups.store, leased.plan)
    if group is None:
        _start_over(groups, leased, away, made_on)
        return
    _rewind(groups, leased, group, verb, made_on)
    states = groups.states(group)
    new = _places_here(groups, plan_id, away, here)
    _prefetch(groups)
    ready = [_make(groups, new, one, states[rid]) for rid, one in new.records.items()]
    with leased.transaction():
        for old, record in zip(away, ready, strict=True):
            groups.store.resources.put_sandbox(record)
            groups.store.resources.move_source(old.path, record.path)
    new.close()
    groups.manager.forget(plan_id)
    said = f"plan {leased.plan.name!r} was on another machine: its sandboxes were made here"
    groups.warn(said)


def _require_movable(current: PlanSandboxes, away: list[SandboxRecord]) -> None:
    for record in away:
        sandbox = current[record.resource_id]
        resource = sandbox.place.resource
        if not isinstance(sandbox, CreatesFromState) or resource.is_in_place:
            raise SandboxError(
                f"resource {resource.name!r} cannot be worked on from another machine",
                f"continue plan {record.plan_id} where it was started",
            )


def _refreshed(groups: Groups, plan_id: str) -> PlanSandboxes:
    """Read again: this process may have leased the plan before another machine did."""
    packs, current = groups.manager.packs, groups.manager.sandboxes(plan_id)
    assert isinstance(packs, BackedPacks)
    packs.index.refresh()
    rows = {one.resource_id: one for one in groups.store.resources.sandboxes(plan_id)}
    if rows != current.records:
        groups.manager.forget(plan_id)
        current = groups.manager.sandboxes(plan_id)
    return current


def _rewind(
    groups: Groups, leased: LeasedPlan, group: CheckpointGroup, verb: str, made_on: str
) -> None:
    """Drop work that never reached the bucket, if its machine died or a person chose so."""
    plan = leased.plan
    lost = groups.store.segments.pending(plan.plan_id)
    if verb not in GIVES_UP and _is_kept_there(groups, plan, lost):
        raise NotInBucket(
            f"{plural(len(lost), 'group')} of plan {plan.name!r} never reached the bucket from"
            f" {made_on}",
            f"run any agents command there, or give them up: agents plan rollback {plan.plan_id}"
            f" {group.group_id}",
        )
    if group.group_id != plan.head_group_id:
        todo = restoration_to(
            groups.store, plan, group, phase=plan.phase, state=plan.state, error=plan.error
        )
        _commit(groups, leased, todo, group)
    if lost:
        with leased.transaction():
            groups.manager.delete_checkpoint(plan.plan_id, lost, groups.now())
        said = f"{plural(len(lost), 'group')} that only {made_on} had will be made again"
        groups.warn(said)


def _has_died(plan: Plan) -> bool:
    """Whether the process that worked on it died.

    A child plan is taken by its parent's process, which decided that already.
    """
    interrupted = plan.error is not None and plan.error.type == "Interrupted"
    return interrupted or plan.state is State.PROCESSING or plan.parent_plan_id is not None


def _is_kept_there(groups: Groups, plan: Plan, lost: list[str]) -> bool:
    """Whether the machine that made these groups can still upload their work."""
    found = (groups.store.checkpoints.group(one).checkpoint_type for one in lost)
    return any(one not in BEGINNING for one in found) and not _has_died(plan)


def _start_over(
    groups: Groups, leased: LeasedPlan, away: list[SandboxRecord], made_on: str
) -> None:
    """Start again: the machine died before anything was in the bucket.

    That needs the user's resources. Nothing was done outside: such a step would have waited.
    """
    plan, store = leased.plan, groups.store
    resources = store.resources.of_plan(plan.plan_id)
    here = all(traits_of(one.kind).has_address or os.path.lexists(one.path) for one in resources)
    lost = store.segments.pending(plan.plan_id)
    if not here or not plan.rollback_enabled or _is_kept_there(groups, plan, lost):
        raise NotInBucket(
            f"no group of plan {plan.name!r} is in the bucket: it is only on {made_on}",
            f"continue it there, or delete it: agents plan delete {plan.plan_id}",
        )
    steps = [s for s in store.plans.steps(plan.plan_id) if s.state is not StepState.QUEUED]
    made = [d for d in store.plans.decisions(plan.plan_id) if d.parent_id is not None]
    with leased.transaction():
        leased.write(
            steps=tuple(msgspec.structs.replace(s, state=StepState.QUEUED) for s in steps),
            decisions=tuple(
                msgspec.structs.replace(d, state=DecisionState.SUPERSEDED) for d in made
            ),
            view_changed=True,
            head_group_id=None,
            last_checkpoint_id=None,
            last_completed_step=-1,
        )
        groups.manager.delete_checkpoint(plan.plan_id, lost, groups.now())
        for child in store.plans.children(plan.plan_id):
            cancel_child(store, child)
        for record in _records_here(groups, plan.plan_id, away, {}):
            unmade = msgspec.structs.replace(record, state=SandboxState.CREATING, identity="")
            store.resources.put_sandbox(unmade)
    groups.manager.forget(plan.plan_id)
    groups.warn(f"plan {plan.name!r} was on {made_on}, and is started over here")


def _commit(groups: Groups, leased: LeasedPlan, todo: Restoration, group: CheckpointGroup) -> None:
    """Roll the plan's view back; files of child plans are made when those continue."""
    for child_id, below in todo.children.items():
        with hold(groups.store, child_id, "rollback of the parent plan", groups.now) as lease:
            child = LeasedPlan(groups.store, groups.store.plans.get(child_id), lease, groups.now)
            _commit(groups, child, below, groups.store.checkpoints.group(below.group_id))
    commit_restoration(groups.store, leased, todo, group, intent_id="")


def _places_here(
    groups: Groups, plan_id: str, away: list[SandboxRecord], here: str
) -> PlanSandboxes:
    """The sandboxes as they will be on this machine."""
    return open_sandboxes(
        groups.manager.packs,
        groups.store.resources.of_plan(plan_id),
        _records_here(
            groups, plan_id, away, {"home": here, "boot_id": fsio.boot_id(), "is_on": host_name()}
        ),
        groups.settings.sandboxes,
        f"{groups.settings.home}/cache",
        plan_id,
        groups.store.identity,
    )


def _records_here(
    groups: Groups, plan_id: str, away: list[SandboxRecord], about: dict[str, Any]
) -> list[SandboxRecord]:
    """The rows with places on this machine; `about`: further fields, if any."""
    places = layout(groups.store.resources.of_plan(plan_id), groups.settings.sandboxes, plan_id)
    records: list[SandboxRecord] = []
    for record in away:
        root, path = places[record.resource_id]
        origin = {**record.origin, **about} if about else {}
        records.append(msgspec.structs.replace(record, root=root, path=path, origin=origin))
    return records


def _prefetch(groups: Groups) -> None:
    packs = groups.manager.packs
    assert isinstance(packs, BackedPacks)
    packs.prefetch()


def _make(
    groups: Groups, sandboxes: PlanSandboxes, record: SandboxRecord, state: SandboxCheckpoint
) -> SandboxRecord:
    sandbox = sandboxes[record.resource_id]
    assert isinstance(sandbox, CreatesFromState)
    if not sandboxes.may_remove(record):
        raise SandboxNotOurs(f"{record.root} is not this plan's sandbox", "move it away")
    fsio.make_private_dir(os.path.dirname(record.root))
    staging = f"{os.path.dirname(record.root)}/.staging-{record.sandbox_id}"
    with machine.named(f"the sandbox {record.root} cannot be made", SandboxError):
        put_mark(groups.store.identity.owner, record)
        if traits_of(sandbox.place.resource.kind).server is None:
            sandbox.remove()
        else:
            removal.remove_tree(record.root)  # databases on a server are reached from everywhere
        removal.remove_tree(staging)
        origin: dict[str, Any] = sandbox.create_at(state, staging)
        removal.remove_tree(staging)
    made = msgspec.structs.replace(record, identity=fsio.identity(record.root), origin=origin)
    _require_same(groups, sandbox, state)
    return made


def _require_same(groups: Groups, sandbox: Any, state: SandboxCheckpoint) -> None:
    with groups.manager.packs.preview() as batch:
        found: SandboxCheckpoint = sandbox.capture(batch, None, strict=False)
    if found.state_hash != state.state_hash:
        raise SandboxError(
            f"the sandbox {sandbox.place.root} is not what its group says", "run it again"
        )
