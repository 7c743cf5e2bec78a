"""One plan as its page shows it: the head, the rail with its tracks, what is ahead."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from markupsafe import Markup

from cleveragents.model.plan import State, Step
from cleveragents.web.view.changes import Did, Shelf
from cleveragents.web.view.facts import Facts, facts_of
from cleveragents.web.view.fold import Divider, Fold, Item, Matrix, folded, matrices
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.marks import Map, overview, spark
from cleveragents.web.view.outside import effect_words, outside_words, turn_words
from cleveragents.web.view.plans import icon_of, picture
from cleveragents.web.view.rows import FAILED, Row
from cleveragents.web.view.standing import sentence, state_of, undo_words
from cleveragents.web.view.words import count, first_upper, listed, shortened
from cleveragents.workspace import Workspace

MOST_AHEAD = 12
MOST_TRACKS = 6
LARGE, SOME = 50, 5
"""From so many changed paths on a dot is large, or of a middle size."""


class Dot(msgspec.Struct, frozen=True):
    """What a row did to one resource: `size` is empty, s, m or l; `icon` for the world outside."""

    size: str = ""
    who: str = ""
    """`person` or `unknown`; empty for the agent."""
    icon: str = ""
    tone: str = ""
    label: str = ""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    name: str
    said: str
    did: Did
    between: tuple[str, str] | None
    """Its first moment and its last."""
    picture: Markup


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A row, with what it did."""

    row: Row
    did: Did
    title: str
    told: str
    """More that it did, in words."""
    dots: tuple[Dot, ...]
    children: tuple[Child, ...]
    can_go_back: bool
    can_correct: bool

    is_counted: bool
    """Whether lines, or what it began with, are in its words; else they are asked for later."""

    @property
    def is_outside(self) -> bool:
        return any(dot.icon for dot in self.dots)


class FoldView(msgspec.Struct, frozen=True, kw_only=True):
    fold: Fold
    matrices: tuple[Matrix, ...]
    is_open: bool = False


Shown = Moment | FoldView | Divider


class Ahead(msgspec.Struct, frozen=True):
    title: str
    question: str = ""


class Fact(msgspec.Struct, frozen=True):
    """One of those below the title."""

    bold: str
    after: str = ""
    before: str = ""
    code: str = ""


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    facts: Facts
    title: str
    state: str
    icon: str
    tone: str
    sentence: str
    picture: Markup
    tracks: tuple[str, ...]
    all_rows: tuple[Row, ...]
    """Also those that are folded."""
    items: tuple[Shown, ...]
    ahead: tuple[Ahead, ...]
    more_ahead: int
    map: Map
    undo: str
    redo: str
    facts_line: tuple[Fact, ...]
    outside: str
    moments: int

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def rows(self) -> list[Moment]:
        return [item for item in self.items if isinstance(item, Moment)]

    @property
    def is_unsure(self) -> bool:
        """Whether there is a row of which nobody knows who did it."""
        return any(row.mark == "unknown" for row in self.all_rows)


def plan_view(
    ws: Workspace, plan_id: str, shelf: Shelf, opened: frozenset[str] = frozenset()
) -> PlanView:
    facts = facts_of(ws, plan_id)
    rows = rows_of(facts)
    items = folded(facts, rows, opened)
    state = state_of(facts, rows)
    icon, tone = icon_of(facts, state)
    undo, redo = undo_words(facts)
    tracks = tracks_of(facts)
    ahead = _ahead(facts)
    inside = sum(ws.ctx.store.checkpoints.count(child.plan_id) for child in facts.children)
    return PlanView(
        facts=facts,
        title=first_upper(facts.plan.spec.get("description") or "") or facts.plan.name,
        state=state,
        icon=icon,
        tone=tone,
        sentence=sentence(facts, rows),
        picture=picture(facts, rows),
        tracks=tracks,
        all_rows=tuple(rows),
        items=tuple(shown(ws, facts, items, shelf, tracks)),
        ahead=tuple(ahead[:MOST_AHEAD]),
        more_ahead=max(0, len(ahead) - MOST_AHEAD),
        map=overview(items, facts.sizes),
        undo=undo,
        redo=redo,
        facts_line=_facts_line(ws, facts, inside),
        outside=outside_words(facts),
        moments=len(facts.groups) + inside,
    )


def tracks_of(facts: Facts) -> tuple[str, ...]:
    """A track for each resource, and one for the world outside if anything was done there."""
    names = [one.name for one in facts.resources][:MOST_TRACKS]
    return (*names, "outside") if facts.effects else tuple(names)


