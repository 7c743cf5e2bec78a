"""The same statements on PostgreSQL, for a store shared by several machines.

Statements are written for SQLite and translated here, once each: placeholders become `$1`, the next
number of the series a SEQUENCE, and comments that start with `pg` become code. In a transaction all
are sent without waiting (`pipe.py`) until something is read or committed.
"""

import itertools
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from cleveragents.content import fsio
from cleveragents.errors import AgentsError, ConfigError, MachineError, StoreError
from cleveragents.model.ids import new_id
from cleveragents.sandbox.postgres import address
from cleveragents.sandbox.postgres.server import EXTRA, OLDEST, said
from cleveragents.store import schema
from cleveragents.store.database import Part, ReadAhead, Rows, SqliteDatabase
from cleveragents.store.leases import CLOCK
from cleveragents.store.tables import NEXT

if TYPE_CHECKING:
    from psycopg import Connection

    from cleveragents.store.pipe import Pipe

SCHEMA = "cleveragents"
"""The tables are in a schema of their own, whatever else the database is used for."""
ALONE = 7_301_968_213
"""Advisory lock of transactions without a lease: they read and then write, one after another."""
AT_ONCE = 50
"""Rows of one statement: a group's are sent as one, and there are not too many different texts."""
LOST = "cleveragents lost row "
"""In the server's message if a required row was not there, before its number."""
HINTS = {
    "password": "CLEVERAGENTS_STORE_URL, PGPASSWORD or ~/.pgpass has to have it",
    "SSL|certificate": "the URL asks for TLS: sslmode and sslrootcert have to fit the server",
    "does not exist|permission denied": "docs/cluster.md says how database and roles are made",
}


@cache
def translated(sql: str) -> bytes:
    """A repository's statement for PostgreSQL."""
    text = sql.replace(NEXT, "nextval('series')")
    text = text.replace(CLOCK, "extract(epoch FROM clock_timestamp())::float8")
    text = schema.FOR_US.sub(r"\1", text)
    number = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(number)}", text).encode()


def _of_rows(sql: str, count: int) -> str:
    """An INSERT of one row, extended to `count` rows."""
    head, _, tail = sql.partition(" VALUES ")
    one, conflict, then = tail.partition(" ON CONFLICT")
    return f"{head} VALUES {', '.join([one] * count)}{conflict}{then}"


def parameters(url: str) -> dict[str, Any]:
    """What a connection is made with; what the URL says counts.

    Of several hosts the one that can be written to; one that is silent for half a minute is gone.
    """
    return {
        "connect_timeout": 10,
        "application_name": "agents",
        "target_session_attrs": "primary",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
        **driver().conninfo.conninfo_to_dict(url),
    }


def driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ConfigError("store.url needs psycopg, which is missing", EXTRA) from None
    return psycopg


def not_allowed(shown: str, error: Exception) -> MachineError:
    return MachineError(
        f"the role lacks the rights for that in {shown}: {said(error)}",
        "grant the rights that docs/cluster.md lists; init and migrate need the tables' owner",
    )


