"""Where a rollback leads on the rail, and what becomes of each decision there (pure)."""

import msgspec

from cleveragents.web.view.facts import Facts
from cleveragents.web.view.marks import sign
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import shortened


class Fate(msgspec.Struct, frozen=True):
    """A decision, and whether it stays."""

    title: str
    is_gone: bool
    is_target: bool = False
    note: str = ""
    sign: str = "a"


class Target(msgspec.Struct, frozen=True):
    """A row, and whether a rollback leads behind it, before it, or between two of its calls."""

    row: Row
    done: tuple[str, ...]
    """Of the steps that the row has calls of, those that stay."""
    is_after: bool

    @property
    def is_between(self) -> bool:
        return bool(self.done) and not self.is_after

    def title(self, facts: Facts) -> str:
        where = "To" if self.is_after else "To the middle of" if self.is_between else "To before"
        return f"{where} “{called(facts, self.row)}”"

    def place(self, facts: Facts) -> str:
        """`The moment after step 4 of 12, `, where that can be said."""
        index = {step.step_id: step.index + 1 for step in facts.steps}
        places = [index[name] for name in self.done or self.row.steps if name in index]
        if not places or self.row.mark == "failed" or max(places) > len(facts.steps):
            return "The moment of "
        where = f"after step {max(places)}" if self.done else f"before step {min(places)}"
        return f"The moment {where} of {len(facts.steps)}, "


def target_of(facts: Facts, rows: list[Row], group_id: str) -> Target | None:
    """The row that a group belongs to."""
    for row in rows:
        if group_id in (row.group_id, row.failed_id):
            return Target(row, tuple(row.steps), is_after=True)
    row = next((row for row in rows if group_id in (*row.groups, row.before_id)), None)
    if row is None:
        return None
    until = facts.order.get(group_id, 0)
    done = (call.step_id for call in row.calls if facts.order.get(call.call_id, 0) < until)
    return Target(row, tuple(dict.fromkeys(done)), is_after=False)


def called(facts: Facts, row: Row) -> str:
    """What a row is called in a list; of a session the prompt, for answers are much alike."""
    if row.is_edits:
        return "Your edits"
    return shortened(row.question) if facts.is_session and row.question else row.title


def fates_to(
    facts: Facts, rows: list[Row], group_id: str, target: Target | None
) -> tuple[Fate, ...]:
    """The decisions in force, and which of them a rollback to that group sets aside."""
    if group_id not in facts.order:
        return ()
    order = facts.order[group_id]
    found: list[Fate] = []
    for row in rows:
        if row.is_aside or row.mark == "system":
            continue
        own = target is not None and target.row is row and (target.is_after or target.is_between)
        reached = any(fate.is_target for fate in found)
        is_gone = reached or (_begins(facts, row) >= order and not own)
        if is_gone and not reached and found and not found[-1].is_gone:
            found[-1] = msgspec.structs.replace(found[-1], is_target=True)
        note = ""
        if own and target is not None and target.is_between:
            note = f"up to step {target.done[-1]}"
        elif is_gone and row.children:
            whose = "its sandbox is" if len(row.children) == 1 else "their sandboxes are"
            note = f"cancelled, {whose} kept"
        found.append(Fate(called(facts, row), is_gone, own, note, "g" if is_gone else sign(row)))
    return tuple(found)


def _begins(facts: Facts, row: Row) -> int:
    return facts.order.get(row.groups[0] if row.groups else row.before_id or "", 0)
