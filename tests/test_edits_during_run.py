"""The user goes on working while a plan runs: kept, merged, or settled first."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents, command
from tests.scratch import git, make_repository, running_step, snapshot, wait_until, without

LINES = [f"line {number}" for number in range(1, 12)]
PLAN = """
name: meanwhile
resources: {app: {kind: %s, path: app}}
steps:
  - {id: wait, run: 'while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done'}
  - {id: edit, run: "sed -i 's/line 2$/PLAN 2/' merged.txt both.txt; echo plan > new.txt"}
"""


def text(**changed: str) -> str:
    return "\n".join(changed.get(line.replace(" ", ""), line) for line in LINES) + "\n"


def run_while(agents: Agents, edit: Callable[[], None]) -> dict[str, Any]:
    """Run the plan; the user edits while its first step is at work."""
    argv = [command(), "plan", "run", "plan.yaml", "--json"]
    with subprocess.Popen(argv, cwd=agents.work, env=agents.env, stdout=-1) as process:
        wait_until(lambda: running_step(agents) == "wait", "the first step")
        edit()
        (agents.work / "go").touch()
        process.communicate(timeout=600)
    assert process.returncode == 0
    return agents.run("plan", "status", "last", "--json").expect(0).data


@pytest.mark.parametrize("kind", ["git-checkout", "fs-directory"])
@pytest.mark.parametrize("settled", ["in the sandbox", "in the target"])
def test_three_edits_while_the_plan_runs(agents: Agents, kind: str, settled: str) -> None:
    app = agents.work / "app"
    app.mkdir()
    for name in ("kept.txt", "merged.txt", "both.txt"):
        (app / name).write_text(text())
    if kind == "git-checkout":
        make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(PLAN % kind)

    def edit() -> None:
        (app / "kept.txt").write_text(text(line5="USER 5"))
        (app / "merged.txt").write_text(text(line10="USER 10"))
        (app / "both.txt").write_text(text(line2="USER 2"))

    status = run_while(agents, edit)
    sandbox, before = Path(status["sandboxes"]["app"]), snapshot(app)
    shown = agents.run("plan", "apply", "last", "--dry-run", "--json").expect(0).data
    assert [c["path"] for c in shown["conflicts"]] == ["both.txt"]
    assert shown["would_apply"][0]["merged"] == ["merged.txt"]
    refused = agents.run("plan", "apply", "last", "--yes", "--json").expect(4).data
    [conflict] = refused["conflicts"]
    assert (conflict["path"], conflict["resource"]) == ("both.txt", "app")
    assert "same place" in conflict["reason"]
    assert snapshot(app) == before, "nothing was applied"
    state = agents.run("plan", "status", "last", "--json").data
    assert (state["phase"], state["state"]) == ("apply", "constrained")
    if settled == "in the sandbox":
        (sandbox / "both.txt").write_text(text(line2="USER 2"))
        wanted = text(line2="USER 2")
    else:
        (app / "both.txt").write_text(text())
        wanted = text(line2="PLAN 2")
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert {path.name: path.read_text() for path in app.glob("*.txt")} == {
        "kept.txt": text(line5="USER 5"),
        "merged.txt": text(line2="PLAN 2", line10="USER 10"),
        "both.txt": wanted,
        "new.txt": "plan\n",
    }
    if kind == "git-checkout":
        assert git(agents, app, "log", "--format=%s") == "start", "your edits are not committed"
    assert without(snapshot(app), b".git").keys() == {
        b"kept.txt", b"merged.txt", b"both.txt", b"new.txt"
    }  # fmt: skip
