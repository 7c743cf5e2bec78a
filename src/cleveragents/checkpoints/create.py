"""Makes a checkpoint group: capture every sandbox, decide what to write, commit with the plan."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from cleveragents.checkpoints.groups import About, Collected, Groups
from cleveragents.checkpoints.manager import States
from cleveragents.content.packs import Batch
from cleveragents.errors import CheckpointFailed
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import Decision
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Step
from cleveragents.model.resource import Resource
from cleveragents.model.tool import ToolCall

LENIENT = frozenset({CheckpointType.PRE_ROLLBACK, CheckpointType.ON_ERROR})
"""These keep a state to roll back from, also one that a tool broke."""


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Why a group is made, and what to write in the same commit."""

    reason: str | Callable[[States, States], str] = ""
    """Text, or what makes it of the states of the last group and of now; else the trigger."""
    label: str | None = None
    decision_id: str | None = None
    step: Step | None = None
    force: bool = False
    """A group of its own, also if nothing changed."""
    steps: tuple[Step, ...] = ()
    decisions: tuple[Decision, ...] = ()
    view_changed: bool = False
    plan: dict[str, Any] = {}
    """Fields of the plan to set."""
    call: ToolCall | None = None
    """A call that is not on record yet, and what it wrote came before the group; with `force`."""
    keeps_head: bool = False
    """Where nothing changed the last group is what was asked for, as it is."""
    spares: str | None = None
    """A group that is not pruned to make room for this one: somebody is on the way to it."""
    check: Callable[[States, Batch], None] | None = None
    """Called with the states of now and where their content is; if it fails nothing is made."""
    prepare: Callable[[States], None] | None = None
    """Called with the states of now before the commit; it may fail without a trace."""
    record: Callable[[States, States], None] | None = None
    """Called in the commit, when group and plan are written, with the states before and now."""

    @property
    def writes(self) -> bool:
        return bool(self.steps or self.decisions or self.plan)


class Capture(NamedTuple):
    """The plan's newest group with its states, and the states now."""

    head: CheckpointGroup | None
    before: States
    now: States


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a capture: one more trigger on the head, or a group with these rows."""

    head: CheckpointGroup | None = None
    rows: States = {}
    is_written: bool = False
    """The head has that name already, and nothing else is to be written."""
    keeps_content: bool = True


def decide(
    trigger: CheckpointType,
    request: CheckpointRequest,
    capture: Capture,
    view_mark: int,
    resources: Mapping[str, Resource],
) -> Choice:
    """Decide: if neither a resource nor the view changed, the last group gets the trigger."""
    head, before, now = capture
    changed = {
        rid: state
        for rid, state in now.items()
        if rid not in before or before[rid].state_hash != state.state_hash
    }
    own_group = request.view_changed or request.force or request.label
    if head is None or changed or head.view_mark != view_mark or own_group:
        return Choice(rows=changed or one_row(now, request.step, resources))
    more = request.writes or request.prepare or request.record
    return Choice(
        head=head,
        is_written=request.keeps_head or (trigger in head.triggers and not more),
        # A state that is rolled back from at once is not kept twice: only times can differ.
        keeps_content=request.prepare is None,
    )


def one_row(now: States, step: Step | None, resources: Mapping[str, Resource]) -> States:
    """Only the view changed: one row, of the step's resource, that adds no content."""
    if not now:
        raise CheckpointFailed("the plan has no resource that can be checkpointed")
    wanted = [rid for rid in now if step and resources[rid].name == step.resource]
    rid = (wanted or list(now))[0]
    return {rid: msgspec.structs.replace(now[rid], added_bytes=0)}


def create(
    groups: Groups, trigger: CheckpointType, leased: LeasedPlan, request: CheckpointRequest
) -> CheckpointGroup:
    plan = leased.plan
    if trigger not in LENIENT and plan.head_group_id is not None:
        groups.manager.require_seen(plan.plan_id)
    try:
        return _create(groups, trigger, leased, request)
    except Collected:
        # Garbage collection removed content just found in the store: capture again.
        groups.manager.doubt(plan.plan_id)
        return _create(groups, trigger, leased, request)


def _create(
    groups: Groups, trigger: CheckpointType, leased: LeasedPlan, request: CheckpointRequest
) -> CheckpointGroup:
    plan_id, strict = leased.plan.plan_id, trigger not in LENIENT
    dropped: list[str] = []
    with groups.manager.packs.batch(urgent=not strict) as batch:
        capture = _capture(groups, leased, batch, strict)
        if request.check is not None:
            request.check(capture.now, batch)
        resources = groups.manager.sandboxes(plan_id).resources
        choice = decide(trigger, request, capture, leased.plan.view_mark, resources)
        if choice.head is not None and choice.is_written:
            return choice.head
        # The content is synced while the rows are written; COMMIT waits for it.
        wait = batch.begin_seal() if choice.keeps_content else _nothing
        if request.prepare is not None:
            request.prepare(capture.now)
        with leased.transaction(by_write=choice.head is None):
            groups.remember_newest(plan_id, None)
            if choice.head is not None:
                group = _reuse(groups, trigger, leased, request, choice.head)
            else:
                group = _add(groups, trigger, leased, request, capture, choice.rows)
            if request.record is not None:
                request.record(capture.before, capture.now)
            if choice.head is None:
                dropped = groups.prune(leased, capture.head, request.spares)
            if choice.keeps_content:
                # Last, so that the server of a shared store works meanwhile.
                groups.keep_content(batch)
            wait()
    groups.remember_newest(plan_id, group, is_new=choice.head is None)
    if choice.head is None:
        groups.manager.note_version(leased.plan)
    for learned in batch.after_commit if choice.keeps_content else ():
        learned()
    if dropped:
        groups.release_dropped(plan_id)
    return group


def _nothing() -> None: ...


def _capture(groups: Groups, leased: LeasedPlan, batch: Batch, strict: bool) -> Capture:
    head = groups.head(leased)
    before = groups.states(head) if head else {}
    now = groups.manager.create_checkpoint(leased.plan.plan_id, batch, before, strict)
    return Capture(head, before, now)


def _reuse(
    groups: Groups,
    trigger: CheckpointType,
    leased: LeasedPlan,
    request: CheckpointRequest,
    head: CheckpointGroup,
) -> CheckpointGroup:
    group = groups.store.checkpoints.add_trigger(head, trigger)
    if request.writes:
        leased.write(steps=request.steps, decisions=request.decisions, **request.plan)
    return group


def _add(
    groups: Groups,
    trigger: CheckpointType,
    leased: LeasedPlan,
    request: CheckpointRequest,
    capture: Capture,
    rows: States,
) -> CheckpointGroup:
    group_id, ids = new_id(), {rid: new_id() for rid in rows}
    leased.write(
        steps=request.steps,
        decisions=request.decisions,
        view_changed=request.view_changed,
        head_group_id=group_id,
        last_checkpoint_id=next(iter(ids.values())),
        **request.plan,
    )
    if request.call is not None:
        groups.store.calls.put(request.call)
    reason = request.reason
    why = reason if isinstance(reason, str) else reason(capture.before, capture.now)
    about = About(trigger, why or str(trigger), request.decision_id, request.step, request.label)
    return groups.add(leased, group_id, capture.head, rows, ids, about, leased.plan.actor_state)
