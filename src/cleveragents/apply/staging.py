"""The allowed places of an apply's staged files: a row that names another is refused."""

import os
from typing import Any

import msgspec

from cleveragents.context import Context
from cleveragents.errors import UnsafeName
from cleveragents.sandbox.merge import staging_places
from cleveragents.sandbox.registry import traits_of
from cleveragents.store import Intent


def require_own_staging(ctx: Context, intent: Intent) -> None:
    """Refuse staging that is not ours and this plan's, before using it."""
    own = f"{ctx.staging}/{intent.plan_id}"
    resources = {one.resource_id: one for one in ctx.store.resources.of_plan(intent.plan_id)}
    for rid, place in _named(intent.body):
        allowed = [own] if rid is None else [f"{own}/{rid}"]
        if rid in resources:
            allowed += staging_places(resources[rid].path, intent.plan_id)
        if _resolved(place) not in map(_resolved, allowed):
            raise UnsafeName(
                f"the row of an interrupted apply names {place!r}, which is no staging of plan"
                f" {intent.plan_id}: nothing there was touched",
                f"compare its targets with agents plan diff {intent.plan_id}, then agents plan"
                f" delete {intent.plan_id}",
            )


def brought_here(ctx: Context, intent: Intent) -> Intent:
    """An apply started on another machine, if everything it needs can be reached from here."""
    resources = ctx.store.resources.of_plan(intent.plan_id)
    staged: dict[str, dict[str, Any]] = intent.body.get("staged", {})
    is_there = any("staging" in one for one in staged.values())
    if is_there or not all(traits_of(one.kind).has_address for one in resources):
        return intent
    return moved(intent, ctx.settings.home)


def _resolved(place: str) -> str:
    """The store may be reached by another path; the last name is never followed."""
    folder, name = os.path.split(place)
    return f"{os.path.realpath(folder)}/{name}"


def _named(body: dict[str, Any]) -> list[tuple[str | None, str]]:
    staged: dict[str, dict[str, Any]] = body.get("staged", {})
    found = [(rid, one["staging"]) for rid, one in staged.items() if "staging" in one]
    return [(None, body["staging"]), *found]


def moved(intent: Intent, home: str) -> Intent:
    """The same intent for a store that has moved there."""
    before, here = intent.body["staging"], f"{home}/staging/{intent.plan_id}"
    staged: dict[str, dict[str, Any]] = intent.body.get("staged", {})
    there = {
        rid: {**one, "staging": f"{here}/{rid}"}
        for rid, one in staged.items()
        if one.get("staging") == f"{before}/{rid}"
    }
    body = {**intent.body, "staging": here, **({"staged": {**staged, **there}} if staged else {})}
    return msgspec.structs.replace(intent, body=body)
