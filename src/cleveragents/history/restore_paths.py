"""Restores single files or resources from a group; the plan itself stays as it is."""

import os

import msgspec

from cleveragents.checkpoints.groups import About
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content.packs import Batch
from cleveragents.context import Context
from cleveragents.errors import NotFound, UsageError
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.history.rollback import require_rollback
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, RollbackResult
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Operation
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Change


class Part(msgspec.Struct, frozen=True):
    """The target of one `--only`: a resource, or a path in one."""

    resource: str
    path: bytes | None = None

    def covers(self, change: Change) -> bool:
        """Whether the change is in this part, or makes its folder (pure)."""
        if change.resource != self.resource:
            return False
        if self.path is None or change.path == self.path:
            return True
        becomes_folder = change.after.startswith("d:") and not change.before.startswith("d:")
        return change.path.startswith(self.path + b"/") or (
            becomes_folder and self.path.startswith(change.path + b"/")
        )


def part_named(text: str, resources: list[str], changes: tuple[Change, ...]) -> Part:
    """Parse a part: RESOURCE, RESOURCE:PATH, or a PATH in one resource (pure)."""
    if text in resources:
        return Part(text)
    head, colon, rest = text.partition(":")
    if colon and head in resources:
        return Part(head, _normal(rest))
    path = _normal(text)
    parts = [Part(name, path) for name in resources]
    if len(parts) == 1:
        return parts[0]
    found = [part for part in parts if any(part.covers(change) for change in changes)]
    if len(found) > 1:
        shown = ", ".join(f"--only {part.resource}:{text}" for part in found)
        raise UsageError(f"{text!r} differs in {len(found)} resources", shown)
    if not found:
        raise NotFound(
            f"{text!r} is neither a resource nor a path that differs from the checkpoint",
            f"resources: {', '.join(resources)}; name a path in one as RESOURCE:PATH",
        )
    return found[0]


def _normal(text: str) -> bytes:
    path = os.path.normpath(text)
    if os.path.isabs(path) or path.split("/")[0] in ("..", "."):
        raise UsageError(f"not a path in a resource: {text!r}", "name it as it is in the resource")
    return os.fsencode(path)


def preview_only(
    ctx: Context, plan: Plan, group: CheckpointGroup, names: tuple[str, ...]
) -> RollbackResult:
    """What would be restored; changes nothing."""
    require_rollback(plan)
    ctx.checkpoints.require_readable(group)
    before_looking(ctx, plan.plan_id)
    then = ctx.checkpoints.states(group)
    changes = ctx.checkpoints.look(plan.plan_id, lambda now: _wanted(ctx, plan, names, now, then))
    return _result(ctx, plan, group, changes, dry_run=True)


def restore_only(
    ctx: Context, plan: Plan, group: CheckpointGroup, names: tuple[str, ...]
) -> RollbackResult:
    """Restore the files as a group `external_edit`; steps and decisions stay as they are."""
    with work_on(ctx, plan.plan_id, "plan rollback") as leased:
        require_rollback(leased.plan)
        group = find_group(ctx.store, leased.plan, group.group_id)
        ctx.checkpoints.require_readable(group)
        then = ctx.checkpoints.states(group)
        sandboxes = ctx.manager.sandboxes(plan.plan_id)
        ids = {item.name: rid for rid, item in sandboxes.resources.items()}

        def make(now: States, batch: Batch) -> States:
            paths: dict[str, set[bytes]] = {}
            for change in _wanted(ctx, plan, names, now, then):
                paths.setdefault(ids[change.resource], set()).add(change.path)
            return {
                rid: sandboxes[rid].grafted(state, then[rid], frozenset(paths[rid]), batch)
                if rid in paths
                else state
                for rid, state in now.items()
            }

        entry = leased.opened(Operation.RESTORE, to=group.group_id, only=list(names))
        about = About(CheckpointType.EXTERNAL_EDIT, f"{', '.join(names)} of {group.group_id}")
        todo = Restoration(group_id=new_id(), plan={}, entry=entry)
        changes = ctx.checkpoints.restore_made(leased, about, make, todo)
        return _result(ctx, leased.plan, group, changes, dry_run=False)


def _wanted(
    ctx: Context, plan: Plan, names: tuple[str, ...], now: States, then: States
) -> tuple[Change, ...]:
    changes = ctx.checkpoints.diff(plan.plan_id, now, then)
    resources = [
        s.place.resource.name for s in ctx.manager.sandboxes(plan.plan_id).capturable.values()
    ]
    parts = [part_named(name, resources, changes) for name in names]
    found = tuple(change for change in changes if any(part.covers(change) for part in parts))
    if not found:
        raise NotFound(
            f"{', '.join(names)}: nothing differs from the checkpoint",
            f"agents plan diff {plan.plan_id} --from CHECKPOINT shows what does",
        )
    return found


def _result(
    ctx: Context, plan: Plan, group: CheckpointGroup, changes: tuple[Change, ...], dry_run: bool
) -> RollbackResult:
    touched = {change.resource for change in changes}
    paths = ctx.manager.sandboxes(plan.plan_id).paths
    return RollbackResult(
        plan_id=plan.plan_id,
        group_id=group.group_id,
        checkpoint_id=ctx.store.checkpoints.of_group(group.group_id)[0].checkpoint_id,
        label=group.label,
        changes=changes,
        child_plans_invalidated=0,
        decisions_after=0,
        tool_calls_after=0,
        sandboxes={name: path for name, path in paths.items() if name in touched},
        phase=str(plan.phase),
        state=str(plan.state),
        checkpoints_remaining=ctx.store.checkpoints.count(plan.plan_id),
        dry_run=dry_run,
    )
