"""What the page shows of plans: the list, the line of one plan, and the panel of a moment."""

from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace
from tests.in_process import FAILING, PLAN, Yard, box, edit, execute
from tests.web.visitor import Visitor, classes, rows, words


def test_an_empty_list_says_how_to_begin(yard: Yard) -> None:
    text = words(Visitor().get("/"))
    assert "No plan yet" in text
    assert "agents demo" in text


def test_the_list_says_what_each_plan_needs(yard: Yard) -> None:
    with open_workspace() as ws:
        yard.done(ws)
        failed = ws.use(yard.plan(FAILING))
        execute(ws, failed)
    text = words(Visitor().get("/"))
    assert "Two plans need you" in text
    assert "yard Both steps are done. Nothing is applied" in text
    assert "shop Stopped at step 3 of 3, three: exit code 1" in text
    assert "Look at the error" in text
    found = words(Visitor().get("/?q=YAR"))
    assert "yard" in found
    assert "shop" not in found
    assert "No plan is called “zzz”" in words(Visitor().get("/?q=zzz"))


def test_a_plan_is_its_decisions_in_order_with_what_each_changed(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
    page = Visitor().get("/plans/shop")
    began, one, two, apply = rows(page)
    assert "Began" in began
    assert "which name people" in one
    assert "one.txt is new" in one
    assert "which file two" in two
    assert "two.txt is new, old.txt is gone" in two
    assert "Apply makes it real" in apply
    assert "here" in classes(page)[2]
    assert "Compare" in two


def test_the_panel_tells_why_and_shows_what_was_printed(yard: Yard) -> None:
    with open_workspace() as ws:
        text = PLAN.replace("echo one > one.txt", "echo said so; echo one > one.txt")
        plan = ws.use(yard.plan(text))
        execute(ws, plan)
        call = plan.tool_calls()[0]
    panel = words(Visitor().get(f"/plans/shop/panel?at={call.call_id}"))
    assert "step 1 of 2" in panel
    assert "which name people users" in panel
    assert "one.txt" in panel
    assert "+ one" in panel
    assert "Output, 1 line said so" in panel
    assert "agents plan rollback shop" in panel
    Visitor().get("/plans/shop/panel?at=nothing", expect=404)


def test_what_failed_stands_aside_and_is_what_the_page_opens_with(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(FAILING))
        execute(ws, plan)
        assert plan.plan.state is State.ERRORED
    page = Visitor().get("/plans/shop")
    failed = next(row for row in rows(page) if "failed" in row)
    assert "three failed" in failed
    assert "The failed state is kept" in failed
    assert "aside" in next(c for c, r in zip(classes(page), rows(page), strict=True) if r == failed)
    assert "What it had changed half.txt" in words(page)


def test_edits_that_no_checkpoint_has_are_shown_as_yours(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        visitor = Visitor()
        assert rows(visitor.get("/plans/yard/since")) == []
        edit(plan, "mine.txt")
    said = words(visitor.get("/plans/yard/since"))
    assert "You edited mine.txt since" in words(visitor.get("/plans/yard?since=1"))
    assert "You edited mine.txt since +1 Not in a checkpoint yet" in said
    assert words(visitor.get("/plans/yard/bring")) == "3 new +1"


def test_edits_of_many_files_are_called_by_their_first_names(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        for name in "abcdef":
            edit(plan, f"{name}.txt")
        visitor = Visitor()
        since = words(visitor.get("/plans/yard/since"))
        assert "You edited 6 files since a.txt, b.txt, c.txt, d.txt and 2 more +6" in since
        plan.checkpoint("kept")
    kept = next(row for row in rows(visitor.get("/plans/yard")) if "You edited" in row)
    assert "You edited 6 files a.txt, b.txt, c.txt, d.txt and 2 more" in kept


def test_the_head_says_what_it_works_on_and_where_a_rollback_leads(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN.replace("app:", "site:").replace("on: app", "on: site")))
        execute(ws, plan)
        one = plan.group("one").group_id
        two = next(call.group_id for call in plan.tool_calls() if call.step_id == "two")
    visitor = Visitor()
    assert "site app 5 moments" in words(visitor.get("/plans/shop"))
    told = words(visitor.get(f"/plans/shop/rollback?to={one}"))
    assert "The moment after step 1 of 2, today at" in told
    assert "The moment before step 2 of 2" in words(visitor.get(f"/plans/shop/rollback?to={two}"))


def test_nobody_stands_anywhere_in_a_plan_that_is_finished(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        assert 'class="h"' in Visitor().get("/")
        plan.cancel()
    page = Visitor().get("/")
    assert "Cancelled. Its sandbox" in words(page)
    assert 'class="h"' not in page


def test_lines_are_counted_when_they_are_asked_for(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        execute(ws, plan)
    visitor = Visitor()
    assert "+1" not in rows(visitor.get("/plans/shop"))[1]
    key = visitor.get("/plans/shop").split('data-exact="')[2].split('"')[0]
    assert words(visitor.get(f"/plans/shop/lines?rows={key}")) == "one.txt is new +1"
    assert "one.txt is new +1" in rows(visitor.get("/plans/shop"))[1]


def test_a_plan_that_is_not_there_is_said_as_the_command_says_it(yard: Yard) -> None:
    text = words(Visitor().get("/plans/nothing", expect=404))
    assert "No plan 'nothing'" in text
    assert "agents plan list" in text


def test_what_a_failure_left_in_the_sandbox_is_in_force(yard: Yard) -> None:
    text = FAILING.replace("steps:", "policy: {on_failure: stop}\nsteps:")
    with open_workspace() as ws:
        plan = ws.use(yard.plan(text))
        execute(ws, plan)
        assert (box(plan) / "half.txt").exists()
        visitor = Visitor()
        page = visitor.get("/plans/shop")
        assert classes(page)[-2:] == ["moment here", "moment ahead"]
        assert "half.txt is new. It is in the sandbox as it failed" in rows(page)[-2]
        assert "Get this state back" not in page
        plan.rollback("two")
        page = visitor.get("/plans/shop")
        assert "half.txt is new. The failed state is kept" in words(page)
        assert "Get this state back" in page
