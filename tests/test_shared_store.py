"""A store on PostgreSQL, from the command line: made, shown, refused, used."""

import os
import re
import shutil
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cleveragents.errors import (
    AgentsError,
    ConfigError,
    LeaseLost,
    MachineError,
    PlanBusy,
    StoreError,
)
from cleveragents.lease import hold
from cleveragents.maintenance.shared import copy as shared_copy
from cleveragents.maintenance.shared import copy_back
from cleveragents.model.plan import State
from cleveragents.store import Store, open_store, schema
from cleveragents.store.clock import utc_now
from cleveragents.store.copying import compare_rows, tables
from cleveragents.store.database import connect
from cleveragents.store.pipe import read, written
from cleveragents.store.postgres import PostgresDatabase, translated
from cleveragents.workspace import open_workspace, settings_here
from tests.databases import PASSWORD, Where, query_shared, shared_store
from tests.in_process import Arm, Yard, box, cli, edit, files
from tests.pgserver import PgServer
from tests.schemas import wrong_with
from tests.scratch import wait_until
from tests.test_store import add_plan


@pytest.fixture
def empty(pg: PgServer, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A database without a store."""
    with shared_store(pg, empty=True) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        yield url


def test_a_store_is_made_by_init_and_by_nothing_else(yard: Yard, empty: str) -> None:
    found = cli("store", "status", "--json").data
    assert (found["schema"], found["is_shared"]) == (0, True)
    with pytest.raises(StoreError, match="there is no store at") as refused, open_workspace():
        pass
    assert refused.value.hint == "agents store init"
    made = cli("store", "init", "--json").data
    again = cli("store", "init", "--json").data
    assert made["schema"] == made["needed"] == again["schema"]
    assert made["store_id"] == again["store_id"] != ""
    assert "is ready" in cli("store", "init").stdout
    assert cli("plan", "run", yard.plan()).rc == 0


def test_a_plan_runs_rolls_back_and_is_applied(yard: Yard, on_postgres: str) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        assert files(plan) == {"one.txt", "two.txt"}
        edit(plan, "mine.txt")
        plan.rollback("first")
        assert files(plan) == {"old.txt"}
        plan.undo()
        assert files(plan) == {"one.txt", "two.txt", "mine.txt"}
        assert ws.check(read_data=True).problems == ()
    with open_workspace() as ws:
        plan = ws.find("shop")
        plan.apply()
        assert set(os.listdir(yard.app)) == {"one.txt", "two.txt", "mine.txt"}
        assert ws.gc(grace=0).live > 0
        assert ws.check(read_data=True).problems == ()
        assert box(plan).exists() is False
    local = Where(os.environ["CLEVERAGENTS_HOME"])
    assert local.query("SELECT count(*) FROM plans") == [(0,)]
    assert local.query("SELECT count(*) FROM objects")[0] > (0,)
    assert query_shared(on_postgres, "SELECT count(*) FROM objects") == [(0,)]


def test_nobody_sees_the_password(yard: Yard, on_postgres: str) -> None:
    assert PASSWORD in on_postgres
    cli("plan", "run", yard.plan())
    shown = [
        cli("store", "status").stdout,
        cli("store", "status", "--json").stdout,
        cli("config", "list").stdout,
        cli("config", "get", "store.url").stdout,
    ]
    assert all("127.0.0.1" in text and PASSWORD not in text for text in shown)
    home = Path(os.environ["CLEVERAGENTS_HOME"])
    assert [p for p in home.rglob("*") if p.is_file() and PASSWORD.encode() in p.read_bytes()] == []
    wrong = on_postgres.replace(PASSWORD, "wr0ng-s3cret")
    with pytest.raises(MachineError) as refused:
        cli("plan", "list", "--set", f"store.url={wrong}", "--debug")
    assert "wr0ng-s3cret" not in str(refused.value)
    assert "PGPASSWORD" in refused.value.hint


def test_a_password_is_not_kept_in_a_file(on_postgres: str) -> None:
    with pytest.raises(ConfigError, match="contains a password"):
        cli("config", "set", "store.url", on_postgres, "--debug")
    cli("config", "set", "store.url", "postgresql://agents@db.example/agents?sslmode=verify-full")
    with pytest.raises(ConfigError, match="has to begin with postgresql://"):
        cli("config", "set", "store.url", "mysql://agents@db.example/agents", "--debug")


def test_a_home_belongs_to_one_store(
    yard: Yard, pg: PgServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", yard.plan())
    with shared_store(pg) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        with pytest.raises(StoreError, match="has plans of its own") as refused:
            cli("plan", "list", "--debug")
        assert "agents store copy" in refused.value.hint
        monkeypatch.setenv("CLEVERAGENTS_HOME", str(yard.top / "second"))
        cli("plan", "run", yard.plan())
        monkeypatch.delenv("CLEVERAGENTS_STORE_URL")
        with pytest.raises(StoreError, match=r"are in postgresql://agents@127\.0\.0\.1") as refused:
            cli("plan", "list", "--debug")
        assert "agents config set store.url postgresql://agents@" in refused.value.hint
        with shared_store(pg, empty=True) as another:
            monkeypatch.setenv("CLEVERAGENTS_STORE_URL", another)
            cli("store", "init")
            with pytest.raises(StoreError, match="belongs to another store"):
                cli("plan", "list", "--debug")
            with pytest.raises(StoreError, match="belongs to another store"):
                cli("store", "copy", "--back", "--debug")


def test_a_home_that_never_had_a_plan_joins_a_shared_store(
    yard: Yard, pg: PgServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("plan", "list").rc == 0  # makes a home
    with shared_store(pg) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        assert cli("plan", "run", yard.plan()).rc == 0
        assert "complete" in cli("plan", "list").stdout
        monkeypatch.delenv("CLEVERAGENTS_STORE_URL")
        with pytest.raises(StoreError, match="are in postgresql://"):
            cli("plan", "list", "--debug")


def test_a_store_of_another_version_is_refused_and_migrated(yard: Yard, on_postgres: str) -> None:
    query_shared(on_postgres, "UPDATE store SET value = '7' WHERE name = 'schema'")
    for sql in (
        "DROP SEQUENCE series",
        "DROP INDEX intents_by_plan, leases_by_host, running_calls",
    ):
        query_shared(on_postgres, sql)
    query_shared(on_postgres, "ALTER TABLE leases DROP COLUMN heard_at, DROP COLUMN home")
    with pytest.raises(StoreError, match="has schema 7, and this version needs") as refused:
        cli("plan", "list", "--debug")
    assert refused.value.hint == "agents store migrate"
    assert "agents store migrate" in cli("store", "status").stdout
    assert "schema 7 -> " in cli("store", "migrate").stdout
    assert "already up to date" in cli("store", "migrate").stdout
    cli("plan", "run", yard.plan())
    query_shared(on_postgres, "UPDATE store SET value = '9999' WHERE name = 'schema'")
    for words in (("plan", "list"), ("store", "migrate"), ("store", "init")):
        with pytest.raises(StoreError, match="made by a newer version") as refused:
            cli(*words, "--debug")
        assert refused.value.hint == "upgrade cleveragents"
    kept = query_shared(on_postgres, "SELECT value FROM store WHERE name = 'schema'")
    assert kept == [("9999",)], "an older version took it for its own"
    shown = cli("store", "status").stdout
    assert "upgrade cleveragents" in shown
    assert "plans  " not in shown, "they were not counted"


@pytest.mark.parametrize(
    ("options", "hint"),
    [("?sslmode=require", "TLS"), ("_that_nobody_made", "how database and roles are made")],
)
def test_a_refused_connection_says_what_to_look_at(
    on_postgres: str, monkeypatch: pytest.MonkeyPatch, options: str, hint: str
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_STORE_URL", on_postgres + options)
    with pytest.raises(MachineError, match="cannot connect to the store") as refused:
        cli("plan", "list", "--debug")
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    "text", ["", "plain", "a\0b", "\0", "\U0010ffff", "\U0010ffff0\0", "ü\0\U0010ffff1"]
)
def test_text_with_nul_comes_back_as_it_went_in(text: str) -> None:
    assert "\0" not in written(text)
    assert read(written(text)) == text


def test_what_a_tool_prints_may_have_nul(yard: Yard, on_postgres: str) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, r"steps: [{id: a, run: printf 'a\000b'}]")
        assert plan.tool_calls()[0].output == "a\0b"


def test_a_server_that_is_silent_is_not_waited_for_and_the_url_decides(on_postgres: str) -> None:
    silent = {"tcp_user_timeout": "30000", "target_session_attrs": "primary"}
    own = {"tcp_user_timeout": "7000", "target_session_attrs": "read-write"}
    written = "?" + "&".join(f"{name}={value}" for name, value in own.items())
    for more, expected in (("", silent), (written, own)):
        with closing(PostgresDatabase(on_postgres + more)) as db:
            found = db.connection.info.get_parameters()
        assert {name: found[name] for name in silent} == expected


def test_statements_and_scripts_are_translated() -> None:
    assert (
        translated("SELECT 1 WHERE ? = ? /*pg FOR UPDATE */")
        == b"SELECT 1 WHERE $1 = $2 FOR UPDATE "
    )
    made = schema.translated("CREATE TABLE t (seq INTEGER PRIMARY KEY, x BLOB) WITHOUT ROWID;")
    assert made == (
        "CREATE TABLE t (seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, x BYTEA);"
    )


def test_what_is_said_often_is_understood_once_whatever_fails_meanwhile(on_postgres: str) -> None:
    db = PostgresDatabase(on_postgres)
    asked = "INSERT INTO store (name, value) VALUES (?, 'NUMBER') ON CONFLICT (name) DO NOTHING"

    def say(number: int, missing: bool = False) -> None:
        with db.one_commit(alone=False):
            if missing:
                wanted = "SELECT 1 FROM store WHERE name = ?"
                db.require(wanted, ("never",), LeaseLost("it is not there"))
            db.execute(asked.replace("NUMBER", str(number)), ("x",))

    for number in range(8):  # so many times it is said before the server skips it
        for _ in range(number):
            say(number)
        with pytest.raises(LeaseLost):
            say(number, missing=True)
        for _ in range(8):
            say(number)
    with closing(db):
        assert db.execute(
            "SELECT count(*) > 0 FROM pg_prepared_statements WHERE statement LIKE ?",
            ("INSERT INTO store %",),
        ).fetchone() == (True,)


def test_content_that_is_wanted_again_is_not_collected(yard: Yard, on_postgres: str) -> None:
    """A collection waits for a checkpoint that has found content and not yet committed."""
    with open_workspace() as ws, open_workspace(recover=False) as other:
        plan = ws.run(yard.plan())
        store: Store = ws.ctx.store
        key = next(store.objects.all())[0]
        began: list[bool] = []
        with store.transaction():
            assert store.objects.reuse([key]) == []
            held = os.open(f"{ws.ctx.settings.home}/content.lock", os.O_RDWR)
            with closing(os.fdopen(held)) as file:
                import fcntl

                with pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            began.append(True)
        assert began
        other.gc(grace=0)
        assert plan.plan.head_group_id


def test_a_plan_that_waits_for_a_tool_is_heard_of(yard: Yard, on_postgres: str) -> None:
    where = Where(os.environ["CLEVERAGENTS_HOME"], on_postgres)
    with closing(where.open(lease_time=0.3)) as store:
        plan = add_plan(store)
        with hold(store, plan.plan_id, "plan execute", utc_now) as lease:
            where.query("UPDATE leases SET heard_at = 1000")
            wait_until(lambda: store.leases.silence(lease) < 100, "a heartbeat")
    assert "heartbeat" not in {one.name for one in threading.enumerate()}


def all_rows(where: Where) -> dict[str, list[tuple[object, ...]]]:
    return {
        table: sorted(where.query(f"SELECT * FROM {table}"), key=repr)
        for table in tables()
        if table != "store"
    }


def test_plans_are_copied_there_and_back_and_go_on(
    yard: Yard, pg: PgServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = os.environ["CLEVERAGENTS_HOME"]
    with open_workspace() as ws:
        plan = yard.done(ws, "steps: [{id: a, run: \"printf 'x\\\\000'; touch one\"}]")
        assert "\0" in plan.tool_calls()[0].output
        yard.use(ws, "steps: [{id: a, run: touch one}]")
    before = all_rows(Where(home))
    with shared_store(pg, empty=True) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        answer = cli("store", "copy", "--json").json
        assert not wrong_with(answer, is_closed=True)
        assert answer["data"]["rows"]["plans"] == 2
        shared = Where(home, url)
        with closing(shared.open()) as store:
            output = store.calls.of_plan(plan.plan_id)[0].output
        assert "\0" in output
        assert {t: len(rows) for t, rows in all_rows(shared).items()} == {
            t: len(rows) for t, rows in before.items()
        }
        assert all(not rows for rows in all_rows(Where(home)).values())
        with open_workspace() as ws:
            again = ws.find(plan.plan_id)
            again.rollback("first")
            assert files(again) == {"old.txt"}
            assert ws.run(yard.plan()).plan.state is State.COMPLETE
            assert ws.check(read_data=True).problems == ()
        moved = all_rows(shared)
        assert "3 plans" in cli("store", "copy", "--back").stdout
        with pytest.raises(StoreError, match="were copied back to"):
            cli("plan", "list", "--debug")
        shutil.copytree(home, yard.top / "second")
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("CLEVERAGENTS_HOME", str(yard.top / "second"))
            with pytest.raises(StoreError, match="were copied back to"):  # not to two homes
                cli("store", "copy", "--back", "--debug")
        monkeypatch.delenv("CLEVERAGENTS_STORE_URL")
        after = all_rows(Where(home))
        assert {t: len(rows) for t, rows in after.items()} == {
            t: len(rows) for t, rows in moved.items()
        }
        with open_workspace() as ws:
            ws.find(plan.plan_id).resume()
            assert ws.check(read_data=True).problems == ()
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        cli("store", "copy")
        with open_workspace() as ws:
            assert ws.find(plan.plan_id).plan.state is State.COMPLETE


def test_a_copy_that_died_is_copied_again(
    yard: Yard, pg: PgServer, arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", yard.plan())
    seen: list[str] = []

    def die(name: str) -> None:
        seen.append(name)
        if seen.count("commit") == 4 and name == "commit":
            raise KeyboardInterrupt

    with shared_store(pg, empty=True) as url:
        monkeypatch.setenv("CLEVERAGENTS_STORE_URL", url)
        cli("store", "init")
        arm(die)
        with pytest.raises(KeyboardInterrupt):
            shared_copy(settings_here())
        arm(None)
        home = os.environ["CLEVERAGENTS_HOME"]
        assert Where(home).query("SELECT count(*) FROM plans") == [(1,)]
        cli("store", "copy")
        assert Where(home).query("SELECT count(*) FROM plans") == [(0,)]
        assert "complete" in cli("plan", "list").stdout


def test_a_copy_is_refused_where_it_would_mix_or_interrupt(
    yard: Yard, pg: PgServer, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", yard.plan())
    with pytest.raises(StoreError, match="the plans of the store at"):
        cli("store", "copy", "--debug")
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(yard.top / "second"))
    with pytest.raises(StoreError, match="there is no store at"):
        cli("store", "copy", "--back", "--debug")
    monkeypatch.delenv("CLEVERAGENTS_STORE_URL")
    for way in ([], ["--back"]):
        with pytest.raises(ConfigError, match="names no database"):
            cli("store", "copy", *way, "--debug")
    cli("plan", "run", yard.plan())
    monkeypatch.setenv("CLEVERAGENTS_STORE_URL", on_postgres)
    with pytest.raises(StoreError, match="has plans of another store"):
        cli("store", "copy", "--debug")
    with shared_store(pg) as empty:
        store = open_store(os.environ["CLEVERAGENTS_HOME"])
        with (
            closing(store),
            hold(store, store.plans.ids()[0], "plan run", utc_now),
            pytest.raises(PlanBusy, match="is held by `plan run`"),
        ):
            cli("store", "copy", "--set", f"store.url={empty}", "--debug")
        cli("store", "copy", "--set", f"store.url={empty}")
        damaged = "UPDATE plans SET name = 'another'"
        query_shared(empty, damaged)
        own = connect(f"{os.environ['CLEVERAGENTS_HOME']}/store.db")
        with (
            closing(own),
            closing(PostgresDatabase(empty)) as there,
            pytest.raises(StoreError, match=r"the rows of plans in .* differ"),
        ):
            compare_rows(own, there)


@pytest.mark.parametrize("way", [[], ["--back"]], ids=["there", "back"])
def test_who_is_open_while_plans_are_copied_writes_nothing_where_they_were(
    yard: Yard, on_postgres: str, monkeypatch: pytest.MonkeyPatch, way: list[str]
) -> None:
    if not way:
        monkeypatch.delenv("CLEVERAGENTS_STORE_URL")
    with open_workspace() as ws:
        plan = yard.done(ws)
        cli("store", "copy", *way, "--set", f"store.url={on_postgres}")
        with pytest.raises(AgentsError, match="were copied" if way else "no plan"):
            plan.rollback("first")
        with pytest.raises(StoreError, match="were copied"):
            yard.use(ws, "steps: [{id: a, run: touch one}]")
    there = Where(os.environ["CLEVERAGENTS_HOME"], "" if way else on_postgres)
    assert there.query("SELECT count(*) FROM plans") == [(1,)]
    assert there.query("SELECT count(*) FROM leases WHERE held = 1") == [(0,)]


def test_a_plan_that_is_taken_just_before_the_copy_back_is_not_left_behind(
    yard: Yard, on_postgres: str
) -> None:
    waits = (
        "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
        " AND relation = 'cleveragents.leases'::regclass"
    )
    with open_workspace() as ws:
        plan = yard.done(ws)
        store = ws.ctx.store
        known = store.leases.get(plan.plan_id)
        assert known is not None
        mine = msgspec.structs.replace(known, epoch=known.epoch + 1, held=True)
        said: list[BaseException] = []

        def copy() -> None:
            try:
                copy_back(settings_here())
            except PlanBusy as error:
                said.append(error)

        copying = threading.Thread(target=copy)
        with store.transaction(alone=False):
            store.leases.take(mine, known)
            store.leases.get(plan.plan_id)  # it is taken now
            copying.start()
            wait_until(lambda: query_shared(on_postgres, waits) == [(True,)], "the copy")
        copying.join()
        assert "is held by" in str(said[0])
        with store.transaction(alone=False):
            store.leases.release(mine)
        plan.rollback("first")


RIGHTS = re.findall(
    r"^(GRANT .*?;)$",
    (Path(__file__).parents[1] / "docs" / "cluster.md").read_text(),
    re.MULTILINE | re.DOTALL,
)


def test_a_role_with_the_rights_of_the_page_works_and_changes_no_table(
    yard: Yard, pg: PgServer, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = on_postgres.rpartition("/")[2]
    made = "IF to_regrole('agents_user') IS NULL THEN CREATE ROLE agents_user LOGIN PASSWORD 'pw'"
    pg.sql("postgres", f"DO $$BEGIN {made}; END IF; END$$")
    assert len(RIGHTS) == 4
    pg.sql(name, f"GRANT CONNECT ON DATABASE {name} TO agents_user")
    monkeypatch.setenv("CLEVERAGENTS_STORE_URL", pg.url(name, "agents_user", "pw"))
    with pytest.raises(MachineError, match="the role lacks the rights for that"):
        cli("plan", "list", "--debug")  # and not that there is no store
    for grant in RIGHTS:
        pg.sql(name, grant.replace("DATABASE plans", f"DATABASE {name}"))
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        plan.rollback("first")
        plan.resume()
        plan.apply()
        plan.delete(force=True)
    assert "already up to date" in cli("store", "migrate").stdout
    with pytest.raises(MachineError, match="the role lacks the rights for that") as refused:
        cli("store", "init", "--debug")  # the queue's tables
    assert "the tables' owner" in refused.value.hint
    query_shared(on_postgres, "UPDATE store SET value = '7' WHERE name = 'schema'")
    with pytest.raises(MachineError, match="the role lacks the rights for that"):
        cli("store", "migrate", "--debug")


def test_of_no_decision_none_is_superseded(where: Where) -> None:
    with closing(where.open()) as store:
        assert store.plans.superseded(set()) == set()
