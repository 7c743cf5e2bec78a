"""Bring an older store up to date with Alembic; imported only when there is something to do.

Alembic on SQLite leaves half a migration behind when one fails unless the transaction is ours:
`BEGIN IMMEDIATE` before the first statement, one commit after the last.
"""

import sqlite3
from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event, pool

from cleveragents.errors import StoreError

MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: sqlite3.Connection, path: str, revision: str) -> None:
    """Upgrade the database at `path`, which `connection` has open and idle, to the head."""
    script = ScriptDirectory.from_config(config())
    known = {item.revision for item in script.walk_revisions()}
    if revision not in known:
        raise StoreError(
            f"the store at {path} has schema {revision!r}, made by a newer version",
            "upgrade cleveragents, or name another store with CLEVERAGENTS_HOME",
        )
    run_migrations(path, script)


def config() -> Config:
    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS))
    return settings


def run_migrations(path: str, script: ScriptDirectory, target: str = "head") -> None:
    engine = create_engine(f"sqlite:///{path}", poolclass=pool.NullPool)

    @event.listens_for(engine, "connect")
    def _manual(dbapi: sqlite3.Connection, _record: object) -> None:
        dbapi.isolation_level = None
        dbapi.execute("PRAGMA busy_timeout=60000")

    @event.listens_for(engine, "begin")
    def _begin(live: object) -> None:
        live.exec_driver_sql("BEGIN IMMEDIATE")  # type: ignore[attr-defined]

    def _steps(current: object, context: object) -> object:
        return script._upgrade_revs(target, current)  # type: ignore[attr-defined,arg-type]

    with EnvironmentContext(config(), script, fn=_steps) as environment, engine.connect() as live:
        environment.configure(connection=live, transactional_ddl=True)
        with environment.begin_transaction():
            environment.run_migrations()
