"""After another boot, or where a backup of the store was put back: the newest group is right.

Files in a sandbox are not synced, so a cut may leave them empty, old or half written, and nothing
tells that from a manual edit. What a group promises is in the store. So the first command that
works on a plan in another boot reads its sandboxes, restores the newest group where they differ,
and keeps what it found as a labelled group: nothing is lost, and nothing of it is applied. A disk
that failed alone and was mounted again, in the same boot, is the same to it; so are sandboxes that
have seen more of their plan than the store knows of.
"""

import os

import msgspec

from cleveragents.checkpoints.restoration import (
    Restoration,
    restoration_to,
)
from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.execution.manual_edits import changes_since
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.plan import Plan
from cleveragents.model.resource import SandboxRecord
from cleveragents.model.units import plural
from cleveragents.sandbox.marks import put_mark
from cleveragents.sandbox.registry import traits_of


def reconcile(ctx: Context, leased: LeasedPlan) -> None:
    """Bring the sandboxes of a plan to its newest group, and note that they were seen there."""
    plan = leased.plan
    if any(not intent.is_done for intent in ctx.store.intents.of_plan(plan.plan_id)):
        return  # a restore is replaced by another: that one reads and restores everything
    if plan.head_group_id is None:
        return  # made again before the first group; without groups every step was synced
    if not _is_whole(ctx, leased):
        return  # whoever needs a sandbox that is missing says so
    event, label = _what_happened(ctx, leased)
    _make_missing_roots(ctx, leased)
    head = ctx.store.checkpoints.group(plan.head_group_id)
    todo = _back_to(ctx, plan, head)
    damaged = _damaged(ctx, plan, head)
    if damaged or todo.steps or todo.removed_steps:
        label = label if damaged else None
        reason = f"found after {event}"
        ctx.checkpoints.rollback_to_checkpoint(leased, todo, label=label, reason=reason)
        leased.finish_background()
        ctx.talk.tell("warning", {"message": _report(plan, head, damaged, label, todo, event)})
    _note(ctx, leased)


def _is_whole(ctx: Context, leased: LeasedPlan) -> bool:
    """Whether nothing is missing but what a restart may have taken."""
    sandboxes = ctx.manager.sandboxes(leased.plan.plan_id)
    return bool(sandboxes.from_another_boot()) or not sandboxes.missing


def _what_happened(ctx: Context, leased: LeasedPlan) -> tuple[str, str]:
    """In words, and as the label of what was found."""
    here, sandboxes = leased.lease.boot_id, ctx.manager.sandboxes(leased.plan.plan_id)
    records = sandboxes.from_another_boot()
    if not records:
        return "a backup of the store was put back", f"after-put-back-{sandboxes.version}"
    for record in records:
        if (record.boot_id or fsio.UNKNOWN_BOOT).split()[0] == here:
            number = fsio.mount_id(record.root).split()[-1]
            return "its disk was mounted again", f"after-mount-{here[:4]}-{number}"
    return "the machine was restarted", f"after-restart-{here[:8]}"


def _damaged(ctx: Context, plan: Plan, head: CheckpointGroup) -> int:
    """How many paths are not what the group says, where this machine's power matters."""
    resources = ctx.manager.sandboxes(plan.plan_id).resources.values()
    elsewhere = {item.name for item in resources if traits_of(item.kind).server is not None}
    return sum(change.resource not in elsewhere for change in changes_since(ctx, head))


def _back_to(ctx: Context, plan: Plan, head: CheckpointGroup) -> Restoration:
    """Steps that no group holds count as not done; child plans are looked at for themselves."""
    there = ctx.store.plans.view_at(plan.plan_id, head.version).steps
    steps = ctx.store.plans.steps(plan.plan_id)
    if all(not s.done or (s.step_id in there and there[s.step_id].done) for s in steps):
        return Restoration(group_id=head.group_id, plan={})
    todo = restoration_to(ctx.store, plan, head, error=plan.error)
    return msgspec.structs.replace(todo, children={}, cancelled_children=())


def _make_missing_roots(ctx: Context, leased: LeasedPlan) -> None:
    """A folder that was never synced may be gone: its content is in the group."""
    sandboxes = ctx.manager.sandboxes(leased.plan.plan_id)
    for record in sandboxes.from_another_boot():
        if not os.path.lexists(record.root):
            fsio.make_private_dir(record.root)
            made = msgspec.structs.replace(record, identity=fsio.identity(record.root))
            put_mark(ctx.store.identity.owner, made)
            _put(ctx, leased, made)


def _note(ctx: Context, leased: LeasedPlan) -> None:
    for record in ctx.manager.sandboxes(leased.plan.plan_id).from_another_boot():
        _put(ctx, leased, record.with_boot_id(fsio.mount_id(record.root)))
    ctx.manager.note_version(leased.plan)


def _put(ctx: Context, leased: LeasedPlan, record: SandboxRecord) -> None:
    with leased.transaction():
        ctx.store.resources.put_sandbox(record)
    ctx.manager.sandboxes(record.plan_id).records[record.resource_id] = record


def _report(
    plan: Plan,
    head: CheckpointGroup,
    damaged: int,
    label: str | None,
    todo: Restoration,
    event: str,
) -> str:
    said = f"plan {plan.name!r}: after {event},"
    if damaged:
        which = plural(damaged, "path that differed", "paths that differed")
        said += f" {which} from the newest group {'was' if damaged == 1 else 'were'} restored;"
        said += f" the state found is kept: agents plan diff {plan.plan_id}"
        said += f" --from {head.group_id} --to {label}"
    if lost := len(todo.steps):
        said += f"{'; ' if damaged else ' '}{plural(lost, 'step')} not in any group will run again"
    return said
