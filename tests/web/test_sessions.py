"""A session of an agent on the page: prompts are decisions, and the conversation is named."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import session_plan
from cleveragents.workspace import Workspace, open_workspace
from tests.databases import Where
from tests.harness import Agents
from tests.test_observed import Rig
from tests.web.visitor import Visitor, classes, rows, words


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
    assert "not known who" not in words(page)
    key = re.findall(r'<li class="moment[^"]*" id="m-(\w+)"', page)[1]
    panel = words(visitor.get(f"/plans/{plan_id}/panel?at={key}"))
    assert "2 calls Write b.txt" in panel
    assert "2 prompts so far. Nothing is applied" in words(page)
    assert "Review and apply" in words(page)
    assert "Resume" not in words(page)
    assert "3 paths become real" in words(visitor.get(f"/plans/{plan_id}/apply"))
    refused = words(visitor.get(f"/plans/{plan_id}/resume", expect=409))
    assert "the conversation is continued in its agent" in refused.lower()
    assert "claude --resume sess-1" in refused
    preview = words(visitor.get(f"/plans/{plan_id}/undo"))
    assert "Undo last prompt" in preview
    assert "The conversation goes back too" in preview
    back = words(visitor.get(f"/plans/{plan_id}/rollback?to=first"))
    assert "2 decisions are set aside add b now more What is set aside" in back
    assert "“add b”" in words(visitor.get(f"/plans/{plan_id}/rollback?to={key}"))


def test_a_session_that_changed_nothing_needs_nobody_whatever_its_call_came_to(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", rig.agents.env["CLEVERAGENTS_HOME"])
    rig.start()
    rig.prompt("try")
    rig.end(rig.begin("Bash"), ok=False, error="Exit code 3")
    rig.quiet("it did not work")
    plan_id = rig.plan.plan_id
    rig.observer.close()
    visitor = Visitor()
    listed = words(visitor.get("/"))
    assert "Nothing needs you" in listed
    assert "1 prompt so far. Nothing changed: there is nothing to apply." in listed
    page = words(visitor.get(f"/plans/{plan_id}"))
    assert "Review and apply" not in page
    assert "Resume" not in page


def test_a_session_in_place_that_was_ended_is_not_said_to_be_applied(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", agents.env["CLEVERAGENTS_HOME"])
    with open_workspace() as ws:
        rig = rolled_back_in_place(agents, ws)
        rig.plan.undo()
        rig.plan.redo()
        rig.observer.close()
        told = agents.run("plan", "report", rig.plan.plan_id, "--markdown").expect(0).stdout
        assert "\n- **Your edits, kept when you rolled back**: mine.txt is new" in told
        assert "1 attempt set aside" in told  # edits in place never went, and are none
        rig.plan.apply()
    listed = words(Visitor().get("/"))
    assert "Ended. work, in place, is as it was left" in listed
    assert "Applied" not in listed


def in_place(agents: Agents, ws: Workspace, session: str) -> Rig:
    """An agent that works in the folder itself."""
    made = Rig(agents, ws, session)
    make = partial(session_plan, strategy="in_place", extra={})
    made.observer = Observer(ws.ctx, make, wait=0.2)
    return made


def rolled_back_in_place(agents: Agents, ws: Workspace) -> Rig:
    """A session whose only prompt was rolled back, with a file of the person's beside it."""
    rig = in_place(agents, ws, "sess-1")
    rig.start()
    rig.prompt("work")
    rig.write("a.txt", "a\n")
    rig.quiet("done")
    (agents.work / "mine.txt").write_text("mine\n")
    rig.plan.rollback("first")
    return rig


