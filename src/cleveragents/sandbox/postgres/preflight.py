"""Preflight of PostgreSQL: missing rights and settings, and rights a plan should not have."""

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


# Of the session user: a script may say RESET ROLE.
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
    """Problems of these databases of the plan; connects to each."""
    found = [item for item in databases if item.url]
    addressed = [item for item in spec.resources if item.url]
    return [
        f"resource {item.name!r}: {text}"
        for item in found
        for text in (
            *_non_sql_uses(spec, item),
            *_missing(item, several=len(addressed) > 1),
            *_excess_rights(spec, item),
        )
    ]


def _steps_using(spec: PlanSpec, name: str) -> list[str]:
    """Steps of the plan and its child plans that reach the database with a tool that is not unsafe.

    Every program can: the address of each sandbox is in its environment.
    """
    found: list[str] = []
    for step in spec.steps:
        if step.subplan is not None:
            below = step.subplan.plan or msgspec.structs.replace(spec, steps=step.subplan.steps)
            found += _steps_using(below, name)
            continue
        tool = resolve_tool(step.tool, spec.tools)
        here = (step.on or spec.resources[0].name) == name
        if not tool.unsafe and (runs_process(tool) or (here and _is_sql(spec, step))):
            found.append(step.id)
    return found


def _excess_rights(spec: PlanSpec, item: ResourceSpec) -> list[str]:
    """Rights of the role that reach beyond a clone, unless the plan allows them."""
    from cleveragents.sandbox.postgres import server

    try:
        with server.Server(item.url).connect(database_of(item.url)) as db:
            role, groups, is_super, makes_roles, calls = server.one(db, _POWERS)
    except SandboxError:
        return []  # reported already
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
    steps = _steps_using(spec, item.name)
    if not steps and spec.policy.allow_unsafe:
        return []
    which = f" for {', '.join(map(repr, steps))}" if steps else ""
    instead = f"policy: {{allow_unsafe: true}} and tools that say unsafe: true{which}"
    return [f"{said} (use a role that has CREATEDB and owns the database, no more; or {instead})"]


def _non_sql_uses(spec: PlanSpec, item: ResourceSpec) -> list[str]:
    """Steps and checks that need a copy, which `transaction_rollback` does not have."""
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


def _missing(item: ResourceSpec, several: bool) -> list[str]:
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
                f"role {role!r} may not clone database {name!r} ({server.hint_to_allow(role)})"
            )
        texts += [f"database {name!r} cannot be swapped: {text}" for text in in_the_way]
    if several and prepared == 0:
        texts.append(
            "two or more databases are applied together only if the server has"
            " max_prepared_transactions above 0 (ALTER SYSTEM SET max_prepared_transactions = 10,"
            " then restart it)"
        )
    return texts
