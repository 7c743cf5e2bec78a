"""Who changed a path in place since a checkpoint, and what a rollback does with it (pure).

The plan's own calls and restores are on record, with the state before and after each. Changes
between two of them are somebody else's: a person's, or another session's. States are compared as
text, so this knows neither files nor databases.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

ABSENT = ""
"""The state of a path at which there is nothing."""
Merge = Callable[[str, str, str], str | None]
"""(base, ours, theirs) -> the state with both changes, or None if there is none."""


class Owner(StrEnum):
    AGENT = "agent"
    OTHERS = "somebody else"
    BOTH = "both"
    UNKNOWN = "unknown"
    """Two had a call open when it was written: nobody can tell which of them it was."""


class Action(StrEnum):
    RESTORE = "restore"
    MERGE = "merge"
    KEEP = "keep"
    CONFLICT = "conflict"


class Change(NamedTuple):
    before: str
    after: str
    restores: bool = False
    """A rollback or undo wrote it: somebody asked for that state, over any other."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """One path's history since a checkpoint."""

    target: str
    """Its state then."""
    writes: tuple[Change, ...]
    """What the plan itself wrote since, oldest first."""
    now: str
    shared: frozenset[Change] = frozenset()
    """Writes that another session has on record as well: both had a call open."""
    earlier: frozenset[str] = frozenset()
    """Its states before the checkpoint."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A rollback's decision on one path."""

    owner: Owner
    action: Action
    result: str
    """The state afterwards; of a conflict the one now."""
    reason: str = ""
    sides: tuple[str, str, str] | None = None
    """Of a conflict that was tried: base, the checkpoint's side, somebody else's."""


def others_changes(history: History) -> list[Change]:
    """Changes by others between the plan's own writes, and since."""
    found: list[Change] = []
    at = history.target
    for write in in_force(history):
        if write.before != at:
            found.append(Change(at, write.before))
        at = write.after
    if history.now != at:
        found.append(Change(at, history.now))
    return found


def in_force(history: History) -> list[Change]:
    """The plan's own writes in force: a restore returns to the moment that had its state.

    Changes by others after that moment are dropped with it, and back with the undo of it. If the
    moment was before the checkpoint, all changes since are dropped.
    """
    made: list[Change] = []
    moments: dict[str, list[Change]] = {history.target: []}
    last = None
    for write in history.writes:
        if write == last:
            continue  # parallel calls have the same write on record
        last = write
        moments[write.before] = made
        if write.restores and write.after in moments:
            made = moments[write.after]
        elif write.restores and write.after in history.earlier:
            made = [Change(history.target, write.after)]
            moments[write.after] = made
        else:
            made = [*made, write]
            moments[write.after] = made
    return made


def decide(history: History, merge: Merge, *, is_merged: bool = True) -> Verdict:
    """Undo the plan's own writes and keep everybody else's.

    `is_merged`: whether the path can be merged; else it is left alone if somebody else changed it.
    """
    now, writes = history.now, in_force(history)
    if not any(write.before != write.after for write in writes):
        return Verdict(owner=Owner.OTHERS, action=Action.KEEP, result=now)
    if history.target != now and history.shared & set(writes):
        why = "another session had a call open when it was written"
        return Verdict(owner=Owner.UNKNOWN, action=Action.CONFLICT, result=now, reason=why)
    theirs = others_changes(history)
    if not theirs:
        return _verdict(Owner.AGENT, history, history.target)
    if not is_merged:
        why = "changed by somebody else since"
        return Verdict(owner=Owner.BOTH, action=Action.KEEP, result=now, reason=why)
    result = history.target
    for change in theirs:
        if result == change.before:
            result = change.after
        elif result != change.after:
            merged = merge(change.before, result, change.after)
            if merged is None:
                return _torn(history, (change.before, result, change.after))
            result = merged
    return _verdict(Owner.BOTH, history, result)


def _torn(history: History, sides: tuple[str, str, str]) -> Verdict:
    """The verdict if both cannot be kept; nothing to decide if it is as at the checkpoint."""
    now = history.now
    if now == history.target:
        return Verdict(owner=Owner.BOTH, action=Action.KEEP, result=now)
    return Verdict(
        owner=Owner.BOTH,
        action=Action.CONFLICT,
        result=now,
        reason="changed by the agent and by somebody else",
        # What somebody has written over since is not what to choose from.
        sides=(*sides[:2], now),
    )


def _verdict(owner: Owner, history: History, result: str) -> Verdict:
    action = Action.MERGE
    if result == history.now:
        action = Action.KEEP
    elif result == history.target:
        action = Action.RESTORE
    return Verdict(owner=owner, action=action, result=result)


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """A person's choices for conflicts, and for paths they name."""

    everything: bool = False
    keep_mine: frozenset[bytes] = frozenset()
    take_checkpoint: frozenset[bytes] = frozenset()
    """Paths, folders or resources; empty bytes mean every conflict."""

    def chosen(self, names: Collection[bytes], history: History, verdict: Verdict) -> Verdict:
        """The verdict after the person's choice; `names`: what the path may be called."""
        is_conflict = verdict.action is Action.CONFLICT
        if self.everything or _named(self.take_checkpoint, names, is_conflict):
            return _verdict(verdict.owner, history, history.target)
        if _named(self.keep_mine, names, is_conflict):
            return Verdict(owner=verdict.owner, action=Action.KEEP, result=history.now)
        return verdict


def _named(given: frozenset[bytes], names: Iterable[bytes], is_conflict: bool) -> bool:
    if is_conflict and b"" in given:
        return True
    return any(
        name == one or name.startswith(one.rstrip(b"/") + b"/")
        for name in names
        for one in given
        if one
    )


def buried(path: bytes, verdict: Verdict, now: str, kept: Sequence[bytes]) -> bool:
    """Whether a folder that would be replaced has somebody else's files in it."""
    becomes = verdict.result
    if not now.startswith("d:") or becomes == ABSENT or becomes.startswith("d:"):
        return False
    return any(other.startswith(path + b"/") for other in kept)


def is_others(verdict: Verdict) -> bool:
    return verdict.action is Action.KEEP and verdict.owner in (Owner.OTHERS, Owner.BOTH)


def new_repositories(histories: Mapping[bytes, History]) -> list[bytes]:
    """Git directories made since the checkpoint."""
    tops = [path[:-5] for path in histories if path.endswith(b"/HEAD")]
    return [
        top
        for top in tops
        if top + b"/objects" in histories and top in histories and histories[top].target == ABSENT
    ]
