"""What was applied to a PostgreSQL database is taken back from the state kept on its server."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cleveragents.apply.database_backups import Held, surplus
from cleveragents.lease import (
    hold,
)
from cleveragents.model.resource import BackupState
from cleveragents.workspace import open_workspace
from tests import pgserver
from tests.harness import Agents
from tests.pgserver import Shop
from tests.scratch import git, make_repository, query, snapshot, without
from tests.test_postgres import ADD, STRIDE, Project, without_password

UPPER = 'id: up, tool: sql, with: {script: "UPDATE users SET name = upper(name)"}'
LONGER = "id: more, tool: sql, with: {script: \"UPDATE users SET name = name || 'x'\"}"
TABLE = "id: more, tool: sql, with: {script: CREATE TABLE more (x int)}"


@pytest.fixture
def project(agents: Agents, shop: Shop) -> Generator[Project]:
    made = Project(agents, shop)
    yield made
    clear(made)


def clear(project: Project) -> None:
    for name in project.ours():
        project.shop.pg.sql("postgres", f'DROP DATABASE "{name}" WITH (FORCE)')


def applied(project: Project, *steps: str, **env: str) -> str:
    """Run and apply; the plan's id."""
    project.plan(*(steps or (ADD, TABLE)))
    plan_id = project.data("plan", "run", "plan.yaml")["plan_id"]
    project.run("plan", "apply", plan_id, "--yes", **env)
    return plan_id


def kept(project: Project) -> list[str]:
    return sorted(one["name"] for one in project.data("doctor")["databases"])


def about(project: Project) -> list[tuple[object, ...]]:
    """What belongs to the database and is not in it."""
    return project.shop.pg.sql(
        "postgres",
        "SELECT datname, datacl::text, datconnlimit, datallowconn, pg_get_userbyid(datdba),"
        " shobj_description(oid, 'pg_database'), (SELECT array_agg(c ORDER BY c)"
        " FROM pg_db_role_setting, unnest(setconfig) c WHERE setdatabase = pg_database.oid)"
        f" FROM pg_database WHERE datname = '{project.shop.name}'",
    )


def test_a_plan_is_reverted_looked_at_applied_and_reverted_again(project: Project) -> None:
    shop = project.shop
    shop.sql(f"COMMENT ON DATABASE {shop.name} IS 'the shop'")
    shop.sql(f"ALTER DATABASE {shop.name} SET work_mem = '8MB'")
    before, around = shop.dump(), about(project)
    first = applied(project)
    after = shop.dump()
    assert after != before

    made = project.data("plan", "revert-applied", first)
    assert made["reverts"] == first
    assert (made["phase"], made["state"]) == ("execute", "complete")
    assert shop.dump() == after, "nothing is real before it is applied"
    assert shop.pg.dump(project.work()) == before
    found = {f["path"]: f["status"] for f in project.data("plan", "diff")["files"]}
    assert found["public.more"] == "removed"
    assert found["public.users"] == "changed"
    project.run("plan", "apply", made["plan_id"], "--yes")
    assert shop.dump() == before
    assert about(project) == around
    again = project.data("plan", "revert-applied", made["plan_id"])["plan_id"]
    project.run("plan", "apply", again, "--yes")
    assert shop.dump() == after
    assert about(project) == around
    assert project.ours() == kept(project)
    assert len(project.ours()) == 1
    without_password(project)


def test_what_is_kept_is_said_by_apply_status_du_and_doctor(project: Project) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    done = project.run("plan", "apply", "last", "--yes", "--json").json
    [name] = project.ours()
    [message] = [text for text in done["messages"] if name in text]
    assert f"agents plan revert-applied {done['data']['plan_id']}" in message
    [cost] = project.data("plan", "status")["databases"]
    size = project.shop.pg.sql("postgres", f"SELECT pg_database_size('{name}')")[0][0]
    assert (cost["kept"], cost["kept_bytes"], cost["clones"]) == (name, size, 0)
    assert name in project.run("plan", "status").stdout
    for command in ("du", "doctor"):
        [held] = project.data(command)["databases"]
        assert (held["name"], held["bytes"], held["where"]) == (name, size, project.shop.url)
        assert name in project.run(command).stdout
    [(comment, open_to)] = project.shop.pg.sql(
        "postgres",
        "SELECT shobj_description(oid, 'pg_database'), datallowconn FROM pg_database"
        f" WHERE datname = '{name}'",
    )
    assert str(comment).startswith("cleveragents: state before the apply of plan ")
    assert open_to is False
    assert project.data("doctor", "--fix")["leftovers"] == []
    project.run("gc", "--grace", "0s")
    assert project.ours() == [name]


