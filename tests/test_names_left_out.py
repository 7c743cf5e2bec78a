"""What people may type for a plan and a checkpoint, and how little of it is enough."""

import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from cleveragents import open_workspace
from cleveragents.cli.main import behind_command
from cleveragents.errors import NotFound, UsageError
from cleveragents.model.ids import new_id
from tests.harness import Agents
from tests.in_process import Yard

PLAN = """
name: {name}
resources: {{app: {{kind: fs-directory, path: {path}}}}}
steps:
  - {{id: one, run: "echo first; echo 1 > n"}}
  - {{id: two, run: "echo second; echo 2 > n"}}
  - {{id: three, run: "echo 3 > n"}}
"""


def ran(agents: Agents, name: str) -> Path:
    """A plan over a folder of its own."""
    folder = agents.work / name
    (folder / "inner").mkdir(parents=True)
    file = agents.work / f"{name}.yaml"
    file.write_text(PLAN.format(name=name, path=folder))
    agents.run("plan", "run", str(file)).expect(0)
    return folder


def test_without_a_plan_the_newest_of_this_directory_is_meant(agents: Agents) -> None:
    here = ran(agents, "here")
    ran(agents, "elsewhere")
    ran(agents, "here-too")  # its folder's name begins like the other's and is not inside it

    shown = agents.run("status", cwd=here / "inner").expect(0)
    assert "note: the newest plan of this directory: here  " in shown.stderr
    assert agents.run("plan", "status", "--json", cwd=here).data["name"] == "here"
    below = agents.run("status").expect(0)
    assert "note: the newest plan of this directory: here-too  " in below.stderr
    assert "note" not in agents.run("plan", "status", "last").stderr


def test_a_plan_of_another_directory_is_never_meant(agents: Agents) -> None:
    plan = ran(agents, "here")
    (agents.work / "other").mkdir()
    for argv in ("undo",), ("rollback", "first", "--yes"), ("apply", "--yes"), ("status",):
        failed = agents.run(*argv, cwd=agents.work / "other").expect(3)
        assert failed.stderr == (
            f"error: no plan works on {agents.work.resolve()}/other, or on something in it\n"
            "hint: agents plan list\n"
        )
    assert not (plan / "n").exists()
    assert agents.run("plan", "undo", "last", cwd=agents.work / "other").expect(0)


def test_an_address_beside_a_folder_makes_a_plan_nobody_elses(agents: Agents, yard: Yard) -> None:
    """A plan over addresses alone is of every directory, as it is of none."""
    with open_workspace() as ws:
        folder = str(yard.app)
        plans = ws.ctx.store.plans
        plan = yard.use(ws, "steps: [{id: a, run: touch n}]")
        assert plans.newest_of(folder) == plans.newest_of(os.path.dirname(folder)) == plan.plan_id
        (resource,) = ws.ctx.store.resources.of_plan(plan.plan_id)
        with ws.ctx.store.transaction():
            there = {"resource_id": new_id(), "name": "db", "path": "postgresql://h/db"}
            ws.ctx.store.resources.add([replace(resource, **there)])
        assert plans.newest_of("/somewhere/else") is None
        assert plans.newest_of(folder) == plan.plan_id


def test_without_any_plan_there_is_a_hint(agents: Agents) -> None:
    failed = agents.run("undo").expect(3)
    hint = "agents run -- COMMAND, or agents plan run FILE"
    assert failed.stderr == f"error: there is no plan yet\nhint: {hint}\n"


def test_short_forms_do_what_the_long_ones_do(agents: Agents) -> None:
    folder = ran(agents, "short")
    sandbox = Path(agents.run("status", "--json", cwd=folder).data["sandboxes"]["app"])

    agents.run("rollback", "one", "--yes", cwd=folder).expect(0)
    assert (sandbox / "n").read_text() == "1\n"
    agents.run("undo", cwd=folder).expect(0)
    assert (sandbox / "n").read_text() == "3\n"
    assert "+3" in agents.run("diff", cwd=folder).expect(0).stdout
    operations = agents.run("log", "--json", cwd=folder).data["entries"]
    assert [entry["operation"] for entry in operations][-2:] == ["rollback", "undo"]
    agents.run("apply", "--yes", cwd=folder).expect(0)
    assert (folder / "n").read_text() == "3\n"


def test_a_rollback_needs_a_checkpoint(agents: Agents) -> None:
    folder = ran(agents, "bare")
    failed = agents.run("rollback", cwd=folder).expect(2)
    assert failed.stderr.splitlines()[0] == "error: no checkpoint was named"
    typo = agents.run("rollback", "last", "--yess", cwd=folder).expect(2)
    assert "--yess" in typo.stderr


@pytest.mark.parametrize(
    "typed",
    [
        ("plan", "delete", "", "--yes"),
        ("plan", "cancel", ""),
        ("plan", "undo", ""),
        ("plan", "rollback", "", "first", "--yes"),
        ("plan", "rollback", "kept", "", "--yes"),
        ("plan", "explain", ""),
    ],
)
def test_an_empty_name_stands_for_no_plan(agents: Agents, typed: tuple[str, ...]) -> None:
    ran(agents, "kept")
    before = agents.run("plan", "log", "kept", "--json").data
    failed = agents.run(*typed).expect(2)
    assert failed.stderr.splitlines()[0].endswith(" is empty")
    assert agents.run("plan", "log", "kept", "--json").data == before


