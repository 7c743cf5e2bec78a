"""`agents mcp` as Claude Code, Codex and Gemini CLI use it: the real programs, a scripted model.

`nox -s agents` installs them and runs this; elsewhere it is skipped, and says so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.programs import PROGRAMS, Lab, lab_for
from tests.agents.scripted_model import Call, Say, ScriptedModel
from tests.harness import Agents, command

PROGRAMS_DIR = os.environ.get("CLEVERAGENTS_TEST_AGENTS", "")
pytestmark = pytest.mark.skipif(
    not PROGRAMS_DIR, reason="the agents are not installed: run nox -s agents, which needs npm"
)
MAKE = """
from cleveragents.workspace import open_workspace
with open_workspace() as ws:
    plan = ws.plan("notes", resources={"app": "."})
    with plan.step("write"):
        open(plan.sandboxes["app"] + "/b.txt", "w").write("b")
"""


def claude(lab: Lab, server: dict[str, object]) -> tuple[str, ...]:
    file = lab.home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"agents": server}}))
    return "--mcp-config", str(file), "--allowed-tools", "mcp__agents"


def codex(lab: Lab, server: dict[str, object]) -> tuple[str, ...]:
    """With a model for which Codex offers tools at once, not after a search."""
    file = lab.home / ".codex" / "config.toml"
    words = ", ".join(f"{key} = {json.dumps(value)}" for key, value in server["env"].items())  # pyright: ignore
    text = file.read_text().replace("gpt-5.5", "gpt-5")
    table = f'command = "{server["command"]}"\nargs = ["mcp"]\nenv = {{ {words} }}\n'
    file.write_text(f"{text}\n[mcp_servers.agents]\n{table}startup_timeout_sec = 60\n")
    return ()


def gemini(lab: Lab, server: dict[str, object]) -> tuple[str, ...]:
    file = lab.home / ".gemini" / "settings.json"
    settings = json.loads(file.read_text())
    settings["mcpServers"] = {"agents": {**server, "trust": True}}
    file.write_text(json.dumps(settings))
    return PROGRAMS["gemini"].flags


WAIT = Call("read_mcp_resource", {"server": "agents", "uri": "plans://all"})
"""Codex asks the model before the server has started; this call waits for it."""


@pytest.mark.parametrize(
    ("name", "set_up", "prefix", "namespace", "first"),
    [
        ("claude-code", claude, "mcp__agents__", "", []),
        ("codex", codex, "", "mcp__agents", [[WAIT]]),
        ("gemini", gemini, "mcp_agents_", "", []),
    ],
)
def test_an_agent_makes_a_checkpoint_and_asks_for_a_rollback(
    agents: Agents,
    tmp_path: Path,
    name: str,
    set_up: Callable[[Lab, dict[str, object]], tuple[str, ...]],
    prefix: str,
    namespace: str,
    first: list[list[Call]],
) -> None:
    program = PROGRAMS[name]

    def call(tool: str, **given: object) -> list[Call]:
        return [Call(prefix + tool, given, namespace=namespace)]

    turns = [
        call("plan_status"),
        call("checkpoint_create", label="mine"),
        call("record_decision", question="which", chosen="a", alternatives=["b"], confidence=0.6),
        call("plan_rollback", checkpoint="first"),
    ]
    with ScriptedModel({"go": [*first, *turns, [Say("finished")]]}) as model:
        lab = lab_for(program, Path(PROGRAMS_DIR), tmp_path / "lab", model.url)
        (lab.project / "a.txt").write_text("a\n")
        env = {**lab.environment(), "CLEVERAGENTS_HOME": agents.env["CLEVERAGENTS_HOME"]}
        subprocess.run(["git", "init", "--quiet"], cwd=lab.project, env=env, check=True)
        subprocess.run([sys.executable, "-c", MAKE], cwd=lab.project, env=env, check=True)
        kept = {key: env[key] for key in ("CLEVERAGENTS_HOME", "HOME", "PATH")}
        flags = set_up(lab, {"command": command(), "args": ["mcp"], "env": kept})
        done = lab.run([program.command, *flags, *program.ask("SCRIPT:go now")])
        said = model.with_tools()[-1].said
    assert "finished" in done.stdout, (done.stdout, done.stderr)
    assert "notes" in said
    assert "nothing was changed; to do it, call again with" in said
    rows = agents.run("plan", "checkpoints", "notes", "--json").expect(0).data["checkpoints"]
    assert [row["label"] for row in rows if row["label"]] == ["mine"]
    assert rows[-1]["type"] == "on_decision"
