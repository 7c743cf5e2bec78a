"""PostgreSQL databases as resources, against a real server that the tests start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cleveragents.content.packs import Packs
from cleveragents.errors import ToolFailed, UsageError
from cleveragents.model.ids import new_id
from cleveragents.model.resource import Resource
from cleveragents.sandbox.postgres import address, server
from cleveragents.sandbox.postgres.clones import working_name
from cleveragents.sandbox.postgres.script import require_local, require_no_control, split
from cleveragents.sandbox.postgres.snapshot import PostgresSnapshot
from cleveragents.sandbox.protocol import Place
from cleveragents.store import open_store
from cleveragents.testing import making
from tests import pgserver
from tests.harness import Agents, Outcome
from tests.pgserver import PASSWORD, PgServer, Shop
from tests.scratch import wait_until

STRIDE = int(os.environ.get("KILL_STRIDE", "5"))
"""Every how many fault points an apply is killed; 1 tries all of them."""
PLAN = """
name: p
resources: {db: {kind: postgres, url: $DATABASE_URL%s}}
%ssteps:
%s
"""


class Project:
    """A plan over one database, and the command line."""

    def __init__(self, agents: Agents, shop: Shop) -> None:
        self.agents, self.shop = agents, shop
        self.env = {"DATABASE_URL": shop.full_url}
        self.store = Path(agents.env["CLEVERAGENTS_HOME"])
        self.said: list[str] = []

    def plan(self, *steps: str, strategy: str = "", more: str = "") -> None:
        asked = f", strategy: {strategy}" if strategy else ""
        lines = "\n".join(f"  - {{{step}}}" for step in steps)
        (self.agents.work / "plan.yaml").write_text(PLAN % (asked, more, lines))

    def run(self, *argv: str, rc: int = 0, **env: str) -> Outcome:
        done = self.agents.run(*argv, env=self.env | env)
        self.said += [done.stdout, done.stderr]
        return done.expect(rc)

    def data(self, *argv: str, rc: int = 0, **env: str) -> dict[str, Any]:
        return self.run(*argv, "--json", rc=rc, **env).data

    def error(self, *argv: str, rc: int, **env: str) -> str:
        done = self.run(*argv, "--json", rc=rc, **env).data["error"]
        return f"{done['message']} | {done['hint']}"

    def work(self) -> str:
        """The name of the private clone."""
        return str(self.data("plan", "status")["sandboxes"]["db"]).rpartition("/")[2]

    def ours(self) -> list[str]:
        """Databases that we made and that are still there."""
        return self.shop.pg.sandboxes()

    def in_sandbox(self, script: str) -> list[tuple[object, ...]]:
        return self.shop.sql(script, self.work())


@pytest.fixture
def project(agents: Agents, shop: Shop) -> Generator[Project]:
    made = Project(agents, shop)
    yield made
    for name in made.ours():
        shop.pg.sql("postgres", f'DROP DATABASE "{name}" WITH (FORCE)')


ADD = "id: add, tool: sql, with: {script: \"INSERT INTO users (name) VALUES ('eve')\"}"
FAIL = "id: fail, run: 'exit 1'"


def without_password(project: Project) -> None:
    """Neither the store nor anything that was printed has the password."""
    found = subprocess.run(
        ["grep", "-rlaF", PASSWORD, str(project.store)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert not [text for text in project.said if PASSWORD in text]


# from the command line


def test_a_plan_changes_the_clone_is_rolled_back_and_applied(project: Project) -> None:
    shop, before = project.shop, project.shop.dump()
    project.plan(ADD, "id: more, tool: sql, with: {script: CREATE TABLE more (x int)}")
    project.run("plan", "run", "plan.yaml")
    assert shop.dump() == before
    assert project.in_sandbox("SELECT count(*) FROM users") == [(3,)]

    found = {f["path"]: f["status"] for f in project.data("plan", "diff")["files"]}
    assert found == {
        "(schema)": "changed",
        "public.more": "added",
        "public.users": "changed",
        "public.users_id_seq": "changed",
    }
    gone = project.data("plan", "rollback", "last", "first", "--yes")
    assert {c["file"]: c["action"] for c in gone["changes_reverted"]}["public.more"] == "removed"
    assert shop.pg.dump(project.work()) == before
    project.run("plan", "undo", "last")
    assert project.in_sandbox("SELECT count(*) FROM users") == [(3,)]
    wanted = shop.pg.dump(project.work())

    done = project.data("plan", "apply", "last", "--yes")
    swap = {"resource": "db", "files": 4, "commit": None, "mode": "swap", "notes": []}
    assert done["applied"] == [swap | {"control_files": []}]
    assert shop.dump() == wanted
    assert project.data("plan", "apply", "last", "--yes") == done
    assert project.ours() == [project.data("plan", "status")["databases"][0]["kept"]]
    assert project.data("plan", "diff")["files_changed"] == 4
    without_password(project)


def test_a_failed_step_is_rolled_back(project: Project) -> None:
    psql = f"{pgserver.binaries()}/psql"  # a tool sees no /dev/shm
    delete = f"{psql} $AGENTS_SANDBOX_DB -c DELETE\\ FROM\\ users"
    project.plan(ADD, f"id: psql, run: '{delete}; exit 3'")
    done = project.run("plan", "run", "plan.yaml", rc=5)
    assert "exit code 3: DELETE 3" in done.stdout + done.stderr
    assert project.in_sandbox("SELECT count(*) FROM users") == [(3,)]
    project.plan(
        "id: one, tool: sql, with: {script: \"INSERT INTO users (name) VALUES ('x'); SELECT 1/0\"}"
    )
    project.run("plan", "run", "plan.yaml", rc=5)
    assert project.in_sandbox("SELECT count(*) FROM users") == [(2,)], "a script is a transaction"
    without_password(project)


def test_tools_are_told_the_address_and_what_they_say_of_the_password_is_not_kept(
    project: Project,
) -> None:
    project.plan("id: env, run: 'echo $AGENTS_SANDBOX_DB; pwd; exit 1'")
    project.run("plan", "run", "plan.yaml", rc=5)
    said = project.data("plan", "errors")["output"]
    assert f"postgresql://app:***@127.0.0.1:{project.shop.pg.port}/agents_" in said
    assert "/sandboxes/" in said or "/db" in said
    without_password(project)


def test_status_says_the_strategy_and_what_it_costs_and_needs_no_psycopg(
    project: Project, tmp_path: Path
) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    (tmp_path / "psycopg.py").write_text("raise ImportError('not here')\n")
    [cost] = project.data("plan", "status", PYTHONPATH=str(tmp_path))["databases"]
    clones = [n for n in project.ours() if n != project.work()]
    assert cost["strategy"] == "snapshot"
    assert cost["clones"] == len(clones) == 2
    assert cost["clone_bytes"] > 2 * 5_000_000
    assert "roles" in cost["not_captured"][0]
    shown = project.run("plan", "status", PYTHONPATH=str(tmp_path)).stdout
    assert "2 now" in shown
    missing = project.error("plan", "run", "plan.yaml", rc=2, PYTHONPATH=str(tmp_path))
    assert "pip install 'cleveragents[postgres]'" in missing


def test_checkpoints_are_clones_only_when_something_changed(project: Project) -> None:
    project.plan(
        "id: look, tool: sql, with: {script: SELECT * FROM users}",
        ADD,
        'id: again, tool: sql, with: {script: "UPDATE users SET name = name WHERE false"}',
    )
    project.run("plan", "run", "plan.yaml")
    rows = project.data("plan", "checkpoints")["checkpoints"]
    assert len({row["state_hash"] for row in rows}) == 2
    assert len(project.ours()) == 3
    assert sum(row["size_bytes"] > 0 for row in rows) == 2


def test_pruned_groups_and_deleted_plans_leave_no_clone(project: Project) -> None:
    adds = [
        f"id: s{n}, tool: sql, with: {{script: \"INSERT INTO users (name) VALUES ('u{n}')\"}}"
        for n in range(4)
    ]
    project.plan(*adds, more="policy: {max_checkpoints_per_plan: 3}\n")
    project.run("plan", "run", "plan.yaml")
    kept = {row["state_hash"] for row in project.data("plan", "checkpoints")["checkpoints"]}
    clones = len(project.ours()) - 1
    assert clones <= len(kept) + 1 < 5
    stray = f"{project.work()}_{'0' * 24}"
    project.shop.sql(f"CREATE DATABASE {stray}", "postgres")
    project.run("gc")
    assert stray not in project.ours()
    project.run("plan", "rollback", "last", "first", "--yes")
    assert project.shop.pg.dump(project.work()) == project.shop.dump()
    project.run("plan", "resume", "last")
    assert "never applied" in project.error("plan", "delete", "last", rc=4)
    project.run("plan", "delete", "last", "--yes")
    assert project.ours() == []


def test_doctor_finds_what_a_lost_plan_left_and_removes_only_its_own(project: Project) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    sql = project.shop.sql
    mark = sql(
        f"SELECT shobj_description(oid, 'pg_database') FROM pg_database"
        f" WHERE datname = '{project.work()}'"
    )[0][0]
    plan_id = project.data("plan", "status")["plan_id"]
    lost = [f"agents_{new_id().lower()}" for _ in range(4)]
    for name in lost:
        sql(f"CREATE DATABASE {name}", "postgres")
    sql(f"COMMENT ON DATABASE {lost[0]} IS '{mark}'", "postgres")
    sql(f"COMMENT ON DATABASE {lost[1]} IS '{mark}2'", "postgres")
    sql(f"COMMENT ON DATABASE {lost[3]} IS '{mark.replace(plan_id, new_id())}'", "postgres")
    found = {one["name"]: one for one in project.data("doctor")["leftovers"]}
    assert found[lost[0]]["kept_because"] == ""
    assert "another store" in found[lost[1]]["kept_because"]
    assert "does not say" in found[lost[2]]["kept_because"]
    assert "never had its plan" in found[lost[3]]["kept_because"]
    assert found.keys() == set(lost)
    project.run("doctor", "--fix")
    assert not {lost[0]} & set(project.ours())
    assert {*lost[1:], project.work()} <= set(project.ours())


# what is refused


def test_a_database_in_use_is_not_cloned_and_the_error_says_by_whom(project: Project) -> None:
    project.plan(ADD)
    with psycopg.connect(project.shop.full_url, application_name="my shell"):
        said = project.error("plan", "run", "plan.yaml", rc=5)
    assert "my shell" in said
    assert "end these connections" in said
    project.run("plan", "resume", "last")


def test_a_target_that_moved_is_not_swapped_and_the_error_says_what_moved(
    project: Project,
) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    project.shop.sql("CREATE TABLE theirs (x int)")
    before = project.shop.dump()
    said = project.error("plan", "apply", "last", "--yes", rc=4)
    assert "public.theirs" in said
    assert "public.users" not in said
    assert project.shop.dump() == before
    project.shop.sql("DROP TABLE theirs")


def test_a_target_in_use_is_not_swapped(project: Project) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    before = project.shop.dump()
    with psycopg.connect(project.shop.full_url, application_name="my shell") as db:
        said = project.error("plan", "apply", "last", "--yes", rc=4)
        assert "my shell" in said
        assert db.execute("SELECT 1").fetchone() == (1,), "nobody is sent away"
    assert project.shop.dump() == before
    assert project.data("plan", "status")["state"] == "constrained"
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.users() == ["ada", "bob", "eve"]


def test_a_connection_of_ours_that_is_just_being_closed_keeps_no_target(project: Project) -> None:
    """Under load the server ends it a moment later, and the comparison has just had one."""
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    is_waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'agents %'"
        " AND query LIKE 'SELECT 1 FROM pg_stat_activity WHERE datname%'"
    )
    looking = psycopg.connect(project.shop.full_url, application_name=server.LOOKING)
    with looking, ThreadPoolExecutor(1) as beside:
        applied = beside.submit(project.run, "plan", "apply", "last", "--yes")
        wait_until(
            lambda: applied.done() or project.shop.sql(is_waiting, "postgres"), "the apply to wait"
        )
        looking.close()
        applied.result()
    assert project.shop.users() == ["ada", "bob", "eve"]


def test_what_belongs_to_the_database_and_is_not_in_it_stays_with_its_name(
    project: Project,
) -> None:
    pg, shop = project.shop.pg, project.shop
    pg.sql("postgres", "CREATE ROLE reader")
    try:
        shop.sql(f'ALTER DATABASE {shop.name} SET search_path = "$user", public, other')
        shop.sql(f"ALTER DATABASE {shop.name} SET work_mem = '8MB'")
        shop.sql(f"REVOKE CONNECT ON DATABASE {shop.name} FROM PUBLIC")
        shop.sql(f"GRANT CONNECT ON DATABASE {shop.name} TO reader")
        shop.sql(f"ALTER DATABASE {shop.name} CONNECTION LIMIT 7")
        shop.sql(f"COMMENT ON DATABASE {shop.name} IS 'the shop'")
        about = (
            "SELECT (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(datacl) a),"
            " datconnlimit, shobj_description(oid, 'pg_database'),"
            " pg_get_userbyid(datdba), (SELECT array_agg(c ORDER BY c) FROM pg_db_role_setting,"
            " unnest(setconfig) c WHERE setdatabase = pg_database.oid)"
            f" FROM pg_database WHERE datname = '{shop.name}'"
        )
        before = pg.sql("postgres", about)
        project.plan(ADD)
        project.run("plan", "run", "plan.yaml")
        project.run("plan", "apply", "last", "--yes")
        assert pg.sql("postgres", about) == before
        assert shop.sql("SHOW search_path") == [('"$user", public, other',)]
    finally:
        pg.sql("postgres", f"DROP DATABASE {shop.name} WITH (FORCE)")
        pg.sql("postgres", "DROP ROLE reader")


def test_preflight_names_what_the_role_lacks(project: Project) -> None:
    pg, shop = project.shop.pg, project.shop
    pg.sql("postgres", f"CREATE ROLE weak LOGIN PASSWORD '{PASSWORD}'")
    try:
        project.plan(ADD)
        project.env["DATABASE_URL"] = pg.url(shop.name, "weak", PASSWORD)
        said = project.error("plan", "run", "plan.yaml", rc=2)
        assert "ALTER ROLE weak CREATEDB" in said
        project.env["DATABASE_URL"] = pg.url(shop.name, "app", "wr0ng-s3cret")
        said = project.error("plan", "run", "plan.yaml", rc=2)
        assert "~/.pgpass" in said
        assert "wr0ng" not in said
        project.env["DATABASE_URL"] = pg.url("nowhere", "app", PASSWORD)
        assert "nowhere" in project.error("plan", "run", "plan.yaml", rc=2)
        project.env["DATABASE_URL"] = "postgresql://app@127.0.0.1:1/shop"
        assert "is the server running" in project.error("plan", "run", "plan.yaml", rc=2)
    finally:
        pg.sql("postgres", "DROP ROLE weak")


def test_a_password_in_the_plan_file_is_refused_and_not_shown(project: Project) -> None:
    (project.agents.work / "plan.yaml").write_text(
        f"name: p\nresources: {{db: {{kind: postgres, url: '{project.shop.full_url}'}}}}\n"
        f"steps: [{{{ADD}}}]\n"
    )
    assert "contains a password" in project.error("plan", "run", "plan.yaml", rc=2)
    without_password(project)


@pytest.mark.parametrize("how", ["PGPASSWORD", "pgpass", "a variable for the password alone"])
def test_the_password_is_found_again_by_every_command(project: Project, how: str) -> None:
    project.plan(ADD)
    file = project.agents.work / "plan.yaml"
    bare = project.shop.url
    if how == "PGPASSWORD":
        project.env = {"DATABASE_URL": bare, "PGPASSWORD": PASSWORD}
    elif how == "pgpass":
        passfile = Path(project.agents.env["HOME"]) / ".pgpass"
        passfile.write_text(f"127.0.0.1:*:*:app:{PASSWORD}\n")
        passfile.chmod(0o600)
        project.env = {"DATABASE_URL": bare}
    else:
        text = file.read_text().replace(
            "$DATABASE_URL", f"'{bare.replace('app@', 'app:${SECRET}@')}'"
        )
        file.write_text(text)
        project.env = {"SECRET": PASSWORD}
    project.run("plan", "run", "plan.yaml")
    project.run("plan", "rollback", "last", "first", "--yes")
    project.run("plan", "resume", "last")
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.users() == ["ada", "bob", "eve"]
    if how != "pgpass":
        without_password(project)


def test_sql_for_the_server_is_refused(project: Project) -> None:
    project.plan("id: one, tool: sql, with: {script: CREATE ROLE intruder}")
    done = project.run("plan", "run", "plan.yaml", rc=5)
    assert "cannot be rolled back" in done.stdout + done.stderr


def test_a_time_limit_ends_sql_and_read_only_tools_write_nothing(project: Project) -> None:
    project.plan("id: one, tool: sql, timeout: 0.5, with: {script: SELECT pg_sleep(20)}")
    done = project.run("plan", "run", "plan.yaml", rc=5)
    assert "timed out after 0.5 s" in done.stdout + done.stderr
    tools = "tools: {look: {sql: DELETE FROM users, read_only: true}}\n"
    project.plan("id: one, tool: look", more=tools)
    done = project.run("plan", "run", "plan.yaml", rc=5)
    assert "read-only transaction" in done.stdout + done.stderr
    project.plan("id: one, tool: sql, with: {script: BEGIN; DELETE FROM users}")
    done = project.run("plan", "run", "plan.yaml", rc=5)
    assert "does not commit it" in done.stdout + done.stderr
    project.plan(
        'id: one, tool: sql, with: {script: "INSERT INTO users (name) VALUES (%s)", params: [zoe]}'
    )
    project.run("plan", "run", "plan.yaml")
    assert project.in_sandbox("SELECT name FROM users WHERE id = 3") == [("zoe",)]


def test_a_tool_that_drops_the_clone_is_rolled_back(project: Project) -> None:
    psql = f"{pgserver.binaries()}/psql"  # a tool sees no /dev/shm
    project.plan(
        ADD,
        f"id: drop, run: 'U=$AGENTS_SANDBOX_DB; {psql} ${{U%/*}}/postgres -qc"
        ' "DROP DATABASE ${U##*/}"\'',
    )
    done = project.run("plan", "run", "plan.yaml", rc=5)
    assert "is no longer on" in done.stdout + done.stderr
    assert project.in_sandbox("SELECT count(*) FROM users") == [(3,)]
    project.run("plan", "rollback", "last", "first", "--yes")
    assert project.shop.pg.dump(project.work()) == project.shop.dump()


def test_a_lost_clone_is_said_before_anything_moves(project: Project) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    rows = project.data("plan", "checkpoints")["checkpoints"]
    first = project.data("plan", "checkpoint", "show", "last", rows[0]["checkpoint_id"])
    clone = first["checkpoints"][0]["metadata"]["clone"]
    project.shop.sql(f"DROP DATABASE {clone}", "postgres")
    assert clone in project.error("plan", "rollback", "last", "first", "--yes", rc=6)
    assert project.in_sandbox("SELECT count(*) FROM users") == [(3,)]


# with the other verbs


CHILDREN = """
name: p
resources: {db: {kind: postgres, url: $DATABASE_URL, strategy: %s}}
steps:
  - {id: first, tool: sql, with: {script: "INSERT INTO users (name) VALUES ('eve')"}}
  - id: child
    subplan: {steps: [{id: in, tool: sql, with: {script: "UPDATE users SET name = upper(name)"}}]}
