"""Bugs that were found once and mended: each came first as a failing test."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from cleveragents.testing import killed_at
from cleveragents.workspace import open_workspace
from features.shop import Shop
from tests.harness import Agents

STEPS = """
- {id: first, on: app, run: "echo first >> first.txt"}
- {id: second, on: app, run: 'test -e "$AGENTS_PLAN_DIR/go"'}
"""
WAITING = """
- {id: first, on: app, run: "echo first >> first.txt"}
- id: wait
  on: app
  run: 'touch waiting; while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done'
"""


@pytest.fixture
def shop(agents: Agents) -> Shop:
    made = Shop(agents)
    made.build()
    return made


def test_work_that_a_failed_step_took_back_with_it_is_done_again(shop: Shop) -> None:
    shop.policy = "{auto_create_on: []}"
    shop.write_plan("shop", STEPS)
    shop.run("plan", "run", "shop.yaml").expect(5)
    (shop.agents.work / "go").touch()
    shop.run("plan", "resume", "shop").expect(0)
    assert (shop.sandbox("app") / "first.txt").read_text() == "first\n"


def test_work_that_went_with_the_residue_of_a_dead_process_is_done_again(shop: Shop) -> None:
    shop.policy = "{auto_create_on: []}"
    shop.write_plan("shop", WAITING)
    shop.start("shop")
    assert shop.process is not None
    shop.process.kill()
    shop.finish()
    shop.run("plan", "resume", "shop").expect(0)
    assert (shop.sandbox("app") / "first.txt").read_text() == "first\n"


def die_at_a_step(shop: Shop) -> None:
    """The process is killed while its second step runs and has left a file."""
    shop.write_plan("shop", WAITING)
    shop.start("shop")
    assert shop.process is not None
    shop.process.kill()
    shop.finish()
    assert (shop.sandbox("app") / "waiting").exists()


def test_undo_after_a_death_takes_back_the_whole_run(shop: Shop) -> None:
    die_at_a_step(shop)
    undone = shop.run("plan", "undo", "shop").expect(0).data
    assert undone["undone"] == "execute"
    assert not (shop.sandbox("app") / "waiting").exists()
    assert not (shop.sandbox("app") / "first.txt").exists()
    (shop.agents.work / "go").touch()
    shop.run("plan", "resume", "shop").expect(0)
    assert (shop.sandbox("app") / "first.txt").read_text() == "first\n"


def test_a_checkpoint_by_hand_does_not_keep_what_a_dead_step_left(shop: Shop) -> None:
    die_at_a_step(shop)
    shop.run("plan", "checkpoint", "create", "shop").expect(0)
    assert not (shop.sandbox("app") / "waiting").exists()
    assert (shop.sandbox("app") / "first.txt").read_text() == "first\n"
    log = shop.run("plan", "log", "shop").expect(0).data["entries"]
    assert "external_edit" not in [entry["operation"] for entry in log]


def test_a_pruned_checkpoint_is_refused_by_its_own_id_too(shop: Shop) -> None:
    shop.write_plan("shop", STEPS)
    (shop.agents.work / "go").touch()
    shop.run("plan", "run", "shop.yaml").expect(0)
    shop.note_checkpoints("shop")
    shop.run("config", "set", "max_checkpoints_per_plan", "3").expect(0)
    shop.run("plan", "prune", "shop").expect(0)
    gone = shop.checkpoint("shop", "the checkpoint of the oldest pruned group")
    error = shop.run("plan", "rollback", "shop", gone, "--yes").expect(4).data["error"]
    assert error["type"] == "CheckpointPruned"


def test_a_plan_without_rollback_says_that_it_has_none(shop: Shop) -> None:
    shop.policy = "{rollback_enabled: false}"
    shop.write_plan("shop", '- {id: greet, on: app, run: "echo again >> greeting.txt"}')
    shop.run("plan", "run", "shop.yaml").expect(0)
    error = shop.run("plan", "rollback", "shop", "first", "--yes").expect(4).data["error"]
    assert error["type"] == "RollbackDisabled"


def test_nothing_of_a_killed_tool_is_left_over(shop: Shop) -> None:
    shop.write_plan("shop", WAITING)
    shop.start("shop")
    assert shop.process is not None
    shop.process.kill()
    shop.finish()
    shop.run("plan", "resume", "shop").expect(0)
    names = os.listdir(shop.sandbox("app").parent)
    assert sorted(name for name in names if not name.startswith(".mark-")) == ["app", "db"]
    assert len(names) == 4  # a sandbox's mark lies beside it


def test_a_tool_that_outlived_its_process_is_ended_before_a_rollback(shop: Shop) -> None:
    wait = 'touch waiting; until test -e "$AGENTS_PLAN_DIR/go"; do sleep 0.02; done; touch late'
    child = f"timeout 20 sh -c '{wait}'"
    shop.env["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
    shop.write_plan("shop", f"- id: wait\n  on: app\n  run: |\n    {child}\n    true")
    shop.start("shop")
    assert shop.process is not None
    shop.process.kill()
    shop.process.communicate()
    shop.run("plan", "rollback", "shop", "first", "--yes").expect(0)
    (shop.agents.work / "go").touch()
    time.sleep(0.5)  # what the tool's child needs to see that, if it still lives
    assert not (shop.sandbox("app") / "late").exists()


def test_a_step_that_breaks_a_resource_is_taken_back(shop: Shop) -> None:
    shop.write_plan("shop", """- {id: drop, on: db, run: 'rm "$AGENTS_SANDBOX_DB"'}""")
    shop.run("plan", "run", "shop.yaml").expect(5)
    assert shop.sandbox("db").exists()
    [step] = shop.rows("SELECT state FROM steps")
    assert step["state"] == "errored"


def test_a_database_that_comes_back_is_recreated(shop: Shop) -> None:
    shop.write_plan("shop", '- {id: idle, on: db, run: "true"}')
    shop.run("plan", "run", "shop.yaml").expect(0)
    shop.sandbox("db").unlink()
    rolled = shop.run("plan", "rollback", "shop", "first", "--yes").expect(0).data
    assert [item["action"] for item in rolled["changes_reverted"]] == ["recreated"]


def test_the_mode_of_the_sandbox_itself_comes_back(shop: Shop) -> None:
    shop.write_plan("shop", '- {id: open, on: app, run: "chmod 777 ."}')
    shop.run("plan", "run", "shop.yaml").expect(0)
    shop.run("plan", "rollback", "shop", "first", "--yes").expect(0)
    assert os.stat(shop.sandbox("app")).st_mode & 0o777 != 0o777


def test_an_interrupted_plan_says_to_programs_how_to_go_on(shop: Shop) -> None:
    shop.write_plan("shop", WAITING)
    shop.start("shop")
    assert shop.process is not None
    shop.process.send_signal(signal.SIGINT)
    said, _ = shop.process.communicate(timeout=60)
    assert "agents plan resume" in said


@pytest.mark.parametrize(
    ("path", "needs", "wanted"),
    [
        pytest.param("app", "two", "'needs'", id="a cycle"),
        pytest.param("aapp", "", "'path'", id="a missing path"),
        pytest.param("aapp", "", "did you mean 'app'?", id="the path nearest to a missing one"),
    ],
)
def test_a_wrong_plan_file_names_key_and_nearest(
    shop: Shop, path: str, needs: str, wanted: str
) -> None:
    plan = f"""
