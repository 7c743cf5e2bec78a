"""Two moments compared, what steps printed, and a plan as it runs."""

import sqlite3
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from cleveragents.web.live import Look, difference, events, look, mark
from cleveragents.web.view.patches import pieces_of
from cleveragents.workspace import open_workspace, settings_here
from tests.in_process import PLAN, Yard, edit, execute
from tests.scratch import wait_until
from tests.web.visitor import Visitor, words

PATCH = """\
# resource app
diff --git a/one.txt b/one.txt
index 1..2 100644
--- a/one.txt
+++ b/one.txt
@@ -1,3 +1,3 @@ def f():
 same
-the old word
+the new word
 end
\\ No newline at end of file
diff --git "a/\\303\\244.txt" "b/\\303\\244.txt"
old mode 100644
new mode 100755
diff --git a/gone b/gone
deleted file mode 100644
Binary files a/gone and /dev/null differ
"""


def test_a_patch_is_files_lines_and_the_words_that_differ() -> None:
    one, mode, gone = pieces_of(PATCH)
    assert (one.resource, one.path) == ("app", "one.txt")
    assert [line.kind for line in one.lines] == ["at", "same", "del", "add", "same", "note"]
    assert one.lines[2].parts == (("the ", False), ("old", True), (" word", False))
    assert (one.lines[3].new, one.lines[2].old) == (2, 2)
    sides = [(left and left.text, right and right.text) for left, right in one.sides()]
    assert ("the old word", "the new word") in sides
    assert (mode.path, mode.mode) == ("ä.txt", ("100644", "100755"))
    assert gone.binary
    assert pieces_of(PATCH, most=2)[0].left_out == 4


def test_what_apply_would_bring_and_whose_it_is(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
        edit(plan, "mine.txt", "by me\n")
        one = plan.group("one").group_id
    visitor = Visitor()
    page = words(visitor.get("/plans/shop/diff"))
    assert "What apply would bring" in page
    assert "mine.txt you +1 line 1 1 + by me" in page
    assert "one.txt agent: people" in page
    assert "1 with your edits" in page
    assert "one.txt agent:" not in words(visitor.get("/plans/shop/diff?whose=mine"))
    later = words(visitor.get(f"/plans/shop/diff?from={one}&lines=side"))
    assert "two.txt agent: two" in later
    assert "one.txt agent:" not in later
    visitor.get("/plans/shop/diff?from=nothing", expect=404)


def test_rows_of_a_database_are_shown(yard: Yard) -> None:
    with sqlite3.connect(yard.top / "shop.db") as db:
        db.execute("CREATE TABLE post (id INTEGER PRIMARY KEY, title TEXT)")
        db.execute("INSERT INTO post VALUES (1, 'old'), (2, 'same')")
    db.close()
    text = """
name: data
resources: {db: {kind: sqlite, path: shop.db}}
steps:
  - {id: rename, tool: sql, with: {script: "UPDATE post SET title = '<b>new</b>' WHERE id = 1"}}
"""
    with open_workspace() as ws:
        execute(ws, ws.use(yard.plan(text)))
    page = Visitor().get("/plans/data/diff")
    assert "db table post agent: rename 1 of 2 rows" in words(page)
    assert "± 1 old <b>new</b>" in words(page)
    assert "<b>new</b>" not in page


def test_all_that_a_step_printed_can_be_read(yard: Yard) -> None:
    with open_workspace() as ws:
        text = PLAN.replace("echo one > one.txt", "seq 40; echo one > one.txt")
        execute(ws, ws.use(yard.plan(text)))
    visitor = Visitor()
    assert "38 39 40" in words(visitor.get("/plans/shop/output/one"))
    assert "Output, last 12 of 40 lines" in words(visitor.get("/plans/shop?at=" + key(visitor)))
    visitor.get("/plans/shop/output/none", expect=404)


def key(visitor: Visitor) -> str:
    return visitor.get("/plans/shop").split('data-exact="')[2].split('"')[0]


def test_only_what_is_new_is_told() -> None:
    first = Look(sentence="a", step=("1",), call_id="c", output="one\n")
    assert difference(None, first, mark(("1",))) == [("state", "a"), ("all", "one\n")]
    more = Look(sentence="a", step=("1",), call_id="c", output="one\ntwo\n")
    assert difference(first, more) == [("line", "two\n")]
    assert difference(more, more) == []
    cut = Look(sentence="b", step=("2",), call_id="c", output="[...]\nnine\n")
    assert difference(more, cut) == [("state", "b"), ("step", ""), ("all", "[...]\nnine\n")]


def test_a_step_that_began_between_the_page_and_its_stream_is_told() -> None:
    now = Look(sentence="a", step=("2",), call_id="c", output="one\n")
    told = [("state", "a"), ("all", "one\n"), ("step", "")]
    assert difference(None, now, mark(("1",))) == told


@pytest.fixture
def visitor(yard: Yard) -> Generator[Visitor]:
    made = Visitor()
    yield made
    for job in made.commands.running():
        job.wait(30)


def test_output_arrives_while_a_step_runs(yard: Yard, tmp_path: Path, visitor: Visitor) -> None:
    go = tmp_path / "go"
    says = f"echo '<b>begun</b>'; while [ ! -e {go} ]; do sleep 0.02; done"
    with open_workspace() as ws:
        plan_id = ws.use(yard.plan(PLAN.replace("echo one > one.txt", says))).plan_id
    visitor.post(f"/plans/{plan_id}/resume")
    settings = settings_here()
    wait_until(lambda: "begun" in look(settings, plan_id).output, "the first line")
    page = visitor.get(f"/plans/{plan_id}")
    assert "Live" in words(page)
    assert "<b>begun</b>" in words(page)
    assert "<b>begun" not in page
    assert "If you stop it" in words(page)
    shown = mark(look(settings, plan_id).step)
    assert f'/events?shown={shown}"' in page

    async def first() -> str:
        async for event in events(settings, plan_id, shown):
            return event
        return ""

    assert anyio.run(first).startswith('event: state\ndata: "Step 1 of 2, one, for ')
    go.touch()
    wait_until(lambda: look(settings, plan_id).step[0] == "complete", "the end")
    wait_until(lambda: "Live" not in words(visitor.get(f"/plans/{plan_id}")), "the page")


def test_the_stream_of_a_plan_that_is_not_there_is_refused(yard: Yard) -> None:
    Visitor().get("/plans/none/events", expect=404)
