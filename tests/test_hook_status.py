"""`agents hook status` says whether the hooks of an agent are the ones that would be installed."""

from tests.harness import Agents
from tests.test_conversation import Talk

INSTALL = ("hook", "install", "claude-code")


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