name: wrong
resources: {{app: {{kind: git-checkout, path: {path}}}}}
steps: [{{id: one, run: "true", needs: [{needs}]}}, {{id: two, run: "true", needs: [one]}}]
"""
    (shop.agents.work / "wrong.yaml").write_text(plan)
    problems = shop.run("plan", "run", "wrong.yaml").expect(2).data["error"]["problems"]
    assert wanted in problems[0]


FAILING = """
name: failing
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: one, tool: file.write, on: docs, with: {path: one, content: "1"}}
  - {id: two, on: docs, run: "echo half > two; exit 1"}
"""


def test_no_operation_stays_open_whenever_the_process_dies(tmp_path: Path) -> None:
    """It stayed open if the process died while a failed step was taken back."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "plan.yaml").write_text(FAILING)
    home = str(tmp_path / "store")
    number, killed = 0, True
    while killed:
        number += 1
        with open_workspace(home) as ws:
            plan_id = ws.use(str(tmp_path / "plan.yaml")).plan_id
        killed = killed_at(number, partial(execute, home, plan_id))
        with open_workspace(home) as ws:
            left = [str(e.operation) for e in ws.ctx.store.journal.open_entries(plan_id)]
            assert left == [], f"killed at point {number}"
            ws.find(plan_id).delete(force=True)
    assert number > 20


def execute(home: str, plan_id: str) -> None:
    with open_workspace(home) as ws:
        ws.find(plan_id).execute()


MORE = (
    STEPS
    + """
- {id: third, on: app, run: "echo third > third.txt; test -e nowhere"}
"""
)


def test_a_step_that_a_changed_file_brought_may_fail_and_take_the_plan_back(shop: Shop) -> None:
    """The plan file went back with the plan, and the store was called damaged."""
    shop.policy = "{on_failure: rollback_plan}"
    (shop.agents.work / "go").touch()
    shop.write_plan("shop", STEPS)
    shop.run("plan", "run", "shop.yaml").expect(0)
    shop.write_plan("shop", MORE)
    error = shop.run("plan", "resume", "shop", "--plan-file", "shop.yaml").expect(5).data["error"]
    assert error["type"] == "ToolFailed"
    assert not (shop.sandbox("app") / "first.txt").exists()
    status = shop.run("plan", "status", "shop").expect(0).data
    assert [(s["step"], s["status"]) for s in status["progress"]] == [
        ("first", "queued"),
        ("second", "queued"),
        ("third", "errored"),
    ]
    shop.write_plan("shop", MORE.replace("nowhere", "first.txt"))
    shop.run("plan", "resume", "shop", "--plan-file", "shop.yaml").expect(0)
    assert (shop.sandbox("app") / "first.txt").read_text() == "first\n"
    assert (shop.sandbox("app") / "third.txt").exists()
