"""Checks the store: its structure, and with `read_data` every byte."""

import os
from collections.abc import Callable, Collection

import msgspec

from cleveragents.checkpoints.sandboxes import PlanSandboxes
from cleveragents.content import trees
from cleveragents.content.keys import (
    GIT,
    TREE,
    show_key,
)
from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.execution.manual_edits import changes_since
from cleveragents.maintenance.borrowed import Loose, find_loose
from cleveragents.maintenance.bucket import there
from cleveragents.maintenance.gc import reachable
from cleveragents.maintenance.move import put_back
from cleveragents.model.resource import SandboxRecord, SandboxState
from cleveragents.sandbox.marks import is_marked
from cleveragents.sandbox.registry import has_copy


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    plans: int
    checkpoints: int
    objects: int
    bytes_read: int
    problems: tuple[str, ...]
    damaged: bool
    """Whether something is lost or changed; other problems say themselves how to get out."""


def check(ctx: Context, read_data: bool = False) -> Checked:
    problems = ctx.store.integrity()
    known = {key: place for key, place, _ in ctx.store.objects.all()}
    problems += _packs(ctx, {place.pack for place in known.values()})
    roots = ctx.store.checkpoints.roots()
    stored = {*known, *there(ctx)} if ctx.settings.content_url else known.keys()
    for plan_id, checkpoint_id, root in roots:
        if root not in stored and ctx.manager.sandboxes(plan_id).elsewhere:
            continue  # not in the bucket yet: only the machine that made it can tell
        problems += [
            f"checkpoint {checkpoint_id} of plan {plan_id}: {text}"
            for text in _missing(ctx, root, stored)
        ]
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
    mendable = [
        text for look in (_places, _bases, _unseen) for text in _examined(ctx, look, problems)
    ]
    return Checked(
        plans=ctx.store.plans.count(),
        checkpoints=len(roots),
        objects=len(known),
        bytes_read=read,
        problems=tuple(dict.fromkeys([*problems, *mendable])),
        damaged=bool(problems),
    )


def _examined(ctx: Context, look: Callable[[Context], list[str]], problems: list[str]) -> list[str]:
    """The findings of one check, which in a damaged store may stop at the damage."""
    try:
        return look(ctx)
    except AgentsError as error:
        problems.append(error.message)
    except (LookupError, TypeError, AttributeError, ValueError):
        if not problems:
            raise
    return []


def _unseen(ctx: Context) -> list[str]:
    """Sandboxes that no command has compared since a restart, or since the store was put back."""
    problems: list[str] = []
    for plan in ctx.store.plans.all():
        if plan.head_group_id is None:
            continue
        way_out = f"agents plan diff {plan.plan_id} restores it and keeps what is there"
        if not ctx.store.identity.is_elsewhere and ctx.manager.is_put_back(plan):
            problems.append(
                f"plan {plan.plan_id}: its sandbox is newer than this store, which was put back"
                f" from an older backup: {way_out}"
            )
            continue
        if not (unseen := ctx.manager.sandboxes(plan.plan_id).from_another_boot()):
            continue
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
                f"plan {plan.plan_id}: since the machine was restarted, or its disk mounted again,"
                f" its sandbox differs from its newest group ({changes[0].shown}): {way_out}"
            )
    return problems


def _places(ctx: Context) -> list[str]:
    """Whether the store is where it was made, and every sandbox says that it is this store's."""
    identity = ctx.store.identity
    if identity.is_elsewhere:
        return [f"{identity.message}; {identity.hint}"]
    again = [
        f"plan {record.plan_id}: {record.root} is not the directory this plan made;"
        " if the store was put back from a backup: agents doctor --adopt"
        for record in put_back(ctx)
    ]
    gone = [
        f"plan {record.plan_id}: its sandbox {record.root} is missing; its checkpoints are there:"
        f" agents plan export {record.plan_id} --patch DIR"
        for plan_id in ctx.store.plans.ids()
        for record in _missing_for_good(ctx.manager.sandboxes(plan_id))
    ]
    unmarked = [
        f"the row of sandbox {record.sandbox_id} of plan {record.plan_id} points to {record.root},"
        " which is not marked as that sandbox: nothing is written there;"
        f" agents plan delete {record.plan_id} leaves it alone"
        for record in ctx.store.resources.all_sandboxes()
        if has_copy(ctx.store.resources.get(record.resource_id))
        and record.state is not SandboxState.REMOVED
        and os.path.lexists(record.root)
        and not is_marked(identity.owner, record)
    ]
    return again + gone + unmarked


def _missing_for_good(sandboxes: PlanSandboxes) -> list[SandboxRecord]:
    """Those that no restart took: after one, the next command makes them again."""
    return [r for r in sandboxes.missing if r not in sandboxes.from_another_boot()]


def _bases(ctx: Context) -> list[str]:
    """Whether what plans borrow is still in the users' repositories, and held there."""
    return [f"plan {one.plan_id}: {_describe(one)}" for one in find_loose(ctx)]


def _describe(one: Loose) -> str:
    if not one.is_gone:
        return (
            f"no ref of ours holds commit {one.commit} in {one.where} any more, so that git gc may"
            " take it: agents doctor --fix"
        )
    return (
        f"commit {one.commit}, which it was made from, is no longer in {one.where}: what the plan"
        " never changed cannot be restored; agents doctor --fix keeps what its sandbox still has,"
        " or bring the commit back, for example with git fetch"
    )


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
    """Keys that the checkpoint needs and the store lacks; git keys may be borrowed."""
    if not root:
        return []
    if not isinstance(root, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - a database may
        return ["its content is not named by a hash"]
    try:
        keys = reachable(ctx, [root])
    except AgentsError as error:
        return [error.message]
    missing = [k for k in keys if k[:1] != GIT and k != trees.EMPTY.key and k not in known]
    return [f"content {show_key(key)} is missing" for key in missing]
