"""Everything the store knows of one plan, read in a fixed number of queries."""

from shlex import quote

import msgspec

from cleveragents.history.export import abandoned
from cleveragents.lease import holder
from cleveragents.lookup import typed_plan
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.conversation import anchor_in
from cleveragents.model.decision import Correction, Decision
from cleveragents.model.effect import Effect
from cleveragents.model.journal import JournalEntry, Operation, undo_stack
from cleveragents.model.plan import Plan, State, Step
from cleveragents.model.resource import Resource
from cleveragents.model.tool import ToolCall
from cleveragents.workspace import Workspace


class Holder(msgspec.Struct, frozen=True):
    """The process that works on the plan now."""

    verb: str
    pid: int
    host: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    typed: str
    """What to type for it on a command line."""
    resources: tuple[Resource, ...]
    steps: tuple[Step, ...]
    decisions: dict[str, Decision]
    groups: tuple[CheckpointGroup, ...]
    """Those that are kept, oldest first."""
    hashes: dict[str, str]
    """Checkpoint -> hash of the state it holds."""
    sizes: dict[str, int]
    """Group -> what it added to the store."""
    calls: tuple[ToolCall, ...]
    """Without what they printed."""
    wrote: frozenset[str]
    """Calls that wrote something, also where its checkpoints are pruned."""
    order: dict[str, int]
    """Id of a decision, group or call -> its place in time."""
    entries: tuple[JournalEntry, ...]
    left: frozenset[str]
    """Groups that were rolled back or undone."""
    undone: dict[str, JournalEntry]
    """Entry that is undone -> the undo."""
    effects: tuple[Effect, ...]
    corrections: tuple[Correction, ...]
    children: tuple[Plan, ...]
    held: Holder | None
    unsure: frozenset[tuple[str, bytes]]
    """(call, path): another session had a call open as well; either may have written it."""
    others: tuple[tuple[str, str], ...]
    """When calls of other sessions began and ended that wrote to the same place."""

    @property
    def in_place(self) -> bool:
        return any(one.is_in_place for one in self.resources)

    @property
    def is_session(self) -> bool:
        """Whether an agent that somebody talks to does the steps, and not we."""
        return anchor_in(self.plan.actor_state) is not None

    @property
    def is_quiet(self) -> bool:
        """Whether it is an idle session, which its agent continues, even after a failure."""
        return self.plan.state is State.QUEUED and self.is_session and self.held is None

    def state(self, group: CheckpointGroup) -> dict[str, str]:
        """Resource -> hash of its state."""
        return {rid: self.hashes.get(cp, cp) for rid, cp in group.members.items()}


def facts_of(ws: Workspace, plan_id: str) -> Facts:
    store = ws.ctx.store
    plan = store.plans.get(plan_id)
    groups = store.checkpoints.groups(plan_id)
    entries = store.journal.of_plan(plan_id)
    held = holder(store, plan_id)
    resources = tuple(store.resources.of_plan(plan_id))
    in_place = any(one.is_in_place for one in resources)
    return Facts(
        plan=plan,
        typed=quote(typed_plan(store, plan)),
        resources=resources,
        steps=tuple(store.plans.steps(plan_id)),
        decisions={one.decision_id: one for one in store.plans.decisions(plan_id)},
        groups=tuple(groups),
        hashes=store.checkpoints.hashes(plan_id),
        sizes=store.checkpoints.sizes(plan_id),
        calls=tuple(store.calls.without_output(plan_id)),
        wrote=store.calls.that_wrote(plan_id),
        order=store.order_of(plan_id),
        entries=tuple(entries),
        left=abandoned(groups, entries, in_place),
        undone=_undone(entries, in_place),
        effects=tuple(store.effects.of_plan(plan_id)),
        corrections=tuple(store.corrections.of_plan(plan_id)),
        children=tuple(store.plans.children(plan_id)),
        held=Holder(held.verb, held.pid, held.host) if held else None,
        unsure=store.calls.shared_writes(plan_id) if in_place else frozenset(),
        others=tuple(store.calls.when_others_wrote(plan_id)) if in_place else (),
    )


def _undone(entries: list[JournalEntry], in_place: bool) -> dict[str, JournalEntry]:
    done = {one.entry_id for one in undo_stack(entries, in_place=in_place)[0]}
    last = {entry.target: entry for entry in entries if entry.operation is Operation.UNDO}
    return {target: undo for target, undo in last.items() if target and target not in done}
