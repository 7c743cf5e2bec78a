"""Questions are asked where there is somebody to answer, and only a yes does anything."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cleveragents.cli.main import root
from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.in_process import PLAN, Yard, cli
from tests.pseudo_terminal import PseudoTerminal
from tests.scratch import sleeps, wait_until

ASK = """
name: ask
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, tool: file.write, with: {path: .envrc, content: "x\\n"}}]
"""


@pytest.fixture
def plan(agents: Agents) -> Agents:
    (agents.work / "work").mkdir()
    (agents.work / "plan.yaml").write_text(ASK)
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
    code, seen = answered(plan, "\x04", "plan", "rollback", "ask", "first")
    assert code == 4
    assert "error: not done: declined" in seen
    assert (sandbox / ".envrc").exists()
    code, seen = answered(plan, "y", "plan", "rollback", "ask", "first")
    assert code == 0
    for panel in ("Rollback Summary", "Changes Reverted", "Impact", "Post-Rollback State"):
        assert panel in seen
    assert not (sandbox / ".envrc").exists()


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("plan rollback ask first", "roll back 1 change"),
        ("plan apply ask", "apply 1 change"),
        ("plan delete ask", "delete the plan?"),
        ("plan checkpoint delete ask first", "delete checkpoint"),
    ],
)
def test_ctrl_c_at_a_question_does_nothing_and_is_an_interruption(
    plan: Agents, words: str, question: str
) -> None:
    before = plan.run("plan", "log", "ask", "--json").data["entries"]
    with PseudoTerminal(plan, *words.split(), TERM="dumb") as terminal:
        terminal.read_until(lambda shown: question in shown and "[y/N]" in shown)
        wait_until(lambda: sleeps(terminal.process.pid), "somebody who waits for an answer")
        terminal.interrupt()
        assert terminal.ended() == 130
        assert "error: interrupted; nothing is lost" in terminal.screen.text
        assert f"hint: agents {words}" in terminal.screen.text
        assert "declined" not in terminal.screen.text
    assert plan.run("plan", "log", "ask", "--json").data["entries"] == before
    assert not (plan.work / "work" / ".envrc").exists()


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
    (agents.work / "plan.yaml").write_text(ASK)
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


def test_without_a_terminal_nothing_is_done_that_needs_a_yes(yard: Yard) -> None:
    cli("plan", "run", yard.plan(), "-q")
    for argv in (
        ("rollback", "shop", "first"),
        ("apply", "shop"),
        ("checkpoint", "delete", "shop", "first"),
    ):
        said = cli("plan", *argv, "--json", expect=4)
        assert said.data["error"]["type"] == "Declined"
        assert said.data["error"]["hint"] == f"agents plan {' '.join(argv)} --json --yes"
    said = cli("plan", "delete", "shop", expect=4)
    assert "3 changes that were never applied" in said.stderr
    assert os.listdir(yard.app) == ["old.txt"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, answer: str, *argv: str) -> int:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    return root.main(list(argv), prog_name="agents", standalone_mode=False)


def test_at_a_terminal_the_question_is_asked_and_the_answer_taken(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_workspace() as ws:
        ws.run(yard.plan())
        ws.run(yard.plan(PLAN.replace("name: shop", "name: other")))
    assert at_terminal(monkeypatch, "n", "plan", "apply", "shop") == 4
    said = capsys.readouterr().err
    assert "apply 3 changes?" in said
    assert "declined" in said
    assert os.listdir(yard.app) == ["old.txt"]
    assert at_terminal(monkeypatch, "y", "plan", "delete", "other") == 0
    assert "3 changes were never applied; delete the plan?" in capsys.readouterr().err
    assert at_terminal(monkeypatch, "y", "plan", "apply", "shop") == 0
    assert set(os.listdir(yard.app)) == {"one.txt", "two.txt"}


def test_at_a_terminal_a_large_tree_is_carried_if_one_says_so(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (yard.app / "second").write_text("")
    argv = ("plan", "run", yard.plan(), "--set", "sandbox.carry-limit-files=1")
    assert at_terminal(monkeypatch, "n", *argv) == 4
    assert "copy it anyway?" in capsys.readouterr().err
    assert at_terminal(monkeypatch, "y", *argv) == 0
    said = cli("run", "--on", "app", "--set", "sandbox.carry-limit-files=1", "true", expect=125)
    assert "copy it anyway?" not in said.stderr
