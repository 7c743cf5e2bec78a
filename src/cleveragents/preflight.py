"""Refuse before anything starts, naming everything that is wrong at once."""

import os

from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.errors import AgentsError, PlanFileError
from cleveragents.planspec import PlanSpec, ResourceSpec
from cleveragents.sandbox import git
from cleveragents.sandbox.registry import kinds
from cleveragents.sandbox.tree import require_not_too_wide

LEAST_FREE = 64 << 20


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
    if fsio.free_bytes(ctx.settings.home) < LEAST_FREE:
        problems.append(f"{source}: the store's disk is full: {ctx.settings.home}")
    if problems:
        raise PlanFileError(tuple(problems), "nothing was created")


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
        if item.kind in ("git-checkout", "fs-directory"):
            require_not_too_wide(item.path, ctx.settings.home)
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
