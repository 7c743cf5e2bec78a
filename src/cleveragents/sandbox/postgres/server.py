"""One server: connecting to it, and making, swapping and dropping databases.

Every connection belongs to one operation. Those that change something have a name that says so, and
the next process to hold the plan's lease ends what a dead one left running.
"""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.sandbox.postgres import address

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.abc import Params

OLDEST = 15
"""Before it, statistics came by datagrams that could be lost."""
MAINTENANCE = ("postgres", "template1")
PAUSE = 0.01
PATIENCE = 10.0
LOOKING = "agents"
EXTRA = "pip install 'cleveragents[postgres]'"


class Moment(NamedTuple):
    """A database's counters of connections and writes; equal counters mean equal content."""

    oid: int
    sessions: int
    inserted: int
    updated: int
    deleted: int
    epoch: str
    """When the server started and when its statistics were reset, which a crash does as well."""


class Database(NamedTuple):
    oid: int
    name: str
    comment: str
    size: int


def driver() -> Any:
    """psycopg, imported only before connecting."""
    try:
        import psycopg
    except ImportError:
        raise SandboxError("a postgres resource needs psycopg, which is missing", EXTRA) from None
    return psycopg


class Server:
    """The server that a stored URL names."""

    def __init__(self, stored: str) -> None:
        self._stored = stored
        self.shown: str = address.shown(stored)

    @property
    def password(self) -> str:
        return address.password_of(self._stored, os.environ)

    def url(self, database: str) -> str:
        return address.with_database(self._stored, database)

    @contextmanager
    def connect(self, database: str, purpose: str = LOOKING) -> Generator["Connection[Any]"]:
        """A connection that commits each statement; the server's errors become ours."""
        with self._closing(self._opened(database, purpose)) as db:
            yield db

    @contextmanager
    def maintenance(self, purpose: str = LOOKING) -> Generator["Connection[Any]"]:
        """A connection to another database: one with connections cannot be renamed."""
        try:
            opened = self._opened(MAINTENANCE[0], purpose)
        except SandboxError:
            opened = self._opened(MAINTENANCE[1], purpose)
        with self._closing(opened) as db:
            yield db

    def _opened(self, database: str, purpose: str) -> "Connection[Any]":
        psycopg = driver()
        given = {"password": self.password} if self.password else {}
        try:
            db = psycopg.connect(
                self.url(database),
                autocommit=True,
                application_name=purpose,
                connect_timeout=10,
                client_encoding="utf8",
                **given,
            )
        except psycopg.Error as error:
            raise self._refused(database, error) from error
        if db.info.server_version >= OLDEST * 10000:
            return db
        version = db.info.server_version // 10000
        db.close()
        raise SandboxError(
            f"{self.shown} is PostgreSQL {version}", f"PostgreSQL {OLDEST} or later is needed"
        )

    @contextmanager
    def _closing(self, db: "Connection[Any]") -> Generator["Connection[Any]"]:
        from psycopg import Error

        try:
            yield db
        except Error as error:
            raise SandboxError(f"{self.url(db.info.dbname)}: {said(error)}") from error
        finally:
            db.close()

    def _refused(self, database: str, error: Exception) -> SandboxError:
        text = said(error)
        if self.password:
            text = text.replace(self.password, "***")
        hint = "is the server running, and does the role exist?"
        if "password" in text:
            hint = "the variable in the plan file's url, PGPASSWORD or ~/.pgpass has to have it"
        return SandboxError(f"cannot connect to {self.url(database)}: {text}", hint)


def said(error: Exception) -> str:
    """The server's message, in one line."""
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    text = " ".join(str(error).split())
    detail = " ".join(detail.split()) if detail else ""
    return f"{text} ({detail})" if detail and detail not in text else text


def one(db: "Connection[Any]", query: str, params: "Params | None" = None) -> Any:
    """The first row."""
    return db.execute(query.encode(), params).fetchone()


def named(db: "Connection[Any]", text: str, **names: str) -> None:
    """Run a statement whose {names} are identifiers."""
    from psycopg import sql

    parts = {key: sql.Identifier(value) for key, value in names.items()}
    db.execute(sql.SQL(text).format(**parts))  # pyright: ignore[reportArgumentType]


def oid_of(db: "Connection[Any]", name: str) -> int | None:
    row = one(db, "SELECT oid::int8 FROM pg_database WHERE datname = %s", (name,))
    return row[0] if row else None


def databases(db: "Connection[Any]", prefix: str) -> list[Database]:
    rows = db.execute(
        b"SELECT oid::int8, datname, coalesce(shobj_description(oid, 'pg_database'), ''),"
        b" CASE WHEN pg_has_role(datdba, 'USAGE') THEN pg_database_size(oid) ELSE 0 END"
        b" FROM pg_database WHERE starts_with(datname, %s) ORDER BY datname",
        (prefix,),
    )
    return [Database(*row) for row in rows]


