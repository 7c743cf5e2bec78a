"""A store on either database: the tests that take `where` run on both.

`CLEVERAGENTS_TEST_STORE=postgres` gives every test a store on PostgreSQL of its own.
"""

import itertools
import os
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from cleveragents.errors import StoreError
from cleveragents.store import Store, open_store
from cleveragents.store.postgres import SCHEMA, create_shared, translated
from tests.pgserver import PgServer

ROLE, PASSWORD = "agents", "st0re-s3cret"
REFUSED = (sqlite3.IntegrityError, StoreError)
"""How either database says that a row is not allowed."""
BOTH = ("sqlite", "postgres")
EVERYWHERE = os.environ.get("CLEVERAGENTS_TEST_STORE") == "postgres"
LEFT_OUT = {
    "test_failed_commits.py": "each fault is SQLite's, and each world a folder with its store",
    "test_doctor.py::test_the_refs_and_sandboxes_of_another_store_are_left_alone": (
        "another home is another store on SQLite alone"
    ),
    "test_postgres.py::test_status_says_the_strategy_and_what_it_costs_and_needs_no_psycopg": (
        "a shared store needs it"
    ),
    "test_cluster_page.py::test_without_a_shared_store_there_is_nothing_of_machines": (
        "there is one"
    ),
    "test_effects.py::test_without_its_sandbox_a_compensation_fails_and_says_so": (
        "another home is another store on SQLite alone"
    ),
}
"""What is not run with every store on PostgreSQL, and why; `nox -s shared_store` runs the rest."""
_numbers = itertools.count()
_ready: set[int] = set()
"""Ports of servers that have the template."""


@dataclass(frozen=True)
class Where:
    """A home, and the database that it shares with others, if any."""

    home: str
    url: str = ""

    def open(self, lease_time: float = 10.0) -> Store:
        return open_store(self.home, self.url, lease_time)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Past all repositories, in a statement of SQLite."""
        return [tuple(row) for row in self._rows(sql, parameters)[1]]

    def records(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The same by the names of the columns."""
        names, rows = self._rows(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _rows(self, sql: str, parameters: Sequence[Any]) -> tuple[list[str], list[Any]]:
        if self.url:
            return rows_of(self.url, sql, parameters)
        with closing(sqlite3.connect(f"{self.home}/store.db", isolation_level=None)) as db:
            db.execute("PRAGMA foreign_keys=ON")
            found = db.execute(sql, parameters)
            return [column[0] for column in found.description or ()], found.fetchall()


def store_of(env: Mapping[str, str]) -> Where:
    """The store of whoever works in that environment, on either database."""
    return Where(env["CLEVERAGENTS_HOME"], env.get("CLEVERAGENTS_STORE_URL", ""))


def query_shared(url: str, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    return rows_of(url, sql, parameters)[1]


def rows_of(url: str, sql: str, parameters: Sequence[Any]) -> tuple[list[str], list[Any]]:
    import psycopg

    with psycopg.connect(
        url,
        autocommit=True,
        options=f"-c search_path={SCHEMA}",
        cursor_factory=psycopg.RawCursor,
    ) as db:
        try:
            found = db.execute(translated(sql), parameters)
        except psycopg.IntegrityError as error:
            raise sqlite3.IntegrityError(str(error)) from error
        if not found.description:
            return [], []
        return [column.name for column in found.description], found.fetchall()


def template(pg: PgServer) -> str:
    """A database with an empty store, made once for each server; others are copied from it."""
    if pg.port not in _ready:
        pg.sql("postgres", f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        pg.sql("postgres", f"CREATE DATABASE empty_store OWNER {ROLE}")
        create_shared(pg.url("empty_store", ROLE, PASSWORD)).close()
        _ready.add(pg.port)
    return "empty_store"


def copy_shared(pg: PgServer, original: str, copy: str) -> None:
    """Of one database that nobody uses to another."""
    pg.sql("postgres", f"DROP DATABASE IF EXISTS {copy}")
    copied = f"TEMPLATE {original} STRATEGY file_copy"  # half of what the log would cost
    pg.sql("postgres", f"CREATE DATABASE {copy} OWNER {ROLE} {copied}")


@contextmanager
def shared_store(pg: PgServer, empty: bool = False) -> Generator[str]:
    """The URL of a new store on PostgreSQL; `empty`: of a database without one."""
    full = template(pg)
    made_from = "template1" if empty else full
    name = f"store{next(_numbers)}"
    copy_shared(pg, made_from, name)
    try:
        yield pg.url(name, ROLE, PASSWORD)
    finally:
        pg.sql("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
