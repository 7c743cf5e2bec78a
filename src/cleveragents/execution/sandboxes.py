"""Makes and removes the sandboxes of a plan."""

import os
from typing import Any

import msgspec

from cleveragents import machine
from cleveragents.checkpoints.sandboxes import PlanSandboxes
from cleveragents.content import fsio, removal
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import SandboxError
from cleveragents.lease import LeasedPlan, host_name
from cleveragents.model.ids import is_id, new_id
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Backup, BackupState, SandboxRecord, SandboxState
from cleveragents.sandbox.marks import put_mark
from cleveragents.sandbox.protocol import KeepsBackup, LearnsFromCreate, Making, Sandbox
from cleveragents.sandbox.registry import has_copy, traits_of
from cleveragents.sandbox.wide import require_not_too_wide


def make_sandboxes(ctx: Context, leased: LeasedPlan) -> PlanSandboxes:
    """Make missing sandboxes; a half-made one is made again."""
    plan_id = leased.plan.plan_id
    current = ctx.manager.sandboxes(plan_id)
    # Before the first group there is no work yet, and a power cut may have left anything.
    unsure = leased.plan.head_group_id is None and leased.plan.rollback_enabled
    anew = {r.resource_id for r in current.from_another_boot()} if unsure else set[str]()
    for resource_id, sandbox in current.opened.items():
        record = current.records.get(resource_id)
        if record is None or record.state is SandboxState.CREATING or resource_id in anew:
            with machine.named(f"the sandbox {sandbox.place.root} cannot be made", SandboxError):
                _make(ctx, leased, sandbox, record)
    ctx.talk.tell("made", {})
    ctx.manager.forget(plan_id)
    ready = ctx.manager.sandboxes(plan_id)
    for resource_id, made in current.opened.items():
        after = ready.opened[resource_id]
        if isinstance(after, LearnsFromCreate):
            after.inherit(made)
    return ready


def _make(ctx: Context, leased: LeasedPlan, sandbox: Sandbox, record: SandboxRecord | None) -> None:
    place = sandbox.place
    is_copy = has_copy(place.resource)
    if is_copy:
        if traits_of(place.resource.kind).is_folder_at(place.resource.path):
            require_not_too_wide(
                place.resource.path,
                ctx.settings.home,
                sandboxes=ctx.settings.sandboxes,
                told=() if place.resource.is_in_place else ctx.settings.allow_wide,
            )
        fsio.make_private_dir(os.path.dirname(place.ours))
    record = record or SandboxRecord(
        sandbox_id=new_id(),
        plan_id=place.plan_id,
        resource_id=place.resource.resource_id,
        strategy=place.resource.strategy,
        path=place.path,
        root=place.ours,
        state=SandboxState.CREATING,
        identity="",
        origin={},
        created_at=ctx.now(),
    )
    record = msgspec.structs.replace(record, state=SandboxState.CREATING)
    if is_copy and os.path.lexists(record.root):
        ctx.manager.sandboxes(place.plan_id).require_marked(record)
    with leased.transaction():
        ctx.store.resources.put_sandbox(record)
    if is_copy:
        put_mark(ctx.store.identity.owner, record)
    sandbox.remove()
    with ctx.manager.packs.batch() as batch:
        origin = _create(ctx, leased, sandbox, batch)
        batch.seal()
        ready = msgspec.structs.replace(
            record,
            state=SandboxState.READY,
            identity=fsio.identity(place.ours),
            origin={**origin, "boot_id": fsio.mount_id(place.ours), **_where(ctx)},
        )
        with leased.transaction():
            ctx.store.objects.add(batch.located.items())
            # The first capture reads again what was garbage-collected meanwhile.
            ctx.store.objects.reuse(batch.reused)
            ctx.store.resources.put_sandbox(ready)


def _where(ctx: Context) -> dict[str, str]:
    """The machine that has the sandbox and its target, for a shared store."""
    if not (ctx.settings.content_url or ctx.store.is_shared):
        return {}
    from cleveragents.content.bucket.home import home_id

    return {"home": home_id(ctx.settings.home), "made_on": host_name()}


def _create(ctx: Context, leased: LeasedPlan, sandbox: Sandbox, batch: Batch) -> dict[str, Any]:
    making = Making(
        limit_bytes=ctx.settings.carry_limit_bytes,
        limit_files=ctx.settings.carry_limit_files,
        confirm=ctx.talk.confirm,
        progress=lambda name, size: ctx.talk.tell("copied", {"resource": name, "bytes": size}),
        total=lambda name, size: ctx.talk.tell("total", {"resource": name, "bytes": size}),
        piece=lambda name, size: ctx.talk.tell("copying", {"resource": name, "bytes": size}),
        cover_limit=ctx.settings.cover_limit,
        is_portable=bool(ctx.settings.content_url),
        batch=batch,
    )
    source = sandbox.place.resource.source
    if source:
        return sandbox.create_from(source, parents_origin(ctx, leased.plan, source), making)
    return sandbox.create(making)


def parents_origin(ctx: Context, child: Plan, source: str) -> dict[str, Any]:
    """The origin of the parent's sandbox at that path."""
    records = ctx.store.resources.sandboxes(child.parent_plan_id or "")
    found = next(record for record in records if record.path == source)
    return {key: value for key, value in found.origin.items() if key != "state"}


def _remove(sandbox: Sandbox, earlier: Backup | None) -> None:
    """Remove the sandbox, but keep a backup from before the apply."""
    if earlier is not None and earlier.state is BackupState.KEPT:
        assert isinstance(sandbox, KeepsBackup)
        sandbox.remove_but(earlier.name)
    else:
        sandbox.remove()


def remove_sandboxes(ctx: Context, plan_id: str, again: bool = False) -> None:
    """Remove sandboxes from disk and record it; `again`: also leftovers of removed ones."""
    current, left_alone = ctx.manager.sandboxes(plan_id), False
    for resource_id, sandbox in current.opened.items():
        record = current.records.get(resource_id)
        if record is None or (record.state is SandboxState.REMOVED and not again):
            continue
        if current.has_copy(record) and not current.may_remove(record):
            said = f"{record.root} is not marked as this plan's sandbox and was left alone"
            ctx.talk.tell("warning", {"message": said})
            left_alone = True
            continue
        with machine.named(f"the sandbox {record.root} cannot be removed", SandboxError):
            _remove(sandbox, None if again else record.earlier)
        with ctx.store.transaction():
            gone = msgspec.structs.replace(record, state=SandboxState.REMOVED)
            ctx.store.resources.put_sandbox(gone)
    if not is_id(plan_id):
        return
    folder = f"{ctx.settings.sandboxes}/{plan_id}"
    if not left_alone:
        with machine.named(f"{folder} cannot be removed", SandboxError):
            removal.remove_tree(folder)
    ctx.manager.forget(plan_id)
