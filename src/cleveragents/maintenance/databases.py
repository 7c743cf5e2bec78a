"""Databases of plans on servers: their cost, and leftovers."""

import re
import socket
from collections.abc import Iterator

import msgspec

from cleveragents.apply.database_backups import Held, kept, kept_of
from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Resource, SandboxState
from cleveragents.model.units import show_bytes
from cleveragents.sandbox.protocol import CheckpointCost, ReportsCost
from cleveragents.sandbox.registry import traits_of
from cleveragents.sandbox.traits import OnServer

_MARK = "cleveragents: "
_OF_PLAN = re.compile(r" of plan (\w+), resource ")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a database resource, and of backups that no checkpoint holds."""

    resource: str
    strategy: str
    clones: int
    """Clones on the server that hold checkpoints."""
    clone_bytes: int
    cost: str
    kept: str
    """The database that holds what this one held before the plan was applied, or empty."""
    kept_bytes: int
    not_captured: tuple[str, ...]


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A database of ours that no plan needs any more."""

    name: str
    where: str
    kept_because: str


def costs_of(ctx: Context, plan: Plan) -> list[Cost]:
    """From what was measured when checkpoints were made; connects to nothing."""
    rows = ctx.store.checkpoints.of_plan(plan.plan_id)
    records = ctx.store.resources.sandboxes(plan.plan_id)
    is_removed = any(record.state is SandboxState.REMOVED for record in records)
    held = {one.resource: one for one in kept_of(ctx, plan)}
    costs: list[Cost] = []
    for rid, sandbox in ctx.manager.sandboxes(plan.plan_id).opened.items():
        if isinstance(sandbox, ReportsCost):
            states = [row.snapshot.metadata for row in rows if row.resource_id == rid]
            resource = sandbox.place.resource
            costs.append(_cost(resource, sandbox.cost(states, is_removed), held.get(resource.name)))
    return costs


def _cost(resource: Resource, own: CheckpointCost, earlier: Held | None) -> Cost:
    return Cost(
        resource=resource.name,
        strategy=resource.strategy,
        clones=own.clones,
        clone_bytes=own.bytes,
        cost=own.said + _kept_text(earlier),
        kept=earlier.name if earlier else "",
        kept_bytes=earlier.bytes if earlier else 0,
        not_captured=own.not_captured,
    )


def _kept_text(earlier: Held | None) -> str:
    if earlier is None:
        return ""
    return (
        f"; its backup is kept as {earlier.name}, {show_bytes(earlier.bytes)},"
        " for agents plan revert-applied"
    )


def find_leftovers(ctx: Context) -> list[Leftover]:
    """Databases with our names, on the servers that this store's plans know, that none needs."""
    known = list(_on_servers(ctx))
    ended = _ended(ctx)
    in_use = tuple(
        server.working_name(resource.resource_id)
        for resource, server in known
        if resource.resource_id not in ended
    )
    promised = {one.name for one in kept(ctx)}
    found: dict[str, Leftover] = {}
    for resource, server in known:
        try:
            there = server.ours(resource.path)
        except AgentsError:
            continue  # on an unreachable server nothing can be removed now
        for one in there:
            if not one.name.startswith(in_use) and one.name not in promised:
                found[one.name] = Leftover(
                    name=one.name,
                    where=server.shown(resource.path),
                    kept_because=_why_kept(ctx, one.name, one.comment),
                )
    return list(found.values())


def _on_servers(ctx: Context) -> Iterator[tuple[Resource, OnServer]]:
    """Every resource of any plan that lies on a server, and who knows that server."""
    for plan_id in ctx.store.plans.ids():
        for resource in ctx.store.resources.of_plan(plan_id):
            if (server := traits_of(resource.kind).server) is not None:
                yield resource, server


def _ended(ctx: Context) -> set[str]:
    """Resources whose sandbox was removed: whatever is still there of it was left by a crash."""
    waiting = {intent.plan_id for intent in ctx.store.intents.all()}
    return {
        record.resource_id
        for record in ctx.store.resources.all_sandboxes()
        if record.state is SandboxState.REMOVED and record.plan_id not in waiting
    }


def _why_kept(ctx: Context, name: str, comment: str) -> str:
    if name.endswith("_aside"):
        return "it was somebody's own database until an apply"
    if not comment.startswith(_MARK):
        return "it does not say whose it is"
    if not comment.endswith(f"; store {socket.gethostname()}:{ctx.settings.home}"):
        return f"it is of another store: {comment.removeprefix(_MARK)}"
    plan = _OF_PLAN.search(comment)
    if plan and plan[1] not in {*ctx.store.plans.ids(), *ctx.store.plans.deleted()}:
        return "this store never had its plan: it may be older than that, put back from a backup"
    return ""


def drop_leftover(ctx: Context, where: str, name: str) -> None:
    for resource, server in _on_servers(ctx):
        if server.shown(resource.path) == where:
            server.drop(resource.path, name)
            return