def test_a_database_that_moved_since_is_a_conflict_that_names_what_moved(project: Project) -> None:
    shop = project.shop
    first = applied(project)
    shop.sql("INSERT INTO more VALUES (7); CREATE TABLE theirs (x int)")
    before = shop.dump()
    made = project.data("plan", "revert-applied", first, rc=5)
    assert made["state"] == "errored"
    for path in ("db:public.more", "db:public.theirs", "db:(schema)"):
        assert path in made["error"]["message"]
    assert "db:public.users" not in made["error"]["message"]
    assert project.data("plan", "diff", made["plan_id"])["files"] == []
    assert shop.dump() == before
    refused = project.error("plan", "apply", made["plan_id"], "--yes", rc=4)
    assert "errored" in refused or "execute" in refused
    assert shop.dump() == before
    assert kept(project), "what could not be used stays"
    shop.sql("DROP TABLE theirs; DELETE FROM more")
    again = project.data("plan", "revert-applied", first)["plan_id"]
    project.run("plan", "apply", again, "--yes")
    assert shop.users() == ["ada", "bob"]


def test_a_conflict_is_resolved_in_the_sandbox(project: Project) -> None:
    shop = project.shop
    first = applied(project)
    shop.sql("CREATE TABLE theirs AS SELECT 1 AS x")
    project.data("plan", "revert-applied", first, rc=5)
    project.in_sandbox("DROP TABLE more; DELETE FROM users WHERE name = 'eve'")
    project.run("plan", "resume", "last")
    project.run("plan", "apply", "last", "--yes")
    assert shop.users() == ["ada", "bob"]
    assert shop.sql("SELECT x FROM theirs") == [(1,)]
    assert shop.sql("SELECT to_regclass('more')") == [(None,)]


def test_a_target_that_moves_after_the_reversal_was_made_is_not_swapped(project: Project) -> None:
    first = applied(project)
    project.run("plan", "revert-applied", first)
    project.shop.sql("INSERT INTO users (name) VALUES ('zoe')")
    said = project.error("plan", "apply", "last", "--yes", rc=4)
    assert "public.users" in said
    assert project.shop.users() == ["ada", "bob", "eve", "zoe"]


def test_a_kept_database_that_is_gone_is_said_before_anything_happens(project: Project) -> None:
    first = applied(project)
    [name] = kept(project)
    project.shop.sql(f"DROP DATABASE {name}", "postgres")
    said = project.error("plan", "revert-applied", first, rc=4)
    assert f"'{name}'" in said
    assert "is no longer on postgresql://app@" in said
    assert [p["plan_id"] for p in project.data("plan", "list")["plans"]] == [first]
    assert project.ours() == []
    assert project.data("doctor")["databases"][0]["state"] == "gone"
    assert "is not there" in project.run("doctor").stdout
    nowhere = project.data("doctor", DATABASE_URL="", PGPASSWORD="wrong")["databases"]
    assert nowhere[0]["state"] == "kept", "what cannot be looked at is as it was noted"
    project.run("plan", "delete", first)


def test_a_kept_database_that_was_changed_is_not_used(project: Project) -> None:
    app = project.agents.work / "app"
    app.mkdir()
    (app / "a").write_text("a\n")
    make_repository(project.agents, app)
    (project.agents.work / "plan.yaml").write_text(
        "name: p\nresources:\n  app: {kind: git-checkout, path: app}\n"
        "  db: {kind: postgres, url: $DATABASE_URL}\n"
        f"steps:\n  - {{id: git, on: app, run: 'echo b > a'}}\n  - {{{ADD}, on: db}}\n"
    )
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    [name] = kept(project)
    project.shop.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true", "postgres")
    project.shop.sql("DELETE FROM users", name)
    said = project.error("plan", "revert-applied", "last", rc=6)
    assert f"'{name}' was changed" in said
    assert project.data("plan", "diff", "last")["files"] == [], "the repository did not go alone"


def test_plan_delete_drops_what_was_kept_and_says_so(project: Project) -> None:
    first = applied(project)
    [name] = kept(project)
    done = project.run("plan", "delete", first, "--json").json
    assert [one["name"] for one in done["data"]["databases"]] == [name]
    assert name in done["messages"][0]
    assert project.ours() == []
    assert project.shop.users() == ["ada", "bob", "eve"]


