"""Which groups are kept: the pure rule, pruning, pins, and what is said of a pruned group."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from cleveragents.checkpoints.prune import policy_of, reachable_groups, verdicts_on
from cleveragents.errors import (
    CheckpointPruned,
    NotAllowed,
)
from cleveragents.history.checkpoints import delete_group, preview_prune, prune_plan
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.journal import Operation
from cleveragents.model.plan import Failure
from cleveragents.model.plan_spec import KeepSpec, PolicySpec
from cleveragents.model.retention import Candidate, CheckpointRetentionPolicy, judge
from cleveragents.store.clock import read_clocks
from cleveragents.workspace import open_workspace, settings_here
from tests.in_process import TWO, Yard, cli, loose


def test_what_undo_can_reach_is_kept_and_the_plans_own_policy_goes_first(yard: Yard) -> None:
    own = PolicySpec(max_checkpoints_per_plan=3, keep=KeepSpec(last=2, within="1h", bytes=5))
    policy = policy_of(own, settings_here())
    assert (policy.max_checkpoints, policy.keep_last, policy.max_bytes) == (3, 2, 5)
    assert policy.keep_within is not None
    assert policy.keep_within.total_seconds() == 3600
    bare = policy_of(PolicySpec(), settings_here())
    assert bare.max_checkpoints == settings_here().max_checkpoints_per_plan
    assert bare.keep_within is None
    with open_workspace() as ws:
        store = ws.ctx.store
        clock = read_clocks(ws.ctx.now(), is_given=True)
        unused = yard.use(ws, TWO)
        assert verdicts_on(store, unused.plan, policy, clock) == ()
        plan = yard.done(ws)
        verdicts = verdicts_on(store, plan.plan, policy, clock)
        assert len(verdicts) == store.checkpoints.count(plan.plan_id)
        kept = {v.group_id for v in verdicts if v.keep}
        assert plan.plan.head_group_id in kept
        failed = msgspec.structs.replace(
            plan.plan, error=Failure("T", "m", group_id="G", undo_to="U")
        )
        assert {"G", "U", plan.plan.head_group_id} <= reachable_groups(store, failed)


def test_a_pruned_group_is_named_with_the_nearest_kept_one(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        gone = loose(ws, plan)[0]
        delete_group(ws.ctx, plan.plan, gone)
        kept = [g.group_id for g in ws.ctx.store.checkpoints.groups(plan.plan_id)]
        assert gone.group_id not in kept
        near = max(each for each in kept if each < gone.group_id)
        with pytest.raises(CheckpointPruned) as caught:
            plan.rollback(gone.group_id)
        assert caught.value.hint.endswith(f"rollback {plan.plan_id} {near}")


def test_the_first_the_newest_and_a_pinned_group_cannot_be_deleted(yard: Yard) -> None:
    with open_workspace() as ws:
        store = ws.ctx.store
        plan = ws.run(yard.plan())
        pinned = loose(ws, plan)[0]
        with store.transaction():
            store.checkpoints.pin(pinned.group_id, True)
        for text, why in (("first", "first"), ("last", "newest"), (pinned.group_id, "pinned")):
            with pytest.raises(NotAllowed, match=f"stays: {why}"):
                delete_group(ws.ctx, plan.plan, find_group(store, plan.plan, text))
        before = store.checkpoints.count(plan.plan_id)
        with store.transaction():
            store.checkpoints.pin(pinned.group_id, False)
        delete_group(ws.ctx, plan.plan, find_group(store, plan.plan, pinned.group_id))
        assert store.checkpoints.count(plan.plan_id) == before - 1


def test_prune_does_what_its_preview_said_and_keeps_labelled_groups(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        for label in (None, "kept", None, None, None):
            plan.checkpoint(label)
    tight = settings_here(None, {"sandbox.checkpoint.max-checkpoints-per-plan": "3"})
    with open_workspace(settings=tight) as ws:
        plan = ws.find("shop")
        count = ws.ctx.store.checkpoints.count(plan.plan_id)
        told = preview_prune(ws.ctx, plan.plan)
        assert ws.ctx.store.checkpoints.count(plan.plan_id) == count
        assert prune_plan(ws.ctx, plan.plan) == told
        left = {g.group_id: g for g in ws.ctx.store.checkpoints.groups(plan.plan_id)}
        assert set(left) == {v.group_id for v in told if v.keep}
        assert len(left) < count
        assert told[0].reason == "first"
        assert told[-1].reason == "newest"
        assert "kept" in {g.label for g in left.values()}
        last = ws.ctx.store.journal.of_plan(plan.plan_id)[-1]
        assert last.operation is Operation.PRUNE
        assert last.detail["dropped"] == sum(not v.keep for v in told)


def test_there_are_never_more_groups_than_the_limit(yard: Yard) -> None:
    text = """\
name: shop
resources: {app: {kind: fs-directory, path: app}}
policy: {max_checkpoints_per_plan: 6}
steps:
  - {id: one, run: touch one}
  - {id: two, run: touch two, checkpoint: mid}
  - {id: three, run: touch three}
  - {id: four, run: test -e nothing}
"""
    cli("plan", "run", yard.plan(text), expect=5)
    kept = cli("plan", "checkpoints", "shop", "--json").data["checkpoints"]
    assert len({row["group_id"] for row in kept}) == 6
    assert cli("plan", "prune", "shop", "--dry-run", "--json").data["drop"] == []


def candidate(number: int, kind: str = "manual", **fields: Any) -> Candidate:
    group = CheckpointGroup(
        group_id=f"g{number}", plan_id="p", decision_id=None, step_index=0, version=0, view_mark=0,
        checkpoint_type=CheckpointType(kind), triggers=(kind,), label=fields.pop("label", None),
        members={}, created_at=f"2026-01-0{number}T00:00:00+00:00",
    )  # fmt: skip
    return Candidate(
        group=group, size_bytes=10, reachable=False, superseded=fields.pop("superseded", False)
    )


def dropped(policy: CheckpointRetentionPolicy, *candidates: Candidate) -> dict[str, str]:
    now = datetime(2026, 1, 9, tzinfo=UTC)
    return {v.group_id: v.reason for v in judge(policy, candidates, now) if not v.keep}


def test_superseded_groups_go_first_then_those_around_steps_and_decisions_last() -> None:
    groups = (
        candidate(1),
        candidate(2, "on_decision"),
        candidate(3),
        candidate(4, "after_step"),
        candidate(5, superseded=True),
        candidate(6),
    )
    order = [
        set(dropped(CheckpointRetentionPolicy(max_checkpoints=most), *groups))
        for most in (6, 5, 4, 3, 2, 1)
    ]
    assert order == [
        set(),
        {"g5"},
        {"g5", "g4"},
        {"g5", "g4", "g3"},
        {"g5", "g4", "g3", "g2"},
        {"g5", "g4", "g3", "g2"},
    ]


def test_groups_are_kept_by_number_and_age_and_dropped_for_bytes() -> None:
    groups = tuple(candidate(n, label="l" if n == 2 else None) for n in range(1, 8))
    few = CheckpointRetentionPolicy(max_checkpoints=1, keep_last=3)
    assert set(dropped(few, *groups)) == {"g3", "g4"}
    young = CheckpointRetentionPolicy(max_checkpoints=1, keep_within=timedelta(days=5))
    assert set(dropped(young, *groups)) == {"g3"}
    small = CheckpointRetentionPolicy(max_bytes=50)
    assert dropped(small, *groups) == {"g3": "over 50 bytes", "g4": "over 50 bytes"}
