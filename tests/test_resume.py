"""Resume: what is left runs, manual edits are adopted or discarded, residue is removed."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from cleveragents.cli import data as reports
from cleveragents.errors import (
    NotAllowed,
)
from cleveragents.execution.run import Reconciled, preview_resume
from cleveragents.history.diff import diff_of_failure
from cleveragents.model.lifecycle import require_appliable
from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.in_process import FAILING, Yard, cli, edit, files
from tests.rig import WAIT, Shop


def test_a_manual_checkpoint_takes_in_manual_edits(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        edit(plan, "hand.txt")
        unlabelled = plan.checkpoint()
        assert str(unlabelled.checkpoint_type) == "manual"
        edit(plan, "more.txt")
        plan.checkpoint("labelled")
        edit(plan, "after.txt")
        plan.rollback(unlabelled.group_id)
        assert files(plan) == {"one.txt", "two.txt", "hand.txt"}
        plan.rollback("labelled")
        assert files(plan) == {"one.txt", "two.txt", "hand.txt", "more.txt"}


def test_resume_of_a_failed_plan_adopts_edits_and_runs_only_what_is_left(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(FAILING))
        assert plan.plan.state is State.ERRORED
        assert "half.txt" not in files(plan)
        failed = diff_of_failure(ws.ctx, plan.plan)
        assert failed is not None
        assert [f["path"] for f in failed["files"]] == ["half.txt"]
        told = reports.failed_step(ws.ctx, plan.plan)
        assert told["step"] == "three"
        assert told["exit_code"] == 1
        assert told["attempts"] == 1
        with pytest.raises(NotAllowed, match="only a completed plan"):
            require_appliable(plan.plan)
        edit(plan, "ok")
        todo = preview_resume(ws.ctx, plan.plan)
        assert (todo.reconciled, todo.next_step) == (Reconciled.ADOPTED, "three")
        assert preview_resume(ws.ctx, plan.plan, True).reconciled is Reconciled.DISCARDED
        done = plan.resume()
        assert done.reconciled is Reconciled.ADOPTED
        assert [c.shown for c in done.changes] == ["ok"]
        assert files(plan) == {"one.txt", "two.txt", "half.txt", "ok"}
        steps = {s.step_id: s.attempts for s in ws.ctx.store.plans.steps(plan.plan_id)}
        assert steps == {"one": 1, "two": 1, "three": 2}
        assert plan.resume().next_step is None


def test_resume_can_discard_manual_edits(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(FAILING))
        edit(plan, "ok")
        done = plan.resume(discard_edits=True)
        assert done.reconciled is Reconciled.DISCARDED
        assert files(plan) == {"one.txt", "two.txt"}
        assert plan.plan.state is State.ERRORED


def test_resume_tells_what_became_of_manual_edits(yard: Yard) -> None:
    cli("plan", "run", yard.plan(FAILING), "-q", expect=5)
    sandbox = cli("plan", "status", "--json").data["sandboxes"]["app"]
    Path(sandbox, "ok").write_text("")
    said = cli("plan", "resume", "shop", "--discard-edits", "--json", expect=5)
    assert any("1 manual edit discarded" in text for text in json.loads(said.stdout)["messages"])
    Path(sandbox, "ok").write_text("")
    said = cli("plan", "resume", "shop")
    assert "1 manual edit adopted" in said.stderr
    short = re.search("note: resumed from checkpoint (.{6})\n", said.stderr)
    assert short
    assert f"{short[1]} " in cli("plan", "checkpoints", "shop").stdout


STEPS = """
- {id: first, on: app, run: "echo first >> first.txt"}
- {id: second, on: app, run: 'test -e "$AGENTS_PLAN_DIR/go"'}
"""


WAITING = f"""
- {{id: first, on: app, run: "echo first >> first.txt"}}
- {{id: wait, on: app, run: {WAIT!r}}}
"""


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents)


def test_work_that_a_failed_step_rolled_back_with_it_is_done_again(shop: Shop) -> None:
    shop.policy = "{auto_create_on: []}"
    shop.write(STEPS)
    shop.run("plan", "run", "plan.yaml").expect(5)
    (shop.work / "go").touch()
    shop.run("plan", "resume", "plan").expect(0)
    assert (shop.sandbox() / "first.txt").read_text() == "first\n"


def test_work_that_went_with_the_residue_of_a_dead_process_is_done_again(shop: Shop) -> None:
    shop.policy = "{auto_create_on: []}"
    shop.write(WAITING)
    shop.die_waiting()
    shop.run("plan", "resume", "plan").expect(0)
    assert (shop.sandbox() / "first.txt").read_text() == "first\n"


def die_at_a_step(shop: Shop) -> None:
    """The process is killed while its second step runs and has left a file."""
    shop.write(WAITING)
    shop.die_waiting()
    assert (shop.sandbox() / "waiting").exists()


def test_undo_after_a_death_undoes_the_whole_run(shop: Shop) -> None:
    die_at_a_step(shop)
    undone = shop.run("plan", "undo", "plan").expect(0).data
    assert undone["undone"] == "execute"
    assert not (shop.sandbox() / "waiting").exists()
    assert not (shop.sandbox() / "first.txt").exists()
    (shop.work / "go").touch()
    shop.run("plan", "resume", "plan").expect(0)
    assert (shop.sandbox() / "first.txt").read_text() == "first\n"


def test_a_manual_checkpoint_does_not_keep_what_a_dead_step_left(shop: Shop) -> None:
    die_at_a_step(shop)
    shop.run("plan", "checkpoint", "create", "plan").expect(0)
    assert not (shop.sandbox() / "waiting").exists()
    assert (shop.sandbox() / "first.txt").read_text() == "first\n"
    log = shop.run("plan", "log", "plan").expect(0).data["entries"]
    assert "external_edit" not in [entry["operation"] for entry in log]


def test_nothing_of_a_killed_tool_is_left_over(shop: Shop) -> None:
    shop.write(WAITING)
    shop.die_waiting()
    shop.run("plan", "resume", "plan").expect(0)
    names = os.listdir(shop.sandbox().parent)
    assert [name for name in names if not name.startswith((".mark-", ".version"))] == ["app"]
    assert len(names) == 3  # a sandbox's mark lies beside it, and the version it has seen


def test_an_interrupted_plan_tells_programs_how_to_resume(shop: Shop) -> None:
    shop.write(WAITING)
    shop.start_waiting()
    assert shop.process is not None
    shop.process.send_signal(signal.SIGINT)
    said, _ = shop.process.communicate(timeout=600)
    assert "agents plan resume" in said


MORE = (
    STEPS
    + """