@pytest.mark.parametrize("command", ["gc", "plan prune"])
def test_what_is_kept_goes_when_asked_for_and_the_reason_is_remembered(
    project: Project, command: str
) -> None:
    first = applied(project)
    argv = [*command.split(), *([first] if command == "plan prune" else [])]
    project.run(*argv)
    assert len(kept(project)) == 1, "never without being asked"
    would = project.run(*argv, "--databases", "--dry-run", "--json").json
    assert "this drops agents_" in would["messages"][0]
    assert "can then no longer be reverted" in would["messages"][0]
    assert project.ours() == kept(project)
    done = project.run(*argv, "--databases", "--json").json
    assert "dropped agents_" in done["messages"][0]
    assert f"'p' {first} can no longer be reverted" in done["messages"][0]
    assert [(one["resource"], one["state"]) for one in done["data"]["databases"]] == [
        ("db", "gone")
    ]
    assert project.ours() == kept(project) == []
    said = project.error("plan", "revert-applied", first, rc=4)
    assert f"was released, by agents {command} --databases" in said
    assert project.data("plan", "status", first)["databases"][0]["kept"] == ""
    assert project.run(*argv, "--databases", "--json").json["messages"] == []


def test_the_next_apply_lets_the_older_state_go_and_says_so_before_and_after(
    project: Project,
) -> None:
    first = applied(project)
    [old] = kept(project)
    project.plan(UPPER)
    second = project.data("plan", "run", "plan.yaml")["plan_id"]
    would = project.run("plan", "apply", second, "--dry-run", "--json").json["messages"]
    assert any(first in text and old in text for text in would)
    assert kept(project) == [old]
    assert f"this drops {old}" in project.error("plan", "apply", second, rc=4), "it asks"
    told = project.run("plan", "apply", second, "--yes", "--json").json["messages"]
    assert any(first in text and "postgres.keep-applied is 1" in text for text in told)
    assert kept(project) == project.ours() != [old]
    said = project.error("plan", "revert-applied", first, rc=4)
    assert f"when plan {second} was applied" in said
    third = project.data("plan", "revert-applied", second)["plan_id"]
    project.run("plan", "apply", third, "--yes")
    assert project.shop.users() == ["ada", "bob", "eve"]
    told = project.run("plan", "apply", second, "--yes", "--json").json["messages"]
    assert any(f"was released, when plan {third} was applied" in text for text in told)


def test_with_more_kept_one_plan_after_the_other_is_reverted(project: Project) -> None:
    project.env["CLEVERAGENTS_POSTGRES_KEEP_APPLIED"] = "4"
    states = [project.shop.dump()]
    plans: list[str] = []
    for step in (ADD, UPPER):
        plans.append(applied(project, step))
        states.append(project.shop.dump())
    assert len(kept(project)) == 2
    out_of_turn = project.data("plan", "revert-applied", plans[0], rc=5)
    assert "db:public.users" in out_of_turn["error"]["message"]
    project.run("plan", "delete", out_of_turn["plan_id"], "--yes")
    for plan_id, wanted in zip(reversed(plans), reversed(states[:-1]), strict=True):
        made = project.data("plan", "revert-applied", plan_id)["plan_id"]
        project.run("plan", "apply", made, "--yes")
        assert project.shop.dump() == wanted
    assert len(kept(project)) == len(project.ours()) == 4


def test_nothing_is_kept_if_the_setting_says_so(project: Project) -> None:
    project.env["CLEVERAGENTS_POSTGRES_KEEP_APPLIED"] = "0"
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    told = project.run("plan", "apply", "last", "--yes", "--json").json["messages"]
    assert "no backup of database" in told[0]
    assert project.ours() == []
    assert "postgres.keep-applied" in project.error("plan", "revert-applied", "last", rc=4)


def test_nothing_is_kept_of_a_plan_that_cannot_be_reverted(project: Project) -> None:
    project.plan(ADD, more="policy: {rollback_enabled: false}\n")
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    assert project.ours() == []
    assert "rollback_enabled" in project.error("plan", "revert-applied", "last", rc=4)


def test_sandboxes_that_stay_after_apply_are_enough(project: Project) -> None:
    before = project.shop.dump()
    first = applied(project, CLEVERAGENTS_SANDBOX_CLEANUP="manual")
    assert kept(project) == []
    assert len(project.ours()) > 1
    project.run("plan", "revert-applied", first)
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.dump() == before
    project.run("plan", "delete", first)
    assert project.ours() == kept(project)