def test_a_plan_alone_names_no_checkpoint(agents: Agents) -> None:
    ran(agents, "other")
    ran(agents, "meant")
    failed = agents.run("rollback", "other", "--yes").expect(2)
    assert failed.stderr == (
        "error: no checkpoint of plan 'other' was named\nhint: agents plan checkpoints other\n"
    )


def test_checkpoints_by_step_and_by_how_long_ago(agents: Agents, private_process: Path) -> None:
    ran(agents, "counted")
    with open_workspace(str(private_process / "store")) as ws:
        plan = ws.find("counted")
        order = [group.group_id for group in ws.ctx.store.checkpoints.groups(plan.plan_id)]
        assert plan.group("-0").group_id == order[-1]
        assert plan.group("-2").group_id == plan.group("@{-2}").group_id == order[-3]
        for text, content in (("one", "1"), ("three", "3"), ("@{2 steps ago}", "1")):
            plan.rollback(plan.group(text).group_id)
            assert Path(plan.sandboxes["app"], "n").read_text() == f"{content}\n", text
            plan.undo()
        assert plan.group("@{1 step ago}").group_id == plan.group("two").group_id
        assert plan.group("@{3 steps ago}").group_id == order[0]
        for text in ("-99", "@{4 steps ago}"):
            with pytest.raises(NotFound):
                plan.group(text)
        with pytest.raises(UsageError):
            plan.checkpoint("-1")


def test_minus_one_is_no_option(agents: Agents) -> None:
    folder = ran(agents, "minus")
    before = agents.run("plan", "checkpoints", "--json", cwd=folder).data["checkpoints"]
    groups = list(dict.fromkeys(row["group_id"] for row in before))
    shown = agents.run("plan", "checkpoint", "show", "-1", "--json", cwd=folder)
    assert shown.data["group_id"] == groups[-2]


def test_output_of_every_step_or_of_one(agents: Agents) -> None:
    folder = ran(agents, "spoken")
    every = agents.run("plan", "output", cwd=folder).expect(0).stdout
    assert re.sub(r", \d+\.\ds", "", every) == (
        "one (shell): ok\nfirst\ntwo (shell): ok\nsecond\nthree (shell): ok\n"
    )
    one = agents.run("plan", "output", "spoken", "two", "--json").data["calls"]
    assert [(call["step"], call["output"], call["state"]) for call in one] == [
        ("two", "second\n", "ok")
    ]
    failed = agents.run("plan", "output", "spoken", "twoo").expect(3)
    assert "did you mean 'two'?" in failed.stderr


def test_a_step_alone_is_one_of_the_newest_plan(agents: Agents) -> None:
    folder = ran(agents, "spoken")
    one = agents.run("plan", "output", "two", "--json", cwd=folder).data["calls"]
    assert [call["step"] for call in one] == ["two"]
    assert "no plan 'nobody'" in agents.run("plan", "output", "nobody").expect(3).stderr
    told = agents.run("plan", "explain", "two", cwd=folder).expect(0)
    assert "the newest plan of this directory: spoken" in told.stderr
    again = ("plan", "correct", "two", "--guidance", "once more")
    corrected = agents.run(*again, "--dry-run", "--json", cwd=folder).expect(0).data
    assert "two" in corrected["steps_again"]
    lost = agents.run("plan", "explain", "nothing", cwd=folder).expect(3).stderr
    hint = lost.partition("hint: agents ")[2].split()
    agents.run(*hint).expect(0)


def test_a_command_of_another_group_is_suggested(agents: Agents) -> None:
    assert "did you mean 'agents plan checkpoints'?" in agents.run("checkpoints").expect(2).stderr
    assert "did you mean 'agents plan rollback'?" in agents.run("plan", "rolback").expect(2).stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--json", "plan", "status", "x"], ["plan", "status", "--json", "x"]),
        (["--set", "a=b", "-q", "status"], ["status", "--set", "a=b", "-q"]),
        (["--format=json", "plan", "checkpoint"], ["plan", "checkpoint", "--format=json"]),
        (["plan", "--json", "list"], ["plan", "list", "--json"]),
        (["-q", "plan", "--set", "a=b", "list"], ["plan", "list", "-q", "--set", "a=b"]),
        (["run", "--", "ls", "--json"], ["run", "--", "ls", "--json"]),
        (["--json", "run", "--", "plan"], ["run", "--json", "--", "plan"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
)
def test_options_may_stand_before_the_command(typed: list[str], meant: list[str]) -> None:
    assert behind_command(typed) == meant


def test_help_has_a_short_option_everywhere(agents: Agents) -> None:
    assert agents.run("plan", "rollback", "-h").expect(0).stdout.startswith("Usage: agents plan")


def completed(agents: Agents, words: str) -> list[str]:
    asked = {
        "_AGENTS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    return [line.partition(",")[2] for line in agents.run(env=asked).stdout.split()]


def test_plans_and_checkpoints_are_completed(agents: Agents) -> None:
    assert completed(agents, "agents plan status ") == []  # no store is no error for a shell
    folder = ran(agents, "tabbed")
    agents.run("plan", "checkpoint", "create", "--label", "good", cwd=folder).expect(0)
    assert completed(agents, "agents plan status tab") == ["tabbed"]
    assert completed(agents, "agents rollback tabbed g") == ["good"]
    assert completed(agents, "agents rollback nope g") == []
    assert "status" in completed(agents, "agents stat")
    for shell in ("bash", "zsh", "fish"):
        assert "_AGENTS_COMPLETE" in agents.run("completion", shell).expect(0).stdout