def test_what_two_sessions_did_at_once_is_nobodys_for_sure(
    agents: Agents, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", where.home)
    monkeypatch.setenv("CLEVERAGENTS_STORE_URL", where.url)
    (agents.work / "a.txt").write_text("a\n")
    with open_workspace() as ws:
        one, two = in_place(agents, ws, "sess-1"), in_place(agents, ws, "sess-2")
        for rig in (one, two):
            rig.start()
            rig.prompt("work")
        one.write("alone.txt", "mine\n")
        calls = one.begin(path="both.txt"), two.begin(path="both.txt")
        (agents.work / "both.txt").write_text("whose?\n")
        one.end(calls[0])
        two.end(calls[1])
        two.write("second.txt", "of the second\n")
        one.quiet("I did")
        one.prompt("look")  # here it is seen what the second has done since
        one.end(one.begin("Read", writes=False))
        one.quiet("seen")
        owners = {
            change.shown: str(owner)
            for entry in one.plan.timeline()
            for change, owner in zip(entry.changes, entry.owners, strict=True)
        }
        plan_id = one.plan.plan_id
        for rig in (one, two):
            rig.observer.close()
    assert owners["both.txt"] == "both"
    assert owners["alone.txt"] == "agent"
    visitor = Visitor()
    page = visitor.get(f"/plans/{plan_id}")
    said = rows(page)
    first = next(row for row in said if "I did" in row)
    assert "agent or another session" in first
    assert "Another session had a call open when it was written" in first
    other = next(row for row in said if "edited second.txt" in row)
    assert "you or another session" in other
    assert "You or another session edited second.txt" in other
    assert "2 prompts so far, in place: there is nothing to apply" in words(page)
    assert "Nothing needs you" in words(visitor.get("/"))
    assert page.count('<span class="node unknown">') == 3  # with the one of the legend
    assert '<i class="dot unknown' in page
    compared = words(visitor.get(f"/plans/{plan_id}/diff"))
    assert "both.txt agent or another session: I did" in compared
    assert "alone.txt agent: I did" in compared
    assert "second.txt you or another session +1" in compared


def test_a_call_that_failed_is_one_of_its_prompt_and_what_it_wrote_is_in_force(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", agents.env["CLEVERAGENTS_HOME"])
    (agents.work / "a.txt").write_text("a\n")
    with open_workspace() as ws:
        rig = in_place(agents, ws, "sess-1")
        rig.start()
        rig.prompt("look around")
        rig.end(rig.begin("Bash"), ok=False, error="Exit code 1")
        rig.quiet("nothing there")
        rig.prompt("test it")
        rig.write("test.py", "1 / 0\n")
        call = rig.begin("Bash", command="python test.py")
        (agents.work / "log.txt").write_text("1 / 0\n")
        rig.end(call, ok=False, error="Exit code 1")
        rig.quiet("it fails")
        plan_id = rig.plan.plan_id
        visitor = Visitor()
        page = visitor.get(f"/plans/{plan_id}")
        _, looked, tested = rows(page)
        assert "look around nothing there" in looked
        assert "Changed nothing. 1 call failed" in looked
        assert "test it it fails" in tested
        assert "log.txt and test.py are new. 1 of 2 calls failed" in tested
        assert classes(page) == ["moment", "moment", "moment here"]
        assert "s2" not in words(page)
        panel = words(visitor.get(f"/plans/{plan_id}/panel?at="))
        assert "log.txt + 1 / 0 test.py + 1 / 0" in panel, "each line below its file"
        assert "2 calls Write test.py" in panel
        assert "Bash python test.py failed" in panel
        rig.plan.rollback("s1")
        back = visitor.get(f"/plans/{plan_id}")
        assert "test it it fails" in rows(back)[2]
        assert classes(back)[:3] == ["moment", "moment", "moment aside"]
        rig.observer.close()


def test_edits_in_place_stay_whatever_is_undone(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEVERAGENTS_HOME", agents.env["CLEVERAGENTS_HOME"])
    with open_workspace() as ws:
        rig = rolled_back_in_place(agents, ws)
        (agents.work / "folder").mkdir()
        rig.plan.undo()
        rig.observer.close()
        plan_id = rig.plan.plan_id
    assert (agents.work / "mine.txt").exists()
    page = words(Visitor().get(f"/plans/{plan_id}"))
    assert "You edited mine.txt" in page
    assert "Set aside" not in page
    assert "You edited folders, or files of git" in page
    assert "0 files" not in page
