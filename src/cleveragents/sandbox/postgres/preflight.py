"""What a plan asks of its PostgreSQL databases, and what they lack of it or have too much of."""

from collections.abc import Sequence

import msgspec

from cleveragents.errors import SandboxError
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec, StepSpec
from cleveragents.sandbox.postgres.address import database_of
from cleveragents.tools import resolve_tool
from cleveragents.tools.builtin import runs_process

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


def problems_of(spec: PlanSpec, databases: Sequence[ResourceSpec]) -> list[str]:
    """What these databases of the plan lack, or have too much of; connects to each."""
    found = [item for item in databases if item.url]
    addressed = [item for item in spec.resources if item.url]
    return [
        f"resource {item.name!r}: {text}"
        for item in found
        for text in (
            *_misused(spec, item),
            *_lacking(item, several=len(addressed) > 1),
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
    if spec.actor.kind != "steps":
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
