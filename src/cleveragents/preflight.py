"""Refuse before anything starts, naming everything that is wrong at once."""

import os

from cleveragents.content import fsio
from cleveragents.content.scope import Scope
from cleveragents.context import Context
from cleveragents.errors import AgentsError, NotAllowed, PlanFileError
from cleveragents.planspec import PlanSpec, ResourceSpec
from cleveragents.resource import Carry
from cleveragents.sandbox import git
from cleveragents.sandbox.registry import kinds
from cleveragents.sandbox.tree import require_not_too_wide
from cleveragents.tools import resolve_tool
from cleveragents.tools.builtin import runs_process
from cleveragents.tools.confine import (
    BWRAP,
    INSTALL,
    OFF,
    Bounds,
    can_cut_network,
    in_force,
    mechanism,
    why_not,
)
from cleveragents.tools.standin import seen_at_own_paths

LEAST_FREE = 64 << 20
FOLDERS = ("git-checkout", "fs-directory")


def preflight(ctx: Context, spec: PlanSpec, source: str) -> None:
    problems = [
        f"{source}: resource {item.name!r}: {text}"
        for item in spec.resources
        for text in _resource(ctx, item)
    ]
    unready = [step.id for step in spec.steps if step.subplan is not None]
    problems += [f"{source}: step {name!r}: child plans are not available yet" for name in unready]
    if spec.actor.kind != "steps":
        problems.append(f"{source}: actor kind {spec.actor.kind!r} is not available yet")
    problems += [
        f"{source}: tool {tool.name!r} is unsafe"
        for tool in spec.tools.values()
        if tool.unsafe and not spec.policy.allow_unsafe
    ]
    if any(item.kind == "postgres" for item in spec.resources):
        from cleveragents.databases import problems_of

        problems += [f"{source}: {text}" for text in problems_of(spec)]
    if fsio.free_bytes(ctx.settings.home) < LEAST_FREE:
        problems.append(f"{source}: the store's disk is full: {ctx.settings.home}")
    refused = _confinement(ctx, spec)
    if problems:
        problems += [f"{source}: {refused.message}"] if refused else []
        raise PlanFileError(tuple(problems), "nothing was created")
    if refused:
        raise refused
    for text in _foreign_paths(ctx, spec):
        ctx.talk.tell("warning", {"message": text})


def _confinement(ctx: Context, spec: PlanSpec) -> NotAllowed | None:
    """Why tools may not be run, if they cannot be confined as they have to be."""
    if not starts_processes(spec):
        return None
    try:
        mechanism(in_force(ctx.settings.confine, spec.policy.confine))
    except NotAllowed as error:
        return error
    return None


def starts_processes(spec: PlanSpec) -> bool:
    """Whether anything of the plan needs to be confined."""
    return bool(spec.validate) or any(
        step.subplan is not None or runs_process(resolve_tool(step.tool, spec.tools))
        for step in spec.steps
    )


def confinement_warnings(spec: PlanSpec, bounds: Bounds) -> list[str]:
    """What is not enforced here although nobody turned it off."""
    if bounds.confine == OFF or not starts_processes(spec):
        return []
    how = mechanism(bounds.confine)
    warnings: list[str] = []
    if how == OFF:
        warnings.append(
            f"tools are not confined and can write wherever you can: {why_not()} ({INSTALL})"
        )
    cut_off = [tool.name for tool in spec.tools.values() if runs_process(tool) and not tool.network]
    if cut_off and not can_cut_network(how):
        names = ", ".join(cut_off)
        warnings.append(f"network: false cannot be enforced here, it is only noted: {names}")
    if how == BWRAP:
        aside = seen_at_own_paths(bounds.stand_ins).elsewhere
        folders = [one for one in aside if one.is_folder]
        why = "it holds a link to an inner sandbox and cannot be mounted there"
        warnings += [text for one in folders for text in _naming(one.name, one.root, one.own, why)]
    return warnings


def _foreign_paths(ctx: Context, spec: PlanSpec) -> list[str]:
    """Carried files that lead to the user's own tree where the sandbox is not mounted over it."""
    confine = in_force(ctx.settings.confine, spec.policy.confine)
    if not starts_processes(spec) or mechanism(confine) == BWRAP:
        return []
    carried = [
        item
        for item in spec.resources
        if item.kind in FOLDERS and item.carry is Carry.ALL and item.strategy != "none"
    ]
    return [
        text
        for item in carried
        for text in _naming(item.name, item.path, item.path, INSTALL, item.exclude)
    ]


def _naming(
    name: str, top: str, original: str, why: str, exclude: tuple[str, ...] = ()
) -> list[str]:
    from cleveragents.tools.carried import naming_files

    scope = Scope(tuple(os.fsencode(rule) for rule in exclude))
    return [
        f"resource {name!r}: {found} names {original}: tools that use it work with the original,"
        f" not with the sandbox ({why}; or make it anew in a step)"
        for found in naming_files(top, original, lambda rel: scope.excludes(os.fsencode(rel)))
    ]


def _resource(ctx: Context, item: ResourceSpec) -> list[str]:
    try:
        item.path.encode("utf-8")
    except UnicodeEncodeError:
        return ["its path is not UTF-8"]
    try:
        if item.kind not in kinds():
            return [f"kind {item.kind!r} is not available yet"]
        if item.kind == "git-checkout":
            git.locate(item.path)
        if item.kind in FOLDERS:
            require_not_too_wide(item.path, ctx.settings.home, ctx.settings.sandboxes)
            if not os.path.isdir(item.path):
                return [f"not a directory: {item.path}"]
        if item.kind == "sqlite" and not _is_sqlite(item.path):
            return [f"not a SQLite database: {item.path}"]
    except AgentsError as error:
        return [f"{error.message} ({error.hint})" if error.hint else error.message]
    return []


def _is_sqlite(path: str) -> bool:
    with open(path, "rb") as found:
        head = found.read(16)
    return head in (b"", b"SQLite format 3\0")
