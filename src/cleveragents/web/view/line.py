"""Which rows of a plan are in force, where it is now, and what set others aside (pure)."""

from collections.abc import Iterable

from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.decision import Correction, DecisionState
from cleveragents.model.effect import Effect
from cleveragents.model.journal import EntryState, JournalEntry, Operation
from cleveragents.model.plan import Step, StepState
from cleveragents.model.tool import CallState
from cleveragents.web.view.facts import Facts
from cleveragents.web.view.rows import EDITED, Row, decided_rows

RESTORE = Operation.RESTORE


def rows_of(facts: Facts) -> list[Row]:
    """All rows of a plan, oldest first."""
    # The running call is shown as such, and is not on the line yet.
    rows = [row for row in decided_rows(facts) if not (facts.held and _is_at_work(row))]
    _turns(facts, rows)
    _finish(facts, rows)
    return rows


def _is_at_work(row: Row) -> bool:
    return len(row.calls) == 1 and row.calls[0].state is CallState.RUNNING


def _turns(facts: Facts, rows: list[Row]) -> None:
    """Rollbacks and undos as rows, each before the first row that came later."""
    names = {group: row.title for row in rows for group in (*row.groups, row.group_id) if group}
    for entry in facts.entries:
        row = _turn(facts, entry, names)
        if row is not None:
            later = [n for n, other in enumerate(rows) if other.when > row.when]
            rows.insert(later[0] if later else len(rows), row)


def _turn(facts: Facts, entry: JournalEntry, names: dict[str, str]) -> Row | None:
    if entry.state is EntryState.OPEN or entry.detail.get("outcome") == "refused":
        return None
    row = Row(key=entry.entry_id, mark="turn", title="", who="you", when=entry.started_at)
    row.entry_id = entry.entry_id
    told = entry.detail.get("effects", {})
    row.undid = [effect for effect in facts.effects if effect.effect_id in told.get("undone", ())]
    row.left = [effect for effect in facts.effects if effect.effect_id in told.get("left", ())]
    undo = facts.undone.get(entry.entry_id)
    if entry.operation is Operation.ROLLBACK:
        to = names.get(entry.detail.get("to", ""), "")
        row.title = f"You rolled back to “{to}”" if to else "You rolled back"
        if undo is not None:
            row.title, row.is_aside = f"{row.title}, and undid it", True
        else:
            row.group_id = _led_to(entry, entry.detail.get("to"))
    elif entry.operation is Operation.UNDO and facts.undone.get(entry.target or "") is entry:
        undone = next((e for e in facts.entries if e.entry_id == entry.target), None)
        if undone is None or undone.operation is Operation.ROLLBACK:
            return None
        row.title = f"You undid {OPERATIONS.get(undone.operation, 'the last operation')}"
        row.group_id = _led_to(entry, undone.before.group_id)
    elif entry.operation is Operation.APPLY and facts.plan.state == "applied":
        row.mark, row.title = "system", "Applied"
    elif entry.operation is Operation.CANCEL:
        row.mark, row.title = "system", "Cancelled"
    else:
        return None
    return row


def _led_to(entry: JournalEntry, asked: str | None) -> str | None:
    """In place a rollback leads to a group of its own: what others did stays."""
    return entry.after.group_id if entry.after and entry.after.group_id else asked


OPERATIONS = {
    Operation.EXECUTE: "the run",
    Operation.RESUME: "what resuming did",
    Operation.PROMPT: "what a prompt did",
    Operation.CORRECT: "the correction",
    Operation.RESTORE: "a restore of paths",
    Operation.EXTERNAL_EDIT: "your edits",
}


def _finish(facts: Facts, rows: list[Row]) -> None:
    """Mark the rows in force, the current one, and what set the others aside."""
    done = {step.step_id: step for step in facts.steps if step.done or _stays(facts, step)}
    running = {s.step_id for s in facts.steps if s.state is StepState.PROCESSING}
    by_step = _last_rows(rows)
    restored = {e.after.group_id for e in facts.entries if e.operation is RESTORE and e.after}
    for row in rows:
        if row.mark == "turn":
            continue
        _words(facts, row)
        decision = facts.decisions.get(row.decision_id or "")
        if row.mark == "failed":
            # Where a failure stops the plan, what the step had changed is left in the sandbox.
            row.is_aside = row.failed_id is None or row.failed_id != facts.plan.head_group_id
        elif decision is not None:
            superseded = decision.state is DecisionState.SUPERSEDED
            counts = [
                name in running or (name in done and done[name].decision_id == row.decision_id)
                for name in row.steps
            ]
            row.is_aside = superseded or (bool(counts) and not any(counts))
        else:
            edits_stay = facts.in_place and row.mark == "person" and row.group_id not in restored
            row.is_aside = row.group_id in facts.left and not edits_stay
        elsewhere = row.calls and by_step.get(row.steps[-1]) is not row
        if row.mark != "failed" and elsewhere:
            row.is_aside = True
        row.entry_id = row.entry_id or _entry_of(facts, row.when)
        row.effects = _effects(facts, row)
        if row.mark == "looked" and any(e.side_effects for e in row.effects):
            row.mark = "agent"
        _doubt(facts, row)
        row.children = [c.plan_id for c in facts.children if c.parent_step_id in _steps(facts, row)]
    _set_aside(facts, rows)
    standing = [row for row in rows if not row.is_aside]
    if standing:
        standing[-1].is_here = True


