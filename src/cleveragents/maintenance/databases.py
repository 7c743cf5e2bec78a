"""The PostgreSQL databases of plans: what they need, what they cost, what is left of them."""

import socket
from collections.abc import Sequence

import msgspec

from cleveragents.actors import STEPS
from cleveragents.apply.database_backups import Held, kept, kept_of
from cleveragents.context import Context
from cleveragents.errors import AgentsError, SandboxError
from cleveragents.model.plan import Plan
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec, StepSpec
from cleveragents.model.resource import Resource, SandboxState
from cleveragents.model.units import show_bytes
from cleveragents.sandbox.postgres import snapshot, transaction
from cleveragents.sandbox.postgres.address import database_of, shown
from cleveragents.tools import resolve_tool
from cleveragents.tools.builtin import runs_process

KIND = "postgres"
_MARK = "cleveragents: "
_RIGHTS = (
    "SELECT current_user, r.rolsuper OR r.rolcreatedb, pg_has_role(d.datdba, 'USAGE'),"
    " current_setting('max_prepared_transactions')::int"
    " FROM pg_database d, pg_roles r WHERE d.datname = %s AND r.rolname = current_user"
)
# Of whoever logged in: a script may say RESET ROLE.
_POWERS = (
    "SELECT r.rolname, (SELECT array_agg(p.rolname ORDER BY p.rolname) FROM pg_roles p"
    " WHERE pg_has_role(r.rolname, p.oid, 'MEMBER') AND (p.rolsuper OR p.rolname IN"
    " ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files'))),"
    " r.rolsuper, r.rolcreaterole AND current_setting('server_version_num')::int < 160000,"
    " (SELECT array_agg(f ORDER BY f) FROM unnest(ARRAY['pg_read_file(text)', 'lo_import(text)',"
    " 'lo_export(oid, text)', 'dblink_connect_u(text)']) f WHERE to_regprocedure(f) IS NOT NULL"
    " AND has_function_privilege(r.oid, to_regprocedure(f), 'EXECUTE'))"
    " FROM pg_roles r WHERE r.rolname = session_user"
)


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


def problems_of(spec: PlanSpec, databases: Sequence[ResourceSpec]) -> list[str]:
    """What these databases of the plan lack, or have too much of; connects to each."""
    found = [item for item in databases if item.url]
    return [
        f"resource {item.name!r}: {text}"
        for item in found
        for text in (
            *_misused(spec, item),
            *_lacking(item, several=len(found) > 1),
            *_too_mighty(spec, item),
        )
    ]


def _reaching(spec: PlanSpec, name: str) -> list[str]:
    """Steps of the plan and its child plans that get at the database by a tool that is not unsafe.

    Every program does: the address of each sandbox is in its environment.
    """
    found: list[str] = []
    for step in spec.steps:
        if step.subplan is not None:
            below = step.subplan.plan or msgspec.structs.replace(spec, steps=step.subplan.steps)
            found += _reaching(below, name)
            continue
        tool = resolve_tool(step.tool, spec.tools)
        here = (step.on or spec.resources[0].name) == name
        if not tool.unsafe and (runs_process(tool) or (here and _is_sql(spec, step))):
            found.append(step.id)
    return found


def _too_mighty(spec: PlanSpec, item: ResourceSpec) -> list[str]:
    """Why the role may do more than what a clone holds back, unless the plan says that it may."""
    from cleveragents.sandbox.postgres import server

    try:
        with server.Server(item.url).connect(database_of(item.url)) as db:
            role, groups, is_super, makes_roles, calls = server.one(db, _POWERS)
    except SandboxError:
        return []  # said already
    if is_super:
        why = "is a superuser"
    elif groups:
        why = f"is in the role {', '.join(groups)}"
    elif calls:
        why = f"may call {', '.join(calls)}"
    elif makes_roles:
        why = "may make roles, and so join any of the server's own"
    else:
        return []
    said = f"role {role!r} {why}: its SQL can run programs and reach files on the server"
    if spec.actor.kind != STEPS:
        return [f"{said} (use another role: what an actor will ask for cannot be declared unsafe)"]
    steps = _reaching(spec, item.name)
    if not steps and spec.policy.allow_unsafe:
        return []
    which = f" for {', '.join(map(repr, steps))}" if steps else ""
    instead = f"policy: {{allow_unsafe: true}} and tools that say unsafe: true{which}"
    return [f"{said} (use a role that has CREATEDB and owns the database, no more; or {instead})"]


def _misused(spec: PlanSpec, item: ResourceSpec) -> list[str]:
    """With `transaction_rollback` there is no copy that a program could work on."""
    if item.strategy != "transaction_rollback":
        return []
    here = [step for step in spec.steps if (step.on or spec.resources[0].name) == item.name]
    texts = [
        f"step {step.id!r}: strategy transaction_rollback takes only sql, not {step.tool!r}"
        for step in here
        if step.subplan is None and not _is_sql(spec, step)
    ]
    checks = [c for c in spec.validate if (c.on or spec.resources[0].name) == item.name]
    if checks:
        texts.append("strategy transaction_rollback cannot be validated by a program")
    return texts


def _is_sql(spec: PlanSpec, step: StepSpec) -> bool:
    tool = resolve_tool(step.tool, spec.tools)
    return tool.sql is not None or tool.builtin == "sql"


def _lacking(item: ResourceSpec, several: bool) -> list[str]:
    from cleveragents.sandbox.postgres import server
    from cleveragents.sandbox.postgres.properties import blockers

    name = database_of(item.url)
    try:
        with server.Server(item.url).connect(name) as db:
            role, may_create, owns, prepared = server.one(db, _RIGHTS, (name,))
            in_the_way = blockers(db, name)
    except SandboxError as error:
        return [f"{error.message} ({error.hint})" if error.hint else error.message]
    texts: list[str] = []
    if item.strategy != "transaction_rollback":
        if not (may_create and owns):
            texts.append(
                f"role {role!r} may not clone database {name!r} ({server.how_to_allow(role)})"
            )
        texts += [f"database {name!r} cannot be swapped: {text}" for text in in_the_way]
    if several and prepared == 0:
        texts.append(
            "two or more databases are applied together only if the server has"
            " max_prepared_transactions above 0 (ALTER SYSTEM SET max_prepared_transactions = 10,"
            " then restart it)"
        )
    return texts


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
            cost=f"each call runs {count} statements again on the database itself, with the locks"
            " they take, and rolls them back",
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
        f"; what it held before the apply is kept as {earlier.name}, {show_bytes(earlier.bytes)},"
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
