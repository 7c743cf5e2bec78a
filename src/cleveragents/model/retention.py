"""Which groups stay: a pure rule that says why for each."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import IntEnum

import msgspec

from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType

DEFAULT_MAX = 50


class CheckpointRetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    max_checkpoints: int = DEFAULT_MAX
    keep_last: int | None = None
    keep_within: timedelta | None = None
    max_bytes: int | None = None


class Rank(IntEnum):
    """Dropped in this order, oldest first within each."""

    SUPERSEDED = 0
    QUIET = 1
    AROUND = 2
    OTHER = 3
    DECISION = 4


class Verdict(msgspec.Struct, frozen=True):
    group_id: str
    keep: bool
    reason: str


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule needs to know of a group."""

    group: CheckpointGroup
    size_bytes: int
    superseded: bool
    reachable: bool
    """Undo or redo can come back to it."""
    clock_set: timedelta = timedelta()
    """By how much the clock was set since it was made, as far as anybody noticed."""


_AROUND = frozenset(
    {
        CheckpointType.BEFORE_STEP,
        CheckpointType.AFTER_STEP,
        CheckpointType.BEFORE_TOOL_EXECUTE,
        CheckpointType.AFTER_TOOL_EXECUTE,
        CheckpointType.AFTER_SUBPLAN,
    }
)


def judge(
    policy: CheckpointRetentionPolicy, candidates: Sequence[Candidate], now: datetime
) -> tuple[Verdict, ...]:
    """One verdict per group, oldest first. `candidates` are oldest first."""
    fixed = {c.group.group_id: reason for c in candidates if (reason := _fixed(c, candidates))}
    _keep_extra(policy, candidates, now, fixed)
    loose = [c for c in candidates if c.group.group_id not in fixed]
    loose.sort(key=_rank)
    dropped: dict[str, str] = {}
    over = len(candidates) - policy.max_checkpoints
    for candidate in loose[: max(over, 0)]:
        dropped[candidate.group.group_id] = (
            f"over {policy.max_checkpoints}: {_rank(candidate).name.lower()}, oldest"
        )
    if policy.max_bytes is not None:
        _drop_for_bytes(policy.max_bytes, candidates, loose, dropped)
    return tuple(_verdict(c, fixed, dropped) for c in candidates)


def _fixed(candidate: Candidate, candidates: Sequence[Candidate]) -> str:
    group = candidate.group
    if candidate is candidates[0]:
        return "first"
    if candidate is candidates[-1]:
        return "newest"
    if group.pinned:
        return "pinned"
    if group.label:
        return f"labelled {group.label}"
    if group.checkpoint_type is CheckpointType.PRE_APPLY:
        return "pre_apply"
    return "undo can reach it" if candidate.reachable else ""


def _keep_extra(
    policy: CheckpointRetentionPolicy,
    candidates: Sequence[Candidate],
    now: datetime,
    fixed: dict[str, str],
) -> None:
    if policy.keep_last:
        for candidate in candidates[-policy.keep_last :]:
            fixed.setdefault(candidate.group.group_id, f"among the last {policy.keep_last}")
    if policy.keep_within:
        for candidate, made in zip(candidates, _creation_times(candidates, now), strict=True):
            if now - made <= policy.keep_within:
                fixed.setdefault(candidate.group.group_id, f"within {policy.keep_within}")


def _creation_times(candidates: Sequence[Candidate], now: datetime) -> list[datetime]:
    """When each was made: no earlier than the one before it, and not after now.

    A clock that was wrong for a while makes a group younger than it is, never older.
    """
    found: list[datetime] = []
    for candidate in candidates:
        made = datetime.fromisoformat(candidate.group.created_at) + candidate.clock_set
        found.append(max(found[-1], made) if found else made)
    return [min(made, now) for made in found]


def _rank(candidate: Candidate) -> Rank:
    if candidate.superseded:
        return Rank.SUPERSEDED
    if candidate.group.checkpoint_type is CheckpointType.ON_QUIET:
        return Rank.QUIET
    if candidate.group.checkpoint_type in _AROUND:
        return Rank.AROUND
    if candidate.group.checkpoint_type is CheckpointType.ON_DECISION:
        return Rank.DECISION
    return Rank.OTHER


def _drop_for_bytes(
    limit: int, candidates: Sequence[Candidate], loose: list[Candidate], dropped: dict[str, str]
) -> None:
    total = sum(c.size_bytes for c in candidates if c.group.group_id not in dropped)
    for candidate in loose:
        if total <= limit:
            return
        if candidate.group.group_id not in dropped:
            dropped[candidate.group.group_id] = f"over {limit} bytes"
            total -= candidate.size_bytes


def _verdict(candidate: Candidate, fixed: dict[str, str], dropped: dict[str, str]) -> Verdict:
    group_id = candidate.group.group_id
    if group_id in dropped:
        return Verdict(group_id, False, dropped[group_id])
    return Verdict(group_id, True, fixed.get(group_id, "within the limit"))