- {id: third, on: app, run: "echo third > third.txt; test -e nowhere"}
"""
)


def test_a_step_that_a_changed_file_brought_may_fail_and_roll_the_plan_back(shop: Shop) -> None:
    """The plan file went back with the plan, and the store was called damaged."""
    shop.policy = "{on_failure: rollback_plan}"
    (shop.work / "go").touch()
    shop.write(STEPS)
    shop.run("plan", "run", "plan.yaml").expect(0)
    shop.write(MORE)
    error = shop.run("plan", "resume", "plan", "--plan-file", "plan.yaml").expect(5).data["error"]
    assert error["type"] == "ToolFailed"
    assert not (shop.sandbox() / "first.txt").exists()
    status = shop.run("plan", "status", "plan").expect(0).data
    assert [(s["step"], s["status"]) for s in status["progress"]] == [
        ("first", "queued"),
        ("second", "queued"),
        ("third", "errored"),
    ]
    shop.write(MORE.replace("nowhere", "first.txt"))
    shop.run("plan", "resume", "plan", "--plan-file", "plan.yaml").expect(0)
    assert (shop.sandbox() / "first.txt").read_text() == "first\n"
    assert (shop.sandbox() / "third.txt").exists()


def test_what_became_of_edits_is_told_also_when_the_step_fails_again(
    agents: Agents, stopped: dict[str, str]
) -> None:
    with open(f"{stopped['app']}/mine", "w") as file:
        file.write("by hand\n")
    again = agents.run("plan", "resume", "last", "--discard-edits").expect(5)
    assert "note: 1 manual edit discarded" in again.stderr
    assert "note: resumed from checkpoint" in again.stderr
    assert again.stderr.count("step two: exit code 1") == 1
    refused = agents.run("plan", "rollback", "nope", "first").expect(3)
    assert "note:" not in refused.stderr
