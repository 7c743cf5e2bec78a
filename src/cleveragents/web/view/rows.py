"""A plan's life as rows, oldest first (pure).

A row is a decision with the calls made for it, or something a person did. The straight rail is
what is in force: exactly what apply would bring. What failed, was superseded or undone is `aside`.
"""

import msgspec

from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import Decision, DecisionKind
from cleveragents.model.effect import Effect
from cleveragents.model.journal import Operation
from cleveragents.model.tool import CallState, ToolCall
from cleveragents.web.view.facts import Facts
from cleveragents.web.view.words import shortened

FAILED = (CallState.FAILED, CallState.TIMEOUT, CallState.INTERRUPTED)
AFTER = frozenset(
    {
        CheckpointType.AFTER_STEP,
        CheckpointType.AFTER_TOOL_EXECUTE,
        CheckpointType.AFTER_SUBPLAN,
        CheckpointType.MILESTONE,
        CheckpointType.POST_EXECUTE,
    }
)
BEGAN = "Began"
EDITED = "You edited"
"""What is known of a row that holds edits, before it is known of which paths."""
OF_THE_PERSON = frozenset({CheckpointType.EXTERNAL_EDIT, CheckpointType.MANUAL})


KNOWING = frozenset(
    {Operation.EXTERNAL_EDIT, Operation.CHECKPOINT, Operation.CORRECT, Operation.ROLLBACK}
)
"""Operations of which each makes its own groups, and says where the plan stood before."""


class Row(msgspec.Struct, kw_only=True):
    """One row. `mark`: agent, person, unknown, looked, system, failed or turn."""

    key: str
    mark: str
    title: str
    question: str = ""
    who: str = ""
    when: str = ""
    group_id: str | None = None
    """The moment after it: where "go back here" leads."""
    before_id: str | None = None
    """The moment before it."""
    failed_id: str | None = None
    """The failed state, kept to be looked at."""
    decision_id: str | None = None
    calls: list[ToolCall] = []
    groups: list[str] = []
    entry_id: str | None = None
    label: str | None = None
    is_aside: bool = False
    is_here: bool = False
    depth: int = 0
    note: str = ""
    """Said instead of what changed."""
    aside_by: str = ""
    """Key of the row that set it aside, or empty."""
    aside_why: str = ""
    effects: list[Effect] = []
    undid: list[Effect] = []
    """Of a rollback: what it undid in the world outside."""
    left: list[Effect] = []
    """Of a rollback: what it had to leave there."""
    children: list[str] = []
    changed: tuple[str, ...] = ()
    """Resources whose state it changed."""
    lane: str = ""
    """Beside the rail: `starts`, `carry` or `joins`."""

    @property
    def steps(self) -> list[str]:
        return list(dict.fromkeys(call.step_id for call in self.calls))

    @property
    def is_edits(self) -> bool:
        """Its title says which paths."""
        return self.title == EDITED

    @property
    def is_beginning(self) -> bool:
        return self.mark == "system" and self.title == BEGAN

    @property
    def retried(self) -> bool:
        return any(call.attempt > 1 for call in self.calls)

    @property
    def is_plain(self) -> bool:
        """Nothing in it that must not be folded away."""
        return not (
            self.is_aside or self.is_here or self.label or self.retried or self.children
        ) and self.mark in ("agent", "looked")

    @property
    def stays(self) -> bool:
        """Something outside cannot be undone by going back before it."""
        return any(
            effect.effect_class == "irreversible" and effect.state != "compensated"
            for effect in self.effects
        )


def decided_rows(facts: Facts) -> list[Row]:
    """The rows that calls and groups tell of, in their order; nothing is said of where it led."""
    builder = _Builder(facts)
    events: list[tuple[int, ToolCall | CheckpointGroup]] = [
        *((facts.order[call.call_id], call) for call in facts.calls),
        *((facts.order[group.group_id], group) for group in facts.groups),
    ]
    for _, event in sorted(events, key=lambda pair: pair[0]):
        if isinstance(event, ToolCall):
            builder.call(event)
        else:
            builder.group(event)
    return builder.rows


