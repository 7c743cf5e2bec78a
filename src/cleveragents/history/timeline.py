"""The groups of a plan in order: what each changed, and which lead to where it stands."""

import msgspec

from cleveragents.context import Context
from cleveragents.history.export import leading_here
from cleveragents.history.owners import Owner
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Change


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One group, with what became of the resources since the one before it."""

    group: CheckpointGroup
    changes: tuple[Change, ...]
    owners: tuple[Owner, ...]
    """Who made each of them."""
    in_force: bool
    """Whether it leads to where the plan stands; else it failed or was left by a rollback."""
    size_bytes: int
    """What it added to the store."""


def timeline(ctx: Context, plan: Plan) -> list[TimelineEntry]:
    """Oldest first. A group that leads here is compared with the last such one before it."""
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    here = {group.group_id for group in leading_here(ctx.store, plan)}
    sizes = ctx.store.checkpoints.sizes(plan.plan_id)
    found: list[TimelineEntry] = []
    led: CheckpointGroup | None = None
    wrote = _Writes(ctx, plan)
    for number, group in enumerate(groups):
        in_force = group.group_id in here
        before = led if in_force else groups[number - 1] if number else None
        changes = _changes(ctx, plan, before, group)
        found.append(
            TimelineEntry(
                group=group,
                changes=changes,
                owners=wrote.owners(before, group, changes),
                in_force=in_force,
                size_bytes=sizes.get(group.group_id, 0),
            )
        )
        led = group if in_force else led
    return found


class _Writes:
    """What the plan's calls wrote, by when."""

    def __init__(self, ctx: Context, plan: Plan) -> None:
        store = ctx.store
        self._order = store.order_of(plan.plan_id)
        resources = store.resources.of_plan(plan.plan_id)
        names = {one.resource_id: one.name for one in resources}
        self._in_place = {one.name for one in resources if one.is_in_place}
        shared = store.calls.shared_writes(plan.plan_id)
        self._known: dict[tuple[str, bytes], list[tuple[int, str, bool]]] = {}
        for write in store.calls.writes(plan.plan_id):
            place = self._known.setdefault((names[write.resource_id], write.path), [])
            both = (write.call_id, write.path) in shared
            place.append((self._order.get(write.call_id, 0), write.before, both))

    def owners(
        self, before: CheckpointGroup | None, after: CheckpointGroup, changes: tuple[Change, ...]
    ) -> tuple[Owner, ...]:
        start = self._order[before.group_id] if before else 0
        end = self._order[after.group_id]
        return tuple(self._owner(after, change, start, end) for change in changes)

    def _owner(self, group: CheckpointGroup, change: Change, start: int, end: int) -> Owner:
        if group.checkpoint_type in OF_OTHERS:
            return Owner.OTHERS
        known = self._known.get((change.resource, change.path), [])
        own = sorted(write for write in known if start < write[0] <= end)
        if not own:
            # In a sandbox nobody else is expected while a step runs.
            return Owner.OTHERS if change.resource in self._in_place else Owner.AGENT
        # Two sessions that had a call open both have it on record: it may be of either.
        is_shared = any(both for _, _, both in own)
        return Owner.BOTH if is_shared or own[0][1] != change.before else Owner.AGENT


OF_OTHERS = frozenset(
    {
        CheckpointType.EXTERNAL_EDIT,
        CheckpointType.MANUAL,
        CheckpointType.PRE_ROLLBACK,
        CheckpointType.PRE_APPLY,
    }
)
"""Groups that hold what was changed while no step ran."""


def _changes(
    ctx: Context, plan: Plan, before: CheckpointGroup | None, after: CheckpointGroup
) -> tuple[Change, ...]:
    if before is None or before.members == after.members:
        return ()
    states = ctx.checkpoints.states
    return ctx.checkpoints.diff(plan.plan_id, states(before), states(after))
