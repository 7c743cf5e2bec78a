"""What is worked on in place: one's own edits need a choice, and prompts are decisions."""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import pytest

from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests.in_process import Yard, cli, execute
from tests.web.visitor import Visitor, rows, words

TEXT = "".join(f"{n}\n" for n in range(1, 20))
PLAN = """
name: here
resources: {app: {kind: fs-directory, path: app, strategy: in_place}}
steps:
  - {id: edit, on: app, run: "sed -i 's/^5$/five/' both.txt; echo a > agents.txt"}
"""
ROWS = """
name: rows
resources: {db: {kind: sqlite, path: shop.db, strategy: in_place}}
steps: [{id: one, tool: sql, on: db, with: {script: "UPDATE t SET v = 'agent' WHERE id = 1"}}]
"""


@pytest.fixture
def visitor(yard: Yard) -> Generator[Visitor]:
    made = Visitor()
    yield made
    for job in made.commands.running():
        job.wait(30)


@pytest.mark.parametrize(("choice", "then"), [("take", "5\n"), ("keep", "cinq\n")])
def test_where_both_changed_the_same_line_one_chooses(
    yard: Yard, visitor: Visitor, choice: str, then: str
) -> None:
    both = yard.app / "both.txt"
    both.write_text(TEXT)
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
    both.write_text(both.read_text().replace("five\n", "cinq\n"))
    (yard.app / "mine.txt").write_text("mine\n")
    preview = words(visitor.get("/plans/here/rollback?to=first"))
    assert "Your own edits stay; 1 needs your choice" in preview
    assert "both.txt : changed by the agent and by somebody else" in preview
    assert "mine.txt : only you changed it" in preview
    first = visitor.get("/plans/here/rollback?to=first").split('name="to" value="')[1].split('"')[0]
    path = f"/plans/{plan.plan_id}/rollback"
    refused = visitor.post(path, to=first, expect=409)
    assert "both.txt" in words(refused.text)
    assert (yard.app / "agents.txt").exists()
    visitor.post(path, **{"to": first, "clash-1": f"{choice}:both.txt"})
    assert then in both.read_text()
    assert (yard.app / "mine.txt").read_text() == "mine\n"
    assert not (yard.app / "agents.txt").exists()


def session(ws: Workspace, yard: Yard) -> PlanHandle:
    resources: dict[str, Any] = {
        "app": {"kind": "fs-directory", "path": str(yard.app), "strategy": "in_place"}
    }
    return ws.plan("talk", resources)


def test_steps_of_a_caller_are_rows_of_their_decisions(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = session(ws, yard)
        with plan.decision("add a greeting", "in hello.txt") as decision:
            decision.call("file.write", path="hello.txt", content="hello\n")
            decision.call("file.write", path="more.txt", content="more\n")
    page = Visitor().get("/plans/talk")
    assert any("add a greeting in hello.txt" in row for row in rows(page))
    assert "2 calls" in words(page)
    assert os.path.exists(yard.app / "hello.txt")


def test_what_the_agent_alone_changed_is_none_of_your_edits(yard: Yard, visitor: Visitor) -> None:
    (yard.app / "both.txt").write_text(TEXT)
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
    back = words(visitor.get("/plans/here/rollback?to=first"))
    assert "2 paths return" in back
    assert "Your own edits" not in back
    with open_workspace() as ws:
        plan = ws.find("here")
        plan.rollback("first")
    # What is as it was needs no mention; a file that is not there is not kept.
    assert cli("plan", "rollback", "here", "first", "--dry-run", "--json").data["in_place"] == []


def test_going_back_and_forth_is_no_edit_of_yours(yard: Yard, visitor: Visitor) -> None:
    (yard.app / "both.txt").write_text(TEXT)
    with open_workspace() as ws:
        execute(ws, ws.use(yard.plan(PLAN)))
    ways: dict[str, Callable[[PlanHandle], object]] = {
        "rollback": lambda plan: plan.rollback("first"),
        "undo": lambda plan: plan.undo(),
        "redo": lambda plan: plan.redo(),
        "undo again": lambda plan: plan.undo(),
    }
    for number, (way, go) in enumerate(ways.items()):
        with open_workspace() as ws:
            go(ws.find("here"))
        page = visitor.get("/plans/here")
        assert not [row for row in rows(page) if "edited" in row], way
        assert "edited" not in words(visitor.get("/plans/here/diff")), way
        groups = cli("plan", "checkpoints", "here", "--json").data["groups"]
        assert [one["type"] for one in groups].count("post_rollback") == number + 1
        assert "external_edit" not in [one["type"] for one in groups]
        assert (groups[-1]["here"], groups[-1]["in_force"]) == (True, True), way
    (yard.app / "mine.txt").write_text("mine\n")
    cli("plan", "rollback", "here", "first", "--yes")
    told = rows(visitor.get("/plans/here"))
    assert len([row for row in told if "mine.txt" in row]) == 1, told
    assert (yard.app / "mine.txt").read_text() == "mine\n"


def test_rows_of_a_database_in_place_say_whose_they_are(yard: Yard) -> None:
    def by_hand(script: str) -> None:
        with closing(sqlite3.connect(yard.top / "shop.db")) as db:
            db.executescript(script)

    by_hand("CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    with open_workspace() as ws:
        plan = ws.use(yard.plan(ROWS))
        execute(ws, plan)
    by_hand("UPDATE t SET v = 'mine' WHERE id = 2")
    (file,) = cli("plan", "diff", "rows", "--json").data["files"]
    told = [(row["after"], row["owner"]) for row in file["tables"][0]["rows"]]
    assert (file["owner"], told) == (
        "both",
        [([1, "agent"], "agent"), ([2, "mine"], "somebody else")],
    )


def test_what_is_in_place_already_is_ended_and_not_applied(yard: Yard, visitor: Visitor) -> None:
    (yard.app / "both.txt").write_text(TEXT)
    with open_workspace() as ws:
        execute(ws, ws.use(yard.plan(PLAN)))
    page = words(visitor.get("/plans/here/apply"))
    assert "End here Its work is in place already." in page
    assert "nothing of it can be rolled back" in page
    for word in ("become real", "as a commit", "in_place", "Nothing to apply"):
        assert word not in page
    visitor.post("/plans/here/apply")
    assert "Ended. app, in place, is as it was left" in words(visitor.get("/plans/here"))
