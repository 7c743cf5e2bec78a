"""Ask the retention rule about a plan's groups, with what the store knows of them."""

from datetime import datetime, timedelta

from cleveragents.model.plan import Plan
from cleveragents.model.plan_spec import PolicySpec
from cleveragents.model.retention import Candidate, CheckpointRetentionPolicy, Verdict, judge
from cleveragents.model.settings import Settings
from cleveragents.model.units import parse_duration
from cleveragents.store import Store

REACH = 10
"""Operations that undo and redo can go through; their groups are never pruned."""


def policy_of(own: PolicySpec, settings: Settings) -> CheckpointRetentionPolicy:
    """The plan's own policy, and the setting where it has none."""
    within = own.keep.within
    return CheckpointRetentionPolicy(
        max_checkpoints=own.max_checkpoints_per_plan or settings.max_checkpoints_per_plan,
        keep_last=own.keep.last,
        keep_within=timedelta(seconds=parse_duration(within)) if within else None,
        max_bytes=own.keep.bytes,
    )


def verdicts_on(
    store: Store, plan: Plan, policy: CheckpointRetentionPolicy, now: str
) -> tuple[Verdict, ...]:
    groups = store.checkpoints.groups(plan.plan_id)
    if not groups:
        return ()
    superseded = store.plans.superseded({g.decision_id for g in groups if g.decision_id})
    sizes = store.checkpoints.sizes(plan.plan_id)
    reachable = reachable_groups(store, plan)
    candidates = [
        Candidate(
            group=group,
            size_bytes=sizes.get(group.group_id, 0),
            superseded=group.decision_id in superseded,
            reachable=group.group_id in reachable,
        )
        for group in groups
    ]
    return judge(policy, candidates, datetime.fromisoformat(now))


def reachable_groups(store: Store, plan: Plan) -> set[str | None]:
    """Where the plan stands, what undo and redo can come back to, and a failed state kept."""
    found = {plan.head_group_id}
    if plan.error is not None:
        found |= {plan.error.group_id, plan.error.undo_to}
    for intent in store.intents.all():
        if intent.plan_id == plan.plan_id and intent.kind == "restore":
            found.add(intent.body["group_id"])
    for entry in store.journal.last(plan.plan_id, REACH):
        found |= {entry.before.group_id, entry.after.group_id if entry.after else None}
    return found
