"""`agents hook status` says whether the hooks of an agent are the ones that would be installed."""

import subprocess
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.test_conversation import Talk

INSTALL = ("hook", "install", "claude-code")
PATCH = ("git", "apply", "--unsafe-paths", "-")


def remark(agents: Agents) -> str:
    (row,) = agents.run("hook", "status", "claude-code", "--json").expect(0).data["agents"]
    return row["remark"] or ""


def test_hooks_of_today_are_not_remarked_upon(agents: Agents) -> None:
    agents.run(*INSTALL).expect(0)
    assert remark(agents) == "claude-code has not called us yet: start a session"


def test_hooks_with_another_client_store_or_setting_are_named(agents: Agents) -> None:
    agents.run(*INSTALL, "--scope", "project", "--set", "session.hook-budget=7s").expect(0)
    said = remark(agents)
    assert said.startswith("the hooks of claude-code run another installation, store or setting; ")
    assert "; agents hook install claude-code --scope project renews them; " in said
    agents.run(*INSTALL, "--scope", "project").expect(0)
    assert "another installation" not in remark(agents)


def test_the_last_session_is_shown_as_people_say_it(agents: Agents) -> None:
    Talk(agents)
    (row,) = agents.run("hook", "status", "claude-code", "--json").expect(0).data["agents"]
    shown = agents.run("hook", "status", "claude-code").expect(0).stdout
    assert row["last_session"] not in shown
    assert " ago " in shown or "just now" in shown


@pytest.mark.parametrize("before", [None, '{"model": "opus"}', '{\n  "model": "opus"\n}\n'])
def test_the_change_that_is_shown_is_a_patch(agents: Agents, before: str | None) -> None:
    settings = Path(agents.env["HOME"]) / ".claude" / "settings.json"
    settings.parent.mkdir()
    if before is not None:
        settings.write_text(before)
    shown = agents.run(*INSTALL, "--dry-run").expect(0).stdout
    subprocess.run(PATCH, input=shown, cwd="/", text=True, check=True)
    patched = settings.read_bytes()
    assert "nothing to do" in agents.run(*INSTALL).expect(0).stdout
    assert settings.read_bytes() == patched
    gone = agents.run("hook", "uninstall", "claude-code", "--dry-run").expect(0).stdout
    subprocess.run(PATCH, input=gone, cwd="/", text=True, check=True)
    assert (settings.read_text() if settings.exists() else None) == before