def test_statements_on_the_database_itself_cannot_be_rolled_back(project: Project) -> None:
    project.plan(ADD, strategy="transaction_rollback")
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    said = project.error("plan", "revert-applied", "last", rc=4)
    assert "no backup was made" in said
    assert len(project.data("plan", "list")["plans"]) == 1


def test_a_database_that_the_plan_did_not_change_is_left_alone(project: Project) -> None:
    (project.agents.work / "plan.yaml").write_text(
        "name: p\nresources:\n  data: {kind: fs-directory, path: data}\n"
        "  db: {kind: postgres, url: $DATABASE_URL}\n"
        "steps:\n  - {id: dir, on: data, run: 'echo b > a'}\n"
    )
    data = project.agents.work / "data"
    data.mkdir()
    (data / "a").write_text("a\n")
    others = project.ours()
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    assert project.ours() == others
    project.shop.sql("INSERT INTO users (name) VALUES ('zoe')")
    made = project.data("plan", "revert-applied", "last")
    assert set(made["sandboxes"]) == {"data"}
    project.run("plan", "apply", "last", "--yes")
    assert (data / "a").read_text() == "a\n"
    assert project.shop.users() == ["ada", "bob", "zoe"]
    project.plan("id: look, tool: sql, with: {script: SELECT 1}")
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    assert "changed nothing" in project.error("plan", "revert-applied", "last", rc=4)


# what cannot be dropped now


@contextmanager
def owned_by_another(project: Project, name: str) -> Generator[None]:
    """The role may not drop it meanwhile."""
    project.shop.pg.sql("postgres", f"ALTER DATABASE {name} OWNER TO postgres")
    try:
        yield
    finally:
        project.shop.pg.sql("postgres", f"ALTER DATABASE {name} OWNER TO app")


def test_what_cannot_be_dropped_now_is_dropped_by_the_next_gc(project: Project) -> None:
    first = applied(project)
    [name] = kept(project)
    with owned_by_another(project, name):
        project.plan(UPPER)
        project.run("plan", "run", "plan.yaml")
        told = project.run("plan", "apply", "last", "--yes", "--json").json["messages"]
        assert any("agents gc retries" in text for text in told)
        assert name in project.ours()
        assert name not in kept(project)
        assert "was released" in project.error("plan", "revert-applied", first, rc=4)
        left = project.data("doctor")["leftovers"]
        assert [one["name"] for one in left] == [name]
        assert left[0]["kept_because"] == ""
    project.run("gc")
    assert project.ours() == kept(project)
    assert project.data("doctor")["leftovers"] == []


def test_an_apply_that_cannot_tidy_up_is_applied_anyway(project: Project) -> None:
    before = project.shop.dump()
    project.plan(ADD, LONGER)
    project.run("plan", "run", "plan.yaml")
    rows = project.data("plan", "checkpoints")["checkpoints"]
    between = next(
        r for r in rows if r["state_hash"] not in (rows[0]["state_hash"], rows[-1]["state_hash"])
    )
    shown = project.data("plan", "checkpoint", "show", "last", between["checkpoint_id"])
    with owned_by_another(project, shown["checkpoints"][0]["metadata"]["clone"]):
        said = project.run("plan", "apply", "last", "--yes", "--json").json["messages"]
        assert any("is applied" in text and "must be owner" in text for text in said), said
        assert project.data("plan", "status")["state"] == "applied"
    project.run("plan", "list")
    assert project.ours() == kept(project)
    project.run("plan", "revert-applied", "last")
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.dump() == before


def test_doctor_removes_what_a_removed_sandbox_left(project: Project) -> None:
    applied(project)
    [name] = kept(project)
    [(mark,)] = project.shop.sql(
        f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = '{name}'"
    )
    stray = name[:33] + "_" + "0" * 24
    project.shop.sql(f"CREATE DATABASE {stray}", "postgres")
    project.shop.sql(f"COMMENT ON DATABASE {stray} IS '{mark}'", "postgres")
    assert [one["name"] for one in project.data("doctor")["leftovers"]] == [stray]
    project.run("doctor", "--fix")
    assert project.ours() == kept(project) == [name]