def _stays(facts: Facts, step: Step) -> bool:
    """In a session nothing rolls back what a failed call wrote."""
    return facts.is_session and step.state is StepState.ERRORED


def _doubt(facts: Facts, row: Row) -> None:
    """Where another session worked in the same place at that time, nobody knows who did it."""
    unsure = {call_id for call_id, _ in facts.unsure}
    if row.mark == "agent" and any(call.call_id in unsure for call in row.calls):
        row.mark, row.who = "unknown", "agent or another session"
    if row.title == EDITED and row.mark == "person" and facts.others:
        start = next((g.created_at for g in facts.groups if g.group_id == row.before_id), row.when)
        if any(began < row.when and ended > start for began, ended in facts.others):
            row.mark, row.who = "unknown", "you or another session"


def _last_rows(rows: Iterable[Row]) -> dict[str, Row]:
    """Step -> the last row in which a call of it did not fail."""
    return {name: row for row in rows if row.mark != "failed" for name in row.steps}


def _words(facts: Facts, row: Row) -> None:
    """Titles for rows without a decision."""
    if row.title:
        return
    group = next((g for g in facts.groups if g.group_id == row.key), None)
    if row.calls:
        row.title = ", ".join(row.steps)
    elif group is not None and group.checkpoint_type is CheckpointType.MANUAL:
        row.title = "You marked this moment" if row.label else "You made a checkpoint"
    elif group is not None and _is_left_with_a_rollback(facts, group):
        row.title = "Your edits, kept when you rolled back"
    else:
        row.title = EDITED


def _is_left_with_a_rollback(facts: Facts, group: CheckpointGroup) -> bool:
    """Who undid the rollback has these edits again."""
    kept = group.checkpoint_type is CheckpointType.PRE_ROLLBACK
    return kept and group.group_id in facts.left


def _steps(facts: Facts, row: Row) -> set[str]:
    """The steps of a row, also those that make no call: child plans."""
    own = {s.step_id for s in facts.steps if s.decision_id == row.decision_id and row.decision_id}
    return own | set(row.steps)


def _effects(facts: Facts, row: Row) -> list[Effect]:
    calls = {call.call_id for call in row.calls}
    return [effect for effect in facts.effects if effect.call_id in calls]


def _entry_of(facts: Facts, when: str) -> str | None:
    """The operation that was going on then."""
    known = [e for e in facts.entries if e.operation in DIVIDERS]
    begun = [e for e in known if e.started_at <= when] or known[:1]
    return begun[-1].entry_id if begun else None


DIVIDERS = frozenset(
    {Operation.EXECUTE, Operation.RESUME, Operation.CORRECT, Operation.PROMPT, Operation.APPLY}
)


def _set_aside(facts: Facts, rows: list[Row]) -> None:
    """Each row aside names what set it aside; the first of a correction begins its lane."""
    for correction in facts.corrections:
        gone = [
            number
            for number, row in enumerate(rows)
            if row.is_aside and row.decision_id in correction.affected
        ]
        cause = _row_of(rows, correction)
        if not gone or cause is None:
            continue
        for number in gone:
            rows[number].aside_by, rows[number].aside_why = rows[cause].key, "your correction"
        _lane(rows, gone[0], cause)
    for row in rows:
        if row.is_aside and not row.aside_why and row.mark != "failed":
            row.aside_why = _why(facts, row)


def _row_of(rows: list[Row], correction: Correction) -> int | None:
    """The person's decision is recorded with the first group after the old attempt."""
    for number, row in enumerate(rows):
        if row.mark == "person" and row.decision_id and row.before_id == correction.before_group_id:
            return number
    return None


def _lane(rows: list[Row], first: int, last: int) -> None:
    """From what was superseded to what superseded it, if no other lane is there."""
    if any(row.lane for row in rows[first : last + 1]):
        return
    rows[first].lane, rows[last].lane = "starts", "joins"
    for row in rows[first + 1 : last]:
        row.lane = "carry"


def _why(facts: Facts, row: Row) -> str:
    for entry in facts.entries:
        if entry.started_at < row.when or entry.entry_id in facts.undone:
            continue
        if entry.operation is Operation.ROLLBACK:
            return "you rolled back before it"
        if entry.operation is Operation.UNDO:
            return "you undid it"
    return "it was done again"
