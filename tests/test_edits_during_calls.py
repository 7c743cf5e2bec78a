"""In place, what a person edits while a call of the agent is open: whose it is, and stays."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cleveragents.integrations.events import Prompt, Quiet, StepBegins, StepEnded
from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import session_plan
from cleveragents.model.conversation import Anchor
from cleveragents.model.resource import IN_PLACE
from cleveragents.workspace import Workspace, open_workspace
from tests.harness import Agents
from tests.scratch import make_repository


class Session:
    """An agent and its person in one repository."""

    def __init__(self, agents: Agents, ws: Workspace, name: str = "sess-1") -> None:
        self.agents = agents
        self.repo = agents.work / "repo"
        self.name = name
        self.calls = 0
        self.observer = Observer(ws.ctx, partial(session_plan, strategy=IN_PLACE, extra={}))

    def anchor(self) -> Anchor:
        return Anchor(agent="claude-code", session_id=self.name, call_id=f"c{self.calls}")

    def prompt(self) -> None:
        self.observer.handle(Prompt(anchor=self.anchor(), cwd=str(self.repo), text="do it"))

    def begin(self, tool: str, writes: bool | None, **inputs: str) -> str:
        self.calls += 1
        begins = StepBegins(
            anchor=self.anchor(),
            cwd=str(self.repo),
            call=f"c{self.calls}",
            tool=tool,
            inputs=dict(inputs),
            writes=writes,
        )
        self.observer.handle(begins)
        return begins.call

    def end(self, call: str) -> None:
        self.observer.handle(StepEnded(anchor=self.anchor(), call=call, ok=True))
        self.observer.close()

    def rollback(self, *flags: str, to: str = "first") -> dict[str, Any]:
        argv = ("plan", "rollback", self.name, to, "--yes", "--files-only", *flags)
        return self.agents.run(*argv, "--json").expect(0).data

    def owners(self, to: str = "first") -> dict[str, tuple[str, str]]:
        found = self.rollback("--dry-run", to=to)["in_place"]
        return {item["file"]: (item["owner"], item["action"]) for item in found}


@pytest.fixture
def session(agents: Agents) -> Iterator[Session]:
    repo = agents.work / "repo"
    (repo / "sub").mkdir(parents=True)
    for name in ("one.txt", "two.txt", "sub/three.txt"):
        (repo / name).write_text("first\n")
    (repo / "link.txt").symlink_to("sub/three.txt")
    make_repository(agents, repo)
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        made = Session(agents, ws)
        made.prompt()
        yield made
        made.observer.close()


MINE, ITS = ("somebody else", "keep"), ("agent", "restore")


def test_another_file_than_the_one_that_is_edited_is_the_persons(session: Session) -> None:
    call = session.begin("Edit", True, file_path=str(session.repo / "one.txt"))
    (session.repo / "one.txt").write_text("by the agent\n")
    (session.repo / "two.txt").write_text("by me\n")
    (session.repo / "mine").mkdir()
    (session.repo / "mine/new.txt").write_text("by me\n")
    session.end(call)
    assert session.owners() == {
        "one.txt": ITS,
        "two.txt": MINE,
        "mine": MINE,
        "mine/new.txt": MINE,
    }
    session.rollback()
    assert (session.repo / "one.txt").read_text() == "first\n"
    assert (session.repo / "two.txt").read_text() == "by me\n"
    assert (session.repo / "mine/new.txt").read_text() == "by me\n"
    session.agents.run("plan", "undo", session.name).expect(0)
    assert (session.repo / "one.txt").read_text() == "by the agent\n"
    assert (session.repo / "two.txt").read_text() == "by me\n"


def test_folders_that_a_new_file_needs_are_the_agents(session: Session) -> None:
    call = session.begin("Write", True, file_path="deep/er/new.txt", content="x")
    (session.repo / "deep/er").mkdir(parents=True)
    (session.repo / "deep/er/new.txt").write_text("x")
    session.end(call)
    assert set(session.owners().values()) == {ITS}
    session.rollback()
    assert not (session.repo / "deep").exists()


def test_what_is_edited_through_a_link_is_the_agents(session: Session) -> None:
    call = session.begin("Edit", True, file_path=str(session.repo / "link.txt"))
    (session.repo / "link.txt").write_text("by the agent\n")
    session.end(call)
    assert session.owners() == {"sub/three.txt": ITS}


def test_a_file_that_its_tool_replaced_by_a_new_one_is_the_agents(session: Session) -> None:
    call = session.begin("Write", True, file_path=str(session.repo / "link.txt"), content="x")
    (session.repo / "x").write_text("x")
    os.replace(session.repo / "x", session.repo / "link.txt")
    session.end(call)
    assert session.owners() == {"link.txt": ITS}


def test_while_a_shell_is_open_everything_is_the_agents(session: Session) -> None:
    shell = session.begin("Bash", None, command="make")
    edit = session.begin("Edit", True, file_path=str(session.repo / "one.txt"))
    (session.repo / "one.txt").write_text("by the agent\n")
    (session.repo / "two.txt").write_text("by whom?\n")
    session.end(edit)
    session.end(shell)
    assert session.owners() == {"one.txt": ITS, "two.txt": ITS}


def test_a_tool_that_does_not_say_what_it_writes_may_write_anything(session: Session) -> None:
    call = session.begin("Edit", True, changes="many")
    (session.repo / "two.txt").write_text("by the agent\n")
    session.end(call)
    assert session.owners() == {"two.txt": ITS}


def test_what_two_sessions_may_have_written_is_nobodys_for_sure(
    session: Session, agents: Agents
) -> None:
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        other = Session(agents, ws, "sess-2")
        other.prompt()
        mine, theirs = session.begin("Bash", None, command="a"), other.begin("Bash", None, cmd="b")
        edit = other.begin("Edit", True, file_path=str(session.repo / "one.txt"))
        (session.repo / "two.txt").write_text("by whom?\n")
        session.end(mine)
        other.end(edit)
        other.end(theirs)
    assert session.owners() == {"two.txt": ("unknown", "conflict")}


def test_what_two_sessions_wrote_alike_one_after_the_other_is_the_agents(
    session: Session, agents: Agents
) -> None:
    """The same prompt again, after the first session was rolled back, gives the same files."""
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        other = Session(agents, ws, "sess-2")
        other.prompt()
        for one in (session, other):
            call = one.begin("Edit", True, file_path=str(one.repo / "one.txt"))
            (one.repo / "one.txt").write_text("by the agent\n")
            one.end(call)
            assert one.owners() == {"one.txt": ITS}
            one.rollback()
            assert (one.repo / "one.txt").read_text() == "first\n"


def test_two_sessions_that_say_what_they_write_do_not_meet(
    session: Session, agents: Agents
) -> None:
    with open_workspace(agents.env["CLEVERAGENTS_HOME"]) as ws:
        other = Session(agents, ws, "sess-2")
        other.prompt()
        mine = session.begin("Edit", True, file_path=str(session.repo / "one.txt"))
        theirs = other.begin("Edit", True, file_path=str(session.repo / "two.txt"))
        (session.repo / "one.txt").write_text("by the first\n")
        (session.repo / "two.txt").write_text("by the second\n")
        session.end(mine)
        other.end(theirs)
    assert session.owners() == {"one.txt": ITS, "two.txt": MINE}
    assert other.owners() == {"one.txt": MINE, "two.txt": ITS}
    other.rollback()
    assert Path(session.repo / "one.txt").read_text() == "by the first\n"
    assert Path(session.repo / "two.txt").read_text() == "first\n"


def test_what_a_call_left_running_writes_later_is_the_agents(session: Session) -> None:
    """Also for a rollback to the point at which the call itself had ended."""
    call = session.begin("Bash", None, command="make watch &")
    (session.repo / "one.txt").write_text("by the agent\n")
    session.end(call)
    status = session.agents.run("plan", "status", session.name, "--json").expect(0).data
    (session.repo / "two.txt").write_text("by what it left running\n")
    session.observer.handle(Quiet(anchor=session.anchor(), background=("make watch",)))
    session.observer.close()
    assert session.owners(status["last_checkpoint_id"]) == {"two.txt": ITS}
    assert session.owners() == {"one.txt": ITS, "two.txt": ITS}
