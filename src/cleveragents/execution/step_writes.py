"""What a step wrote where no group is made after it: the difference to what was known before."""

from collections.abc import Iterable, Iterator

import msgspec

from cleveragents.context import Context
from cleveragents.lease import LeasedPlan
from cleveragents.model.resource import Action, Change, Resource
from cleveragents.model.tool import ToolCall, Write

Spot = tuple[str, bytes]


class StepWrites:
    """Changes since the newest group, told apart step by step."""

    def __init__(self) -> None:
        self._head: str | None = None
        self._known: dict[Spot, Change] = {}

    def of_step(self, ctx: Context, leased: LeasedPlan) -> tuple[Change, ...]:
        """What was changed since this was asked last."""
        plan_id, head = leased.plan.plan_id, ctx.checkpoints.head(leased)
        if (head.group_id if head else None) != self._head:
            self._head, self._known = head.group_id if head else None, {}
        before = ctx.checkpoints.states(head) if head else ctx.checkpoints.began_with(plan_id)
        found = ctx.checkpoints.look(
            plan_id, lambda now: ctx.checkpoints.diff(plan_id, before, now)
        )
        now = {(change.resource, change.path): change for change in found}
        new = changes_between(self._known, now)
        self._known = now
        return new


def changes_between(known: dict[Spot, Change], now: dict[Spot, Change]) -> tuple[Change, ...]:
    """What happened between two differences to the same state (pure)."""
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


def writes_of(
    resources: Iterable[Resource], call: ToolCall, changes: Iterable[Change]
) -> Iterator[Write]:
    """The rows that say that a call changed these paths of the plan's resources."""
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
