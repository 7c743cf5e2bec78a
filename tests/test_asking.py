"""Questions are asked where there is somebody to answer, and only a yes does anything."""

import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import Agents

PLAN = """
name: ask
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, tool: file.write, with: {path: .envrc, content: "x\\n"}}]
"""


@pytest.fixture
def plan(agents: Agents) -> Agents:
    (agents.work / "work").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    return agents


def answered(agents: Agents, answer: str, *argv: str) -> tuple[int, str]:
    """Exit code and what a person sees who types that answer at a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cleveragents", *argv],
        cwd=agents.work,
        env=agents.env | {"TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    os.close(ours)
    return process.wait(), seen.decode("utf-8", "replace")


def test_a_no_leaves_everything_and_a_yes_rolls_back(plan: Agents) -> None:
    sandbox = Path(plan.run("plan", "status", "--json").data["sandboxes"]["work"])
    code, seen = answered(plan, "n", "plan", "rollback", "ask", "first")
    assert code == 4
    assert "roll back 1 change" in seen
    assert (sandbox / ".envrc").exists()
    code, seen = answered(plan, "y", "plan", "rollback", "ask", "first")
    assert code == 0
    for panel in ("Rollback Summary", "Changes Reverted", "Impact", "Post-Rollback State"):
        assert panel in seen
    assert not (sandbox / ".envrc").exists()


def test_apply_names_control_files_before_it_asks(plan: Agents) -> None:
    code, seen = answered(plan, "n", "plan", "apply", "ask")
    assert code == 4
    assert "control files: .envrc" in seen
    assert not (plan.work / "work" / ".envrc").exists()
    code, _ = answered(plan, "y", "plan", "apply", "ask")
    assert code == 0
    assert (plan.work / "work" / ".envrc").read_text() == "x\n"


def test_deleting_unapplied_work_is_asked_for(plan: Agents) -> None:
    code, seen = answered(plan, "n", "plan", "delete", "ask")
    assert code == 4
    assert "never applied" in seen
    code, _ = answered(plan, "y", "plan", "delete", "ask")
    assert code == 0
    assert plan.run("plan", "list", "--json").data["plans"] == []


def test_a_tree_above_the_limit_is_asked_about(agents: Agents) -> None:
    (agents.work / "work").mkdir()
    (agents.work / "work" / "big").write_bytes(b"x" * 5000)
    (agents.work / "plan.yaml").write_text(PLAN)
    small = ("--set", "sandbox.carry-limit=1000")
    code, seen = answered(agents, "n", "plan", "run", "plan.yaml", *small)
    assert code == 4
    assert "exclude: [big]" in seen
    code, _ = answered(agents, "y", "plan", "run", "plan.yaml", *small)
    assert code == 0
    error = agents.run("plan", "run", "plan.yaml", "--json", *small).expect(4).data["error"]
    assert error["type"] == "CarryLimit"


def test_without_a_terminal_nothing_is_asked_and_the_flag_is_named(plan: Agents) -> None:
    for argv in (("rollback", "ask", "first"), ("apply", "ask")):
        error = plan.run("plan", *argv, "--json").expect(4).data["error"]
        assert error["type"] == "Declined"
        assert "--yes" in error["hint"]


def test_a_damaged_store_is_exit_code_six_and_an_odd_row_too(plan: Agents) -> None:
    store = Path(plan.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE plans SET spec = '[]', source_text = 1, attempt = 'x'")
    assert plan.run("plan", "list", "--json").expect(6).data["error"]["type"] == "StoreError"
    store.write_bytes(store.read_bytes()[:4096] + b"garbage" * 2000)
    assert plan.run("plan", "list", "--json").expect(6).data["error"]["type"] == "StoreError"
    store.write_bytes(b"")
    error = plan.run("plan", "list", "--json").expect(6).data["error"]
    assert "gone or empty" in error["message"]
