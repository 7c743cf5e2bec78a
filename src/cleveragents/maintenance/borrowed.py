"""Content that kept groups borrow from users' repositories, and the refs that hold it."""

import os
from collections.abc import Collection

import msgspec

from cleveragents import codec
from cleveragents.checkpoints.sandboxes import is_elsewhere
from cleveragents.content.keys import GIT
from cleveragents.context import Context
from cleveragents.errors import AgentsError, PlanBusy
from cleveragents.lease import LeasedPlan, hold
from cleveragents.maintenance.gc import reachable
from cleveragents.model.resource import SandboxRecord
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.kept_objects import kept_objects_at


class Loose(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with groups whose base commit no ref of ours holds any more."""

    plan_id: str
    where: str
    commit: str
    is_gone: bool
    """The repository is not there, or has no such commit."""
    kept: bool = False
    """It has a ref again, or the content is in the store now."""


def find_loose(ctx: Context, going: Collection[str] = ()) -> list[Loose]:
    """Of every plan that stays when those go, refs and all."""
    found: list[Loose] = []
    refs: dict[str, dict[str, str]] = {}
    for record in ctx.store.resources.all_sandboxes():
        base, noted = record.origin.get("base"), record.origin.get("repository")
        if base is None or noted is None or record.plan_id in going:
            continue
        if not ctx.store.checkpoints.count(record.plan_id):
            continue
        repository = codec.convert(noted, command.Repository)
        if "base_pack" in record.origin and (
            is_elsewhere(record, ctx.store.home_id) or not os.path.isdir(repository.git_dir)
        ):
            continue  # the store has the commit, for machines without the repository
        is_gone = not _has(repository, base)
        if is_gone and _has(kept_objects_at(record.root, repository), base):
            continue
        if not is_gone:
            if repository.common_dir not in refs:
                refs[repository.common_dir] = _refs(repository)
            held = [
                commit
                for name, commit in refs[repository.common_dir].items()
                if name in _line(ctx, record.plan_id) and name not in going
            ]
            if any(repository.is_before(base, commit) for commit in held):
                continue
        if lacking(ctx, record):
            loose = Loose(
                plan_id=record.plan_id, where=repository.top, commit=base, is_gone=is_gone
            )
            found.append(loose)
    return found


def keep(ctx: Context, loose: Loose) -> Loose:
    """Hold the commit by a ref again; where that cannot be, bring the content into the store."""
    try:
        with hold(ctx.store, loose.plan_id, "doctor", ctx.now) as lease:
            plan = ctx.store.plans.get(loose.plan_id)
            ctx.checkpoints.keep_borrowed(LeasedPlan(ctx.store, plan, lease, ctx.now), again=True)
    except PlanBusy:
        return loose
    finally:
        ctx.manager.forget(loose.plan_id)
    return msgspec.structs.replace(loose, kept=loose.plan_id not in _plans(find_loose(ctx)))


def _plans(found: list[Loose]) -> set[str]:
    return {one.plan_id for one in found}


def lacking(ctx: Context, record: SandboxRecord) -> int:
    """The number of borrowed contents that the store lacks."""
    roots = ctx.store.checkpoints.roots_of(record.resource_id)
    borrowed = {key for key in reachable(ctx, roots) if key[:1] == GIT}
    return len(borrowed - ctx.manager.packs.index.present(borrowed)) if borrowed else 0


def _has(repository: command.Repository, commit: str) -> bool:
    try:
        return os.path.isdir(repository.git_dir) and repository.has_commit(commit)
    except AgentsError:
        return False


def _refs(repository: command.Repository) -> dict[str, str]:
    """Plan -> the commit that its ref holds."""
    listed = repository.git(
        "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", command.REFS
    )
    lines = (line.partition(" ") for line in os.fsdecode(listed).splitlines())
    return {name: commit for name, _, commit in lines}


def _line(ctx: Context, plan_id: str | None) -> set[str]:
    """The plan and those above it, whose ref is enough for it."""
    found: set[str] = set()
    while plan_id is not None:
        found.add(plan_id)
        plan_id = ctx.store.plans.get(plan_id).parent_plan_id
    return found
