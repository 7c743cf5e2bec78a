"""Properties of a database itself: owner, rights, settings, limits, comment.

A clone does not get these, so they are copied before it replaces the original.
"""

from typing import TYPE_CHECKING, Any

from cleveragents.errors import ApplyRefused
from cleveragents.sandbox.postgres.server import mark, named, one, said

if TYPE_CHECKING:
    from psycopg import Connection

_RIGHTS = (
    "SELECT CASE a.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(a.grantee) END, a.privilege_type,"
    " a.is_grantable FROM pg_database d, aclexplode(d.datacl) a WHERE d.datname = %s ORDER BY 1, 2"
)
_SETTINGS = (
    "SELECT CASE s.setrole WHEN 0 THEN NULL ELSE pg_get_userbyid(s.setrole) END,"
    " unnest(s.setconfig) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase"
    " WHERE d.datname = %s ORDER BY 1, 2"
)
_REST = (
    "SELECT pg_get_userbyid(datdba), datacl IS NOT NULL, datconnlimit,"
    " shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
)


def blockers(db: "Connection[Any]", name: str) -> list[str]:
    """Objects tied to the database itself that would be lost with it."""
    slots = db.execute(
        b"SELECT slot_name FROM pg_replication_slots WHERE database = %s", (name,)
    ).fetchall()
    template = one(db, "SELECT datistemplate FROM pg_database WHERE datname = %s", (name,))[0]
    return [
        *(f"replication slot {row[0]!r} reads it" for row in slots),
        *(["it is a template"] if template else []),
    ]


def copy_properties(db: "Connection[Any]", source: str, target: str) -> None:
    """Copy the properties of one database to another, or refuse."""
    from psycopg import Error

    if found := blockers(db, source):
        raise ApplyRefused(f"database {source!r} cannot be swapped: {'; '.join(found)}")
    try:
        with db.transaction():
            _copy(db, source, target)
            same = all(
                db.execute(query.encode(), (source,)).fetchall()
                == db.execute(query.encode(), (target,)).fetchall()
                for query in (_RIGHTS, _SETTINGS)
            )
    except Error as error:
        raise ApplyRefused(
            f"the rights and settings of database {source!r} cannot be copied: {said(error)}",
            "connect as its owner, or as a superuser",
        ) from error
    if not same:
        raise ApplyRefused(
            f"the rights and settings of database {source!r} cannot be copied by this role",
            "connect as its owner, or as a superuser",
        )


def _copy(db: "Connection[Any]", source: str, target: str) -> None:
    owner, has_rights, limit, comment = one(db, _REST, (source,))
    if owner != one(db, _REST, (target,))[0]:
        named(db, "ALTER DATABASE {name} OWNER TO {owner}", name=target, owner=owner)
    named(db, f"ALTER DATABASE {{name}} WITH CONNECTION LIMIT {int(limit)}", name=target)
    mark(db, target, comment)
    if has_rights:
        _copy_rights(db, source, target, owner)
    _copy_settings(db, source, target)


def _copy_rights(db: "Connection[Any]", source: str, target: str, owner: str) -> None:
    named(db, "REVOKE ALL ON DATABASE {name} FROM PUBLIC", name=target)
    named(db, "REVOKE ALL ON DATABASE {name} FROM {owner}", name=target, owner=owner)
    for role, right, grantable in db.execute(_RIGHTS.encode(), (source,)).fetchall():
        option = " WITH GRANT OPTION" if grantable else ""
        if role is None:
            named(db, f"GRANT {right} ON DATABASE {{name}} TO PUBLIC", name=target)
        else:
            statement = f"GRANT {right} ON DATABASE {{name}} TO {{role}}{option}"
            named(db, statement, name=target, role=role)


def _copy_settings(db: "Connection[Any]", source: str, target: str) -> None:
    for role, setting in db.execute(_SETTINGS.encode(), (source,)).fetchall():
        key, _, value = setting.partition("=")
        # As stored: written out again, a list would become one name.
        db.execute(b"SELECT set_config(%s, %s, true)", (key, value))
        if role is None:
            named(db, "ALTER DATABASE {name} SET {key} FROM CURRENT", name=target, key=key)
        else:
            statement = "ALTER ROLE {role} IN DATABASE {name} SET {key} FROM CURRENT"
            named(db, statement, name=target, role=role, key=key)
