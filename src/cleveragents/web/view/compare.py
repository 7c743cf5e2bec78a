"""Two moments of a plan beside each other: files with their lines, databases with their rows."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from cleveragents.history.diff import Diff
from cleveragents.history.owners import Owner
from cleveragents.history.timeline import with_owners
from cleveragents.model.resource import show_path
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.view.cards import (
    Card,
    FileView,
    FolderView,
    TableView,
    Writers,
    in_folders,
    signed_piece,
)
from cleveragents.web.view.changes import Shelf
from cleveragents.web.view.facts import Facts, facts_of
from cleveragents.web.view.fold import folded
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.marks import mini, signs_of
from cleveragents.web.view.patches import Piece, pieces_of
from cleveragents.web.view.pictures import Album, Sides
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import clock, count
from cleveragents.workspace import Workspace

OPEN_LINES = 400
"""Files with more changed lines than that, and all after so many lines, are folded."""
MOST_FILES = 500
MOST_ROWS = 12
"""Rows that wrote a database up to which it is found out which table each touched."""


class Choice(msgspec.Struct, frozen=True):
    """A moment to compare with."""

    value: str
    text: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    facts: Facts
    diff: Diff
    files: tuple[FileView, ...]
    cards: tuple[Card, ...]
    total: int
    left_out: int
    choices: tuple[Choice, ...]
    start: str
    end: str
    title: str
    picture: Markup
    """The plan in one line, with what is compared below it."""

    @property
    def resources(self) -> list[str]:
        return list(dict.fromkeys(one.file.resource for one in self.files))

    def of(self, resource: str) -> list[Card]:
        return [
            card
            for card in self.cards
            if (card.resource if isinstance(card, FolderView) else card.file.resource) == resource
        ]

    def sum_of(self, resource: str) -> tuple[str, int, int]:
        """`109 files` or `3 tables`, with lines that came and went."""
        own = [one.file for one in self.files if one.file.resource == resource]
        tables = sum(isinstance(card, TableView) for card in self.of(resource))
        what = count(tables, "table") if tables == len(self.of(resource)) else ""
        lines = sum(file.insertions for file in own), sum(file.deletions for file in own)
        return what or count(len(own), "file"), *lines

    @property
    def is_all_folded(self) -> bool:
        """Whether there would be nothing to see but names of folders."""
        return all(isinstance(card, FolderView) for card in self.cards)

    @property
    def mine(self) -> int:
        return sum(one.who.mine for one in self.files)


def comparison(
    ws: Workspace,
    handle: PlanHandle,
    start: str,
    end: str,
    correction: str,
    whose: str,
    shown: "Shown",
) -> Comparison:
    facts = facts_of(ws, handle.plan_id)
    rows = rows_of(facts)
    start, end = (handle.group(text).group_id if text else "" for text in (start, end))
    with handle.compare(start or None, end or None, correction=correction or None) as found:
        diff = with_owners(found)
        pictures = shown.album.of(found, diff.files)
    title = "What apply would bring" if not start and not end else "What changed"
    if correction:
        title = "Old against new"
    if facts.plan.is_final and not (start or end or correction):
        title = "What it did"
    between = [row for row in rows if not row.is_aside and _is_between(facts, row, start, end)]
    writers = _writers(ws, facts, between)
    pieces = _pieces(diff, facts)
    files = _files(facts, diff, pieces, writers, pictures)
    everything = len(files)
    if whose == "mine":
        files = [one for one in files if one.who.mine]
    kept = files[:MOST_FILES]
    tables = Tables(handle, between, shown.shelf, "" if end or correction else _head(facts))
    return Comparison(
        facts=facts,
        diff=diff,
        files=tuple(kept),
        cards=tuple(_cards(kept, tables)),
        total=everything,
        left_out=max(0, len(files) - MOST_FILES),
        choices=_choices(facts, rows, (start, end)),
        start=start,
        end=end,
        title=title,
        picture=Markup("") if correction else _picture(facts, rows, start, end),
    )


class Shown(NamedTuple):
    """What was looked at before."""

    album: Album
    shelf: Shelf


def _is_between(facts: Facts, row: Row, start: str, end: str) -> bool:
    at = facts.order.get(row.group_id or "")
    if at is None:
        return True
    return facts.order.get(start, 0) < at <= facts.order.get(end, at)


def _head(facts: Facts) -> str:
    """From where a person may have edited; empty where nobody can have."""
    plan = facts.plan
    return "" if plan.is_final or facts.held is not None else plan.head_group_id or ""


def _cards(files: Iterable[FileView], tables: "Tables") -> Iterator[Card]:
    by_resource: dict[str, list[FileView]] = {}
    for one in files:
        by_resource.setdefault(one.file.resource, []).append(one)
    shown = 0
    for own in by_resource.values():
        for card in in_folders(own):
            if isinstance(card, FolderView):
                yield card
            elif card.file.tables:
                yield from tables.of(card)
            else:
                lines = len(card.piece.lines) if card.piece else 0
                is_open = lines <= OPEN_LINES and shown + lines <= 2 * OPEN_LINES
                shown += lines if is_open else 0
                yield msgspec.structs.replace(card, is_open=is_open)


class Tables:
    """Who changed which table: found out from the moments before and after each row."""

    def __init__(self, handle: PlanHandle, rows: list[Row], shelf: Shelf, head: str) -> None:
        """`head`: the moment since which a person may have edited."""
        self._handle, self._rows, self._shelf, self._head = handle, rows, shelf, head

    def of(self, one: FileView) -> Iterator[TableView]:
        resource = one.file.resource
        # What a correction took back first is no edit.
        rows = [
            row
            for row in self._rows
            if resource in row.changed
            and row.before_id
            and not (row.mark == "person" and row.decision_id)
        ]
        touched = [(row, self._touched(row, resource)) for row in rows[-MOST_ROWS:]]
        since = self._since(resource) if one.who.mine and self._head else set[str]()
        for table in one.file.tables:
            names = {table.name, table.renamed_from or table.name}
            by = [row for row, tables in touched if tables & names]
            mine = bool(since & names) or any(row.mark == "person" for row in by)
            unsure = any(row.mark == "unknown" for row in by)
            agents = tuple(row for row in by if row.mark not in ("person", "unknown"))
            known = bool(by or since) and len(rows) <= MOST_ROWS
            who = Writers(by=agents, mine=mine, unsure=unsure) if known else one.who
            yield TableView(file=one.file, table=table, who=who)

    def _touched(self, row: Row, resource: str) -> set[str]:
        before, after = row.before_id or "", row.group_id or ""
        look = self._shelf.peek
        return look(f"{before} {resource}", after, lambda: self._names(before, after, resource))

    def _since(self, resource: str) -> set[str]:
        return self._names(self._head, "", resource)

    def _names(self, before: str, after: str, resource: str) -> set[str]:
        with self._handle.compare(before, after or None, on=(resource,)) as found:
            files = found.diff().files
        tables = [table for file in files for table in file.tables]
        return {name for table in tables for name in (table.name, table.renamed_from) if name}


def _pieces(diff: Diff, facts: Facts) -> dict[tuple[str, str], Piece]:
    only = facts.resources[0].name if len(facts.resources) == 1 else ""
    return {(one.resource, one.path): one for one in pieces_of(diff.patch, resource=only)}


def _files(
    facts: Facts,
    diff: Diff,
    pieces: dict[tuple[str, str], Piece],
    writers: dict[tuple[str, str], list[Row]],
    pictures: dict[tuple[str, str], Sides],
) -> list[FileView]:
    unsure = {show_path(path) for _, path in facts.unsure}
    found: list[FileView] = []
    full = {(f.resource, folder) for f in diff.files for folder in _folders(f.path)}
    for file in diff.files:
        if (file.resource, file.path.rstrip("/")) in full:
            continue  # a folder that is told of by what is in it
        piece = pieces.get((file.resource, file.path))
        by = writers.get((file.resource, file.path), [])
        doubts = [r for r in by if r.mark == "unknown" and (r.is_edits or file.path in unsure)]
        mine = file.owner in (Owner.OTHERS, Owner.BOTH) and not any(r.is_edits for r in doubts)
        who = Writers(
            by=tuple(row for row in by if row.mark != "person" and not row.is_edits),
            mine=mine,
            unsure=bool(doubts),
        )
        found.append(
            FileView(
                file=file,
                piece=signed_piece(piece, file, mine),
                who=who,
                pictures=pictures.get((file.resource, file.path)),
            )
        )
    return found


def _folders(path: str) -> Iterator[str]:
    """Those that a path lies in."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _writers(ws: Workspace, facts: Facts, rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """(resource, path) -> the rows that changed it."""
    names = {one.resource_id: one.name for one in facts.resources}
    of_call = {call.call_id: row for row in rows for call in row.calls}
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
        if not person or ends[0] is None or ends[1] is None:
            continue
        states = ws.ctx.checkpoints.states
        changes = ws.ctx.checkpoints.diff(facts.plan.plan_id, states(ends[0]), states(ends[1]))
        for change in changes if not row.decision_id or row.children else ():
            rows_so_far = found.setdefault((change.resource, change.shown), [])
            if row not in rows_so_far:
                rows_so_far.append(row)
    return {key: sorted(own, key=rows.index) for key, own in found.items()}


def _picture(facts: Facts, rows: list[Row], start: str, end: str) -> Markup:
    signs = signs_of(folded(facts, rows))
    first = next((n for n, one in enumerate(signs) if start and start in one.groups), None)
    last = next((n for n, one in enumerate(signs) if end and end in one.groups), None)
    # What is compared begins after the first moment; one that is not in force is not on the line.
    if (start and first is None) or (end and last is None):
        return Markup("")
    span = (first or 0, len(signs) - 1 if last is None else last)
    return mini(signs, span=span, classes="mini tall")


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
