"""`agents plan shell`: a person works in the sandbox, and what they change is one step."""

import os
from collections.abc import Generator

import pytest

from cleveragents.errors import NotFound, UsageError
from cleveragents.workspace import Workspace, open_workspace
from tests.harness import Agents
from tests.in_process import Yard, box, cli, files
from tests.pseudo_terminal import PseudoTerminal
from tests.rig import Shop

TWO = """name: yard
resources: {app: {kind: fs-directory, path: app}, more: {kind: fs-directory, path: more}}
steps: [{id: a, on: app, run: touch one}, {id: b, on: app, run: test -e ok}]
"""


@pytest.fixture
def ws(yard: Yard) -> Generator[Workspace]:
    with open_workspace() as opened:
        yield opened


def script(yard: Yard, text: str) -> str:
    """A shell that runs this and ends."""
    path = yard.top / "shell.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_a_shell_changes_is_a_step_that_can_be_undone(ws: Workspace, yard: Yard) -> None:
    plan = yard.done(ws)
    before = plan.plan
    done = plan.shell(script(yard, "echo mine > mine.txt; rm old.txt; exit 3"))
    assert (done.exit_code, done.step_id) == (3, "shell")
    assert "mine.txt" in files(plan)
    assert (plan.plan.phase, plan.plan.state) == (before.phase, before.state)
    steps = ws.ctx.store.plans.steps(plan.plan_id)
    assert [(s.step_id, str(s.state)) for s in steps] == [
        ("a", "complete"),
        ("b", "complete"),
        ("shell", "complete"),
    ]
    assert plan.group("shell").group_id == done.group_id
    assert [call.exit_code for call in plan.tool_calls()][-1] == 3
    plan.undo()
    assert "mine.txt" not in files(plan)
    assert "old.txt" in files(plan)
    assert len(ws.ctx.store.plans.steps(plan.plan_id)) == 2
    plan.redo()
    assert "mine.txt" in files(plan)
    assert plan.shell(script(yard, "touch again")).step_id == "shell-2"
    plan.rollback("b")
    assert files(plan) == {"old.txt", "one", "two"}
    plan.execute()
    assert files(plan) == {"old.txt", "one", "two"}


def test_a_shell_that_changes_nothing_leaves_nothing(ws: Workspace, yard: Yard) -> None:
    plan = yard.done(ws)
    groups, calls = len(plan.checkpoints()), len(plan.tool_calls())
    done = plan.shell(script(yard, "cat old.txt"))
    assert (done.exit_code, done.step_id, done.output) == (0, "", "old\n")
    assert (len(plan.checkpoints()), len(plan.tool_calls())) == (groups, calls)


def test_a_shell_makes_the_sandbox_of_a_plan_that_was_not_run(ws: Workspace, yard: Yard) -> None:
    plan = yard.use(ws, "steps: [{id: a, run: cat mine.txt}]")
    assert plan.shell(script(yard, "echo mine > mine.txt")).step_id == "shell"
    plan.execute()
    assert str(plan.plan.state) == "complete"
    assert plan.tool_calls()[-1].output == "mine\n"
    plan.apply()
    assert (yard.app / "mine.txt").read_text() == "mine\n"


def test_edits_from_before_are_kept_apart(ws: Workspace, yard: Yard) -> None:
    plan = yard.done(ws)
    (box(plan) / "by-hand").touch()
    plan.shell(script(yard, "touch by-shell"))
    plan.undo()
    assert "by-hand" in files(plan)
    assert "by-shell" not in files(plan)


def test_a_failed_plan_continues_after_a_shell_repaired_it(yard: Yard) -> None:
    (yard.top / "more").mkdir()
    file = yard.plan(TWO)
    cli("plan", "run", file, expect=5)
    os.environ["SHELL"] = script(yard, "touch ok; pwd")
    shown = cli("plan", "shell", "yard", "--on", "app", "--json")
    assert shown.data["output"].endswith("/app\n")
    assert cli("plan", "status", "yard", "--json").data["state"] == "errored"
    assert cli("plan", "resume", "yard", "--json").data["state"] == "complete"
    progress = cli("plan", "status", "yard", "--json").data["progress"]
    assert [step["status"] for step in progress] == ["complete"] * 3
    os.environ["SHELL"] = script(yard, "kill -9 $$")
    assert cli("plan", "shell", "yard", "--json", expect=137).data["step"] is None
    cli("plan", "shell", "yard", "--on", "mor", expect=125)
    cli("plan", "cancel", "yard")
    cli("plan", "shell", "yard", expect=125)


def test_what_cannot_be_a_shell_is_refused(ws: Workspace, yard: Yard) -> None:
    plan = yard.done(ws)
    with pytest.raises(NotFound, match="has no resource 'ap', did you mean 'app'"):
        plan.shell("/bin/sh", on="ap")
    with pytest.raises(UsageError, match="no such shell"):
        plan.shell("/no/such/shell")
    assert plan.shell("/bin/true").step_id == ""


def test_a_shell_is_confined_as_tools_are(agents: Agents) -> None:
    shop = Shop(agents)
    shop.ran("- {id: a, on: app, run: touch one}")
    outside = agents.work / "outside.txt"
    own = agents.work / "shell.sh"
    own.write_text(f"#!/bin/sh\necho in > in.txt\necho out > {outside}\n")
    own.chmod(0o755)
    done = shop.run("plan", "shell", "last", "--on", "app", env={"SHELL": str(own)})
    assert done.rc != 0
    assert not outside.exists()
    assert "in.txt" in {one["path"] for one in shop.ok("plan", "diff", "last")["files"]}


def test_a_shell_in_a_terminal_says_that_it_is_in_a_sandbox(agents: Agents) -> None:
    Shop(agents).ran('[{id: one, run: "echo 1 > one"}]')
    with PseudoTerminal(agents, "plan", "shell", SHELL="/bin/true") as terminal:
        assert terminal.ended() == 0
    assert "this shell is in the sandbox of plan plan; exit ends it\n" in terminal.screen.text


def test_in_place_undo_takes_a_shells_work_alone_and_redo_brings_it_back(
    ws: Workspace, yard: Yard
) -> None:
    text = "name: yard\nresources: {app: {kind: fs-directory, path: app, strategy: in_place}}\n"
    plan = ws.use(yard.plan(text + "steps: [{id: a, run: touch one}]"))
    plan.execute()
    plan.shell(script(yard, "touch mine.txt"))
    (yard.app / "edited").touch()
    assert plan.undo().operation == "external_edit"
    assert sorted(os.listdir(yard.app)) == ["edited", "old.txt", "one"]
    plan.redo()
    assert sorted(os.listdir(yard.app)) == ["edited", "mine.txt", "old.txt", "one"]
    plan.undo()
    plan.undo()
    assert sorted(os.listdir(yard.app)) == ["edited", "old.txt"]
