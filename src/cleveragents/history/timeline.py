"""A plan's groups in order: what each changed, by whom, and which lead to the current state.

Between two states, the groups tell who did what: a group made for a manual edit holds the edit;
everything from one such group to the next is the plan's own.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import msgspec

from cleveragents.context import Context
from cleveragents.errors import AgentsError
from cleveragents.history.diff import ByHand, Comparison, Diff, Ends, FileDiff, Part, read_files
from cleveragents.history.export import abandoned, leading_here
from cleveragents.history.owners import Owner
from cleveragents.lease import holder
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, SandboxCheckpoint
from cleveragents.model.plan import Plan, StepState
from cleveragents.model.resource import Change
from cleveragents.sandbox.protocol import ReportsContents
from cleveragents.sandbox.sqlite.followed import Rows, rows_in, same
from cleveragents.sandbox.sqlite.tables import TableChange

MOST_EDITS = 50
"""Groups of edits up to which lines are told apart."""
LARGEST, READ = 256 << 10, 16 << 20
"""Bytes of a file up to which its lines are, and up to which it is looked at for that."""
STATES = 256 << 20
"""Bytes of a database in all its states up to which rows are told apart."""
Written = dict[tuple[str, bytes], bool] | None
"""(Resource, path) that a call of a plan in place wrote -> whether it may be another's work.

None for a plan that has sandboxes: there nobody else is expected while a step runs.
"""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One group, with the changes since the one before it."""

    group: CheckpointGroup
    changes: tuple[Change, ...]
    owners: tuple[Owner, ...]
    """Who made each of them."""
    in_force: bool
    """Whether it leads to where the plan stands; else it failed or was left by a rollback."""
    size_bytes: int
    """What it added to the store."""


def timeline(ctx: Context, plan: Plan) -> list[TimelineEntry]:
    """All groups, oldest first.

    A group on the current line is compared with the last one before it, unless their content is
    only on another machine.
    """
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    here = {group.group_id for group in leading_here(ctx.store, plan)}
    sizes = ctx.store.checkpoints.sizes(plan.plan_id)
    found: list[TimelineEntry] = []
    led: CheckpointGroup | None = None
    wrote = _Writes(ctx, plan)
    is_here = ctx.manager.sandboxes(plan.plan_id).only_on is None
    for number, group in enumerate(groups):
        in_force = group.group_id in here
        before = led if in_force else groups[number - 1] if number else None
        changes = _changes(ctx, plan, before, group) if is_here else ()
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
    """The writes of the plan's calls, by time."""

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
            # In a sandbox nobody else writes while a step runs.
            return Owner.OTHERS if change.resource in self._in_place else Owner.AGENT
        # Two sessions with open calls both have the write on record: it may be either's.
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