def test_a_busy_plan_keeps_its_state(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first = applied(project)
    for name, value in (project.agents.env | project.env).items():
        monkeypatch.setenv(name, value)
    with open_workspace() as ws, hold(ws.ctx.store, first, "a test", ws.ctx.now):
        done = project.run("gc", "--databases", "--json").json
        assert "is busy" in done["messages"][0]
        assert done["data"]["databases"][0]["state"] == "kept"
    assert project.ours() == kept(project)
    assert len(kept(project)) == 1


def test_the_last_applied_stay() -> None:
    def one(where: str, at: str) -> Held:
        return Held(
            plan_id=where + at,
            plan="",
            resource="db",
            where=where,
            name="",
            bytes=0,
            state=BackupState.KEPT,
            by="",
            applied_at="",
            applied_as=int(at),
        )

    found = [one("x", "2"), one("y", "1"), one("x", "3"), one("x", "1")]
    assert [item.plan_id for item in surplus(found, 1)] == ["x2", "x1"]
    assert [item.plan_id for item in surplus(found, 2)] == ["x1"]
    assert len(surplus(found, 0)) == 4


# together with others


FOUR = """
name: four
resources:
  app: {kind: git-checkout, path: app}
  data: {kind: fs-directory, path: data}
  lite: {kind: sqlite, path: lite.db}
  db: {kind: postgres, url: $DATABASE_URL}
steps:
  - {id: git, on: app, run: "echo new > new.txt; echo changed >> README"}
  - {id: dir, on: data, run: "rm old; mkdir -p deep; echo x > deep/file"}
  - {id: lite, tool: sql, on: lite, with: {script: "INSERT INTO t VALUES (3)"}}
  - {id: pg, tool: sql, on: db, with: {script: "INSERT INTO users (name) VALUES ('eve')"}}
"""


def make_four(project: Project) -> None:
    top = project.agents.work
    for name, file in (("app", "README"), ("data", "old")):
        (top / name).mkdir()
        (top / name / file).write_text("first\n")
    make_repository(project.agents, top / "app")
    query(top / "lite.db", "CREATE TABLE t (x)")
    query(top / "lite.db", "INSERT INTO t VALUES (1), (2)")
    (top / "plan.yaml").write_text(FOUR)


def seen(project: Project) -> dict[str, Any]:
    top: Path = project.agents.work
    return {
        "app": without(snapshot(top / "app"), b".git"),
        "data": snapshot(top / "data"),
        "lite": query(top / "lite.db", "SELECT x FROM t ORDER BY x"),
        "db": project.shop.dump(),
    }


def test_four_resources_are_reverted_as_a_whole(project: Project) -> None:
    make_four(project)
    before = seen(project)
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    after = seen(project)
    assert all(after[name] != before[name] for name in before)
    (project.agents.work / "app" / "mine").write_text("mine\n")
    project.run("plan", "revert-applied", "last")
    project.run("plan", "apply", "last", "--yes", "--as", "changes")
    (project.agents.work / "app" / "mine").unlink()
    assert seen(project) == before


def test_one_conflict_stops_all_four(project: Project) -> None:
    make_four(project)
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    project.shop.sql("UPDATE users SET name = 'ann' WHERE id = 1")
    after = seen(project)
    made = project.data("plan", "revert-applied", "last", rc=5)
    assert "db:public.users" in made["error"]["message"]
    assert project.data("plan", "diff", "last")["files"] == []
    assert seen(project) == after


TWO = """
name: two
resources:
  a: {kind: postgres, url: $A}
  b: {kind: postgres, url: $B}
steps:
  - {id: one, tool: sql, on: a, with: {script: "INSERT INTO users (name) VALUES ('eve')"}}
  - {id: two, tool: sql, on: b, with: {script: "DROP TABLE users"}}
"""


def test_two_databases_are_reverted_together(project: Project) -> None:
    with pgserver.shop_on(project.shop.pg) as other:
        project.env = {"A": project.shop.full_url, "B": other.full_url}
        (project.agents.work / "plan.yaml").write_text(TWO)
        before = (project.shop.dump(), other.dump())
        first = project.data("plan", "run", "plan.yaml")["plan_id"]
        project.run("plan", "apply", "last", "--yes")
        assert kept(project) == project.ours()
        assert len(kept(project)) == 2
        other.sql("CREATE TABLE theirs (x int)")
        made = project.data("plan", "revert-applied", first, rc=5)
        assert "b:public.theirs" in made["error"]["message"]
        assert "a:" not in made["error"]["message"]
        assert project.data("plan", "diff", "last")["files"] == []
        other.sql("DROP TABLE theirs")
        project.run("plan", "revert-applied", first)
        project.run("plan", "apply", "last", "--yes")
        assert (project.shop.dump(), other.dump()) == before


# killed


def settled(project: Project) -> None:
    """Every database of ours is promised or in use, and nothing is left over."""
    assert project.data("doctor")["leftovers"] == []
    plans = project.data("plan", "list")["plans"]
    if all(plan["state"] == "applied" for plan in plans):
        assert project.ours() == kept(project)


def test_an_apply_killed_anywhere_keeps_what_it_promises(project: Project) -> None:
    before = project.shop.dump()
    reached = 0
    for number in range(2, 200, 2 * STRIDE - 1):
        project.plan(ADD)
        plan_id = project.data("plan", "run", "plan.yaml")["plan_id"]
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        died = project.agents.run("plan", "apply", plan_id, "--yes", env=project.env | kill)
        if project.data("plan", "status", plan_id)["state"] != "applied":
            assert project.shop.dump() == before, number
            project.run("plan", "apply", plan_id, "--yes")
        settled(project)
        assert project.shop.users() == ["ada", "bob", "eve"], number
        assert len(kept(project)) == 1
        back = project.data("plan", "revert-applied", plan_id)["plan_id"]
        project.run("plan", "apply", back, "--yes")
        assert project.shop.dump() == before, number
        if died.rc == 0:
            break
        reached += 1
    assert died.rc == 0
    assert reached >= 3


def test_a_reversal_killed_anywhere_is_there_or_not(project: Project) -> None:
    """Killed while it is made and while it is applied."""
    before = project.shop.dump()
    first = applied(project)
    after = project.shop.dump()
    reached = 0
    for number in range(10, 400, STRIDE):
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        died = project.agents.run("plan", "revert-applied", first, env=project.env | kill)
        assert project.shop.dump() == after, number
        if died.rc == 0:
            break
        made = project.data("plan", "status", "last")
        if made["plan_id"] == first:
            continue
        if (made["phase"], made["state"]) != ("execute", "complete"):
            project.run("plan", "resume", "last")
        assert project.shop.pg.dump(project.work()) == before, number
        settled(project)
        project.run("plan", "delete", "last", "--yes")
        reached += 1
    assert died.rc == 0
    assert reached >= 3
    for number in range(3, 200, STRIDE):
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        died = project.agents.run("plan", "apply", "last", "--yes", env=project.env | kill)
        state = project.data("plan", "status", "last")["state"]
        assert project.shop.dump() == (before if state == "applied" else after), number
        settled(project)
        if state == "applied":
            break
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.dump() == before
    settled(project)


def test_a_reversal_of_four_killed_anywhere_is_all_or_nothing(project: Project) -> None:
    make_four(project)
    before = seen(project)
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "apply", "last", "--yes")
    after = seen(project)
    project.run("plan", "revert-applied", "last")
    killed = 0
    for number in range(4, 400, STRIDE):
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        died = project.agents.run("plan", "apply", "last", "--yes", env=project.env | kill)
        state = project.data("plan", "status", "last")["state"]
        assert seen(project) == (before if state == "applied" else after), number
        settled(project)
        if state == "applied":
            break
        killed += died.rc != 0
    assert state == "applied"
    assert killed > 3
    assert seen(project) == before


def test_a_release_killed_anywhere_is_finished_by_the_next(project: Project) -> None:
    first = applied(project)
    for number in range(1, 40):
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        argv = ("plan", "prune", first, "--databases")
        died = project.agents.run(*argv, env=project.env | kill)
        there, promised = project.ours(), kept(project)
        if promised:
            assert there == promised, number
        else:
            assert "was released" in project.error("plan", "revert-applied", first, rc=4)
            project.run("gc")
            assert project.ours() == []
            project.run("plan", "delete", first)
            first = applied(project, LONGER)
        if died.rc == 0:
            break
    assert died.rc == 0
    assert number > 2


def test_the_repository_log_names_what_was_reverted(project: Project) -> None:
    make_four(project)
    first = project.data("plan", "run", "plan.yaml")["plan_id"]
    project.run("plan", "apply", "last", "--yes")
    project.run("plan", "revert-applied", "last")
    project.run("plan", "apply", "last", "--yes")
    log = git(project.agents, project.agents.work / "app", "log", "-1", "--format=%B")
    assert f"Reverts plan {first}." in log
    assert os.path.exists(project.agents.work / "data" / "old")
