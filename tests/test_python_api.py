"""The Python API: a program holds a plan open, decides, and calls tools in its sandboxes."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cleveragents
from cleveragents import PlanHandle, ToolFailed, Workspace, open_workspace
from cleveragents.errors import (
    MayHaveHappened,
    NotAllowed,
    NotFound,
    PlanApplied,
    PlanBusy,
    PlanFileError,
    UsageError,
)
from cleveragents.model.plan import Phase, State, StepState
from tests.harness import Agents
from tests.scratch import make_repository, query, snapshot


@pytest.fixture
def folder(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(agents.work)
    app = agents.work / "app"
    app.mkdir()
    (app / "a.txt").write_text("a\n")
    return app


@pytest.fixture
def ws(agents: Agents, folder: Path) -> Iterator[Workspace]:
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as opened:
        yield opened


def standing(plan: PlanHandle) -> tuple[Phase, State]:
    return plan.plan.phase, plan.plan.state


def steps_of(ws: Workspace, plan: PlanHandle) -> dict[str, StepState]:
    return {step.step_id: step.state for step in ws.ctx.store.plans.steps(plan.plan_id)}


def test_decide_call_and_apply(ws: Workspace, folder: Path) -> None:
    before = snapshot(folder)
    plan = ws.plan("notes", resources={"app": folder}, description="why")
    with plan.decision(
        "where", "NOTES.md", alternatives=["README"], rationale="short", confidence=0.8
    ) as d:
        wrote = d.call("file.write", path="NOTES.md", content="one\n")
        assert wrote.ok
        assert d.call("file.read", path="NOTES.md").output == "one\n"
        assert d.call("shell", command="wc -l < NOTES.md").output.strip() == "1"
    assert standing(plan) == (Phase.EXECUTE, State.QUEUED)
    assert snapshot(folder) == before
    (decision,) = [x for x in ws.ctx.store.plans.decisions(plan.plan_id) if x.kind == "actor"]
    assert (decision.question, decision.chosen) == ("where", "NOTES.md")
    assert (decision.alternatives, decision.confidence) == (("README",), 0.8)
    done = plan.apply()
    assert done["applied"][0]["files"] == 1
    assert (folder / "NOTES.md").read_text() == "one\n"
    with pytest.raises(PlanApplied), plan.decision("more"):
        pass


def test_every_call_has_its_checkpoints_and_one_can_roll_back_between_decisions(
    ws: Workspace, folder: Path
) -> None:
    plan = ws.plan("two", resources={"app": "app"})
    with plan.decision("first") as d:
        d.call("file.write", path="b", content="b")
        d.keep_state({"at": "first"})
    mark = plan.checkpoint("between")
    with plan.decision("second") as d:
        d.keep_state({"at": "second"})
        d.call("file.delete", path="a.txt")
    types = [row.checkpoint_type for row in plan.checkpoints()]
    assert types.count("on_decision") == 2
    assert types.count("after_tool_execute") == 2
    sandbox = Path(plan.sandboxes["app"])
    assert sorted(os.listdir(sandbox)) == ["b"]
    assert plan.actor_state == {"at": "second"}
    result = plan.rollback(mark.group_id)
    assert [change.shown for change in result.changes] == ["a.txt"]
    assert sorted(os.listdir(sandbox)) == ["a.txt", "b"]
    assert plan.actor_state == {"at": "first"}
    assert steps_of(ws, plan) == {"s1": StepState.COMPLETE}
    with plan.decision("third") as d:
        d.call("file.move", from_="b", to="c")
    assert steps_of(ws, plan) == {"s1": StepState.COMPLETE, "s3": StepState.COMPLETE}
    assert plan.undo().operation == "resume"
    assert sorted(os.listdir(sandbox)) == ["a.txt", "b"]
    plan.apply()
    assert sorted(os.listdir(folder)) == ["a.txt", "b"]


def test_a_failed_call_is_rolled_back_and_may_be_answered_in_the_block(
    ws: Workspace, folder: Path
) -> None:
    plan = ws.plan("careful", resources={"app": folder})
    with plan.decision("try") as d:
        with pytest.raises(ToolFailed, match="step s1: exit code 3: said") as failed:
            d.call("shell", command="touch half; echo said; exit 3")
        assert failed.value.__notes__ == ["said\n"]
        assert standing(plan) == (Phase.EXECUTE, State.ERRORED)
        assert d.call("file.list").output.split() == ["a.txt"]
    assert standing(plan) == (Phase.EXECUTE, State.QUEUED)
    assert steps_of(ws, plan) == {"s2": StepState.COMPLETE}


def test_a_failed_call_that_leaves_the_block_leaves_an_errored_plan(
    ws: Workspace, folder: Path
) -> None:
    plan = ws.plan("careful", resources={"app": folder})
    with plan.decision("one") as d:
        d.call("file.write", path="b", content="b")
    with pytest.raises(ToolFailed), plan.decision("two") as d:
        d.call("shell", command="exit 3")
    assert standing(plan) == (Phase.EXECUTE, State.ERRORED)
    assert plan.plan.error is not None
    assert plan.plan.error.message == "step s2: exit code 3"
    with pytest.raises(NotAllowed, match="only a completed plan can be applied"):
        plan.apply()
    with plan.decision("otherwise") as d:
        d.call("file.write", path="c", content="c")
    assert steps_of(ws, plan) == {"s1": StepState.COMPLETE, "s3": StepState.COMPLETE}
    active = [x for x in ws.ctx.store.plans.decisions(plan.plan_id) if x.state == "active"]
    assert [x.question for x in active] == ["careful", "one", "otherwise"]
    plan.apply()
    assert sorted(os.listdir(folder)) == ["a.txt", "b", "c"]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("no idea"), "ValueError", "no idea"),
        (AssertionError(), "AssertionError", "AssertionError"),
        (KeyboardInterrupt(), "Interrupted", "interrupted by the user"),
        (UsageError("wrong", "right"), "UsageError", "wrong"),
    ],
)
def test_any_exception_that_leaves_the_block_is_why_the_plan_stopped(
    ws: Workspace, folder: Path, error: BaseException, kind: str, message: str
) -> None:
    plan = ws.plan("broken", resources={"app": folder})

    def work() -> None:
        with plan.decision("one") as d:
            d.call("file.write", path="b", content="b")
            raise error

    with pytest.raises(type(error)):
        work()
    error.with_traceback(None)  # pytest keeps the error, and with that the frames of this test
    failure = plan.plan.error
    assert failure is not None
    assert (failure.type, failure.message) == (kind, message)
    assert standing(plan) == (Phase.EXECUTE, State.ERRORED)
    plan.complete()
    assert standing(plan) == (Phase.EXECUTE, State.COMPLETE)
    assert steps_of(ws, plan) == {"s1": StepState.COMPLETE}


def test_a_policy_that_stops_the_plan_ends_the_block(ws: Workspace, folder: Path) -> None:
    plan = ws.plan("strict", resources={"app": folder}, policy={"on_failure": "rollback_plan"})
    with plan.decision("one") as d:
        d.call("file.write", path="b", content="b")
        with pytest.raises(ToolFailed):
            d.call("shell", command="exit 3")
        with pytest.raises(NotAllowed, match="stopped by its policy"):
            d.call("file.write", path="c", content="c")
    assert standing(plan) == (Phase.EXECUTE, State.ERRORED)
    assert os.listdir(plan.sandboxes["app"]) == ["a.txt"]


@pytest.mark.parametrize(
    ("tool", "inputs", "message"),
    [
        ("file.wrte", {}, "no tool named 'file.wrte', did you mean 'file.write'?"),
        ("file.write", {"path": "x"}, "input 'content' of file.write is missing"),
        ("file.read", {"path": "x", "on": "nowhere"}, "unknown resource 'nowhere'"),
    ],
)
def test_a_call_that_cannot_be_is_refused_before_it_runs(
    ws: Workspace, folder: Path, tool: str, inputs: dict[str, Any], message: str
) -> None:
    plan = ws.plan("wrong", resources={"app": folder})
    with plan.decision("one") as d, pytest.raises(UsageError, match=message.replace("?", r"\?")):
        d.call(tool, **inputs)
    assert steps_of(ws, plan) == {}


def test_decisions_inside_one_another_make_a_tree(ws: Workspace, folder: Path) -> None:
    plan = ws.plan("nested", resources={"app": folder})
    with (
        plan.decision("store", "sqlite") as outer,
        outer.decision("schema", "one table", alternatives=["two"]) as inner,
    ):
        inner.call("file.write", path="b", content="b")
    with plan.decision("later", "yes", parent="s1", influences=["s1"]):
        pass
    by_question = {x.question: x for x in ws.ctx.store.plans.decisions(plan.plan_id)}
    assert by_question["schema"].parent_id == outer.decision_id
    assert by_question["schema"].alternatives == ("two",)
    assert by_question["later"].parent_id == inner.decision_id
    assert by_question["later"].influences == (inner.decision_id,)


def test_what_may_have_happened_outside_is_not_done_again_unasked(
    ws: Workspace, agents: Agents, folder: Path
) -> None:
    send = {"run": "echo sent >> $AGENTS_PLAN_DIR/out; exit 3", "side_effects": ["mail"]}
    plan = ws.plan(
        "mail", resources={"app": folder}, tools={"send": send}, policy={"confine": "off"}
    )
    with pytest.raises(ToolFailed), plan.decision("write") as d:
        d.call("send")
    with pytest.raises(MayHaveHappened, match="step 's1', send: mail"), plan.decision("again"):
        pass
    with plan.decision("again", repeat=["s1"]) as d:
        d.call("file.write", path="b", content="b")
    plan.apply()
    assert (agents.work / "out").read_text() == "sent\n"


def test_a_plan_that_is_held_open_is_busy(ws: Workspace, folder: Path) -> None:
    plan = ws.plan("held", resources={"app": folder})
    with plan.decision("one") as d:
        d.call("file.write", path="b", content="b")
        for verb in (plan.complete, lambda: plan.rollback("first"), plan.cancel):
            with pytest.raises(PlanBusy, match="plan decision"):
                verb()
    plan.rollback("first")
    assert os.listdir(plan.sandboxes["app"]) == ["a.txt"]


def test_kinds_are_seen_by_looking_and_several_resources_are_named(
    ws: Workspace, agents: Agents, folder: Path
) -> None:
    repo = agents.work / "repo"
    repo.mkdir()
    (repo / "x").write_text("x")
    make_repository(agents, repo)
    with closing(sqlite3.connect(agents.work / "app.db")) as db:
        db.execute("CREATE TABLE t (x)")
    plan = ws.plan(
        "mixed",
        resources={
            "repo": "repo",
            "db": agents.work / "app.db",
            "app": {"kind": "fs-directory", "path": "app", "exclude": ["*.log"]},
        },
        tools={"double": {"run": "cat x x > y && mv y x"}},
        validate=[{"on": "repo", "run": "test -s x"}],
        apply={"as": "commit", "message": "Double"},
    )
    kinds = {item.name: item.kind for item in ws.ctx.store.resources.of_plan(plan.plan_id)}
    assert kinds == {"repo": "git-checkout", "db": "sqlite", "app": "fs-directory"}
    with plan.decision("all of them") as d:
        with pytest.raises(UsageError, match="'on' is missing, name one of: repo, db, app"):
            d.call("double")
        d.call("double", on="repo")
        d.call("sql", on="db", script="INSERT INTO t VALUES (1)")
    plan.apply()
    assert (repo / "x").read_text() == "xx"
    assert query(agents.work / "app.db", "SELECT x FROM t") == [(1,)]


def test_a_wrong_part_is_named_as_in_a_plan_file(ws: Workspace, folder: Path) -> None:
    with pytest.raises(PlanFileError, match="unknown key 'on_failur' in the policy, did you mean"):
        ws.plan("wrong", resources={"app": folder}, policy={"on_failur": "stop"})
    with pytest.raises(PlanFileError):
        ws.plan("wrong", resources={"app": "nowhere"})
    assert ws.plans() == []


def test_the_command_line_shows_and_finishes_a_plan_of_a_program(
    ws: Workspace, agents: Agents, folder: Path
) -> None:
    plan = ws.plan("shared", resources={"app": folder})
    with plan.decision("one", "b") as d:
        d.call("file.write", path="b", content="b")
    shown = agents.run("plan", "tree", "shared").expect(0).stdout
    assert "one: b  [s1]" in shown
    agents.run("plan", "resume", "shared").expect(0)
    assert standing(plan) == (Phase.EXECUTE, State.COMPLETE)
    agents.run("plan", "apply", "shared", "--yes").expect(0)
    assert (folder / "b").exists()


def test_the_command_line_applies_a_plan_of_a_program_as_it_is(
    ws: Workspace, agents: Agents, folder: Path
) -> None:
    plan = ws.plan("open", resources={"app": folder})
    with plan.decision("one", "b") as d:
        d.call("file.write", path="b", content="b")
    would = agents.run("plan", "apply", "open", "--dry-run", "--json").expect(0).data
    assert would["would_apply"][0]["files"] == ["b"]
    assert standing(plan) == (Phase.EXECUTE, State.QUEUED)
    agents.run("plan", "apply", "open", "--yes").expect(0)
    assert (folder / "b").exists()


def test_pins_and_previews_from_python(ws: Workspace, folder: Path) -> None:
    plan = ws.plan("kept", resources={"app": folder})
    with plan.decision("one", "b") as d:
        d.call("file.write", path="b", content="b")
    group = plan.checkpoint("here")
    assert plan.pin("here").group_id == group.group_id
    assert plan.group("here").pinned
    plan.unpin("here")
    assert not plan.group("here").pinned
    (Path(plan.sandboxes["app"]) / "c").write_text("c")
    assert len(plan.preview_rollback("here").changes) == 1
    assert plan.preview_rollback("here", "c").dry_run
    assert all(verdict.keep for verdict in plan.preview_prune())
    assert plan.preview_resume().next_step is None
    assert [item.files for item in plan.preview_apply()] == [("b", "c")]


def test_a_plan_with_an_actor_of_its_own_takes_no_calls(ws: Workspace, agents: Agents) -> None:
    file = agents.work / "plan.yaml"
    file.write_text(
        "name: x\nresources: {app: {kind: fs-directory, path: app}}\nsteps: [{run: ls}]\n"
    )
    plan = ws.use(str(file))
    with pytest.raises(NotAllowed, match=r"come from its actor \(steps\)"), plan.decision("x"):
        pass


def test_a_program_that_is_killed_can_continue_in_a_new_process(
    agents: Agents, folder: Path
) -> None:
    program = (
        "import os\nfrom cleveragents import open_workspace\n"
        "with open_workspace() as ws:\n"
        "    plan = ws.plan('killed', resources={'app': 'app'})\n"
        "    with plan.decision('one') as d:\n"
        "        d.keep_state(['one'])\n"
        "        d.call('file.write', path='b', content='b')\n"
        "    with plan.decision('two') as d:\n"
        "        d.call('shell', command='touch half; kill -9 ' + str(os.getpid()))\n"
    )
    env = {**agents.env, "CLEVERAGENTS_SANDBOX_CONFINE": "off"}
    done = subprocess.run([sys.executable, "-c", program], cwd=agents.work, env=env, check=False)
    assert done.returncode == -9
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        plan = ws.find("killed")
        assert standing(plan) == (Phase.EXECUTE, State.ERRORED)
        assert plan.actor_state == ["one"]
        with plan.decision("two, again") as d:
            assert d.call("file.list").output.split() == ["a.txt", "b"]
        assert list(steps_of(ws, plan)) == ["s1", "s3"]


def test_public_names_are_there() -> None:
    for name in cleveragents.__all__:
        assert getattr(cleveragents, name).__name__ == name


def test_a_repl_finds_the_public_names_before_they_are_used() -> None:
    show = "import cleveragents; print(*dir(cleveragents)); print(cleveragents.PlanHandle.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert set(done[0].split()) == {*cleveragents.__all__, "__version__"}
    assert done[1] == "PlanHandle"


def test_a_checkpoint_is_found_by_its_id(folder: Path) -> None:
    with open_workspace() as ws:
        plan = ws.plan("notes", resources={"app": "app"})
        with plan.decision("a file", "x") as d:
            d.call("file.write", path="x", content="x")
        rows = plan.checkpoints()
        assert [plan.checkpoint_at(row.checkpoint_id) for row in rows] == rows
        assert plan.group(rows[-1].checkpoint_id).group_id == rows[-1].group_id
        with pytest.raises(NotFound, match="has no checkpoint 'nope'"):
            plan.checkpoint_at("nope")