"""


@pytest.mark.parametrize("strategy", ["snapshot", "transaction_rollback"])
def test_a_child_plan_works_on_a_state_of_its_own_that_is_merged_back(
    project: Project, strategy: str
) -> None:
    (project.agents.work / "plan.yaml").write_text(CHILDREN % strategy)
    parent = project.data("plan", "run", "plan.yaml")["plan_id"]
    assert project.shop.users() == ["ada", "bob"]
    project.run("plan", "apply", parent, "--yes")
    assert project.shop.users() == ["ADA", "BOB", "EVE"]
    if strategy == "snapshot":
        assert project.ours() == [project.data("plan", "status", parent)["databases"][0]["kept"]]
        back = project.data("plan", "revert-applied", parent)["plan_id"]
        project.run("plan", "apply", back, "--yes")
        assert project.shop.users() == ["ada", "bob"]
    else:
        assert project.ours() == []


def test_two_children_side_by_side_cannot_write_one_database(project: Project) -> None:
    step = "{id: in, tool: sql, with: {script: \"INSERT INTO users (name) VALUES ('x')\"}}"
    children = [f"id: {name}, subplan: {{group: g, steps: [{step}]}}" for name in ("one", "two")]
    project.plan(*children)
    assert "several child plans" in project.error("plan", "run", "plan.yaml", rc=2)


CHANGED_MEANWHILE = """
name: p
resources: {db: {kind: postgres, url: $DATABASE_URL, strategy: %s}}
steps:
  - id: child
    subplan:
      steps:
        - {id: in, tool: sql, with: {script: "UPDATE users SET name = upper(name)"}}
        - {id: wait, tool: sql, with: {script: "SELECT 1 / (SELECT count(*) FROM go)"}, retries: 0}
