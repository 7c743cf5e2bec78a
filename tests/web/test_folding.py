"""A long plan is some sixty rows, and reading it takes as many questions as a short one."""

import cProfile
from collections.abc import Callable
from pathlib import Path

from cleveragents.web.view.changes import Shelf
from cleveragents.web.view.fold import MOST, Divider, Fold, folded, matrices
from cleveragents.web.view.plan import plan_view
from cleveragents.web.view.rows import Row
from cleveragents.workspace import Workspace, open_workspace
from tests.in_process import Yard, execute
from tests.web.visitor import Visitor, classes, words

STEP = "  - {{id: {kind}-{n}, tool: file.write, with: {{path: docs/p{n}.rst, content: {kind}}}}}\n"
KINDS = ("terms", "links", "heads")


def long_plan(yard: Yard, ws: Workspace, files: int) -> str:
    steps = "".join(STEP.format(kind=kind, n=n) for n in range(files) for kind in KINDS)
    (yard.app / "docs").mkdir(exist_ok=True)
    plan = yard.use(ws, f"policy: {{max_checkpoints_per_plan: 3000}}\nsteps:\n{steps}")
    execute(ws, plan)
    return plan.plan_id


def questions(do: Callable[[], object]) -> int:
    """How many statements a function sends to the store."""
    profile = cProfile.Profile()
    profile.runcall(do)
    return sum(
        entry.callcount
        for entry in profile.getstats()
        if "'execute' of 'sqlite3" in str(entry.code)
    )


def test_equal_steps_are_a_matrix_and_the_questions_do_not_grow(yard: Yard) -> None:
    with open_workspace() as ws:
        shelf = Shelf()
        few, many = long_plan(yard, ws, 3), long_plan(yard, ws, 24)
        counted: list[int] = []
        for plan_id in (few, many):
            plan_view(ws, plan_id, shelf)  # what two groups differ in is worked out once
            counted.append(questions(lambda: plan_view(ws, plan_id, shelf)))  # noqa: B023
        assert counted[0] == counted[1]
    visitor = Visitor()
    page = visitor.get(f"/plans/{many}")
    assert len(classes(page)) <= MOST
    assert "24 files, 3 steps each" in words(page) or "23 files, 3 steps each" in words(page)
    assert "terms links heads" in words(page)
    row = page.split('class="cell" href="')[1].split('"')[0]
    assert "docs/p0.rst" in words(visitor.get(row))


def row(key: str, **more: object) -> Row:
    return Row(key=key, mark="agent", title=key, entry_id="e", group_id=f"g{key}", **more)


def test_a_thousand_rows_are_folded_and_what_matters_stays(yard: Yard) -> None:
    with open_workspace() as ws:
        facts = plan_view(ws, long_plan(yard, ws, 1), Shelf()).facts
    rows = [row(str(n)) for n in range(1000)]
    rows[400] = row("failed", is_aside=True)
    rows[700] = row("kept", label="kept")
    rows[-1].is_here = True
    items = folded(facts, rows)
    assert len(items) <= MOST
    assert {"failed", "kept", "999"} <= {item.key for item in items if isinstance(item, Row)}
    folds = [item for item in items if isinstance(item, Fold)]
    assert sum(len(fold.rows) for fold in folds) + sum(isinstance(i, Row) for i in items) == 1000
    assert [item.key for item in items if isinstance(item, Row)][-5:] == [
        *("995", "996", "997", "998"),
        "999",
    ]
    opened = folded(facts, rows, frozenset({"0"}))
    assert len(opened) > 300
    # What may not be folded one by one is folded as a whole when there is too much of it.
    edits = [row(str(n), label="x") for n in range(500)]
    assert len([i for i in folded(facts, edits) if not isinstance(i, Divider)]) == MOST


def test_steps_that_are_not_alike_are_a_list(yard: Yard, tmp_path: Path) -> None:
    step = "  - {{id: s{0}, tool: file.write, with: {{path: f{0}, content: x}}}}\n"
    lines = "".join(step.format(n) for n in range(70))
    with open_workspace() as ws:
        plan = yard.use(ws, f"policy: {{max_checkpoints_per_plan: 3000}}\nsteps:\n{lines}")
        execute(ws, plan)
        view = plan_view(ws, plan.plan_id, Shelf())
        steps = {step.step_id: step for step in view.facts.steps}
        assert matrices(list(view.all_rows[1:20]), steps) == []
    visitor = Visitor()
    page = visitor.get(f"/plans/{plan.plan_id}")
    assert len(classes(page)) <= MOST
    fold = page.split('data-load="')[1].split('"')[0]
    assert "s3" in words(visitor.get(fold))
    key = fold.rpartition("/")[2]
    whole = visitor.get(f"/plans/{plan.plan_id}?open={key}")
    assert len(classes(whole)) > MOST
    visitor.get(f"/plans/{plan.plan_id}/fold/nothing", expect=404)


def test_a_child_plan_is_opened_in_its_place(yard: Yard) -> None:
    steps = "".join(STEP.format(kind=kind, n=n) for n in range(4) for kind in KINDS)
    (yard.app / "docs").mkdir()
    head = "name: {}\nresources: {{app: {{kind: fs-directory, path: app}}}}\nsteps:\n"
    yard.plan(head.format("below") + steps, "below.yaml")
    text = head.format("above") + "  - {id: docs, subplan: {file: below.yaml}}\n"
    with open_workspace() as ws:
        plan = ws.use(yard.plan(text))
        execute(ws, plan)
    visitor = Visitor()
    page = visitor.get("/plans/above")
    assert "below 12 steps, 4 new" in words(page)
    key = page.split('data-exact="')[2].split('"')[0]
    assert "12 steps, 4 new +4" in words(visitor.get(f"/plans/above/lines?rows={key}"))
    assert "of them in 1 child plan" in words(page)
    inside = page.split('data-load="')[1].split('"')[0]
    assert "docs/ 4 files, 3 steps each" in words(visitor.get(inside))
    assert "Open this child plan" in words(visitor.get(inside))
    assert "Plans / above / below" in words(visitor.get(inside.removesuffix("/inside")))
