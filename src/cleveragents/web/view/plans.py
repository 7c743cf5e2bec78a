"""The list of plans: what needs the person, what runs, what is finished; each in a sentence."""

import msgspec
from markupsafe import Markup

from cleveragents.model.plan import Plan, State
from cleveragents.web.view.facts import Facts, facts_of
from cleveragents.web.view.fold import folded
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.marks import Sign, mini, signs_of
from cleveragents.web.view.rows import Row
from cleveragents.web.view.standing import sentence, state_of
from cleveragents.web.view.words import first_upper, spelled
from cleveragents.workspace import Workspace

PAGE = 40
ICONS = {
    State.ERRORED: ("i-failed", "bad"),
    State.CONSTRAINED: ("i-conflict", "bad"),
    State.COMPLETE: ("i-ready", ""),
    State.QUEUED: ("i-queued", ""),
    State.PROCESSING: ("i-running", "agent"),
    State.APPLIED: ("i-applied", "good"),
    State.CANCELLED: ("i-cancelled", "faint"),
}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    name: str
    state: str
    icon: str
    tone: str
    sentence: str
    picture: Markup
    when: str
    link: str
    """Where the button leads, below the plan."""
    button: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    needing: tuple[Entry, ...]
    running: tuple[Entry, ...]
    finished: tuple[Entry, ...]
    older: str | None
    """The plan from which the next page goes on."""
    title: str
    said: str


def listing(ws: Workspace, query: str = "", before: str = "") -> Listing:
    plans = [plan for plan in ws.plans() if plan.parent_plan_id is None]
    if query:
        low = query.lower()
        plans = [p for p in plans if low in p.name.lower() or low in p.plan_id.lower()]
    if before:
        ids = [plan.plan_id for plan in plans]
        plans = plans[ids.index(before) + 1 :] if before in ids else []
    shown = plans[:PAGE]
    entries = [_entry(ws, plan) for plan in shown]
    running = tuple(e for e in entries if e.state == "running")
    finished = tuple(e for e in entries if e.state in ("applied", "cancelled", "nothing"))
    needing = tuple(e for e in entries if e not in running and e not in finished)
    return Listing(
        needing=needing,
        running=running,
        finished=finished,
        older=shown[-1].plan_id if len(plans) > PAGE else None,
        title=_title(needing, bool(plans), query),
        said=_summary(len(running), len(needing)),
    )


def _title(needing: tuple[Entry, ...], any_at_all: bool, query: str) -> str:
    if not any_at_all:
        return f"No plan is called “{query}”" if query else "No plan yet"
    if not needing:
        return "Nothing needs you"
    number = len(needing)
    return f"{first_upper(spelled(number))} plan{'s need' if number > 1 else ' needs'} you"


def _summary(running: int, needing: int) -> str:
    first = ""
    if running:
        first = f"{first_upper(spelled(running))} {'is' if running == 1 else 'are'} running. "
    if needing + running == 0:
        return first
    what = "it did waits in its" if needing + running == 1 else "they did waits in their"
    return f"{first}What {what} sandboxes until you apply it."


def _entry(ws: Workspace, plan: Plan) -> Entry:
    facts = facts_of(ws, plan.plan_id)
    rows = rows_of(facts)
    state = state_of(facts, rows)
    icon, tone = icon_of(facts, state)
    link, button = _button(facts, state)
    return Entry(
        plan_id=plan.plan_id,
        name=plan.name,
        state=state,
        icon=icon,
        tone=tone,
        sentence=sentence(facts, rows),
        picture=picture(facts, rows),
        when=plan.updated_at,
        link=link,
        button=button,
    )


def icon_of(facts: Facts, state: str) -> tuple[str, str]:
    """The sign of how a plan stands, and its tone."""
    if state == "running":
        return ICONS[State.PROCESSING]
    return ICONS[State.COMPLETE if facts.is_quiet else facts.plan.state]


def picture(facts: Facts, rows: list[Row]) -> Markup:
    over = facts.plan.is_final or facts.is_session
    waiting = 0 if over else sum(not step.done for step in facts.steps)
    signs = signs_of(folded(facts, rows), waiting)
    if facts.plan.is_final:  # nobody stands anywhere any more, and its end is said in words
        signs = [msgspec.structs.replace(one, here=False) for one in signs]
        signs = signs[:-1] if len(signs) > 2 and signs[-1].kind == "sys" else signs
    if facts.plan.error is not None and waiting and not any(one.kind == "f" for one in signs):
        first = next(n for n, one in enumerate(signs) if one.kind == "g")
        signs[first] = Sign("f")
    running = state_of(facts, rows) == "running"
    if running and any(one.kind == "g" for one in signs):
        first = next(n for n, one in enumerate(signs) if one.kind == "g")
        signs = [msgspec.structs.replace(one, here=False) for one in signs]
        signs[first] = Sign("a", here=True)
    if len(signs) > 1 and signs[0].kind == "sys" and not signs[0].here:
        signs = signs[1:]
    return mini(signs, is_running=running)


def _button(facts: Facts, state: str) -> tuple[str, str]:
    if state == "running":
        return "", "Watch"
    return {
        "errored": ("", "Look at the error"),
        "constrained": ("/apply", "Resolve the conflict"),
        "complete": ("/apply", "Review and apply"),
        "queued": ("/resume", "Resume" if facts.groups else "Run"),
        "processing": ("/resume", "Resume"),
    }.get(state, ("", ""))
