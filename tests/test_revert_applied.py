"""What was applied can be taken back, by a plan that one looks at first."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository, query, snapshot, without

PLAN = """
name: shop
resources:
  app: {kind: git-checkout, path: app}
  data: {kind: fs-directory, path: data}
  db: {kind: sqlite, path: shop.db}
steps:
  - {id: code, on: app, run: "sed -i s/two/TWO/ code.txt; rm old.txt; mkdir -p new; echo n > new/n"}
  - {id: data, on: data, run: "echo changed > a; mv b c; chmod 700 ."}
  - {id: rows, on: db, tool: sql, with: {script: "UPDATE t SET x = x + 1"}}
"""
LINES = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def make_targets(agents: Agents) -> Path:
    app, data = agents.work / "app", agents.work / "data"
    for folder in (app, data):
        folder.mkdir()
    (app / "code.txt").write_text(LINES)
    (app / "old.txt").write_text("old\n")
    (data / "a").write_text("a\n")
    (data / "b").write_text("b\n")
    make_repository(agents, app)
    query(agents.work / "shop.db", "CREATE TABLE t (x)")
    query(agents.work / "shop.db", "INSERT INTO t VALUES (1), (2)")
    (agents.work / "plan.yaml").write_text(PLAN)
    return app


def rows(agents: Agents) -> list[Any]:
    return query(agents.work / "shop.db", "SELECT x FROM t ORDER BY x")


def run_and_apply(agents: Agents, *options: str) -> dict[str, Any]:
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    agents.run("plan", "apply", ran["plan_id"], "--yes", *options).expect(0)
    return ran


def test_all_three_targets_are_reverted_and_so_can_be_the_reversal(agents: Agents) -> None:
    app = make_targets(agents)
    before = (without(snapshot(app), b".git"), snapshot(agents.work / "data"), rows(agents))
    ran = run_and_apply(agents)
    after = (without(snapshot(app), b".git"), snapshot(agents.work / "data"), rows(agents))
    made = agents.run("plan", "revert-applied", "shop", "--json").expect(0).data
    assert made["reverts"] == ran["plan_id"] != made["plan_id"]
    assert (made["phase"], made["state"]) == ("execute", "complete")
    assert (without(snapshot(app), b".git"), snapshot(agents.work / "data"), rows(agents)) == after
    shown = agents.run("plan", "diff", made["plan_id"], "--json").expect(0).data
    assert {f["path"] for f in shown["files"]} >= {"code.txt", "old.txt", "new/n", "a", "shop.db"}
    agents.run("plan", "apply", made["plan_id"], "--yes").expect(0)
    assert (without(snapshot(app), b".git"), snapshot(agents.work / "data"), rows(agents)) == before
    log = git(agents, app, "log", "-1", "--format=%B")
    assert log.startswith('Revert "shop"\n\nReverts plan ' + ran["plan_id"])
    again = agents.run("plan", "revert-applied", made["plan_id"], "--json").expect(0).data
    agents.run("plan", "apply", again["plan_id"], "--yes").expect(0)
    assert (without(snapshot(app), b".git"), snapshot(agents.work / "data"), rows(agents)) == after


def test_a_second_reversal_says_who_did_the_first(agents: Agents) -> None:
    make_targets(agents)
    ran = run_and_apply(agents)
    made = agents.run("plan", "revert-applied", "shop", "--json").expect(0).data["plan_id"]
    agents.run("plan", "apply", made, "--yes").expect(0)
    before = agents.run("plan", "list", "--json").data["plans"]
    error = agents.run("plan", "revert-applied", ran["plan_id"], "--json").expect(4).data["error"]
    assert "is already reverted" in error["message"]
    assert made in error["message"]
    assert error["hint"].startswith(f"agents plan revert-applied {made}")
    assert agents.run("plan", "list", "--json").data["plans"] == before
    again = agents.run("plan", "revert-applied", made, "--json").expect(0).data["plan_id"]
    agents.run("plan", "apply", again, "--yes").expect(0)
    agents.run("plan", "revert-applied", ran["plan_id"]).expect(0)


def test_where_nothing_is_left_to_revert_no_plan_is_made(agents: Agents) -> None:
    data = agents.work / "data"
    data.mkdir()
    (data / "a").write_text("a")
    agents.run("run", "-q", "--on", "data", "--", "sh", "-c", "echo b > b").expect(0)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    (data / "b").unlink()
    before = agents.run("plan", "list", "--json").data["plans"]
    error = agents.run("plan", "revert-applied", "last", "--json").expect(4).data["error"]
    assert "nothing to revert" in error["message"]
    assert before[0]["plan_id"] in error["message"]
    assert agents.run("plan", "list", "--json").data["plans"] == before


def test_rollback_of_an_applied_plan_names_the_command(agents: Agents) -> None:
    make_targets(agents)
    ran = run_and_apply(agents)
    status = agents.run("plan", "status", "shop", "--json").expect(0).data
    assert status["sandboxes"] == {}
    assert not Path(status["execution"]["sandbox"]).exists()
    listed = agents.run("plan", "checkpoints", "shop", "--json").expect(0).data["checkpoints"]
    assert {c["checkpoint_id"] for c in listed} > {c["id"] for c in ran["checkpoints"]}
    refused = agents.run("plan", "rollback", "shop", "first", "--yes", "--json").expect(4).data
    assert refused["error"]["type"] == "PlanApplied"
    assert f"agents plan revert-applied {ran['plan_id']}" in refused["error"]["hint"]


def test_what_the_user_did_since_is_kept(agents: Agents) -> None:
    app = make_targets(agents)
    run_and_apply(agents)
    (app / "code.txt").write_text((app / "code.txt").read_text().replace("seven", "SEVEN"))
    (app / "mine.txt").write_text("mine\n")
    git(agents, app, "add", "-A")
    git(agents, app, "commit", "-q", "-m", "since")
    agents.run("plan", "revert-applied", "shop").expect(0)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert (app / "code.txt").read_text() == LINES.replace("seven", "SEVEN")
    assert (app / "mine.txt").read_text() == "mine\n"
    assert (app / "old.txt").read_text() == "old\n"
    assert not (app / "new").exists()


def test_a_conflict_changes_nothing_and_is_resolved_in_the_sandbox(agents: Agents) -> None:
    app = make_targets(agents)
    run_and_apply(agents)
    (app / "code.txt").write_text(LINES.replace("two", "deux"))
    query(agents.work / "shop.db", "INSERT INTO t VALUES (99)")
    made = agents.run("plan", "revert-applied", "shop", "--json").expect(5).data
    assert made["state"] == "errored"
    assert "app:code.txt" in made["error"]["message"]
    assert "db:shop.db" in made["error"]["message"]
    shown = agents.run("plan", "diff", made["plan_id"], "--json").expect(0).data
    assert shown["files"] == []
    sandboxes = {name: Path(path) for name, path in made["sandboxes"].items()}
    (sandboxes["app"] / "code.txt").write_text(LINES.replace("two", "settled"))
    query(sandboxes["db"], "DELETE FROM t WHERE x = 99")
    agents.run("plan", "resume", made["plan_id"]).expect(0)
    agents.run("plan", "apply", made["plan_id"], "--yes").expect(0)
    assert (app / "code.txt").read_text() == LINES.replace("two", "settled")
    assert (app / "old.txt").exists()
    assert rows(agents) == [(2,), (3,)]


def test_a_process_that_dies_while_reverting_leaves_nothing_half_done(agents: Agents) -> None:
    app = make_targets(agents)
    run_and_apply(agents)
    for number in range(30, 400, 9):
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        died = agents.run("plan", "revert-applied", "shop", env=kill)
        if died.rc == 0:
            break
        status = agents.run("plan", "status", "last", "--json").expect(0).data
        if status["name"] != "revert-shop":
            continue
        if (status["phase"], status["state"]) != ("execute", "complete"):
            agents.run("plan", "resume", "last").expect(0)
        sandbox = agents.run("plan", "status", "last", "--json").data["sandboxes"]
        assert (Path(sandbox["app"]) / "code.txt").read_text() == LINES
        assert query(Path(sandbox["db"]), "SELECT x FROM t ORDER BY x") == [(1,), (2,)]
        agents.run("plan", "delete", "last", "--yes").expect(0)
    assert died.rc == 0
    assert number > 40
    assert "TWO" in (app / "code.txt").read_text()


def test_ignored_files_are_reverted_only_if_they_were_applied(agents: Agents) -> None:
    app = agents.work / "app"
    app.mkdir()
    (app / ".gitignore").write_text("*.log\n")
    make_repository(agents, app)
    (app / "a.log").write_text("before\n")
    (agents.work / "plan.yaml").write_text(
        "name: logs\nresources: {app: {kind: git-checkout, path: app}}\n"
        "steps: [{id: a, run: 'echo plan > a.log; echo x > x'}]\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    agents.run("plan", "apply", "logs", "--yes").expect(0)
    (app / "a.log").write_text("since\n")
    agents.run("plan", "revert-applied", "logs").expect(0)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert not (app / "x").exists()
    assert (app / "a.log").read_text() == "since\n"
    agents.run("plan", "run", "plan.yaml").expect(0)
    agents.run("plan", "apply", "last", "--ignored", "--yes").expect(0)
    assert (app / "a.log").read_text() == "plan\n"
    agents.run("plan", "revert-applied", "last").expect(0)
    agents.run("plan", "apply", "last", "--ignored", "--yes").expect(0)
    assert (app / "a.log").read_text() == "since\n"


def test_a_branch_is_left_to_git_and_the_rest_is_reverted(agents: Agents) -> None:
    app = make_targets(agents)
    run_and_apply(agents, "--as", "branch")
    made = agents.run("plan", "revert-applied", "shop", "--json").expect(0)
    assert "'app' was applied as a branch" in made.json["messages"][0]
    assert set(made.data["sandboxes"]) == {"data", "db"}
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert rows(agents) == [(1,), (2,)]
    assert (app / "old.txt").exists()


@pytest.mark.parametrize("extra", ["policy: {rollback_enabled: false}\n", ""])
def test_only_an_applied_plan_that_kept_something_is_reverted(agents: Agents, extra: str) -> None:
    app = agents.work / "app"
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(
        "name: p\nresources: {app: {kind: git-checkout, path: app}}\n" + extra + "steps:\n"
        "  - {id: a, run: 'echo x > x'}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    refused = agents.run("plan", "revert-applied", "p", "--json").expect(4).data["error"]
    assert "only an applied plan" in refused["message"]
    agents.run("plan", "apply", "p", "--yes", "--as", "branch").expect(0)
    refused = agents.run("plan", "revert-applied", "p", "--json").expect(4).data["error"]
    assert ("rollback_enabled" if extra else "as a branch") in refused["message"]
    assert len(agents.run("plan", "list", "--json").data["plans"]) == 1


def test_a_database_in_use_sees_the_reversal(agents: Agents) -> None:
    make_targets(agents)
    query(agents.work / "shop.db", "PRAGMA journal_mode=WAL")
    run_and_apply(agents)
    with closing(sqlite3.connect(agents.work / "shop.db", isolation_level=None)) as open_one:
        assert open_one.execute("SELECT sum(x) FROM t").fetchone() == (5,)
        agents.run("plan", "revert-applied", "shop").expect(0)
        agents.run("plan", "apply", "last", "--yes").expect(0)
        assert open_one.execute("SELECT sum(x) FROM t").fetchone() == (3,)
