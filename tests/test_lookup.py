"""Plans, groups and decisions are found by name, label, and either end of an id."""

import pytest

from cleveragents.cli import data as reports
from cleveragents.errors import (
    ForeignCheckpoint,
    NotAllowed,
    NotFound,
    UsageError,
)
from cleveragents.execution.run import Reconciled, preview_resume
from cleveragents.lookup import find_decision, find_group, find_plan, short_ids
from cleveragents.workspace import open_workspace
from tests.harness import STOPPING, Agents
from tests.in_process import PLAN, Yard, cli


def test_last_without_any_plan_is_not_found() -> None:
    with open_workspace() as ws, pytest.raises(NotFound, match="no plan yet"):
        ws.find("last")


def test_plans_are_found_by_name_last_and_either_end_of_the_id(yard: Yard) -> None:
    with open_workspace() as ws:
        old, new = ws.use(yard.plan()), ws.use(yard.plan())
        other = ws.use(yard.plan(PLAN.replace("name: shop", "name: other")))
        assert ws.find("last").plan_id == other.plan_id
        assert ws.find(other.plan_id[-8:].lower()).plan_id == other.plan_id
        found, remark = find_plan(ws.ctx.store, "shop")
        assert found.plan_id == new.plan_id
        assert remark.startswith("2 plans are called 'shop'")
        assert find_plan(ws.ctx.store, "other")[1] == ""
        assert [p.plan_id for p in ws.plans()] == [other.plan_id, new.plan_id, old.plan_id]
        with pytest.raises(NotFound, match="shop"):
            ws.find("shpo")
        assert ws.find("").plan_id == other.plan_id
        with pytest.raises(UsageError, match="is ambiguous: 3 plans match") as caught:
            ws.find(old.plan_id[:4])
        assert caught.value.hint == "give more of the id"
    shown = cli("plan", "status", "shop")
    assert "2 plans are called 'shop'" in shown.stderr


def test_a_plan_without_checkpoints_has_no_first_and_no_last(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.use(yard.plan())
        for text in ("first", "last"):
            with pytest.raises(NotFound, match="no checkpoint yet"):
                find_group(ws.ctx.store, plan.plan, text)
        with pytest.raises(NotAllowed, match="no sandbox yet"):
            plan.checkpoint("too early")
        assert plan.diff().files_changed == 0
        assert preview_resume(ws.ctx, plan.plan).reconciled is Reconciled.NOTHING
        with pytest.raises(NotFound, match="has no error"):
            reports.failed_step(ws.ctx, plan.plan)


def test_groups_are_found_by_first_last_label_and_id_and_not_in_another_plan(yard: Yard) -> None:
    with open_workspace() as ws:
        store = ws.ctx.store
        plan, other = ws.run(yard.plan()), ws.run(yard.plan())
        made = plan.checkpoint("good")
        groups = store.checkpoints.groups(plan.plan_id)
        now = plan.plan
        assert find_group(store, now, "first") == groups[0]
        assert find_group(store, now, "last").group_id == now.head_group_id == made.group_id
        assert find_group(store, now, "good") == made
        assert find_group(store, now, made.group_id.lower()) == made
        row = plan.checkpoints()[0]
        assert find_group(store, now, row.checkpoint_id).group_id == row.group_id
        foreign = other.checkpoints()[0]
        with pytest.raises(ForeignCheckpoint) as caught:
            find_group(store, now, foreign.checkpoint_id)
        assert other.plan_id in caught.value.message
        assert caught.value.hint == f"agents plan rollback {other.plan_id} {foreign.checkpoint_id}"
        with pytest.raises(NotFound, match="good"):
            find_group(store, now, "goood")
        with pytest.raises(UsageError, match="checkpoints"):
            find_group(store, now, made.group_id[:4])
        with pytest.raises(NotFound, match="no checkpoint"):
            find_group(store, now, made.group_id[-1])


def test_decisions_are_found_by_the_end_of_their_id(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        _, first, second = ws.ctx.store.plans.decisions(plan.plan_id)
        assert find_decision(ws.ctx.store, second.decision_id[-10:]) == second
        assert find_decision(ws.ctx.store, first.decision_id) == first
        with pytest.raises(NotFound, match="nowhere"):
            find_decision(ws.ctx.store, "nowhere")


def test_short_ids_are_the_shortest_ends_that_differ() -> None:
    assert short_ids(["AAAAAAAA1", "AAAAAAAA2"]) == {
        "AAAAAAAA1": "AAAAA1"[-6:],
        "AAAAAAAA2": "AAAAA2",
    }
    long = ["X" + "0" * 10 + "ABCDEF", "Y" + "0" * 10 + "ABCDEF"]
    assert short_ids(long) == {name: name for name in long}
    assert short_ids(["1AAAAAAA", "2BAAAAAA"]) == {"1AAAAAAA": "AAAAAAA", "2BAAAAAA": "BAAAAAA"}
    same = ["X" * 30, "Y" + "X" * 29]
    assert short_ids(same) == {name: name for name in same}


@pytest.mark.parametrize("label", ["first", "last"])
def test_words_that_name_a_checkpoint_cannot_be_labels(
    agents: Agents, stopped: dict[str, str], label: str
) -> None:
    refused = agents.run("plan", "checkpoint", "create", "last", "--label", label).expect(2)
    assert "cannot be a label" in refused.stderr
    marked = STOPPING.replace("echo 1 > one'", f"echo 1 > one', checkpoint: {label}")
    (agents.work / "plan.yaml").write_text(marked)
    assert "'first' and 'last'" in agents.run("plan", "use", "plan.yaml").expect(2).stderr
