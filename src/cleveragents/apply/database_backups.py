"""Backups of databases from before an apply, so that it can be reverted.

A backup is the clone of the plan's first checkpoint, on its server. The sandbox's row records it
before the other clones are dropped, and its release before it is dropped, so that after a crash
every database of ours is either recorded or found again.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, PlanBusy, SandboxError
from cleveragents.lease import (
    LeasedPlan,
    hold,
)
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Backup, BackupState, SandboxRecord, SandboxState
from cleveragents.model.units import show_bytes
from cleveragents.sandbox.postgres.address import shown
from cleveragents.sandbox.protocol import STATEMENTS, SWAP, KeepsBackup, Proposal


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The backup of one database, and the applied plan it belongs to."""

    plan_id: str
    plan: str
    resource: str
    where: str
    """The database that was changed."""
    name: str
    """The database that holds what that one held before."""
    bytes: int
    state: BackupState
    by: str
    applied_at: str
    applied_as: int
    """Which of two was applied later: a number that the store gives."""


def held(ctx: Context) -> list[Held]:
    """All backups ever kept, and their states; connects to nothing."""
    return [
        _held(ctx, record, earlier)
        for record in ctx.store.resources.all_sandboxes()
        if (earlier := record.earlier) is not None
    ]


def kept(ctx: Context) -> list[Held]:
    return [one for one in held(ctx) if one.state is BackupState.KEPT]


def kept_of(ctx: Context, plan: Plan) -> list[Held]:
    records = ctx.store.resources.sandboxes(plan.plan_id)
    found = [_held(ctx, record, record.earlier) for record in records if record.earlier]
    return [one for one in found if one.state is BackupState.KEPT]


def _held(ctx: Context, record: SandboxRecord, earlier: Backup) -> Held:
    plan = ctx.store.plans.get(record.plan_id)
    resources = ctx.store.resources.of_plan(record.plan_id)
    resource = next(one for one in resources if one.resource_id == record.resource_id)
    return Held(
        plan_id=plan.plan_id,
        plan=plan.name,
        resource=resource.name,
        where=shown(resource.path),
        name=earlier.name,
        bytes=earlier.bytes,
        state=earlier.state,
        by=earlier.by,
        applied_at=plan.result["applied_at"] if plan.result else "",
        applied_as=ctx.store.journal.number(plan.plan_id, "apply"),
    )


def surplus(found: Iterable[Held], limit: int) -> list[Held]:
    """Backups above the limit for their database; the last applied stay (pure)."""
    by_target: dict[str, list[Held]] = {}
    for one in sorted(found, key=lambda one: one.applied_as, reverse=True):
        by_target.setdefault(one.where, []).append(one)
    return [one for several in by_target.values() for one in several[limit:]]


# keeping


def keep(ctx: Context, leased: LeasedPlan, staged: dict[str, Any]) -> None:
    """Record the backup of each changed database; may be repeated."""
    plan = leased.plan
    if not plan.rollback_enabled or ctx.settings.keep_applied == 0:
        return
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    began = ctx.checkpoints.initial_states(plan.plan_id)
    for rid, one in staged.items():
        sandbox, record = sandboxes[rid], sandboxes.records[rid]
        if not (isinstance(sandbox, KeepsBackup) and one.get("files")):
            continue
        if record.earlier is not None or record.state is not SandboxState.READY:
            continue
        if (found := sandbox.holding(began[rid])) is not None:
            name, size = found
            noted = record.with_earlier(Backup(name=name, bytes=size))
            with leased.transaction():
                ctx.store.resources.put_sandbox(noted)
            # In place: the open sandboxes know what else must stay.
            sandboxes.records[rid] = noted


def _targets(ctx: Context, plan: Plan, names: list[str]) -> set[str]:
    resources = ctx.store.resources.of_plan(plan.plan_id)
    return {shown(one.path) for one in resources if one.name in names}


def make_room(ctx: Context, plan: Plan) -> None:
    """After an apply: drop backups of the same databases above the setting.

    Repeated after a crash, it finds released backups that were not dropped yet.
    """
    if not (changed := _swapped(plan)):
        return
    targets = _targets(ctx, plan, changed)
    here = [one for one in held(ctx) if one.where in targets]
    promised = [one for one in here if one.state is BackupState.KEPT]
    begun = [one for one in here if one.state is BackupState.RELEASED and one.by == plan.plan_id]
    for one in (*begun, *surplus(promised, ctx.settings.keep_applied)):
        release(ctx, one, by=plan.plan_id)


def replaced_by(ctx: Context, plan: Plan, proposals: Iterable[Proposal]) -> list[Held]:
    """The backups that applying the plan would release."""
    changed = [item.resource for item in proposals if item.mode == SWAP and item.files]
    if not changed:
        return []
    targets = _targets(ctx, plan, changed)
    limit = max(ctx.settings.keep_applied - plan.rollback_enabled, 0)
    return surplus([one for one in kept(ctx) if one.where in targets], limit)


# releasing


def release(ctx: Context, one: Held, by: str) -> Held:
    """Record the release, then drop the database; not while its plan is busy.

    A database that cannot be reached now is dropped by the next `agents gc`.
    """
    try:
        with hold(ctx.store, one.plan_id, "releasing a backup", ctx.now):
            one = _noted(ctx, one, BackupState.RELEASED, by)
            fsio.point("released")
            ctx.manager.sandboxes(one.plan_id).named(one.resource).remove()
            fsio.point("dropped")
            return _noted(ctx, one, BackupState.GONE, by)
    except (PlanBusy, SandboxError):
        return one


