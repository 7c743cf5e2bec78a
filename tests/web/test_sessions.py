"""A session of an agent on the page: prompts are decisions, and the conversation is named."""

import re
from collections.abc import Iterator

import pytest

from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.test_observed import Rig
from tests.web.visitor import Visitor, rows, words


@pytest.fixture
def rig(agents: Agents) -> Iterator[Rig]:
    (agents.work / "a.txt").write_text("a\n")
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        made = Rig(agents, ws)
        yield made
        made.observer.close()


def test_prompts_are_decisions_and_calls_are_in_the_panel(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", rig.agents.env["CLEVERAGENTS_HOME"])
    rig.start()
    rig.prompt("add b\nand say so")
    rig.write("b.txt", "b\n")
    rig.write("c.txt", "c\n")
    rig.quiet("I added b.txt")
    rig.prompt("now more")
    rig.write("d.txt", "d\n")
    rig.quiet("and d")
    plan_id = rig.plan.plan_id
    rig.observer.close()
    visitor = Visitor()
    page = visitor.get(f"/plans/{plan_id}")
    began, first, second = rows(page)[:3]
    assert "Began" in began
    assert "add b I added b.txt" in first
    assert "b.txt and c.txt are new" in first
    assert "now more and d" in second
    assert "claude-code session sess-1" in words(page)
    key = re.findall(r'<li class="moment[^"]*" id="m-(\w+)"', page)[1]
    panel = words(visitor.get(f"/plans/{plan_id}/panel?at={key}"))
    assert "2 calls Write b.txt" in panel
    refused = words(visitor.get(f"/plans/{plan_id}/resume", expect=409))
    assert "the conversation is continued in its agent" in refused.lower()
    assert "claude --resume sess-1" in refused
    preview = words(visitor.get(f"/plans/{plan_id}/undo"))
    assert "Undo last prompt" in preview
    assert "The conversation goes back too" in preview
