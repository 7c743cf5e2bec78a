"""The place of a store's rows: its own home, or a PostgreSQL server that several machines share."""

import os
from contextlib import closing

import msgspec

from cleveragents.errors import ConfigError, PlanBusy, StoreError
from cleveragents.lease import host_name, is_alive
from cleveragents.maintenance.bucket import examine
from cleveragents.model.settings import Settings
from cleveragents.store import Store, copying, open_store
from cleveragents.store.database import Database, connect
from cleveragents.store.leases import LeaseRepository
from cleveragents.store.plans import PlanRepository
from cleveragents.store.postgres import PostgresDatabase, create_shared
from cleveragents.store.schema import scripts


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a plan."""

    plan_id: str
    host: str
    pid: int
    verb: str
    silent_for: float
    """Seconds since it was heard of, by the database's clock."""


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    """The file or the URL that has the rows."""
    home: str
    """Where this machine keeps content and sandboxes."""
    is_shared: bool
    schema: int
    """0: there is no store yet."""
    needed: int
    """The schema that this version works with."""
    store_id: str = ""
    plans: int = 0
    holders: tuple[Holder, ...] = ()
    bucket: str = ""
    """What content.url answers; empty: there is none."""


def init(settings: Settings) -> StoreStatus:
    """Make the tables of a shared store, or of this home's own; again does nothing."""
    if settings.store_url:
        create_shared(settings.store_url).close()
    return status(settings)


def migrate(settings: Settings) -> tuple[int, StoreStatus]:
    """Bring a store up to date; the number that it had, and what it is now."""
    if not settings.store_url:
        return max(scripts()), status(settings)  # opening it does
    db = PostgresDatabase(settings.store_url)
    try:
        had = db.version()
    finally:
        db.close()
    if not had:
        raise ConfigError(f"there is no store at {db.shown}", "agents store init")
    create_shared(settings.store_url).close()
    return had, status(settings)


def status(settings: Settings) -> StoreStatus:
    """What is known of the store; also of one that cannot be worked with yet."""
    if not settings.store_url:
        with closing(open_store(settings.home)) as store:
            return _status(
                settings, store.shown, store.identity.store_id, store.plans, store.leases
            )
    with closing(PostgresDatabase(settings.store_url)) as db:
        if (number := db.version()) != max(scripts()):
            return StoreStatus(
                where=db.shown,
                home=os.path.abspath(settings.home),
                is_shared=True,
                schema=number,
                needed=max(scripts()),
            )
        store_id = copying.id_of(db)
        return _status(settings, db.shown, store_id, PlanRepository(db), LeaseRepository(db))


def _status(
    settings: Settings, where: str, store_id: str, plans: PlanRepository, leases: LeaseRepository
) -> StoreStatus:
    return StoreStatus(
        where=where,
        home=os.path.abspath(settings.home),
        bucket=examine(settings),
        is_shared=not where.startswith("/"),
        schema=max(scripts()),
        needed=max(scripts()),
        store_id=store_id,
        plans=plans.count(),
        holders=tuple(
            Holder(
                plan_id=lease.plan_id,
                host=lease.host,
                pid=lease.pid,
                verb=lease.verb,
                silent_for=round(silent, 1),
            )
            for lease, silent in leases.holders()
        ),
    )


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied, and found equal afterwards."""

    source: str
    target: str
    rows: dict[str, int]
    """Table -> rows."""


def copy(settings: Settings) -> Copied:
    """Put this home's plans into the database that `store.url` names; content stays here."""
    if not settings.store_url:
        raise ConfigError("store.url names no database to copy to", SET_URL)
    with closing(open_store(settings.home)) as store:
        _require_idle(store)
    with closing(connect(f"{settings.home}/store.db")) as own:
        with closing(create_shared(settings.store_url)) as db, own.one_commit():
            with db.one_commit():
                _fill(own, db)
                rows = copying.compare_rows(own, db)
            # From here on they are there: a death before the next commit is found by copying again.
            copying.note(own, "url", db.shown)
            copying.remove_rows(own)
        return Copied(source=own.shown, target=db.shown, rows=rows)


SET_URL = "agents config set store.url postgresql://USER@HOST/DATABASE"


def _fill(own: Database, db: Database) -> None:
    """Copy, unless an earlier copy did and died before it could say so here."""
    store_id = copying.id_of(own)
    came_back = db.execute("SELECT 1 FROM store WHERE name = 'moved'").fetchone() is not None
    if copying.id_of(db) != store_id and copying.has_plans(db):
        raise StoreError(
            f"{db.shown} has plans of another store", "copy into a database without a store"
        )
    if copying.has_plans(db) and not came_back:
        return
    copying.remove_rows(db)
    db.execute("DELETE FROM store WHERE name = 'moved'")
    copying.note(db, "id", store_id)
    copying.copy_rows(own, db)


def copy_back(settings: Settings) -> Copied:
    """Bring the plans of a shared store into this home, for this machine alone."""
    if not settings.store_url:
        raise ConfigError("store.url names no database to copy from", SET_URL)
    path = f"{settings.home}/store.db"
    with closing(PostgresDatabase(settings.store_url)) as db:
        if not os.path.exists(path):
            raise StoreError(f"there is no store at {settings.home}", OTHER)
        return _copied_back(settings, db, path)


OTHER_COPY = "agents store copy there puts them here again"
OTHER = "run it on a machine that has worked with that store"


def _copied_back(settings: Settings, db: PostgresDatabase, path: str) -> Copied:
    with closing(connect(path)) as own:
        if copying.id_of(own) != copying.id_of(db):
            raise StoreError(f"the home of {path} belongs to another store than {db.shown}", OTHER)
        # First nobody else writes there any more; a death from here on is mended by copying again.
        mine = f"{host_name()}:{os.path.abspath(settings.home)}"
        moved = db.execute("SELECT value FROM store WHERE name = 'moved'").fetchone()
        if moved and moved[0] != mine:
            raise StoreError(f"the plans of {db.shown} were copied back to {moved[0]}", OTHER_COPY)
        if not moved:
            with (
                closing(open_store(settings.home, settings.store_url, settings.lease)) as store,
                db.one_commit(),
            ):
                db.execute("LOCK TABLE leases IN EXCLUSIVE MODE").fetchall()
                _require_idle(store)
                copying.note(db, "moved", mine)
        with own.one_commit():
            copying.remove_rows(own)
            copying.copy_rows(db, own)
            rows = copying.compare_rows(db, own)
            own.execute("DELETE FROM store WHERE name = 'url'")
        return Copied(source=db.shown, target=own.shown, rows=rows)


def _require_idle(store: Store) -> None:
    for lease, _ in store.leases.holders():
        if is_alive(store, lease):
            raise PlanBusy(
                f"plan {lease.plan_id} is held by `{lease.verb}` (process {lease.pid} on"
                f" {lease.host})",
                "wait for it: plans are copied when nobody works on them",
            )
