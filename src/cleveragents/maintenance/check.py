"""Look whether the store is whole: its structure, and with `read_data` every byte."""

import os
from collections.abc import Collection

import msgspec

from cleveragents import codec
from cleveragents.content import trees
from cleveragents.content.keys import (
    GIT,
    TREE,
    show_key,
)
from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.execution.manual_edits import changes_since
from cleveragents.maintenance.gc import reachable
from cleveragents.model.resource import SandboxState
from cleveragents.sandbox.git import command
from cleveragents.sandbox.marks import is_marked


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    plans: int
    checkpoints: int
    objects: int
    bytes_read: int
    problems: tuple[str, ...]


def check(ctx: Context, read_data: bool = False) -> Checked:
    problems = [*ctx.store.integrity(), *_places(ctx), *_bases(ctx)]
    known = {key: place for key, place, _ in ctx.store.objects.all()}
    problems += _packs(ctx, {place.pack for place in known.values()})
    roots = ctx.store.checkpoints.roots()
    for plan_id, checkpoint_id, root in roots:
        problems += [
            f"checkpoint {checkpoint_id} of plan {plan_id}: {text}"
            for text in _missing(ctx, root, known.keys())
        ]
    problems += _unseen(ctx)
    read = 0
    if read_data:
        for key, place in known.items():
            try:
                data = ctx.manager.packs.read(key, place)
                read += len(data)
                if key[:1] == TREE:
                    trees.require_safe(key, data)
            except AgentsError as error:
                problems.append(error.message)
    return Checked(
        plans=len(ctx.store.plans.ids()),
        checkpoints=len(roots),
        objects=len(known),
        bytes_read=read,
        problems=tuple(dict.fromkeys(problems)),
    )


def _unseen(ctx: Context) -> list[str]:
    """Sandboxes that a power cut damaged and no command has restored yet."""
    problems: list[str] = []
    for plan in ctx.store.plans.all():
        if plan.head_group_id is None or not (
            unseen := ctx.manager.sandboxes(plan.plan_id).from_another_boot()
        ):
            continue
        way_out = f"agents plan diff {plan.plan_id} restores it and keeps what is there"
        if any(not os.path.lexists(record.root) for record in unseen):
            problems.append(f"plan {plan.plan_id}: a sandbox was lost in a restart: {way_out}")
            continue
        try:
            changes = changes_since(ctx, ctx.store.checkpoints.group(plan.head_group_id))
        except AgentsError as error:
            problems.append(f"plan {plan.plan_id}: {error.message}")
            continue
        if changes:
            problems.append(
                f"plan {plan.plan_id}: since the machine was restarted its sandbox differs from"
                f" its newest group ({changes[0].shown}): {way_out}"
            )
    return problems


def _places(ctx: Context) -> list[str]:
    """Whether the store is where it was made, and every sandbox says that it is this store's."""
    identity = ctx.store.identity
    if identity.is_elsewhere:
        return [f"{identity.said}; {identity.hint}"]
    return [
        f"the row of sandbox {record.sandbox_id} of plan {record.plan_id} points to {record.root},"
        " which is not marked as that sandbox: nothing is written there;"
        f" agents plan delete {record.plan_id} leaves it alone"
        for record in ctx.store.resources.all_sandboxes()
        if record.strategy != "none"
        and record.state is not SandboxState.REMOVED
        and os.path.lexists(record.root)
        and not is_marked(identity.store_id, record)
    ]


def _bases(ctx: Context) -> list[str]:
    """Whether the commits that plans borrow from are still in the users' repositories."""
    found: list[str] = []
    for record in ctx.store.resources.all_sandboxes():
        base, noted = record.origin.get("base"), record.origin.get("repository")
        if base is None or noted is None or record.state is SandboxState.REMOVED:
            continue
        repository = codec.convert(noted, command.Repository)
        if os.path.isdir(repository.git_dir) and not repository.has_commit(base):
            found.append(
                f"plan {record.plan_id}: commit {base}, which it was made from, is no longer in"
                f" {repository.top}: what the plan never changed cannot be restored; bring it back,"
                " for example with git fetch"
            )
    return found


def _packs(ctx: Context, wanted: set[str]) -> list[str]:
    there = set(ctx.manager.packs.names())
    problems = [f"pack {name} is missing" for name in sorted(wanted - there)]
    directory = ctx.manager.packs.directory
    for key, place, _ in ctx.store.objects.all():
        if place.pack in there:
            end = place.offset + place.length
            if os.stat(f"{directory}/{place.pack}").st_size < end:
                problems.append(f"pack {place.pack} ends before content {show_key(key)}")
    return problems


def _missing(ctx: Context, root: bytes, known: Collection[bytes]) -> list[str]:
    """Keys the checkpoint needs and the store has not; git's own may be borrowed."""
    if not root:
        return []
    try:
        keys = reachable(ctx, [root])
    except AgentsError as error:
        return [error.message]
    missing = [k for k in keys if k[:1] != GIT and k != trees.EMPTY.key and k not in known]
    return [f"content {show_key(key)} is missing" for key in missing]
