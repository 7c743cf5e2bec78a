"""Applies the retention rule to a plan's groups."""

from collections.abc import Set
from datetime import datetime, timedelta

import msgspec

from cleveragents import codec
from cleveragents.model.plan import Plan
from cleveragents.model.plan_spec import PolicySpec
from cleveragents.model.retention import Candidate, CheckpointRetentionPolicy, Verdict, judge
from cleveragents.model.settings import Settings
from cleveragents.model.units import parse_duration
from cleveragents.store import Store
from cleveragents.store.clock import Clock, jump_between

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


class Jump(msgspec.Struct, frozen=True):
    """The clock was set before the group of that number was made."""

    number: int
    seconds: float


class Noted(msgspec.Struct, frozen=True):
    """The clocks at the last group whose age counts, and earlier jumps."""

    clock: Clock
    jumps: tuple[Jump, ...] = ()


_NOTE = "retention_clock"
_JUMPS = 100
"""So many are remembered."""


def note_clock(store: Store, group_id: str, clock: Clock) -> None:
    """Record the clocks, in a group's commit, for a plan that keeps groups by age."""
    noted = _noted(store)
    jumps = noted.jumps if noted else ()
    if jump := jump_between(noted.clock if noted else None, clock):
        jumps = (*jumps, Jump(store.checkpoints.number(group_id), jump.total_seconds()))[-_JUMPS:]
    store.note(_NOTE, msgspec.json.encode(Noted(clock, jumps)).decode())


def _noted(store: Store) -> Noted | None:
    text = store.noted(_NOTE)
    return codec.from_json(text, Noted) if text else None


def _clock_set(store: Store, plan_id: str, clock: Clock) -> dict[str, timedelta]:
    """Group -> by how much the clock was set since it was made; none for most."""
    noted = _noted(store)
    if noted is None:
        return {}
    since = jump_between(noted.clock, clock)
    if not noted.jumps and since is None:
        return {}
    return {
        group: timedelta(seconds=sum(jump.seconds for jump in noted.jumps if jump.number > number))
        + (since or timedelta())
        for group, number in store.order_of(plan_id).items()
    }


def verdicts_on(
    store: Store,
    plan: Plan,
    policy: CheckpointRetentionPolicy,
    clock: Clock,
    safe: Set[str | None] = frozenset(),
) -> tuple[Verdict, ...]:
    with store.reading(f"retention of {plan.plan_id}"):
        groups = store.checkpoints.groups(plan.plan_id)
        superseded = store.checkpoints.superseded(plan.plan_id)
        sizes = store.checkpoints.sizes(plan.plan_id)
        reachable = reachable_groups(store, plan) | safe
    if not groups:
        return ()
    clock_set = _clock_set(store, plan.plan_id, clock) if policy.keep_within else {}
    candidates = [
        Candidate(
            group=group,
            size_bytes=sizes.get(group.group_id, 0),
            superseded=group.decision_id in superseded,
            reachable=group.group_id in reachable,
            clock_set=clock_set.get(group.group_id, timedelta()),
        )
        for group in groups
    ]
    return judge(policy, candidates, datetime.fromisoformat(clock.at))


def reachable_groups(store: Store, plan: Plan) -> set[str | None]:
    """The current group, those that undo and redo can return to, and a kept failed state.

    Also where a running call began: if it fails or dies, the plan returns there.
    """
    found = {plan.head_group_id, *(call.group_id for call in store.calls.running(plan.plan_id))}
    if plan.error is not None:
        found |= {plan.error.group_id, plan.error.undo_to}
    for intent in store.intents.of_plan(plan.plan_id):
        if intent.kind == "restore":
            found.add(intent.body["group_id"])
    for entry in store.journal.last(plan.plan_id, REACH):
        found |= {entry.before.group_id, entry.after.group_id if entry.after else None}
    return found