def contents_of(ctx: Context, plan: Plan, group: CheckpointGroup) -> dict[str, dict[str, int]]:
    """Resource -> counts of files, or tables and rows, in a group. Empty where unknown."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    found: dict[str, dict[str, int]] = {}
    for rid, state in ctx.checkpoints.states(group).items():
        sandbox = sandboxes[rid]
        name = sandbox.place.resource.name
        found[name] = {}
        if isinstance(sandbox, ReportsContents):
            with (
                ctx.scratch() as scratch,
                suppress(AgentsError),
            ):  # `agents check` reports missing content
                found[name] = sandbox.contents(state, scratch)
    return found


class Stage(NamedTuple):
    """A state between the two ends, and whether it was reached by a manual edit."""

    state: SandboxCheckpoint
    by_hand: bool


def with_owners(compared: Comparison) -> Diff:
    """The differences with their owners; where both changed a file, by line and row."""
    ctx, plan, ends = compared.ctx, compared.plan, compared.ends
    edits = _edits(ctx, plan, ends)
    now = _edited_now(ctx, plan) if ends[1] is None else None
    written = _written(ctx, plan)
    diff = compared.diff()
    found = {(file.resource, file.path): file for file in diff.files}
    for part in compared.parts:
        stages = list(_stages(ctx, part, edits, now))
        owners = _owners(part, stages, written)
        own = [file for file in found.values() if file.resource == part.sandbox.place.resource.name]
        own = [msgspec.structs.replace(file, owner=_owner_of(file, owners)) for file in own]
        for file in _with_lines(ctx, part, own, stages):
            found[file.resource, file.path] = _with_rows(ctx, part, file, stages, written)
    return msgspec.structs.replace(diff, files=tuple(found.values()))


def _edits(ctx: Context, plan: Plan, ends: Ends) -> list[tuple[CheckpointGroup, CheckpointGroup]]:
    """The manual edits between the two ends, before and after each."""
    order = ctx.store.order_of(plan.plan_id)
    first = order[ends[0].group_id] if ends[0] else 0
    last = order[ends[1].group_id] if ends[1] else math.inf
    found: list[tuple[CheckpointGroup, CheckpointGroup]] = []
    led: CheckpointGroup | None = None
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    in_place = any(one.is_in_place for one in ctx.store.resources.of_plan(plan.plan_id))
    left = abandoned(groups, ctx.store.journal.of_plan(plan.plan_id), in_place)
    for group in groups:
        if group.group_id in left or group.checkpoint_type is CheckpointType.ON_ERROR:
            continue
        is_edit = group.checkpoint_type in OF_OTHERS and led is not None
        if is_edit and led and first <= order[led.group_id] and order[group.group_id] <= last:
            found.append((led, group))
        led = group
    return found


def _edited_now(ctx: Context, plan: Plan) -> CheckpointGroup | None:
    """The newest group, if the changes since it are manual edits."""
    if plan.is_final or plan.head_group_id is None or holder(ctx.store, plan.plan_id) is not None:
        return None
    steps = ctx.store.plans.steps(plan.plan_id)
    if any(step.state is StepState.PROCESSING for step in steps):
        return None  # its process died: the leftovers are the step's
    return ctx.store.checkpoints.group(plan.head_group_id)


def _stages(
    ctx: Context,
    part: Part,
    edits: Iterable[tuple[CheckpointGroup, CheckpointGroup]],
    now: CheckpointGroup | None,
) -> Iterator[Stage]:
    """The states of one resource between the ends, without repeated ones."""
    rid = part.sandbox.place.resource.resource_id
    way = [one for before, after in edits for one in ((before, False), (after, True))]
    if now is not None:
        way.append((now, False))
    last = part.before
    yield Stage(last, False)
    for group, by_hand in way:
        state = ctx.checkpoints.states(group).get(rid)
        if state is not None and state.state_hash != last.state_hash:
            yield Stage(state, by_hand)
            last = state
    if part.after.state_hash != last.state_hash:
        yield Stage(part.after, now is not None)


def _written(ctx: Context, plan: Plan) -> Written:
    resources = ctx.store.resources.of_plan(plan.plan_id)
    if not any(one.is_in_place for one in resources):
        return None
    names = {one.resource_id: one.name for one in resources}
    shared = ctx.store.calls.shared_writes(plan.plan_id)
    found: dict[tuple[str, bytes], bool] = {}
    for write in ctx.store.calls.writes(plan.plan_id):
        place = names[write.resource_id], write.path
        found[place] = found.get(place, False) or (write.call_id, write.path) in shared
    return found


def _owners(part: Part, stages: Sequence[Stage], written: Written) -> dict[str, Owner]:
    """Path -> who changed it between the ends."""
    found: dict[str, Owner] = {}
    for before, after in pairwise(stages):
        for change in part.sandbox.changes(before.state, after.state):
            owner = _owner_at(after, (change.resource, change.path), written)
            found[change.shown] = _together(found.get(change.shown, owner), owner)
    return found


def _owner_at(stage: Stage, place: tuple[str, bytes], written: Written) -> Owner:
    """Who changed a path to reach this state."""
    if stage.by_hand:
        return Owner.OTHERS
    is_shared = False if written is None else written.get(place)
    return {None: Owner.OTHERS, True: Owner.UNKNOWN, False: Owner.AGENT}[is_shared]


def _together(one: Owner, other: Owner) -> Owner:
    if one is other:
        return one
    return Owner.UNKNOWN if Owner.UNKNOWN in (one, other) else Owner.BOTH


def _owner_of(file: FileDiff, owners: dict[str, Owner]) -> Owner:
    """The owner of a file, also under its old name if renamed."""
    names = (file.path, file.renamed_from or file.path)
    return _together(*(owners.get(name, Owner.AGENT) for name in names))


def _with_lines(
    ctx: Context, part: Part, files: list[FileDiff], stages: Sequence[Stage]
) -> Iterator[FileDiff]:
    mixed = [f for f in files if f.owner is Owner.BOTH and not f.binary and not f.tables]
    if not mixed or len(stages) > 2 * MOST_EDITS:
        yield from files
        return
    paths = {change.shown: change.path for change in part.changes}
    names = [(paths[f.path], paths.get(f.renamed_from or "", paths[f.path])) for f in mixed]
    flat = [name for pair in names for name in pair]
    texts: list[list[bytes | None]] = []
    with ctx.scratch() as scratch:
        for number, stage in enumerate(stages):
            place = f"{scratch}/{number}"
            texts.append(read_files(part.sandbox, stage.state, flat, place, READ))
    for number, file in enumerate(mixed):
        way = [
            (text[2 * number] or text[2 * number + 1] or b"", stage.by_hand)
            for text, stage in zip(texts, stages, strict=True)
        ]
        if max(len(text) for text, _ in way) <= LARGEST:
            files[files.index(file)] = msgspec.structs.replace(file, by_hand=manual_lines(way))
    yield from files


def _with_rows(
    ctx: Context, part: Part, file: FileDiff, stages: Sequence[Stage], written: Written
) -> FileDiff:
    """The file with the owner of each listed row."""
    is_one = file.owner in (Owner.AGENT, Owner.OTHERS)
    known = {} if is_one else _row_owners(ctx, part, file, stages, written)
    tables: list[TableChange] = []
    for table in file.tables:
        rows = tuple(
            msgspec.structs.replace(
                row, owner=file.owner if is_one else known.get((table.name, number))
            )
            for number, row in enumerate(table.rows)
        )
        tables.append(msgspec.structs.replace(table, rows=rows))
    return msgspec.structs.replace(file, tables=tuple(tables))


def _row_owners(
    ctx: Context, part: Part, file: FileDiff, stages: Sequence[Stage], written: Written
) -> dict[tuple[str, int], Owner]:
    """(Table, number of the row) -> who changed it; left out where unknown."""
    size = sum(stage.state.metadata.get("bytes", 0) for stage in stages)
    if not any(table.rows for table in file.tables):
        return {}
    if size > STATES or len(stages) > 2 * MOST_EDITS:
        return {}
    path = next(change.path for change in part.changes if change.shown == file.path)
    way: list[Rows] = []
    for stage in stages:
        with ctx.scratch() as scratch:
            part.sandbox.export(stage.state, frozenset([path]), scratch)
            way.append(rows_in(os.path.join(scratch, os.fsdecode(path)), file.tables))
    found: dict[tuple[str, int], Owner] = {}
    for row in set(way[0]).intersection(*way[1:]):
        for number, (before, after) in enumerate(pairwise(way), 1):
            if not same(before[row], after[row]):
                owner = _owner_at(stages[number], (file.resource, path), written)
                found[row] = _together(found.get(row, owner), owner)
    return found


def manual_lines(way: Sequence[tuple[bytes, bool]]) -> ByHand:
    """The manually edited lines, from a file's texts, oldest first, with who made each (pure)."""
    from difflib import SequenceMatcher

    text = way[0][0].splitlines()
    lines = [(number, False) for number in range(1, len(text) + 1)]
    """For each line: its first number, or 0, and whether it is a manual edit."""
    gone: list[int] = []
    for content, by_hand in way[1:]:
        new = content.splitlines()
        made: list[tuple[int, bool]] = []
        for kind, a, b, c, d in SequenceMatcher(None, text, new).get_opcodes():
            if kind == "equal":
                made += lines[a:b]
                continue
            gone += [number for number, _ in lines[a:b] if number and by_hand]
            made += [(0, by_hand)] * (d - c)
        lines, text = made, new
    added = [number for number, (_, by_hand) in enumerate(lines, 1) if by_hand]
    return ByHand(_stretches(added), _stretches(sorted(gone)))


def _stretches(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """`1, 2, 3, 7` as `(1, 3), (7, 7)`."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def is_in(stretches: Iterable[tuple[int, int]], number: int | None) -> bool:
    return number is not None and any(first <= number <= last for first, last in stretches)