def users_of(db: "Connection[Any]", name: str) -> list[str]:
    """Who is connected to a database, in words."""
    rows = db.execute(
        b"SELECT usename, application_name, pid FROM pg_stat_activity WHERE datname = %s"
        b" AND usesysid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY pid",
        (name,),
    )
    return [f"{user} with {app or 'no name'} (process {pid})" for user, app, pid in rows]


def others_on(db: "Connection[Any]", name: str) -> list[str]:
    """Who is connected to a database, after waiting for those who only look, as we just did.

    The server ends a connection some time after it was closed.
    """
    ours = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND application_name = %s"
    deadline = time.monotonic() + PATIENCE
    while one(db, ours, (name, LOOKING)) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return users_of(db, name)


def moment(db: "Connection[Any]", name: str) -> Moment | None:
    """The counters; None while somebody is connected, as they lag behind."""
    row = one(
        db,
        "SELECT d.oid::int8, s.sessions, s.tup_inserted, s.tup_updated, s.tup_deleted,"
        " concat(pg_postmaster_start_time(), ' ', s.stats_reset, ' ', b.stats_reset)"
        " FROM pg_database d JOIN pg_stat_database s ON s.datid = d.oid"
        " CROSS JOIN pg_stat_bgwriter b WHERE d.datname = %s"
        " AND current_setting('track_counts')::bool AND NOT EXISTS (SELECT FROM pg_stat_activity a"
        " WHERE a.datid = d.oid AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid())",
        (name,),
    )
    return Moment(*row) if row else None


def moment_when_idle(db: "Connection[Any]", name: str) -> Moment | None:
    """The same, after waiting for a connection of ours to close."""
    deadline = time.monotonic() + 1.0
    while users_of(db, name) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return moment(db, name)


def clone(db: "Connection[Any]", name: str, template: str) -> int:
    """Clone a database that nobody is connected to; returns the oid."""
    from psycopg import errors

    try:
        named(db, "CREATE DATABASE {name} TEMPLATE {template}", name=name, template=template)
    except errors.ObjectInUse as error:
        who = "; ".join(users_of(db, template)) or said(error)
        raise SandboxError(
            f"database {template!r} cannot be cloned while it is in use: {who}",
            "end these connections, then run the command again; none is ended for you",
        ) from error
    except errors.InsufficientPrivilege as error:
        role = one(db, "SELECT current_user")[0]
        raise SandboxError(
            f"role {role!r} may not clone database {template!r}: {said(error)}", hint_to_allow(role)
        ) from error
    found = oid_of(db, name)
    assert found is not None
    return found


def hint_to_allow(role: str) -> str:
    return f"ALTER ROLE {role} CREATEDB; and it has to own the database, or be in its owner's role"


def drop(db: "Connection[Any]", name: str) -> None:
    """Drop a database of ours, ending its connections.

    With FORCE, a role that is no superuser may not end autovacuum; without, the server does that.
    """
    from psycopg import errors

    try:
        named(db, "DROP DATABASE IF EXISTS {name} WITH (FORCE)", name=name)
    except errors.InsufficientPrivilege:
        end_sessions(db, name)
        named(db, "DROP DATABASE IF EXISTS {name}", name=name)


def end_sessions(db: "Connection[Any]", name: str) -> None:
    """End every connection to a database of ours, and wait until it is gone."""
    db.execute(
        b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        b" AND usesysid IS NOT NULL AND pid <> pg_backend_pid()",
        (name,),
    )


def end_stale_sessions(db: "Connection[Any]", purpose: str) -> None:
    """End sessions a dead process of ours left running; the caller holds the plan's lease."""
    db.execute(
        b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
        b" AND usename = current_user AND pid <> pg_backend_pid()",
        (purpose,),
    )


def mark(db: "Connection[Any]", name: str, text: str | None) -> None:
    """Say in the database's comment what it is, for us and for people who find it."""
    from psycopg import sql

    statement = sql.SQL("COMMENT ON DATABASE {} IS {}")
    db.execute(statement.format(sql.Identifier(name), sql.Literal(text)))


def rename(db: "Connection[Any]", old: str, new: str) -> None:
    named(db, "ALTER DATABASE {old} RENAME TO {new}", old=old, new=new)


def swap(db: "Connection[Any]", live: str, aside: str, incoming: str) -> None:
    """`live` becomes `aside` and `incoming` becomes `live`; inside the caller's transaction."""
    from psycopg import errors

    try:
        rename(db, live, aside)
        rename(db, incoming, live)
    except errors.ObjectInUse as error:
        raise ApplyRefused(f"database {live!r} is in use: {said(error)}") from error


def prepared(db: "Connection[Any]", gid: str) -> bool:
    return one(db, "SELECT 1 FROM pg_prepared_xacts WHERE gid = %s", (gid,)) is not None


def end_prepared(db: "Connection[Any]", gid: str, commit: bool) -> None:
    from psycopg import sql

    verb = sql.SQL("COMMIT PREPARED {}") if commit else sql.SQL("ROLLBACK PREPARED {}")
    db.execute(verb.format(sql.Literal(gid)))
