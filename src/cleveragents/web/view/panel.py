"""What is known of one moment: its decision, what it changed, printed, and did outside."""

import msgspec

from cleveragents.errors import AgentsError
from cleveragents.history.diff import FileDiff
from cleveragents.lookup import short_ids
from cleveragents.model.decision import Decision
from cleveragents.model.effect import Effect
from cleveragents.model.tool import ToolCall
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.view.changes import Shelf
from cleveragents.web.view.outside import effect_words
from cleveragents.web.view.patches import Piece, pieces_of
from cleveragents.web.view.plan import Moment, PlanView, moment
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import clock, count, lasted, listed, printed
from cleveragents.workspace import Workspace

LINES = 12
"""Of what was printed, the last ones."""
FILES = 12
PEEK = 8


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a moment with several."""

    step: str
    tool: str
    state: str
    took: str
    group_id: str | None
    about: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    moment: Moment
    number: int
    of: int
    short: str
    meta: str
    decision: Decision | None
    files: tuple[FileDiff, ...]
    more_files: int
    peek: tuple[Piece, ...]
    unchanged: str
    problem: str
    output: str
    output_words: str
    output_step: str
    effects: tuple[tuple[Effect, str], ...]
    unknown: bool
    calls: tuple[Call, ...]
    command: str
    before_id: str | None
    corrected: tuple[str, ...]


def chosen_row(view: PlanView, rows: list[Row], at: str) -> Row | None:
    """The row that is asked for by its key or one of its groups; else the one to begin with."""
    for row in rows:
        if at and at in (row.key, row.group_id, *row.groups, *(c.call_id for c in row.calls)):
            return row
    if at:
        return None
    if view.state == "errored":
        failed = [row for row in rows if row.mark == "failed"]
        if failed:
            return failed[-1]
    return next((row for row in rows if row.is_here), rows[-1] if rows else None)


def panel_of(ws: Workspace, view: PlanView, rows: list[Row], row: Row, shelf: Shelf) -> Panel:
    facts = view.facts
    handle = PlanHandle(ws.ctx, facts.plan.plan_id)
    files, peek, problem = _changed(handle, row, shelf)
    told = {file.resource for file in files}
    untouched = [one.name for one in facts.resources if one.name not in told]
    output, words, step = _output(ws, row)
    short = short_ids([group.group_id for group in facts.groups])
    target = row.failed_id or row.group_id
    decision = facts.decisions.get(row.decision_id or "")
    return Panel(
        moment=moment(ws, facts, row, shelf, view.tracks),
        number=rows.index(row) + 1,
        of=len(rows),
        short=short.get(target or "", ""),
        meta=_meta(view, row),
        decision=decision,
        files=files[:FILES],
        more_files=max(0, len(files) - FILES),
        peek=peek,
        unchanged=f"{listed(untouched)} did not change." if files and untouched else "",
        problem=problem,
        output=output,
        output_words=words,
        output_step=step,
        effects=tuple((e, effect_words(e)) for e in row.effects if e.side_effects),
        unknown=any(not effect.side_effects for effect in row.effects),
        calls=_calls(row),
        command=_command(view, row, short),
        before_id=row.before_id if row.before_id in short and row.calls else None,
        corrected=_corrected(view, row),
    )


Changed = tuple[tuple[FileDiff, ...], tuple[Piece, ...], str]
"""Files, the first lines that differ, and what is wrong if neither can be told."""


def _changed(handle: PlanHandle, row: Row, shelf: Shelf) -> Changed:
    after = row.failed_id if row.mark == "failed" else row.group_id
    if row.before_id is None or after is None or not row.changed:
        return (), (), ""
    return shelf.peek(row.before_id, after, lambda: _compared(handle, row, after))


def _compared(handle: PlanHandle, row: Row, after: str) -> Changed:
    try:
        diff = handle.diff(row.before_id, after)
    except AgentsError as error:
        return (), (), error.message
    return diff.files, _beginning(pieces_of(diff.patch, most=PEEK * 8)), ""


def _beginning(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The first lines that differ, of one file after the other."""
    found: list[Piece] = []
    left = PEEK
    for piece in pieces:
        lines = [line for line in piece.lines if line.kind in ("add", "del")][:left]
        if lines:
            found.append(msgspec.structs.replace(piece, lines=tuple(lines)))
            left -= len(lines)
    return tuple(found)


def _output(ws: Workspace, row: Row) -> tuple[str, str, str]:
    """The last lines that were printed, how many of how many, and by which step."""
    if not row.calls:
        return "", "", ""
    wanted = row.calls[-1]
    text = printed(ws.ctx.store.calls.output(wanted.call_id))
    lines = text.splitlines()
    shown = lines[-LINES:]
    if len(lines) > LINES:
        words = f"last {LINES} of {count(len(lines), 'line')}"
    else:
        words = count(len(lines), "line")
    return "\n".join(shown), words, wanted.step_id


def _meta(view: PlanView, row: Row) -> str:
    """`step 4 of 12, today at 14:02, took 62 ms`."""
    facts = view.facts
    said: list[str] = []
    index = {step.step_id: step.index + 1 for step in facts.steps}
    places = [index[name] for name in row.steps if name in index]
    if places and len(facts.steps) >= max(places):
        word = "step" if len(places) == 1 else "steps"
        said.append(f"{word} {listed([str(n) for n in places[:4]])} of {len(facts.steps)}")
    attempts = max((call.attempt for call in row.calls), default=1)
    if attempts > 1:
        said.append(f"attempt {attempts}")
    if row.when:
        said.append(clock(row.when))
    ended = [call for call in row.calls if call.ended_at]
    if ended and ended[-1].ended_at:
        said.append(f"took {lasted(ended[0].started_at, ended[-1].ended_at)}")
    if row.mark == "failed" and row.calls[-1].exit_code is not None:
        said.append(f"exit code {row.calls[-1].exit_code}")
    return ", ".join(said)


def _calls(row: Row) -> tuple[Call, ...]:
    if len(row.calls) < 2:
        return ()
    return tuple(
        Call(
            step=call.step_id,
            tool=call.tool,
            state=str(call.state),
            took=lasted(call.started_at, call.ended_at) if call.ended_at else "",
            group_id=call.group_id,
            about=_about(call),
        )
        for call in row.calls
    )


def _about(call: ToolCall) -> str:
    """What a call was given, for one line."""
    for name in ("file_path", "path", "command", "script", "pattern", "url"):
        if name in call.inputs:
            return str(call.inputs[name])[:100]
    return ""


def _corrected(view: PlanView, row: Row) -> tuple[str, ...]:
    """The questions that a correction asked again."""
    if row.mark != "person" or not row.decision_id:
        return ()
    for correction in view.facts.corrections:
        if correction.before_group_id == row.before_id:
            known = view.facts.decisions
            return tuple(known[name].question for name in correction.affected if name in known)
    return ()


def _command(view: PlanView, row: Row, short: dict[str, str]) -> str:
    name = view.facts.typed
    if row.mark == "failed":
        return f"agents plan errors {name}"
    if row.mark == "person" and row.decision_id:
        return f"agents plan diff {name} --correction last"
    if row.group_id in short and not view.facts.plan.is_final:
        return f"agents plan rollback {name} {short[row.group_id]}"
    return f"agents plan status {name}"
