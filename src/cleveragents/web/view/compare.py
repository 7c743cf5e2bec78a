"""Two moments of a plan beside each other: files with their lines, databases with their rows."""

import posixpath

import msgspec

from cleveragents.errors import AgentsError
from cleveragents.history.diff import Diff, FileDiff
from cleveragents.model.resource import show_path
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.view.facts import Facts, facts_of
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.patches import Piece, pieces_of
from cleveragents.web.view.pictures import Album, Picture, Sides
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import clock
from cleveragents.workspace import Workspace

OPEN_LINES = 400
"""Files with more changed lines than that, and all after so many lines, are folded."""
MOST_FILES = 500


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    file: FileDiff
    piece: Piece | None
    by: tuple[Row, ...]
    """The rows in force that wrote it."""
    mine: bool
    """Whether a person did."""
    unsure: bool
    """Whether another session may have done it."""
    is_open: bool
    pictures: Sides | None
    """Before and after, if it is one."""

    @property
    def shown(self) -> list[tuple[str, Picture]]:
        """Each picture, and which it is."""
        before, after = self.pictures or (None, None)
        if before is not None and before == after:
            return [("the same bytes", before)]
        return [(word, p) for word, p in (("before", before), ("after", after)) if p is not None]

    @property
    def folder(self) -> str:
        head = posixpath.dirname(self.file.path.rstrip("/"))
        return f"{head}/" if head else ""

    @property
    def name(self) -> str:
        return self.file.path[len(self.folder) :]

    @property
    def anchor(self) -> str:
        letters = (c if c.isascii() and c.isalnum() else "-" for c in self.file.path)
        return f"f-{self.file.resource}-{''.join(letters)}"


class Choice(msgspec.Struct, frozen=True):
    """A moment to compare with."""

    value: str
    text: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    facts: Facts
    diff: Diff
    files: tuple[FileView, ...]
    left_out: int
    choices: tuple[Choice, ...]
    start: str
    end: str
    title: str
    resources: tuple[str, ...]

    def of(self, resource: str) -> list[FileView]:
        return [one for one in self.files if one.file.resource == resource]

    @property
    def mine(self) -> int:
        return sum(one.mine for one in self.files)


def comparison(
    ws: Workspace,
    handle: PlanHandle,
    start: str,
    end: str,
    correction: str,
    whose: str,
    album: Album,
) -> Comparison:
    facts = facts_of(ws, handle.plan_id)
    rows = rows_of(facts)
    start, end = (handle.group(text).group_id if text else "" for text in (start, end))
    with handle.compare(start or None, end or None, correction=correction or None) as found:
        diff = found.diff()
        pictures = album.of(found, diff.files)
    title = "What apply would bring" if not start and not end else "What changed"
    if correction:
        title = "Old against new"
    if facts.plan.is_final and not (start or end or correction):
        title = "What it did"
    writers = _writers(ws, facts, rows)
    pieces = _pieces(diff, facts)
    edited = set[tuple[str, str]]() if end or correction else _since(handle, facts)
    unsure = {show_path(path) for _, path in facts.unsure}
    files = _files(diff, pieces, writers, edited, unsure, pictures)
    if whose == "mine":
        files = [one for one in files if one.mine]
    return Comparison(
        facts=facts,
        diff=diff,
        files=tuple(files[:MOST_FILES]),
        left_out=max(0, len(files) - MOST_FILES),
        choices=_choices(facts, rows, (start, end)),
        start=start,
        end=end,
        title=title,
        resources=tuple(dict.fromkeys(one.file.resource for one in files)),
    )


def _pieces(diff: Diff, facts: Facts) -> dict[tuple[str, str], Piece]:
    only = facts.resources[0].name if len(facts.resources) == 1 else ""
    return {(one.resource, one.path): one for one in pieces_of(diff.patch, resource=only)}


def _files(
    diff: Diff,
    pieces: dict[tuple[str, str], Piece],
    writers: dict[tuple[str, str], list[Row]],
    edited: set[tuple[str, str]],
    unsure: set[str],
    pictures: dict[tuple[str, str], Sides],
) -> list[FileView]:
    shown = 0
    found: list[FileView] = []
    for file in diff.files:
        piece = pieces.get((file.resource, file.path))
        by = writers.get((file.resource, file.path), [])
        lines = len(piece.lines) if piece else 0
        is_open = lines <= OPEN_LINES and shown + lines <= 2 * OPEN_LINES
        shown += lines if is_open else 0
        found.append(
            FileView(
                file=file,
                piece=piece,
                by=tuple(row for row in by if row.mark != "person" and not row.is_edits),
                mine=(file.resource, file.path) in edited or any(r.mark == "person" for r in by),
                unsure=any(
                    row.mark == "unknown" and (row.is_edits or file.path in unsure) for row in by
                ),
                is_open=is_open,
                pictures=pictures.get((file.resource, file.path)),
            )
        )
    return found


def _writers(ws: Workspace, facts: Facts, rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """(resource, path) -> the rows in force that changed it."""
    names = {one.resource_id: one.name for one in facts.resources}
    of_call = {call.call_id: row for row in rows if not row.is_aside for call in row.calls}
    found: dict[tuple[str, str], list[Row]] = {}
    for write in ws.ctx.store.calls.writes(facts.plan.plan_id):
        if (row := of_call.get(write.call_id)) is not None:
            key = names[write.resource_id], show_path(write.path)
            if row not in found.setdefault(key, []):
                found[key].append(row)
    groups = {group.group_id: group for group in facts.groups}
    for row in rows:
        person = row.mark == "person" or row.is_edits or (row.mark == "agent" and row.children)
        ends = groups.get(row.before_id or ""), groups.get(row.group_id or "")
        if row.is_aside or not person or ends[0] is None or ends[1] is None:
            continue
        states = ws.ctx.checkpoints.states
        changes = ws.ctx.checkpoints.diff(facts.plan.plan_id, states(ends[0]), states(ends[1]))
        for change in changes if not row.decision_id or row.children else ():
            rows_so_far = found.setdefault((change.resource, change.shown), [])
            if row not in rows_so_far:
                rows_so_far.append(row)
    return found


def _since(handle: PlanHandle, facts: Facts) -> set[tuple[str, str]]:
    """What a person has changed since the last checkpoint."""
    if facts.plan.is_final or facts.held is not None or facts.in_place:
        return set()
    try:
        return {(c.resource, c.shown) for c in handle.preview_resume().changes}
    except AgentsError:  # a plan that cannot be resumed has no edits that would be adopted
        return set()


def _choices(facts: Facts, rows: list[Row], chosen: tuple[str, ...]) -> tuple[Choice, ...]:
    """Moments in force, and those that are compared now."""
    kept = {group.group_id: group for group in facts.groups}
    found = [
        Choice(row.group_id, f"{row.label or row.title}, {clock(row.when)}")
        for row in rows
        if row.group_id in kept and row.mark != "turn" and (not row.is_aside or row.label)
    ][-60:]
    known = {choice.value for choice in found}
    also = [
        Choice(name, f"{name[-6:]}, {clock(kept[name].created_at)}")
        for name in dict.fromkeys(chosen)
        if name in kept and name not in known
    ]
    return (*also, *found)