policy: {on_failure: stop}
"""


def sequence_of(shop: Shop) -> object:
    return shop.sql("SELECT last_value FROM users_id_seq")[0][0]


def test_values_taken_from_a_sequence_stay_taken_and_are_no_conflict(project: Project) -> None:
    """A server that crashed has skipped some by itself, too."""
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    project.shop.sql("SELECT nextval('users_id_seq') FROM generate_series(1, 9)")
    project.run("plan", "apply", "--yes")
    assert project.shop.users() == ["ada", "bob", "eve"]
    assert sequence_of(project.shop) == 11, "9 more than the 2 rows there were"
    project.run("plan", "apply", "--yes")
    assert sequence_of(project.shop) == 11


def test_fewer_values_than_the_plan_took_change_nothing(project: Project) -> None:
    project.plan(ADD, ADD.replace("add", "more").replace("eve", "fay"))
    project.run("plan", "run", "plan.yaml")
    project.shop.sql("SELECT nextval('users_id_seq')")
    project.run("plan", "apply", "--yes")
    assert (project.shop.users(), sequence_of(project.shop)) == (["ada", "bob", "eve", "fay"], 4)


def test_a_sequence_that_somebody_set_back_is_a_conflict(project: Project) -> None:
    project.plan(ADD)
    project.run("plan", "run", "plan.yaml")
    project.shop.sql("SELECT setval('users_id_seq', 1)")
    assert "users_id_seq" in project.error("plan", "apply", "--yes", rc=4)
    assert (project.shop.users(), sequence_of(project.shop)) == (["ada", "bob"], 1)


def test_a_database_changed_while_a_child_worked_is_a_conflict(project: Project) -> None:
    (project.agents.work / "plan.yaml").write_text(CHANGED_MEANWHILE % "snapshot")
    parent = project.data("plan", "run", "plan.yaml", rc=5)["plan_id"]
    found = {p["plan_id"]: p for p in project.data("plan", "list")["plans"]}
    [child] = [p for p in found if p != parent]
    for plan_id, script in (
        (parent, "INSERT INTO users (name) VALUES ('zoe')"),
        (child, "CREATE TABLE go AS SELECT 1 AS x"),
    ):
        at = project.data("plan", "status", plan_id)["sandboxes"]["db"].rpartition("/")[2]
        project.shop.sql(script, at)
    done = project.run("plan", "resume", parent, rc=5)
    assert "db:public.users" in done.stdout + done.stderr


@pytest.mark.parametrize("strategy", ["snapshot", "transaction_rollback"])
def test_one_resource_is_rolled_back_alone_and_a_decision_is_corrected(
    project: Project, strategy: str
) -> None:
    project.plan(ADD, strategy=strategy)
    project.run("plan", "run", "plan.yaml")
    gone = project.data("plan", "rollback", "last", "first", "--only", "db", "--yes")
    assert gone["changes_reverted"]
    assert project.data("plan", "diff")["files"] == []
    project.run("plan", "undo", "last")
    tree = project.data("plan", "tree")["tree"]
    root = tree if isinstance(tree, dict) else tree[0]
    decision = root["children"][0]["decision_id"]
    project.run("plan", "correct", decision, "--mode", "revert", "--guidance", "x", "--yes")
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.users() == ["ada", "bob", "eve"]


# transaction_rollback


def test_statements_are_replayed_and_run_once_on_apply(project: Project) -> None:
    before = project.shop.dump()
    project.plan(
        ADD,
        'id: up, tool: sql, with: {script: "UPDATE users SET name = upper(name); SELECT 1"}',
        "id: see, tool: see",
        strategy="transaction_rollback",
        more="tools: {see: {sql: SELECT name FROM users ORDER BY id, read_only: true}}\n",
    )
    project.run("plan", "run", "plan.yaml")
    assert project.ours() == []
    diff = project.data("plan", "diff")
    assert [f["path"] for f in diff["files"]] == ["statements.sql"]
    assert "UPDATE users SET name = upper(name);  -- 3 rows" in diff["patch"]
    assert "SELECT name FROM users" not in diff["patch"]
    [cost] = project.data("plan", "status")["databases"]
    assert "runs 3 statements" in cost["cost"]
    assert "sequences" in cost["not_captured"][0]
    assert project.shop.users() == ["ada", "bob"]
    project.run("plan", "rollback", "last", "first", "--yes")
    assert project.data("plan", "diff")["files"] == []
    project.run("plan", "resume", "last")
    assert without_setval(project.shop.dump()) == without_setval(before)
    done = project.data("plan", "apply", "last", "--yes")
    assert done["applied"][0]["mode"] == "statements"
    assert project.shop.users() == ["ADA", "BOB", "EVE"]
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.users() == ["ADA", "BOB", "EVE"]
    without_password(project)


def without_setval(dump: str) -> list[str]:
    return [line for line in dump.splitlines() if "setval" not in line]


def test_statements_that_would_do_something_else_are_refused(project: Project) -> None:
    project.plan(
        'id: up, tool: sql, with: {script: "UPDATE users SET name = upper(name)"}',
        strategy="transaction_rollback",
    )
    project.run("plan", "run", "plan.yaml")
    project.shop.sql("INSERT INTO users (name) VALUES ('zoe')")
    said = project.error("plan", "apply", "last", "--yes", rc=4)
    assert "statement 1" in said
    assert project.shop.users() == ["ada", "bob", "zoe"]
    project.shop.sql("DELETE FROM users WHERE name = 'zoe'")
    project.run("plan", "apply", "last", "--yes")
    assert project.shop.users() == ["ADA", "BOB"]


@pytest.mark.parametrize(
    "script", ["DELETE FROM users; COMMIT", "COMMIT", "DO $$BEGIN DELETE FROM users; COMMIT; END$$"]
)
def test_nothing_can_commit_what_is_to_be_rolled_back(project: Project, script: str) -> None:
    project.plan(
        f'id: one, tool: sql, with: {{script: "{script}"}}', strategy="transaction_rollback"
    )
    project.run("plan", "run", "plan.yaml", rc=5)
    assert project.shop.users() == ["ada", "bob"]


def test_transaction_rollback_takes_only_sql(project: Project) -> None:
    project.plan(
        ADD, FAIL, strategy="transaction_rollback", more="validate: [{on: db, run: 'true'}]\n"
    )
    said = project.error("plan", "run", "plan.yaml", rc=2)
    assert "step 'fail'" in said
    assert "validated" in said


def test_what_became_of_a_commit_that_nobody_saw_is_asked_of_the_server(
    project: Project,
) -> None:
    """Killed at each point of apply: the statements ran once or not, and the plan says which."""
    for number in range(2, 200, STRIDE):
        project.shop.sql("TRUNCATE users; INSERT INTO users (name) VALUES ('ada'), ('bob')")
        project.plan(ADD, strategy="transaction_rollback")
        project.run("plan", "run", "plan.yaml")
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        died = project.agents.run("plan", "apply", "last", "--yes", env=project.env | kill)
        if died.rc == 0:
            break
        state = project.data("plan", "status")["state"]
        there = project.shop.users()
        assert there == (["ada", "bob", "eve"] if state == "applied" else ["ada", "bob"]), number
        if state != "applied":
            project.run("plan", "apply", "last", "--yes")
        assert project.shop.users() == ["ada", "bob", "eve"]
    assert number > 5, "no point was reached"


# several databases


@contextmanager
def second_shop(shop: Shop) -> Generator[Shop]:
    with pgserver.shop_on(shop.pg) as other:
        yield other


TWO = """
name: two
resources:
  a: {kind: postgres, url: $A}
  b: {kind: postgres, url: $B, strategy: transaction_rollback}