class _Builder:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.rows: list[Row] = []
        self._last: CheckpointGroup | None = None
        self._groups = {group.group_id: group for group in facts.groups}
        self._of: dict[str, Row] = {}
        """Decision -> its newest row."""
        self._waiting: list[Row] = []
        """Rows whose moment after is the next group, whatever made it."""
        self._keeps_failed = facts.is_session

    def call(self, call: ToolCall) -> None:
        row = self._of.get(call.decision_id or call.call_id)
        # In a session what a failed call wrote stays: it is one of the calls of its prompt.
        failed = call.state in FAILED and not self._keeps_failed
        is_new = row is None or row.mark == "failed" or (failed and bool(row.calls))
        if is_new or row is None:
            row = self._add(self._decided(call.decision_id, call.call_id, call.started_at))
            row.before_id = call.group_id
        row.calls = [*row.calls, call]
        row.mark = "failed" if failed else "looked"
        if failed and call.state is CallState.INTERRUPTED:
            row.title = f"{call.step_id} was interrupted"
        elif failed:
            said = (call.error or str(call.state)).partition(": ")
            row.title = shortened(f"{call.step_id} failed: {said[2] or said[0]}")
        else:
            self._waiting.append(row)

    def group(self, group: CheckpointGroup) -> None:
        kind, last = group.checkpoint_type, self._last
        self._last = group
        decision = self.facts.decisions.get(group.decision_id or "")
        if last is None:
            self._add(self._alone(group, "system", BEGAN))
            return
        base = self._base(group, last)
        changed = _differ(self.facts, base, group)
        if kind is CheckpointType.ON_QUIET:
            self._point(group, base, changed)
            return
        if kind is CheckpointType.POST_ROLLBACK:
            self._settle(group)  # the row of the rollback itself tells it
            return
        if kind in OF_THE_PERSON:
            self._settle(last)
        if kind in OF_THE_PERSON or (changed and decision is None and kind not in AFTER):
            row = self._add(self._alone(group, "person", ""), base.group_id)
            row.who, row.changed = "you", changed
        elif kind is CheckpointType.ON_ERROR:
            self._failed(group)
        elif decision is not None:
            self._decision(group, base, decision)
        self._settle(group)

    def _point(
        self, group: CheckpointGroup, base: CheckpointGroup, changed: tuple[str, ...]
    ) -> None:
        """A moment while a command ran: above the command's own row, which has its end."""
        row = self._alone(group, "agent", "Its writes fell quiet")
        row.who, row.changed, row.before_id = "agent", changed, base.group_id
        own = self._of.get(group.decision_id or "")
        self.rows.insert(self.rows.index(own) if own is not None else len(self.rows), row)

    def _base(self, group: CheckpointGroup, last: CheckpointGroup) -> CheckpointGroup:
        """Where the plan stood before; after a rollback that is not `last`."""
        for entry in self.facts.entries:
            until = entry.after.version if entry.after else entry.before.version
            if entry.before.group_id == group.group_id:
                continue  # edits that were kept before a rollback are where it began
            if entry.before.version < group.version <= until and entry.operation in KNOWING:
                return self._groups.get(entry.before.group_id or "", last)
        return last

    def _failed(self, group: CheckpointGroup) -> None:
        """The state that a failed step left."""
        row = self.rows[-1]
        if row.mark == "failed":
            row.failed_id = group.group_id
            row.changed = self._since(row, group)

    def _since(self, row: Row, group: CheckpointGroup) -> tuple[str, ...]:
        before = self._groups.get(row.before_id or "")
        return _differ(self.facts, before, group) if before else ()

    def _decision(self, group: CheckpointGroup, base: CheckpointGroup, decision: Decision) -> None:
        row = self._of.get(decision.decision_id)
        if row is None:
            row = self._add(self._decided(decision.decision_id, group.group_id, group.created_at))
            person = decision.kind is DecisionKind.USER_INTERVENTION
            row.before_id = base.group_id if person else group.group_id
        row.groups = [*row.groups, group.group_id]
        if decision.kind is DecisionKind.USER_INTERVENTION:
            row.group_id, row.changed = group.group_id, self._since(row, group)
        elif not AFTER.isdisjoint(group.triggers):
            row.group_id = group.group_id
            if CheckpointType.AFTER_SUBPLAN in group.triggers:
                row.before_id = base.group_id  # child plans side by side are merged one by one
            row.changed = self._since(row, group)
            row.mark = "agent" if row.changed else row.mark
            row.label = group.label or row.label

    def _settle(self, group: CheckpointGroup) -> None:
        """What only looked has its moment after with whatever group comes next."""
        for row in self._waiting:
            if row.group_id is None and row.before_id != group.group_id:
                row.group_id = group.group_id
        self._waiting = [row for row in self._waiting if row.group_id is None]

    def _add(self, row: Row, before: str | None = None) -> Row:
        row.before_id = row.before_id or before
        self.rows.append(row)
        if row.decision_id:
            self._of[row.decision_id] = row
        return row

    def _alone(self, group: CheckpointGroup, mark: str, title: str) -> Row:
        return Row(
            key=group.group_id,
            mark=mark,
            title=title,
            when=group.created_at,
            group_id=group.group_id,
            groups=[group.group_id],
            label=group.label,
        )

    def _decided(self, decision_id: str | None, key: str, when: str) -> Row:
        decision = self.facts.decisions.get(decision_id or "")
        if decision is None:
            return Row(key=key, mark="looked", title="", who="agent", when=when)
        if decision.kind is DecisionKind.USER_INTERVENTION:
            asked = decision.question.removeprefix("correct: ")
            return Row(
                key=key,
                mark="person",
                title=shortened(decision.chosen),
                question=f"You corrected: {shortened(asked)}",
                who="you",
                when=when,
                decision_id=decision_id,
            )
        # A step without a decision of its own is one: its id, and the tool it calls.
        is_own = decision.question == decision.step_id
        title, asked = decision.chosen or decision.question, decision.question
        return Row(
            key=key,
            mark="looked",
            title=shortened(decision.question if is_own else title),
            question="" if is_own or asked == title else shortened(asked),
            who="agent",
            when=when,
            decision_id=decision_id,
            depth=_depth(self.facts, decision),
        )


def _differ(facts: Facts, before: CheckpointGroup, after: CheckpointGroup) -> tuple[str, ...]:
    """Names of the resources whose states differ."""
    old, new = facts.state(before), facts.state(after)
    ids = {one.resource_id: one.name for one in facts.resources}
    return tuple(name for rid, name in ids.items() if old.get(rid) != new.get(rid))


def _depth(facts: Facts, decision: Decision) -> int:
    """How many decisions it hangs below, the root not counted."""
    depth, parent = 0, facts.decisions.get(decision.parent_id or "")
    while parent is not None and parent.kind is not DecisionKind.ROOT and depth < 4:
        depth, parent = depth + 1, facts.decisions.get(parent.parent_id or "")
    return depth
