"""The context that a plan gives a tool, and the row of its call."""

import os
from collections.abc import Iterable
from typing import Any

import msgspec

from cleveragents.actors import private_variables
from cleveragents.checkpoints.sandboxes import PlanSandboxes
from cleveragents.content.scope import Scope
from cleveragents.context import Context
from cleveragents.lease import LeasedPlan
from cleveragents.model.resource import Change
from cleveragents.model.settings import confine_in_force
from cleveragents.model.tool import ToolCall, ToolResult, ToolSpec
from cleveragents.sandbox.protocol import TakesSql, WatchesSql
from cleveragents.sandbox.registry import traits_of
from cleveragents.tools.confinement.confine import Bounds, cache_dir
from cleveragents.tools.confinement.mounts import Mount
from cleveragents.tools.runner import CallContext

ACTOR = "@actor"
"""In place of a step's id; no step can be called so."""


def is_bounded(tool: ToolSpec) -> bool:
    """Whether the tool declares a limited scope."""
    return tool.read_only or bool(tool.write_scope) or tool.checkpoint_scope == "resource"


def out_of_scope(tool: ToolSpec, resource: str | None, changes: Iterable[Change]) -> list[Change]:
    """Changes outside a tool's declared scope (pure)."""
    found = list(changes)
    if tool.read_only:
        return found
    own = [change for change in found if change.resource == resource]
    wrong = [change for change in found if change.resource != resource]
    if tool.checkpoint_scope == "plan":
        wrong = []
    if tool.write_scope:
        scope = Scope(tuple(os.fsencode(rule.rstrip("/")) for rule in tool.write_scope))
        inside = [change.path for change in own if scope.excludes(change.path)]
        wrong += [c for c in own if c.path not in inside and not _leads_to(c.path, inside)]
    return wrong


def _leads_to(path: bytes, inside: list[bytes]) -> bool:
    """Whether it is a folder of something in scope, or git's own file, which is never applied."""
    return path.split(b"/")[0] == b".git" or any(other.startswith(path + b"/") for other in inside)


def ended(call: ToolCall, result: ToolResult, now: str) -> ToolCall:
    return msgspec.structs.replace(
        call,
        state=result.state,
        exit_code=result.exit_code,
        output=result.output,
        output_bytes=result.output_bytes,
        error=result.error,
        ended_at=now,
    )


def call_context(ctx: Context, leased: LeasedPlan, step_id: str, on: str | None) -> CallContext:
    """A tool's working directory, environment and bounds."""
    ctx.store.reserve.refill()  # the reserve is not for tools
    sandboxes = ctx.manager.sandboxes(leased.plan.plan_id)
    name = on or next(iter(sandboxes.paths))
    sandbox = sandboxes.named(name)
    place = sandbox.place
    is_database = traits_of(place.resource.kind).is_sqlite
    addresses, secrets = addresses_of(sandboxes)
    return CallContext(
        plan_id=leased.plan.plan_id,
        step_id=step_id,
        plan_dir=leased.plan.plan_dir,
        cwd=place.path if os.path.isdir(place.path) else place.root,
        database=place.path if is_database else None,
        run_sql=sandbox.run_sql if isinstance(sandbox, TakesSql) else None,
        watch=sandbox.watch if isinstance(sandbox, WatchesSql) else None,
        sandboxes=addresses,
        secrets=secrets,
        guidance="\n".join(ctx.store.plans.guidance(leased.plan.plan_id)),
        links=place.links,
        temp_parent=f"{ctx.settings.sandboxes}/{leased.plan.plan_id}",
        output_limit=ctx.settings.output_limit,
        environ=dict(os.environ),
        bounds=bounds_of(ctx, leased),
        meanwhile=lambda: _meanwhile(ctx, leased.plan.plan_id),
        attach=ctx.talk.attach,
    )


def addresses_of(sandboxes: PlanSandboxes) -> tuple[dict[str, str], tuple[str, ...]]:
    """The addresses of sandboxes for tools, and the secrets in them."""
    found, secrets = sandboxes.paths, list[str]()
    for sandbox in sandboxes.opened.values():
        if isinstance(sandbox, TakesSql):
            found[sandbox.place.resource.name], secret = sandbox.tool_address()
            secrets.append(secret)
    return {name: one for name, one in found.items() if one}, tuple(filter(None, secrets))


def _meanwhile(ctx: Context, plan_id: str) -> None:
    ctx.stop()
    ctx.manager.drain(plan_id)


def actor_context(ctx: Context, leased: LeasedPlan) -> CallContext:
    """The context of the plan's actor: in the plan's folder, on no resource."""
    plan = leased.plan
    private, secrets = private_variables(leased.spec.actor, os.environ)
    return CallContext(
        plan_id=plan.plan_id,
        step_id=ACTOR,
        plan_dir=plan.plan_dir,
        cwd=plan.plan_dir,
        sandboxes=ctx.manager.sandboxes(plan.plan_id).paths,
        guidance="\n".join(ctx.store.plans.guidance(plan.plan_id)),
        temp_parent=f"{ctx.settings.sandboxes}/{plan.plan_id}",
        output_limit=ctx.settings.output_limit,
        environ=dict(os.environ),
        private=private,
        secrets=secrets,
        bounds=bounds_of(ctx, leased),
        meanwhile=lambda: _meanwhile(ctx, plan.plan_id),
    )


def bounds_of(ctx: Context, leased: LeasedPlan) -> Bounds:
    """What the plan's tools may touch."""
    settings = ctx.settings
    places = [one.place for one in ctx.manager.sandboxes(leased.plan.plan_id).opened.values()]
    return Bounds(
        confine=confine_in_force(settings.confine, leased.spec.policy.confine),
        hidden=(settings.home, settings.sandboxes),
        writable=settings.writable,
        cache=cache_dir(os.environ),
        stand_ins=tuple(
            Mount(
                name=place.resource.name,
                own=place.resource.path,
                root=place.root,
                path=place.path,
                links=place.links,
                borrowed=borrowed_of(place.origin),
            )
            for place in places
        ),
    )


def borrowed_of(origin: dict[str, Any]) -> dict[str, str]:
    """Git directories in a sandbox and the objects each reads, as recorded at creation."""
    if "borrowed" in origin or "repository" not in origin:
        return origin.get("borrowed", {})
    return {".git": f"{origin['repository']['common_dir']}/objects"}
