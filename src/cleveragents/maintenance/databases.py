"""The PostgreSQL databases of plans: what they need, what they cost, what is left of them."""

import socket

import msgspec

from cleveragents.apply.database_backups import Held, kept, kept_of
from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Resource, SandboxState
from cleveragents.model.units import plural, show_bytes
from cleveragents.sandbox.postgres import snapshot, transaction
from cleveragents.sandbox.postgres.address import shown

KIND = "postgres"
_MARK = "cleveragents: "


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a database resource costs, and what of it no checkpoint holds."""

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
    resources = [r for r in ctx.store.resources.of_plan(plan.plan_id) if r.kind == KIND]
    return [_cost(ctx, plan, one) for one in resources]


def _cost(ctx: Context, plan: Plan, resource: Resource) -> Cost:
    rows = ctx.store.checkpoints.of_plan(plan.plan_id)
    states = [row.snapshot.metadata for row in rows if row.resource_id == resource.resource_id]
    if resource.strategy == "transaction_rollback":
        count = states[-1]["statements"] if states else 0
        return Cost(
            resource=resource.name,
            strategy=resource.strategy,
            clones=0,
            clone_bytes=0,
            kept="",
            kept_bytes=0,
            cost=f"each call runs {plural(count, 'statement')} again on the database itself, with"
            " the locks they take, and rolls them back",
            not_captured=transaction.NOT_CAPTURED,
        )
    gone = any(r.state == "removed" for r in ctx.store.resources.sandboxes(plan.plan_id))
    earlier = {one.resource: one for one in kept_of(ctx, plan)}.get(resource.name)
    sizes = (
        {} if gone else {one["clone"]: one["database_bytes"] for one in states if "clone" in one}
    )
    total = sum(sizes.values())
    return Cost(
        resource=resource.name,
        strategy=resource.strategy,
        clones=len(sizes),
        clone_bytes=total,
        cost=f"a checkpoint of a changed database is a whole clone on the server: {len(sizes)} now,"
        f" {show_bytes(total)}" + _kept_text(earlier),
        kept=earlier.name if earlier else "",
        kept_bytes=earlier.bytes if earlier else 0,
        not_captured=snapshot.NOT_CAPTURED,
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
    known: dict[str, Resource] = {}
    for plan_id in ctx.store.plans.ids():
        for resource in ctx.store.resources.of_plan(plan_id):
            if resource.kind == KIND:
                known[snapshot.working_name(resource.resource_id)] = resource
    in_use = set(known) - _ended(ctx)
    promised = {one.name for one in kept(ctx)}
    found: dict[str, Leftover] = {}
    for resource in known.values():
        try:
            left = _left_on(ctx, resource, in_use)
            found |= {one.name: one for one in left if one.name not in promised}
        except AgentsError:
            continue  # a server that is not there now has nothing that can be removed
    return list(found.values())


def _ended(ctx: Context) -> set[str]:
    """Names of clones whose sandbox was removed: whatever still has them was left by a crash."""
    waiting = {intent.plan_id for intent in ctx.store.intents.all()}
    return {
        snapshot.working_name(record.resource_id)
        for record in ctx.store.resources.all_sandboxes()
        if record.state is SandboxState.REMOVED and record.plan_id not in waiting
    }


def _left_on(ctx: Context, resource: Resource, in_use: set[str]) -> list[Leftover]:
    from cleveragents.sandbox.postgres import server

    with server.Server(resource.path).maintenance() as db:
        there = server.databases(db, snapshot.PREFIX)
    return [
        Leftover(
            name=one.name,
            where=shown(resource.path),
            kept_because=_why_kept(ctx, one.name, one.comment),
        )
        for one in there
        if one.name[: len(snapshot.PREFIX) + 26] not in in_use
    ]


def _why_kept(ctx: Context, name: str, comment: str) -> str:
    if name.endswith("_aside"):
        return "it was somebody's own database until an apply"
    if not comment.startswith(_MARK):
        return "it does not say whose it is"
    if not comment.endswith(f"; store {socket.gethostname()}:{ctx.settings.home}"):
        return f"it is of another store: {comment.removeprefix(_MARK)}"
    return ""


def drop_leftover(ctx: Context, where: str, name: str) -> None:
    from cleveragents.sandbox.postgres import server

    for plan_id in ctx.store.plans.ids():
        for resource in ctx.store.resources.of_plan(plan_id):
            if resource.kind == KIND and shown(resource.path) == where:
                with server.Server(resource.path).maintenance() as db:
                    server.drop(db, name)
                return