class PostgresDatabase:
    """One connection, made again after it was lost; satisfies `store.database.Database`."""

    def __init__(self, url: str, lasts: bool = True) -> None:
        """`lasts`: whether most of its commits must survive a crash of the server."""
        self.url = url
        self._lasts = lasts
        self._driver = driver()
        self.shown: str = address.public(url)
        self._connection, self._pipe = self._connected()
        self._required: list[Exception] | None = None
        """In a transaction: what each required row is missed with."""
        self._missed: list[Exception] = []
        self._ahead = ReadAhead(self._send)

    def _connected(self) -> "tuple[Connection[Any], Pipe]":
        from cleveragents.store.pipe import OFTEN, Pipe, pass_nul

        psycopg = self._driver
        try:
            made = psycopg.connect(
                **{**parameters(self.url), "client_encoding": "utf8"},
                autocommit=True,
                prepare_threshold=OFTEN,
                cursor_factory=psycopg.RawCursor,
            )
        except psycopg.Error as error:
            raise self._refused(error) from error
        if made.info.server_version < OLDEST * 10000:
            version = made.info.server_version // 10000
            made.close()
            raise MachineError(
                f"{self.shown} is PostgreSQL {version}", f"PostgreSQL {OLDEST} or later is needed"
            )
        pass_nul(made)
        # Not in the connection's `options`: a pooler refuses them, or leaves them out.
        settings = [f"SET search_path = {SCHEMA}"]
        settings += [] if self._lasts else ["SET synchronous_commit = off"]
        return made, Pipe(made, settings)

    def _refused(self, error: Exception) -> MachineError:
        text = said(error)
        for secret in address.secrets_of(self.url):
            text = text.replace(secret, "***")
        hints = [hint for words, hint in HINTS.items() if re.search(words, text)]
        hint = hints[0] if hints else "is the server running?"
        return MachineError(f"cannot connect to the store at {self.shown}: {text}", hint)

    def _ready(self) -> "Connection[Any]":
        if self._connection.closed:
            self._connection, self._pipe = self._connected()
        return self._connection

    @property
    def connection(self) -> "Connection[Any]":
        """The connection, for others: their writes in a transaction are part of it."""
        made = self._ready()
        with self._errors():
            self._pipe.end()
        self._pipe.forget()  # psycopg drops prepared statements on rollback
        return made

    def hurry(self) -> None:
        self._pipe.hurry()

    def _send(self, sql: str, given: Sequence[Any] = ()) -> Rows:
        return self._pipe.send(translated(sql), given)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        if self._required is not None:
            return self._ahead.ask(sql, parameters)
        with self._errors():
            try:
                return self._ask(sql, parameters)
            except self._driver.OperationalError:
                if not self._connection.closed:
                    raise
                # The server was restarted since the last statement; this one wrote nothing.
                return self._ask(sql, parameters)

    def _ask(self, sql: str, given: Sequence[Any]) -> Rows:
        self._ready()
        try:
            return self._send(sql, given)
        finally:
            self._pipe.end()

    def reading(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._required is None else self._ahead.reading(name)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        rows = list(parameters)
        if " VALUES " not in sql:
            for row in rows:
                self._send(sql, row)
            return
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            self._send(_of_rows(sql, len(some)), list(itertools.chain(*some)))

    def insert(self, *parts: Part) -> None:
        """Insert in one statement: constraints between the tables are checked at its end."""
        parts = tuple(part for part in parts if part[1])
        if len(parts) < 2 or any(len(rows) > AT_ONCE for _, rows in parts):
            for sql, rows in parts:
                self.executemany(sql, rows)
            return
        *before, last = (_of_rows(sql, len(rows)) for sql, rows in parts)
        named = ", ".join(f"part{number} AS ({text})" for number, text in enumerate(before))
        values = list(itertools.chain.from_iterable(row for _, rows in parts for row in rows))
        self._send(f"WITH {named} {last}", values)

    def require(self, sql: str, parameters: Sequence[Any], otherwise: Exception) -> None:
        """The server itself fails the transaction without a row, so nobody waits for an answer."""
        assert self._required is not None, "only in a transaction"
        number = len(self._required)
        self._required.append(otherwise)
        returning = "" if sql.startswith("SELECT") else " RETURNING 1"
        self._send(
            f"WITH done AS ({sql}{returning}) SELECT CASE WHEN count(*) > 0 THEN 1"
            f" ELSE CAST('{LOST}{number}: ' || count(*) AS integer) END FROM done",
            parameters,
        )

    @contextmanager
    def one_commit(
        self,
        *,
        lasts: bool = True,
        alone: bool = True,
        make_room: Callable[[], None] = lambda: None,
    ) -> Generator[None]:
        self._ready()
        self._required = []
        with self._errors():
            try:
                self._send("BEGIN")
                if lasts != self._lasts:
                    self._send(f"SET LOCAL synchronous_commit = {'on' if lasts else 'off'}")
                if alone:
                    self._send(f"SELECT pg_advisory_xact_lock({ALONE})")
                yield
                fsio.point("commit")
                self._send("COMMIT")
                self._pipe.end()
            except BaseException:
                with suppress(self._driver.Error):  # the first error is raised
                    self._pipe.end()
                if not self._connection.closed:
                    self._connection.rollback()
                    self._pipe.forget()
                raise
            finally:
                self._missed, self._required = self._required, None

    @contextmanager
    def _errors(self) -> Generator[None]:
        psycopg = self._driver
        try:
            yield
        except psycopg.errors.InvalidTextRepresentation as error:
            found = re.search(rf"{LOST}(\d+)", str(error))
            if found is None:
                raise StoreError(f"{self.shown}: {said(error)}", "agents store status") from error
            raise self._missed[int(found[1])] from None
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> AgentsError:
        psycopg, text = self._driver, said(error)
        if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
            return StoreError(f"{self.shown} has no store: {text}", "agents store init")
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return not_allowed(self.shown, error)
        if isinstance(error, psycopg.OperationalError):
            return MachineError(
                f"the store at {self.shown} does not answer: {text}",
                "nothing is lost: run the command again when the server is back",
            )
        return StoreError(f"the store at {self.shown} refused a statement: {text}")

    def integrity(self) -> list[str]:
        """Nothing to check: PostgreSQL verifies its pages, and constraints at every commit."""
        return []

    def compact(self, room: int) -> None:
        """Nothing to do: autovacuum does it."""

    def close(self) -> None:
        self._connection.close()

    def version(self) -> int:
        """The number of the store's newest script; 0: there is no store."""
        found = self.execute("SELECT to_regclass(?) IS NOT NULL", (f"{SCHEMA}.store",)).fetchone()
        if not found[0]:
            return 0
        row = self.execute("SELECT value FROM store WHERE name = 'schema'").fetchone()
        return int(row[0]) if row else 0

    def replay(self) -> None:
        """Run every script that the store lacks; a new store begins with the first."""
        last = max(schema.scripts())
        with self.one_commit():
            had = self.version()
            if had > last:
                raise self._newer(had)
            if had == last:
                return
            self._send(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            for number in [number for number in schema.scripts() if number > had]:
                for text in schema.statements(schema.translated(schema.text_of(number))):
                    self._pipe.send(text.encode())
            self.execute(
                "INSERT INTO store (name, value) VALUES ('schema', ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (str(last),),
            )

    def _newer(self, number: int) -> StoreError:
        return StoreError(
            f"the store at {self.shown} has schema {number}, made by a newer version",
            "upgrade cleveragents",
        )

    def require_current(self) -> str:
        """The id of a usable store, in one query for every command.

        Only `agents store` migrates the schema: others may still be using the old one.
        """
        asked = "SELECT name, value FROM store WHERE name IN ('schema', 'moved', 'id')"
        try:
            found = dict(self.execute(asked).fetchall())
        except StoreError as error:
            if not isinstance(error.__cause__, self._driver.errors.UndefinedTable):
                raise
            self.version()  # or it exists and the role may not see it
            found = {}
        number, last = int(found.get("schema", 0)), max(schema.scripts())
        if "moved" in found:
            raise StoreError(
                f"the plans of {self.shown} were copied back to {found['moved']}",
                "agents config unset store.url there; agents store copy puts them here again",
            )
        if number == 0:
            raise StoreError(f"there is no store at {self.shown}", "agents store init")
        if number < last:
            raise StoreError(
                f"the store at {self.shown} has schema {number}, and this version needs {last}",
                "agents store migrate",
            )
        if number > last:
            raise self._newer(number)
        return found["id"]


def open_shared(url: str, own: SqliteDatabase, lasts: bool) -> tuple[PostgresDatabase, str]:
    """Connect, and check that this home belongs to that store; also returns the store's id."""
    db = PostgresDatabase(url, lasts)
    try:
        store_id = db.require_current()
        _require_same(db, own, store_id)
    except BaseException:
        db.close()
        raise
    return db, store_id


def create_shared(url: str) -> PostgresDatabase:
    """Create or migrate the store's tables; may be repeated."""
    db = PostgresDatabase(url)
    try:
        db.replay()
        with db.one_commit():
            db.execute(
                "INSERT INTO store (name, value) VALUES ('id', ?) ON CONFLICT (name) DO NOTHING",
                (new_id(),),
            )
    except BaseException:
        db.close()
        raise
    return db


def _require_same(db: PostgresDatabase, own: SqliteDatabase, store_id: str) -> None:
    asked = "SELECT name, value FROM store WHERE name IN ('id', 'url')"
    here = dict(own.execute(asked).fetchall())
    if own.execute("SELECT 1 FROM plans LIMIT 1").fetchone() is not None:
        raise StoreError(
            f"{own.path} has plans of its own, which are not in {db.shown}",
            "agents store copy puts them there; or name another home with CLEVERAGENTS_HOME",
        )
    if here.get("id", store_id) == store_id:
        return
    if "url" in here:
        raise StoreError(
            f"the home of {own.path} belongs to another store than {db.shown}",
            "name another home with CLEVERAGENTS_HOME",
        )
    own.execute("DELETE FROM store WHERE name IN ('id', 'home')")  # nothing ever had that id
