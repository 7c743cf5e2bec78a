"""How the page says times, counts and changes; a plan with effects and a correction."""

from datetime import UTC, datetime, timedelta

import pytest

from cleveragents.sandbox.sqlite.rows import RowChange
from cleveragents.sandbox.sqlite.tables import TableChange
from cleveragents.web.render import shown_cell
from cleveragents.web.view.changes import table_back_words, table_words
from cleveragents.web.view.marks import spark
from cleveragents.web.view.words import ago, clock, duration, listed, printed, shortened, spelled
from cleveragents.workspace import open_workspace
from tests.in_process import Yard, execute
from tests.web.visitor import Visitor, rows, words

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (3, "now"),
        (30, "30 s ago"),
        (125, "2 min ago"),
        (7300, "2 h ago"),
        (90000, "yesterday"),
        (3 * 86400, "3 days ago"),
        (-60, "17 Nov 2026"),
        (30 * 86400, "18 Oct 2026"),
    ],
)
def test_how_long_ago(seconds: int, said: str) -> None:
    assert ago((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == said


def test_times_lists_and_numbers() -> None:
    then = NOW.astimezone().replace(hour=10, minute=5)
    assert clock(then.isoformat(), NOW) == "today at 10:05"
    assert clock((then - timedelta(days=1)).isoformat(), NOW) == "yesterday at 10:05"
    assert clock((then - timedelta(days=10)).isoformat(), NOW).endswith(" at 10:05")
    assert [duration(s) for s in (0.06, 1.44, 42, 72, 7500)] == [
        *("60 ms", "1.4 s", "42 s", "1 min 12 s"),
        "2 h 5 min",
    ]
    assert [listed(["a", "b", "c"][:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert (spelled(4), spelled(12)) == ("four", "12")
    assert shortened("x" * 200).endswith("…")
    assert [shown_cell(v) for v in (None, b"ab", 3)] == ["NULL", "2 bytes", "3"]


ROWS = (RowChange(action="added", after=(1, 2)), RowChange(action="added", after=(2, 2)))
MANY = "table t: more than 2 rows changed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "added", "rows_after": 6}, "table t is new, 6 rows"),
        ({"status": "removed", "rows_before": 1}, "table t is gone, with 1 row"),
        ({"status": "changed", "renamed_from": "old"}, "table old is now t"),
        ({"status": "changed", "rows_added": 2, "rows_removed": 1}, "table t: 2 rows changed"),
        ({"status": "changed", "definition_changed": True}, "table t: another definition"),
        (
            {"status": "changed", "columns_before": ("a", "b"), "columns": ("a", "c", "d")},
            "table t: new columns c and d, b is gone",
        ),
        (
            {"status": "changed", "renamed_from": "u", "columns_before": "a", "columns": "ac"},
            "table u is now t, new column c",
        ),
        (
            {"status": "changed", "columns_before": "a", "columns": "ac", "rows": ROWS},
            "table t: new column c, 2 rows changed",
        ),
        ({"status": "changed", "rows": ROWS, "rows_left_out": True}, MANY),
        ({"status": "changed"}, "table t: changed"),
    ],
)
def test_what_became_of_a_table(change: dict[str, object], said: str) -> None:
    assert table_words(TableChange(name="t", kind="table", **change)) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "added", "rows_after": 6}, "table t goes, with 6 rows"),
        ({"status": "removed", "rows_before": 1}, "table t returns, with 1 row"),
        ({"status": "changed", "renamed_from": "old"}, "table t is old again"),
        ({"status": "changed", "rows_added": 2, "rows_removed": 1}, "2 rows of t"),
        ({"status": "changed", "definition_changed": True}, "table t as it was"),
    ],
)
def test_what_becomes_of_a_table_that_goes_back(change: dict[str, object], said: str) -> None:
    assert table_back_words(TableChange(name="t", kind="table", **change)) == said  # type: ignore[arg-type]


def test_hairs_of_a_child_plan_are_thin_however_few_they_are() -> None:
    assert "h0.03V26" in spark([0, 0, 5])
    assert "h0.8V26" in spark([1] * 200, again=[3])
    assert "M1 0h0.06v3" in spark([1, 1], again=[1])


