"""Completion in the shells people use: plans, checkpoints, labels, settings, files."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cleveragents.cli.completion import offered
from cleveragents.workspace import open_workspace
from tests.harness import Agents, command
from tests.in_process import Yard

PLAN = """name: shop
resources: {app: {kind: fs-directory, path: app}}
steps: [{id: build, run: touch one, checkpoint: green build}, {id: test, run: touch two}]
"""


@pytest.fixture
def stage(agents: Agents, yard: Yard) -> Agents:
    """A plan, run; and the command on the path of shells."""
    agents.work = yard.top
    agents.run("plan", "run", yard.plan(PLAN)).expect(0)
    agents.env["PATH"] = f"{Path(command()).parent}:{os.environ['PATH']}"
    agents.env["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
    return agents


def bash(agents: Agents, *words: str) -> list[str]:
    typed = " ".join(f"'{word}'" for word in words)
    script = f"""eval "$(agents completion bash)"
COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}
_agents_completion agents 2>/dev/null; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return run(agents, "bash", "--norc", "-c", script)


def fish(agents: Agents, *words: str) -> list[str]:
    line = " ".join(words)
    script = f"agents completion fish | source; complete -C '{line}'"
    return [one.split("\t")[0] for one in run(agents, "fish", "--no-config", "-c", script)]


def zsh(agents: Agents, *words: str) -> list[str]:
    """What our function hands to zsh's own `compadd` and `_describe`."""
    typed = " ".join(f"'{word}'" for word in words)
    script = f"""compdef() {{ : }}
eval "$(agents completion zsh)"
compadd() {{ print -l -- "${{completions[@]}}" }}
_describe() {{ print -l -- "${{completions_with_descriptions[@]}}" }}
_path_files() {{ print files }}
words=({typed}); CURRENT={len(words)}
_agents_completion"""
    return [one.split(":")[0] for one in run(agents, "zsh", "-f", "-c", script)]


def run(agents: Agents, *argv: str) -> list[str]:
    done = subprocess.run(
        argv, cwd=agents.work, env=agents.env, capture_output=True, text=True, check=False
    )
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_a_shell_completes_names(stage: Agents, shell: object) -> None:
    assert callable(shell)
    if shutil.which(shell.__name__) is None:
        pytest.skip(f"{shell.__name__} is not installed")
    assert "shop" in shell(stage, "agents", "plan", "status", "")
    label = "green\\ build" if shell is bash else "green build"
    assert shell(stage, "agents", "rollback", "gree") == [label]
    assert {"shop", "first", "last", "build", "test"} < set(shell(stage, "agents", "rollback", ""))
    assert shell(stage, "agents", "plan", "rollback", "shop", "bui") == ["build"]
    assert shell(stage, "agents", "config", "get", "sandbox.clea") == ["sandbox.cleanup"]
    values = shell(stage, "agents", "config", "set", "sandbox.cleanup", "")
    assert set(values) == {"on_apply", "on_terminal", "manual"}
    assert shell(stage, "agents", "plan", "stat") == ["status"]


def answers(stage: Agents, *words: str) -> list[str]:
    env = {
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_AGENTS_COMPLETE": "bash_complete",
    }
    return stage.run(env=env).stdout.splitlines()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("plan", "delete", ""), "plain,shop"),
        (("plan", "diff", "--from", "bu"), "plain,build"),
        (("plan", "output", "shop", "te"), "plain,test"),
        (("plan", "shell", "shop", "--on", ""), "plain,app"),
        (("rollback", "first", "--only", ""), "plain,app"),
        (("plan", "run", ""), "file,"),
        (("plan", "open", "shop", "gre"), "plain,green build"),
        (("schema", "plan", "checkpoint", ""), "plain,create"),
        (("config", "set", "session.fail-closed", "t"), "plain,true"),
        (("--json", "plan", "chec"), "plain,checkpoints"),
        (("completion", "z"), "plain,zsh"),
    ],
)
def test_arguments_and_options_are_completed(
    stage: Agents, typed: tuple[str, ...], offered: str
) -> None:
    assert offered in answers(stage, "agents", *typed)


def test_a_plan_is_offered_by_its_id_where_its_name_means_another(
    stage: Agents, yard: Yard
) -> None:
    with open_workspace() as ws:
        (older,) = (plan.plan_id for plan in ws.plans())
        assert older not in {item.value for item in offered("plan", "", "")}
        assert [item.value for item in offered("plan", "", older[:8])] == [older]
        newer = ws.run(yard.plan(PLAN)).plan_id
        assert [item.value for item in offered("plan", "", "")] == ["shop", older]
        assert newer != older
        assert offered("plan or checkpoint", "", "")[0].value == "first"


def test_decisions_are_offered_with_what_they_are_about(stage: Agents, yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan(PLAN.replace("shop", "second")))
        found = {item.help: item.value for item in offered("decision", "second", "")}
        assert f"plain,{found['build: shell']}" in answers(stage, "agents", "plan", "explain", "")
        assert offered("decision", plan.plan_id, "nothing like this") == []


def test_looking_for_names_makes_no_store_and_shows_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(tmp_path / "none"))
    assert offered("plan", "", "") == []
    assert not (tmp_path / "none").exists()
    with open_workspace():
        assert offered("plan or checkpoint", "", "") == []
        assert offered("checkpoint", "nope", "") == []