def finish(ctx: Context) -> None:
    """Drop released backups that could not be dropped before."""
    for one in held(ctx):
        if one.state is BackupState.RELEASED:
            release(ctx, one, one.by)


def _noted(ctx: Context, one: Held, state: BackupState, by: str) -> Held:
    with ctx.store.transaction():
        for record in ctx.store.resources.sandboxes(one.plan_id):
            if record.earlier is not None and record.earlier.name == one.name:
                now = msgspec.structs.replace(record.earlier, state=state, by=by)
                ctx.store.resources.put_sandbox(record.with_earlier(now))
    ctx.manager.forget(one.plan_id)
    return msgspec.structs.replace(one, state=state, by=by)


# counting on it


def require_there(ctx: Context, plan: Plan) -> None:
    """Refuse to revert a plan if the backup of a database is missing."""
    assert plan.result is not None
    for item in plan.result["applied"]:
        if item["mode"] == STATEMENTS and item["files"]:
            raise NotAllowed(
                f"what was applied to database {item['resource']!r} cannot be reverted: with"
                " transaction_rollback the statements ran on the database itself, and no backup"
                " was made",
                "write a plan whose SQL undoes it",
            )
    for name in _swapped(plan):
        if why := _missing(ctx, plan, name):
            raise NotAllowed(
                f"what was applied to database {name!r} cannot be reverted: {why}",
                "write a plan whose SQL undoes it",
            )


def looked_at(ctx: Context, one: Held) -> Held:
    """The backup as it is on its server, or as recorded if that cannot be reached."""
    sandbox = ctx.manager.sandboxes(one.plan_id).named(one.resource)
    began = ctx.checkpoints.initial_states(one.plan_id)[sandbox.place.resource.resource_id]
    assert isinstance(sandbox, KeepsBackup)
    try:
        found = sandbox.holding(began)
    except SandboxError:
        return one
    if found is None:
        return msgspec.structs.replace(one, state=BackupState.GONE, bytes=0)
    return msgspec.structs.replace(one, bytes=found[1])


def _missing(ctx: Context, plan: Plan, name: str) -> str:
    """Why the backup is missing, in words; empty if it is there."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    sandbox = sandboxes.named(name)
    rid = sandbox.place.resource.resource_id
    record = sandboxes.records[rid]
    earlier = record.earlier
    if earlier is not None and earlier.state is not BackupState.KEPT:
        return f"its backup was released, {by_whom(earlier.by)}"
    state = ctx.checkpoints.initial_states(plan.plan_id)[rid]
    if isinstance(sandbox, KeepsBackup) and sandbox.holding(state) is not None:
        return ""
    if earlier is None:
        return "no backup was kept (postgres.keep-applied says how many are)"
    return (
        f"its backup, the database {earlier.name!r}, is no longer on"
        f" {shown(sandbox.place.resource.path)}"
    )


def by_whom(by: str) -> str:
    return f"by {by}" if " " in by else f"when plan {by} was applied"


def _swapped(plan: Plan) -> list[str]:
    """The resources whose database was changed by swapping another one in."""
    items: list[dict[str, Any]] = plan.result["applied"] if plan.result else []
    return [item["resource"] for item in items if item["mode"] == SWAP and item["files"]]


# telling


def told_after_apply(ctx: Context, plan: Plan) -> tuple[str, ...]:
    """What can be reverted now and what no longer can, in words."""
    if not (changed := _swapped(plan)) or ctx.settings.sandbox_cleanup == "manual":
        return ()
    known = held(ctx)
    mine = {one.resource: one for one in known if one.plan_id == plan.plan_id}
    gone = [left_behind(one) for one in known if one.by == plan.plan_id]
    limit = f" (postgres.keep-applied is {ctx.settings.keep_applied})"
    return (
        *(_backup_text(plan, name, mine.get(name)) for name in changed),
        *(text + limit for text in gone),
    )


def _backup_text(plan: Plan, resource: str, one: Held | None) -> str:
    if one is None:
        return f"no backup of database {resource!r} is kept: the plan cannot be reverted"
    if one.state is not BackupState.KEPT:
        return f"the backup of database {resource!r} was released, {by_whom(one.by)}"
    return (
        f"the backup of database {resource!r} is kept as {one.name}, {show_bytes(one.bytes)}:"
        f" agents plan revert-applied {plan.plan_id} reverts the plan,"
        f" agents plan prune {plan.plan_id} --databases frees the space"
    )


def left_behind(one: Held) -> str:
    """The consequence of dropping a backup, in words."""
    what = f"{one.name}, {show_bytes(one.bytes)}, the backup of {one.where}"
    plan = f"plan {one.plan!r} {one.plan_id}"
    if one.state is BackupState.KEPT:
        return f"this drops {what}: {plan} can then no longer be reverted"
    if one.state is BackupState.GONE:
        return f"dropped {what}: {plan} can no longer be reverted"
    return f"could not drop {what}: agents gc retries; {plan} can no longer be reverted"


def told_of(found: list[Held]) -> tuple[str, ...]:
    """The outcome for backups that a command released, in words."""
    return tuple(
        f"plan {one.plan!r} {one.plan_id} is busy: {one.name} stays"
        if one.state is BackupState.KEPT
        else left_behind(one)
        for one in found
    )