def shown(
    ws: Workspace, facts: Facts, items: Sequence[Item], shelf: Shelf, tracks: tuple[str, ...]
) -> list[Shown]:
    steps = {step.step_id: step for step in facts.steps}
    found: list[Shown] = []
    for item in items:
        if isinstance(item, Row):
            found.append(moment(ws, facts, item, shelf, tracks))
        elif isinstance(item, Fold):
            found.append(FoldView(fold=item, matrices=tuple(matrices(list(item.rows), steps))))
        else:
            found.append(item)
    return found


def moment(ws: Workspace, facts: Facts, row: Row, shelf: Shelf, tracks: tuple[str, ...]) -> Moment:
    did = did_of(ws, facts, row, shelf)
    title, told = _titled(facts, row, did, shelf)
    free = not facts.plan.is_final and facts.held is None
    decision = facts.decisions.get(row.decision_id or "")
    active = decision is not None and decision.state == "active" and decision.kind != "root"
    kept = {group.group_id for group in facts.groups}
    return Moment(
        row=row,
        did=did,
        title=title,
        told=told,
        dots=tuple(_dot(row, did, name) for name in tracks),
        children=tuple(_child(ws, facts.plan.name, own, shelf) for own in row.children),
        is_counted=row.key in shelf.contents if row.is_beginning else did.exact or not row.changed,
        can_go_back=free and row.group_id in kept and not (row.is_here and row.mark == "turn"),
        can_correct=free and active and not row.is_aside and row.mark != "person",
    )


def did_of(ws: Workspace, facts: Facts, row: Row, shelf: Shelf) -> Did:
    after = row.failed_id if row.mark == "failed" else row.group_id
    kept = {group.group_id for group in facts.groups}
    if not row.changed or row.before_id is None or after is None:
        return Did("")
    if row.before_id not in kept or after not in kept:
        names = ", ".join(row.changed)
        return Did(f"Changed {names}; this moment is pruned", counts=dict.fromkeys(row.changed, 1))
    return shelf.quick(ws, facts.plan.plan_id, row.before_id, after)


def _titled(facts: Facts, row: Row, did: Did, shelf: Shelf) -> tuple[str, str]:
    """The title, and what is said below it beside the changes."""
    said: list[str] = []
    if row.is_edits:
        who = "You or another session" if row.mark == "unknown" else "You"
        return f"{who} edited {did.names or 'something'}", ""
    if row.is_beginning:
        held = shelf.contents.get(row.key)
        said.append(f"{held or listed([one.name for one in facts.resources])}, as you had them")
    elif row.mark == "failed":
        kept = "The failed state is kept" if row.is_aside else "It is in the sandbox as it failed"
        said.append(kept if row.failed_id else "It had changed nothing")
    elif row.label and row.mark == "person":
        said.append("Kept, whatever is pruned")
    elif row.mark == "looked":
        attempts = max((call.attempt for call in row.calls), default=1)
        again = "; second attempt" if attempts == 2 else f"; attempt {attempts}" * (attempts > 2)
        wrote = any(call.call_id in facts.wrote for call in row.calls)
        said.append(("What it changed is pruned" if wrote else "Changed nothing") + again)
    elif row.mark == "unknown":
        said.append("Another session had a call open when it was written")
    if row.mark == "turn":
        said += turn_words(row)
    if facts.is_session and row.mark != "failed":
        said += _failures(row)
    if row.mark == "person" and row.decision_id:
        said = [_redone(facts, row)]
    said += [effect_words(effect) for effect in row.effects if effect.side_effects]
    if row.aside_why and row.mark != "turn" and not row.aside_by:
        said.append(f"Set aside: {row.aside_why}")
    return row.title, ". ".join(part.rstrip(".") for part in said if part)


def _failures(row: Row) -> list[str]:
    """Of a prompt: how many of its calls failed."""
    failed = sum(call.state in FAILED for call in row.calls)
    called = len(row.calls)
    words = f"{failed} of {called} calls failed" if called > 1 else "1 call failed"
    return [words] if failed else []


def _redone(facts: Facts, row: Row) -> str:
    for correction in facts.corrections:
        if correction.before_group_id == row.before_id:
            number = len(correction.affected)
            return f"{count(number, 'decision')} done again, the others kept as they were"
    return ""


def _dot(row: Row, did: Did, name: str) -> Dot:
    if name == "outside":
        return _outside_dot(row)
    number = did.counts.get(name, 0) or (1 if name in row.changed else 0)
    if not number:
        return Dot()
    size = "l" if number >= LARGE else "m" if number >= SOME else "s"
    return Dot(size, row.mark if row.mark in ("person", "unknown") else "")


