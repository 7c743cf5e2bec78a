"""What commands print for programs about decisions, checkpoints and files."""

from cleveragents.cli import data as reports
from cleveragents.cli.rollback_data import change_data
from cleveragents.lookup import find_decision, find_group
from cleveragents.model.resource import Action, Change
from cleveragents.workspace import open_workspace
from tests.in_process import PLAN, Yard, cli


def test_a_file_name_that_is_not_utf_8_is_also_given_in_base64() -> None:
    odd = Change(resource="app", path=b"\xff.txt", action=Action.REMOVED)
    told = change_data(odd)
    assert (told["file_b64"], told["action"]) == ("/y50eHQ=", "removed")
    plain = Change(resource="app", path=b"a.txt", action=Action.CHANGED)
    assert change_data(plain) == {"resource": "app", "file": "a.txt", "action": "restored"}


def test_superseded_decisions_are_shown_only_on_request_and_can_be_explained(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        (top,) = reports.tree_data(ws.ctx, plan.plan, False)
        one, two = top["children"]
        assert (one["question"], one["steps"], two["chosen"]) == ("which name", ["one"], "two")
        told = reports.explain_data(ws.ctx, find_decision(ws.ctx.store, two["decision_id"]))
        assert [s["id"] for s in told["steps"]] == ["two"]
        assert {w["path"] for w in told["wrote"]} == {"two.txt", "old.txt"}
        assert len({w.path for w in ws.ctx.store.calls.writes(plan.plan_id)}) == 3
        explained = cli("plan", "explain", two["decision_id"])
        assert "two.txt" in explained.stdout
        assert "not given" in explained.stdout
        plan.rollback("first")
        assert [d["children"] for d in reports.tree_data(ws.ctx, plan.plan, False)] == [[]]
        gone = reports.tree_data(ws.ctx, plan.plan, True)[0]["children"]
        assert [d["state"] for d in gone] == ["superseded"] * 2
    assert "which name" not in cli("plan", "tree", "shop").stdout
    assert "which name: people (superseded)" in cli("plan", "tree", "--show-superseded").stdout


def test_a_shown_checkpoint_lists_steps_done_and_decisions_in_force(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        store = ws.ctx.store
        first = reports.group_data(ws.ctx, plan.plan, find_group(store, plan.plan, "first"))
        assert first["steps_done"] == []
        assert len(first["decisions_in_force"]) == 1
        made = reports.group_data(ws.ctx, plan.plan, plan.checkpoint("end"))
        assert made["steps_done"] == ["one", "two"]
        assert len(made["decisions_in_force"]) == 3
        assert made["label"] == "end"
        assert made["type"] == "manual"
        assert all("snapshot" not in row["metadata"] for row in made["checkpoints"])


def test_a_shown_checkpoint_has_steps_and_decisions_in_the_order_in_which_they_were_made(
    yard: Yard,
) -> None:
    steps = ("zebra", "ant", "newt", "moth")
    lines = [f"  - {{id: {name}, on: app, run: 'echo > {name}'}}\n" for name in steps]
    with open_workspace() as ws:
        plan = ws.run(yard.plan(PLAN.partition("  - id")[0] + "".join(lines)))
        shown = reports.group_data(ws.ctx, plan.plan, find_group(ws.ctx.store, plan.plan, "last"))
        assert shown["steps_done"] == list(steps)
        (top,) = reports.tree_data(ws.ctx, plan.plan, False)
        made = [top["decision_id"], *(child["decision_id"] for child in top["children"])]
        assert shown["decisions_in_force"] == made


def test_status_says_what_cannot_be_rolled_back(yard: Yard) -> None:
    text = PLAN + "policy: {rollback_enabled: false}\n"
    cli("plan", "use", yard.plan(text.replace("path: app}", "path: app, exclude: ['*.o']}")))
    shown = cli("plan", "status", "--set", f"sandbox.writable={yard.top}").stdout
    assert "rollback_enabled is false" in shown
    assert f"{yard.top}: not rolled back" in shown
    assert "never captured in app  *.o" in shown


def test_resources_are_in_the_order_of_the_plan_file(yard: Yard) -> None:
    names = ["f", "c", "a", "e", "b", "d"]
    for name in names:
        (yard.top / name).mkdir()
    resources = ", ".join(f"{name}: {{kind: fs-directory, path: {name}}}" for name in names)
    steps = "".join(f"  - {{id: {name}, on: {name}, run: touch x}}\n" for name in reversed(names))
    cli("plan", "run", yard.plan(f"name: many\nresources: {{{resources}}}\nsteps:\n{steps}"))
    told = cli("plan", "rollback", "many", "first", "--dry-run", "--json").data
    assert [item["resource"] for item in told["changes_reverted"]] == names
    shown = cli("plan", "diff", "many", "--json").data["files"]
    assert [item["resource"] for item in shown] == names