steps:
  - {id: one, tool: sql, on: a, with: {script: "INSERT INTO users (name) VALUES ('eve')"}}
  - {id: two, tool: sql, on: b, with: {script: "INSERT INTO users (name) VALUES ('eve')"}}
"""


def test_two_databases_are_prepared_and_then_committed(project: Project) -> None:
    """Killed at each point of apply: both have it or neither."""
    with second_shop(project.shop) as other:
        project.env = {"A": project.shop.full_url, "B": other.full_url}
        (project.agents.work / "plan.yaml").write_text(TWO)
        for number in range(9, 100, 2 * STRIDE - 1):
            for one in (project.shop, other):
                one.sql("TRUNCATE users; INSERT INTO users (name) VALUES ('ada')")
            project.run("plan", "run", "plan.yaml")
            kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
            died = project.agents.run("plan", "apply", "last", "--yes", env=project.env | kill)
            if died.rc == 0:
                break
            state = project.data("plan", "status")["state"]
            found = (project.shop.users(), other.users())
            wanted = ["ada", "eve"] if state == "applied" else ["ada"]
            assert found == (wanted, wanted), f"{state} after {died.stderr}"
            if state != "applied":
                project.run("plan", "apply", "last", "--yes")
                assert (project.shop.users(), other.users()) == (["ada", "eve"],) * 2
        assert died.rc == 0
        assert project.shop.pg.sql("postgres", "SELECT * FROM pg_prepared_xacts") == []


def test_two_databases_need_prepared_transactions(agents: Agents) -> None:
    with (
        pgserver.running(max_prepared_transactions="0") as pg,
        pgserver.shop_on(pg) as first,
        pgserver.shop_on(pg) as second,
    ):
        project = Project(agents, first)
        project.env = {"A": first.full_url, "B": second.full_url}
        (agents.work / "plan.yaml").write_text(TWO)
        assert "max_prepared_transactions" in project.error("plan", "run", "plan.yaml", rc=2)


# what a capture sees

SCRIPTS = {
    "insert": "INSERT INTO users (name) VALUES ('x')",
    "update": "UPDATE users SET name = 'x' WHERE id = 1",
    "swap two values": "UPDATE users SET name = CASE id WHEN 1 THEN 'bob' ELSE 'ada' END",
    "delete": "DELETE FROM users WHERE id = 1",
    "truncate": "TRUNCATE users",
    "null for nothing": "UPDATE note SET text = NULL",
    "sequence": "SELECT nextval('users_id_seq')",
    "setval": "SELECT setval('users_id_seq', 2, false)",
    "large object": "SELECT lo_from_bytea(0, 'abc')",
    "large object written": "SELECT lo_put(4711, 1, 'X')",
    "column": "ALTER TABLE users ADD age int",
    "column of an empty table": "ALTER TABLE nothing ADD age int",
    "type": "ALTER TABLE nothing ALTER x TYPE bigint",
    "default": "ALTER TABLE users ALTER name SET DEFAULT 'x'",
    "index": "CREATE INDEX ON users (name)",
    "table": "CREATE TABLE more (x int)",
    "drop": "DROP TABLE nothing",
    "rename": "ALTER TABLE users RENAME TO people",
    "view": "CREATE VIEW names AS SELECT name FROM users",
    "view replaced": "CREATE OR REPLACE VIEW seen AS SELECT 2 AS x",
    "materialized": "REFRESH MATERIALIZED VIEW twice",
    "function": "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "function replaced": "CREATE OR REPLACE FUNCTION g() RETURNS int LANGUAGE sql AS 'SELECT 2'",
    "trigger off": "ALTER TABLE users DISABLE TRIGGER ALL",
    "constraint": "ALTER TABLE users ADD CHECK (name <> '')",
    "schema": "CREATE SCHEMA s",
    "type made": "CREATE TYPE mood AS ENUM ('sad')",
    "enum value": "ALTER TYPE colour ADD VALUE 'green'",
    "domain": "CREATE DOMAIN d AS int CHECK (VALUE > 0)",
    "comment": "COMMENT ON TABLE users IS 'people'",
    "grant": "GRANT SELECT ON users TO PUBLIC",
    "grant on schema": "GRANT CREATE ON SCHEMA public TO PUBLIC",
    "default rights": "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
    "row security": "ALTER TABLE users ENABLE ROW LEVEL SECURITY",
    "unlogged": "INSERT INTO fast VALUES (1)",
    "partition": "INSERT INTO parted VALUES (1)",
    "extension": "CREATE EXTENSION IF NOT EXISTS plpgsql; CREATE RULE r AS ON INSERT TO users"
    " DO ALSO NOTHING",
    "publication": "CREATE STATISTICS st ON id, name FROM users",
    "storage": "ALTER TABLE users SET (fillfactor = 50)",
}
READY = (
    "CREATE TABLE nothing (x int); CREATE TABLE note (text text); INSERT INTO note VALUES ('');"
    "CREATE MATERIALIZED VIEW twice AS SELECT random() AS x; CREATE VIEW seen AS SELECT 1 AS x;"
    "CREATE FUNCTION g() RETURNS int LANGUAGE sql AS 'SELECT 1';"
    "CREATE TYPE colour AS ENUM ('red');"
    "CREATE UNLOGGED TABLE fast (x int); CREATE TABLE parted (x int) PARTITION BY LIST (x);"
    "CREATE TABLE part1 PARTITION OF parted FOR VALUES IN (1); SELECT lo_from_bytea(4711, 'abc');"
    'CREATE TABLE empty (); INSERT INTO empty DEFAULT VALUES; CREATE TABLE "Odd.""Name" (r int);'
    "CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
    "CREATE TRIGGER tr BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION t()"
)
SAME = {
    "reading": "SELECT * FROM users",
    "vacuum": "VACUUM FULL users",
    "analyze": "ANALYZE",
    "taken back": "BEGIN; DELETE FROM users; ROLLBACK",
    "temporary": "CREATE TEMPORARY TABLE mine (x int)",
    "there and back": "UPDATE users SET name = name || 'x'; UPDATE users SET name = left(name, 3)",
}


@pytest.fixture
def sandbox(
    pg: PgServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[tuple[PostgresSnapshot, Packs]]:
    """Of one test: other tests drop every clone on the server, in whatever order they run."""
    folder = tmp_path
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    store = open_store(str(folder / "store"))
    packs = Packs(str(folder), store.objects)
    with pgserver.shop_on(pg) as shop:
        shop.sql(READY)
        plan_id = new_id()
        resource = Resource(
            resource_id=new_id(),
            plan_id=plan_id,
            name="db",
            kind="postgres",
            path=shop.url,
            strategy="snapshot",
        )
        made = PostgresSnapshot(
            Place(
                plan_id=plan_id,
                resource=resource,
                root=str(folder / "root"),
                path="",
                packs=packs,
                cache=str(folder / "cache"),
            )
        )
        made.create(making())
        try:
            yield made, packs
        finally:
            made.remove()
            packs.close()
            store.close()


def clone_of(made: PostgresSnapshot) -> str:
    return working_name(made.place.resource.resource_id)


def changed_by(pg: PgServer, sandbox: tuple[PostgresSnapshot, Packs], script: str) -> bool:
    """Whether a capture sees it, for whoever remembers and for a stranger."""
    made, packs = sandbox
    work = pgserver.Shop(pg, clone_of(made))
    with packs.batch() as batch:
        before = made.capture(batch, None)
        assert made.capture(batch, before).state_hash == before.state_hash
        batch.seal()
        work.sql(script)
        after = made.capture(batch, before)
        stranger = PostgresSnapshot(made.place)
        stranger.doubt()
        assert stranger.capture(batch, None).state_hash == after.state_hash
        if after.state_hash != before.state_hash:
            assert made.changes(before, after)
            made.switch(made.stage(after, before, ""), "")
    return after.state_hash != before.state_hash


def test_no_change_is_missed(
    pg: PgServer, sandbox: tuple[PostgresSnapshot, Packs], subtests: pytest.Subtests
) -> None:
    for name, script in SCRIPTS.items():
        with subtests.test(name):
            assert changed_by(pg, sandbox, script)


def test_what_changes_nothing_is_the_same_state(
    pg: PgServer, sandbox: tuple[PostgresSnapshot, Packs], subtests: pytest.Subtests
) -> None:
    for name, script in SAME.items():
        with subtests.test(name):
            assert not changed_by(pg, sandbox, script)


def test_an_unchanged_database_is_not_read_again(
    pg: PgServer, sandbox: tuple[PostgresSnapshot, Packs]
) -> None:
    made, packs = sandbox
    where = f"WHERE datname = '{clone_of(made)}'"

    def sessions() -> list[tuple[object, ...]]:
        """So far; one that ends is counted before it is gone, and its client does not wait."""
        connected = f"SELECT pid FROM pg_stat_activity {where}"
        wait_until(lambda: not pg.sql("postgres", connected), "nobody is connected")
        return pg.sql("postgres", f"SELECT sessions FROM pg_stat_database {where}")

    with packs.batch() as batch:
        first = made.capture(batch, None)

        def is_known() -> bool:
            """Not while the server gathers statistics, or has not noticed that we are gone."""
            before = sessions()
            for one in (made, PostgresSnapshot(made.place)):
                assert one.capture(batch, first).state_hash == first.state_hash
            return sessions() == before

        wait_until(is_known, "it is not read")
        # A session that stays connected has not reported yet what it did.
        with psycopg.connect(pg.url(clone_of(made), "app", PASSWORD), autocommit=True) as db:
            db.execute("UPDATE note SET text = 'still connected'")
            changed = made.capture(batch, first)
            assert changed.state_hash != first.state_hash
            db.execute("UPDATE note SET text = ''")
            assert made.capture(batch, first).state_hash == first.state_hash


# addresses and scripts


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("postgresql://u:pa#?ss@h:1/db", "postgresql://u@h:1/db"),
        ("postgres://h/db?password=x&sslmode=require", "postgresql://h/db?sslmode=require"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql://u@a:1,b:2/db", "postgresql://u@a:1,b:2/db"),
    ],
)
def test_what_is_stored_of_a_url_has_no_password(url: str, stored: str) -> None:
    found = address.storable(url, "$URL")
    assert address.shown(found) == stored
    assert found == f"{stored}#%24URL"
    secret = address.password_of(found, {"URL": url})
    assert secret == {"postgresql://u:pa#?ss@h:1/db": "pa#?ss"}.get(
        url, "x" if "password=x" in url else ""
    )
    # Another server's password is nobody's here.
    other = address.password_of(found, {"URL": "postgresql://u:other@elsewhere/db"})
    assert other == ""
    assert address.password_of(found, {"PGPASSWORD": "env"}) == "env"


@pytest.mark.parametrize("url", ["mysql://h/db", "postgresql://h", "postgresql://h/", "h/db"])
def test_what_is_no_address_of_a_database_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        address.storable(url, url)


def test_a_password_written_down_is_seen_whatever_it_looks_like() -> None:
    assert address.has_secret("postgresql://u:x@h/db")
    assert address.has_secret("postgresql://h/db?password=x")
    assert not address.has_secret("postgresql://u:$PW@h/db")
    assert not address.has_secret("postgresql://u:${PW}@h/db")
    assert address.has_secret("postgresql://u:$PW-x@h/db")
    assert not address.has_secret("$URL")


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("SELECT 1", 1),
        ("SELECT 1; ; -- no; more\nSELECT 2;", 2),
        ("SELECT ';'; SELECT E'\\';'; SELECT \";\"", 3),
        ("SELECT $$;$$; SELECT $a$;$$;$a$", 2),
        ("/* ; /* ; */ ; */ SELECT 1", 1),
        ("/* open ;", 0),
        (
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; S",
            2,
        ),
        ("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); SELECT 3", 2),
        ("", 0),
    ],
)
def test_scripts_are_taken_apart_where_statements_end(script: str, count: int) -> None:
    assert len(list(split(script))) == count


@pytest.mark.parametrize(
    "script", ["/* x */ DROP\n-- y\nDATABASE d", "alter system set x = 1", "CREATE USER u"]
)
def test_statements_for_the_server_are_seen(script: str) -> None:
    with pytest.raises(ToolFailed):
        require_local(list(split(script)))
    require_local(list(split("CREATE USER MAPPING FOR u SERVER s; CREATE TABLE role (x int)")))


@pytest.mark.parametrize("script", ["SELECT 1; /**/ COMMIT", "end", "Rollback to s", "PREPARE x"])
def test_statements_that_end_a_transaction_are_seen(script: str) -> None:
    with pytest.raises(ToolFailed):
        require_no_control(list(split(script)))


def test_the_tests_use_a_server_of_their_own(pg: PgServer) -> None:
    assert "agents-pg-" in str(pg.data)
    assert shutil.which("postgres", path=str(pg.bin))
    assert sys.platform == "linux"


def test_a_database_that_is_being_vacuumed_is_dropped(project: Project) -> None:
    pg, shop = project.shop.pg, project.shop
    shop.sql("CREATE DATABASE agents_slow", "postgres")
    slowly = "autovacuum_vacuum_threshold = 1, autovacuum_vacuum_cost_delay = 100"
    shop.sql(
        f"CREATE TABLE t (x text) WITH ({slowly}, autovacuum_vacuum_cost_limit = 1);"
        "INSERT INTO t SELECT repeat('x', 500) FROM generate_series(1, 20000); DELETE FROM t",
        "agents_slow",
    )
    working = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = 'agents_slow'"
        " AND backend_type = 'autovacuum worker'"
    )
    wait_until(lambda: pg.sql("postgres", working) == [(1,)], "a vacuum of the table")
    with psycopg.connect(pg.url("postgres", "app", PASSWORD), autocommit=True) as db:
        server.drop(db, "agents_slow")
    assert "agents_slow" not in pg.databases()