def _outside_dot(row: Row) -> Dot:
    if row.undid or row.left:
        label = "undone outside by this rollback" if row.undid else "stayed outside"
        return Dot(icon="i-back" if row.undid else "i-out", label=label)
    if row.stays:
        return Dot(icon="i-out", tone="bad", label="an effect outside, cannot be undone")
    declared = [effect for effect in row.effects if effect.side_effects]
    if declared and all(effect.state == "compensated" for effect in declared):
        return Dot(icon="i-back", label="an effect outside, undone")
    if declared:
        return Dot(icon="i-out", label="an effect outside, undone by a rollback")
    if row.effects:
        return Dot(icon="i-queued", tone="faint", label="not known what it did outside")
    return Dot()


def _child(ws: Workspace, parent: str, plan_id: str, shelf: Shelf) -> Child:
    store = ws.ctx.store
    plan, steps = store.plans.get(plan_id), store.plans.steps(plan_id)
    groups = store.checkpoints.groups(plan_id)
    sizes = store.checkpoints.sizes(plan_id)
    again = [step.index for step in steps if step.attempts > 1]
    said = count(len(steps), "step")
    if again:
        said += f", {count(len(again), 'step')} at a second attempt"
    if plan.state is not State.COMPLETE:
        said += f", {plan.state}"
    between = (groups[0].group_id, groups[-1].group_id) if len(groups) > 1 else None
    did = shelf.quick(ws, plan_id, *between) if between else Did("")
    return Child(
        plan_id=plan_id,
        name=plan.name.removeprefix(f"{parent}/"),
        said=said,
        did=did,
        between=between,
        picture=spark([sizes.get(group.group_id, 0) for group in groups], again),
    )


def _ahead(facts: Facts) -> list[Ahead]:
    """The steps that are still to be done; what comes next in a session nobody knows."""
    if facts.plan.is_final or facts.is_session:
        return []
    running = {call.step_id for call in facts.calls if call.state == "running"}
    return [
        _waiting(step)
        for step in facts.steps
        if not step.done and not (facts.held and step.step_id in running)
    ]


def _waiting(step: Step) -> Ahead:
    asked: Any = step.spec.get("decision")
    decision = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
    if decision.get("chosen"):
        return Ahead(shortened(decision["chosen"]), shortened(decision.get("question", "")))
    return Ahead(step.step_id)


def _facts_line(ws: Workspace, facts: Facts, inside: int) -> tuple[Fact, ...]:
    records = {r.resource_id: r for r in ws.ctx.store.resources.sandboxes(facts.plan.plan_id)}
    found: list[Fact] = []
    for one in facts.resources:
        record = records.get(one.resource_id)
        found.append(_resource_fact(one.name, one.path, record.origin if record else {}))
    if facts.held is not None and facts.steps:
        done = sum(step.done for step in facts.steps)
        found.append(Fact(str(done), f"of {count(len(facts.steps), 'step')} done"))
    total = len(facts.groups) + inside
    more = f", {inside:,} of them in {count(len(facts.children), 'child plan')}" if inside else ""
    found.append(Fact(f"{total:,}", f"moment{'' if total == 1 else 's'}{more}"))
    if facts.plan.attempt > 1:
        found.append(Fact(str(facts.plan.attempt), before="attempt"))
    if not facts.plan.rollback_enabled:
        found.append(Fact("nothing", "can be undone: checkpoints are off"))
    return tuple(found)


def _resource_fact(name: str, path: str, origin: dict[str, object]) -> Fact:
    """What it is called, where it is if that is called otherwise, and what it was made from."""
    last = path.rstrip("/").rpartition("/")[2] or path
    branch, commit = origin.get("branch"), origin.get("base")
    said = [last] if last != name else []
    if isinstance(branch, str) and branch:
        said.append(branch.removeprefix("refs/heads/"))
    at = commit[:7] if isinstance(commit, str) else ""
    return Fact(name, ", ".join(said) + (" at" if at else ""), code=at)


def inside(ws: Workspace, plan_id: str, shelf: Shelf) -> list[Shown]:
    """A child plan's rows, folded as far as they can be, for its place on the parent's rail."""
    facts = facts_of(ws, plan_id)
    rows = [row for row in rows_of(facts) if row.mark != "system"]
    steps = {step.step_id: step for step in facts.steps}
    plain = [row for row in rows if row.is_plain or row.is_here]
    found = tuple(matrices(plain, steps))
    tracks = tracks_of(facts)
    if not found:
        items = [item for item in folded(facts, rows) if not isinstance(item, Divider)]
        return shown(ws, facts, items, shelf, tracks)
    rest = [moment(ws, facts, row, shelf, tracks) for row in rows if row not in plain]
    fold = Fold(key=plain[0].key, rows=tuple(plain), text="", groups=len(plain))
    return [FoldView(fold=fold, matrices=found), *rest]
