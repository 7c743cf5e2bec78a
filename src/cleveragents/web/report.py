"""A plan as one file to attach to a pull request, or as the text of one."""

import re
from contextlib import suppress
from importlib.resources import files

from markupsafe import Markup

from cleveragents import __version__
from cleveragents.context import utc_now
from cleveragents.errors import AgentsError
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.render import render
from cleveragents.web.view.changes import Did, Shelf
from cleveragents.web.view.compare import Shown, comparison
from cleveragents.web.view.pictures import Album
from cleveragents.web.view.plan import Moment, PlanView, plan_view
from cleveragents.web.view.words import count, first_upper, straight
from cleveragents.workspace import Workspace

MOST_FILES = 100


def html_report(ws: Workspace, handle: PlanHandle) -> str:
    """The page of a plan with everything in it: no script, and nothing is loaded."""
    style = files("cleveragents.web").joinpath("static", "style.css").read_text()
    view = _view(ws, handle)
    return render(
        "report.html",
        is_report=True,
        view=view,
        plan=view.facts.plan,
        c=comparison(ws, handle, "", "", "", "", Shown(Album(), Shelf())),
        style=Markup(style),
        side=False,
        version=__version__,
        now=utc_now(),
    )


def _view(ws: Workspace, handle: PlanHandle) -> PlanView:
    """With lines counted."""
    shelf = Shelf()
    for item in plan_view(ws, handle.plan_id, shelf).rows:
        after = item.row.failed_id or item.row.group_id
        with suppress(AgentsError):  # a row says itself that its group is pruned or damaged
            if item.row.is_beginning:
                shelf.count(handle, item.row.key)
            elif item.row.changed and item.row.before_id and after:
                shelf.exact(handle, item.row.before_id, after)
    return plan_view(ws, handle.plan_id, shelf)


def markdown_report(ws: Workspace, handle: PlanHandle) -> str:
    """What was decided, what changed, what was set aside and what happened outside."""
    view = _view(ws, handle)
    c = comparison(ws, handle, "", "", "", "", Shown(Album(), Shelf()))
    standing = [m for m in view.rows if not m.row.is_aside and m.row.mark != "system"]
    aside = [m for m in view.rows if m.row.is_aside and m.row.mark != "turn"]
    outside = [m.told for m in view.rows if any(e.side_effects for e in m.row.effects)]
    lines = [f"## {plain(view.title)}", "", plain(view.sentence), ""]
    lines += [_line(moment) for moment in standing]
    if aside:
        title = f"{first_upper(count(len(aside), 'attempt'))} set aside"
        lines += [
            "",
            f"<details><summary>{title}</summary>",
            "",
            *map(_line, aside),
            "",
            "</details>",
        ]
    if outside:
        lines += ["", "### Outside the sandboxes", "", *(f"- {plain(text)}" for text in outside)]
    lines += ["", f"<details><summary>{_total(c.diff)}</summary>", "", "| path | + | - |"]
    lines += ["| --- | ---: | ---: |"]
    for one in c.files[:MOST_FILES]:
        name = f"{one.file.resource}: {one.file.path}"
        lines.append(f"| {plain(name)} | {one.file.insertions} | {one.file.deletions} |")
    if len(c.files) > MOST_FILES:
        lines.append(f"| and {count(len(c.files) - MOST_FILES, 'more path')} | | |")
    lines += ["", "</details>", "", f"Plan `{handle.plan_id}`, attempt {view.facts.plan.attempt}."]
    return "\n".join(lines) + "\n"


def _total(diff: object) -> str:
    total, plus, minus = (getattr(diff, n) for n in ("files_changed", "insertions", "deletions"))
    return f"{count(total, 'file')} changed, +{plus:,} -{minus:,}"


def _line(moment: Moment) -> str:
    """One decision as a line of a list."""
    row = moment.row
    asked = f" ({plain(row.question)})" if row.question else ""
    said = ". ".join(part for part in (_words(moment.did), plain(moment.told)) if part)
    who = "" if row.who != "you" or moment.title.startswith(("You ", "Your ")) else "you: "
    return f"- **{who}{plain(moment.title)}**{asked}{f': {said}' if said else ''}"


def _words(did: Did) -> str:
    numbers = [f"+{did.insertions:,}"] if did.insertions else []
    numbers += [f"-{did.deletions:,}"] if did.deletions else []
    return " ".join([plain(did.text), *numbers]).strip()


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@])")


def plain(text: str) -> str:
    """Text that stays text: no markup, no mention, no second line."""
    return _SPECIAL.sub(r"\\\1", " ".join(straight(text).split()))
