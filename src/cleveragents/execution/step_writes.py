"""A step's writes if no group follows it: the difference to what was known before."""

import os
from collections.abc import Collection, Iterable, Iterator

import msgspec

from cleveragents.context import Context
from cleveragents.lease import LeasedPlan
from cleveragents.model.resource import Action, Change, Resource
from cleveragents.model.tool import ToolCall, Write

Spot = tuple[str, bytes]


class StepWrites:
    """Changes since the newest group, divided by step."""

    def __init__(self) -> None:
        self._head: str | None = None
        self._known: dict[Spot, Change] = {}

    def of_step(self, ctx: Context, leased: LeasedPlan) -> tuple[Change, ...]:
        """Changes since the last call of this."""
        plan_id, head = leased.plan.plan_id, ctx.checkpoints.head(leased)
        if (head.group_id if head else None) != self._head:
            self._head, self._known = head.group_id if head else None, {}
        before = ctx.checkpoints.states(head) if head else ctx.checkpoints.initial_states(plan_id)
        found = ctx.checkpoints.look(
            plan_id, lambda now: ctx.checkpoints.diff(plan_id, before, now)
        )
        now = {(change.resource, change.path): change for change in found}
        new = changes_between(self._known, now)
        self._known = now
        return new


def changes_between(known: dict[Spot, Change], now: dict[Spot, Change]) -> tuple[Change, ...]:
    """The changes between two differences to the same state (pure)."""
    new = [_between(known.get(spot), change) for spot, change in now.items()]
    back = [
        msgspec.structs.replace(old, before=old.after, after=old.before)
        for spot, old in known.items()
        if spot not in now
    ]
    return tuple(
        msgspec.structs.replace(change, action=_action(change))
        for change in (*new, *back)
        if change.before != change.after
    )


def _between(old: Change | None, change: Change) -> Change:
    return change if old is None else msgspec.structs.replace(change, before=old.after)


def _action(change: Change) -> Action:
    if not change.before:
        return Action.ADDED
    return Action.CHANGED if change.after else Action.REMOVED


def of_named(
    resources: Iterable[Resource], named: Collection[str], changes: tuple[Change, ...]
) -> tuple[Change, ...]:
    """The changes to the files that a call names; all changes if it names none.

    In a sandbox nobody else writes, so all changes are the call's. In place, a folder made for a
    named file is the call's as well.
    """
    roots = {item.name: os.path.realpath(item.path) for item in resources if item.is_in_place}
    if not named or not roots:
        return changes
    own = {
        os.fsencode(path)
        for name in named
        for path in (_in_real_folder(name), os.path.realpath(name))
    }

    def is_own(change: Change) -> bool:
        if change.resource not in roots:
            return True
        path = os.path.join(os.fsencode(roots[change.resource]), change.path)
        is_folder = (change.after or change.before).startswith("d:")
        return path in own or (is_folder and any(one.startswith(path + b"/") for one in own))

    return tuple(change for change in changes if is_own(change))


def _in_real_folder(name: str) -> str:
    """The name in its folder's real path; the name itself may be a link."""
    folder, name = os.path.split(name)
    return os.path.join(os.path.realpath(folder), name)


def writes_of(
    resources: Iterable[Resource], call: ToolCall, changes: Iterable[Change]
) -> Iterator[Write]:
    """Rows that record a call's changes to these paths."""
    ids = {item.name: item.resource_id for item in resources}
    for change in changes:
        yield Write(
            plan_id=call.plan_id,
            step_id=call.step_id,
            call_id=call.call_id,
            resource_id=ids[change.resource],
            path=change.path,
            before=change.before,
            after=change.after,
        )