PLAN = """
name: rich
resources: {app: {kind: fs-directory, path: app}}
tools:
  mail: {run: "true", side_effects: [a letter], network: false}
  slot: {run: "true", side_effects: [a slot], compensate: "true", network: false}
steps:
  - {id: many, on: app, run: "for i in 1 2 3 4; do echo $i > f$i; done; mv old.txt new.txt"}
  - {id: slot, tool: slot, on: app, decision: {question: who looks, chosen: a slot}}
  - {id: mail, tool: mail, on: app, decision: slot}
  - {id: last, on: app, run: "echo x > last.txt", decision: {question: how to end, chosen: x}}
"""


def test_effects_and_corrections_are_told(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
        last = next(s for s in ws.ctx.store.plans.steps(plan.plan_id) if s.step_id == "last")
        plan.correct(last.decision_id or "", "say y")
    visitor = Visitor()
    page = visitor.get("/plans/rich")
    said = rows(page)
    assert "4 new, 1 renamed" in said[1]
    assert "A slot: is undone by a rollback. A letter: cannot be undone" in said[2]
    assert "1 effect outside cannot be undone" in words(page)
    assert "Set aside by your correction" in words(page)
    assert "1 decision done again" in words(page)
    correction = page.split('href="#m-')[-1].split('"')[0]
    panel = words(visitor.get(f"/plans/rich/panel?at={correction}"))
    assert "1 decision was done again how to end corrected" in panel
    assert "agents plan diff rich --correction last" in panel
    assert "Old against new" in words(visitor.get("/plans/rich/diff?correction=last"))
    slot = page.split("who looks")[1].split("?at=")[1].split('"')[0]
    outside = words(visitor.get(f"/plans/rich/panel?at={slot}"))
    assert "2 calls" in outside
    assert "Cannot be undone. Step mail" in outside
    assert "No plan" in words(visitor.get("/?before=unknown"))


def test_a_rollback_says_what_it_undid_outside_also_when_it_was_undone(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
        plan.rollback("many", accept_loss=True)
        told = plan.log()[-1].detail["effects"]
        assert [len(told[name]) for name in ("undone", "left")] == [1, 1]
    visitor = Visitor()
    said = "A slot was undone on the way. A letter stayed"
    assert any(said in row for row in rows(visitor.get("/plans/rich")))
    with open_workspace() as ws:
        ws.find("rich").undo()
    page = visitor.get("/plans/rich")
    turn = next(row for row in rows(page) if "and undid it" in row)
    assert "A slot was undone on the way, and not done again. A letter stayed" in turn
    assert 'aria-label="undone outside by this rollback"' in page


def test_a_rollback_whose_compensation_failed_says_so(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN.replace('compensate: "true"', 'compensate: "false"')))
        execute(ws, plan)
        plan.rollback("many", accept_loss=True)
    said = "A slot could not be undone. A letter stayed"
    assert any(said in row for row in rows(Visitor().get("/plans/rich")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x1b[1;31mred\x1b[0m\n", "red\n"),
        ("10 %\r50 %\rdone\nnext", "done\nnext"),
        ("10 %\r50 %\r", "50 %"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\x1b]0;title\x07x\u202ey", "\\x1b]0;title\\x07x\\u202ey"),
    ],
)
def test_what_was_printed_is_shown_as_a_terminal_leaves_it(text: str, said: str) -> None:
    assert printed(text) == said


LOUD = r"""
name: loud
resources: {app: {kind: fs-directory, path: app}}
steps:
  - id: one
    run: |
      printf '\033[31mred\033[0m\r\n10\r20 percent\n'
      echo x > "$(printf 'two\nlines')"
"""


def test_colours_and_line_breaks_in_names_are_not_lost_and_not_boxes(yard: Yard) -> None:
    with open_workspace() as ws:
        execute(ws, ws.use(yard.plan(LOUD)))
    visitor = Visitor()
    page = visitor.get("/plans/loud")
    assert "two\\nlines is new" in words(page)
    assert "Output, 2 lines red 20 percent" in words(page)
    assert "ok" in (told := words(visitor.get("/plans/loud/output/one")))
    assert "red 20 percent" in told
    assert "10" not in told.partition("exit code 0")[2]
    for path in ("diff", "rollback?to=first", "apply"):
        assert "two\\nlines" in words(visitor.get(f"/plans/loud/{path}")), path
