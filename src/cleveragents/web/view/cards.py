"""The differences between two moments as cards: one per file, one per database table.

Many files of one folder are one card, but for those with a person's edits.
"""

import posixpath
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from cleveragents.history.diff import ByHand, FileDiff, TableChange
from cleveragents.history.owners import Owner
from cleveragents.history.timeline import is_in
from cleveragents.web.view.patches import Line, Piece, signed
from cleveragents.web.view.pictures import Picture, Sides
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import count

MANY, FOLDED = 20, 8
"""With more files than the first, folders with at least so many as the second are one card."""


NARROW = 30
"""Letters of a path for which there is room in the list of paths."""


WHOSE: dict[str | None, str] = {Owner.OTHERS: "you", Owner.BOTH: "agent and you"}


class Writers(msgspec.Struct, frozen=True, kw_only=True):
    """Who did it."""

    by: tuple[Row, ...] = ()
    """The rows in force that wrote it."""
    mine: bool = False
    """Whether a person did."""
    unsure: bool = False
    """Whether another session may have done it."""


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    file: FileDiff
    piece: Piece | None
    who: Writers
    is_open: bool = False
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
    def short(self) -> str:
        """Its name, with as many folders as there is room for."""
        path = self.file.path
        while len(path) > NARROW and "/" in path.removeprefix("…/"):
            path = "…/" + path.removeprefix("…/").partition("/")[2]
        return path

    @property
    def anchor(self) -> str:
        return f"f-{_letters(self.file.resource)}-{_letters(self.file.path)}"


Cell = tuple[tuple[str, object], ...]
"""`del` and a value that went, `ins` and one that came, or nothing and one that is the same."""


class RowView(NamedTuple):
    """One line of a table's card."""

    kind: str
    """add, del or change."""
    cells: tuple[Cell, ...]
    whose: str
    """`you`, or `agent and you`; empty where no person changed it."""


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """One table, index, view or trigger of a database."""

    file: FileDiff
    table: TableChange
    who: Writers
    is_open: bool = True

    @property
    def anchor(self) -> str:
        table = self.table
        return f"t-{_letters(self.file.resource)}-{table.kind}-{_letters(table.name)}"

    @property
    def short(self) -> str:
        """`was user`, `new, 6 rows`, `1 row`."""
        table = self.table
        if table.renamed_from:
            return f"was {table.renamed_from}"
        if table.status == "added":
            return f"new, {count(table.rows_after, 'row')}" if table.rows_after else "new"
        if table.status == "removed":
            return "gone"
        rows = max(table.rows_added or 0, table.rows_removed or 0)
        return count(rows, "row") if rows else "definition"

    @property
    def right(self) -> str:
        """`+6 rows`, `1 of 40 rows`, `renamed`: at the card's right end."""
        table = self.table
        rows = max(table.rows_added or 0, table.rows_removed or 0)
        if rows and table.rows_before == table.rows_after:
            return f"{rows:,} of {count(table.rows_after or 0, 'row')}"
        if table.status != "changed" or table.renamed_from:
            return "renamed" if table.renamed_from else self.short
        if (added := (table.rows_after or 0) - (table.rows_before or 0)) != 0:
            return f"{added:+,} {'row' if abs(added) == 1 else 'rows'}"
        return self.short

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are there now, then those that went."""
        now, before = self.table.columns, self.table.columns_before
        return (*now, *(name for name in before if name not in now))

    @property
    def rows(self) -> list[RowView]:
        table, found = self.table, list[RowView]()
        for row in table.rows:
            before = dict(zip(table.columns_before, row.before or (), strict=False))
            after = dict(zip(table.columns, row.after or (), strict=False))
            kind = "add" if row.before is None else "del" if row.after is None else "change"
            cells = tuple(_cell(name, before, after, kind) for name in self.columns)
            whose = WHOSE.get(row.owner, "") if self.who.mine else ""
            found.append(RowView(kind, cells, whose))
        return found

    @property
    def is_told(self) -> bool:
        """Whether rows say it all, and no sentence is needed."""
        table = self.table
        plain = table.status == "changed" and not table.definition_changed
        return plain and bool(table.rows) and not table.renamed_from


def _cell(name: str, before: dict[str, Any], after: dict[str, Any], kind: str) -> Cell:
    was = (("del", before[name]),) if name in before else ()
    now = (("ins", after[name]),) if name in after else ()
    if kind == "change" and before.get(name, was) != after.get(name, now):
        return was + now
    return tuple(("", value) for _, value in (now or was))


class FolderView(msgspec.Struct, frozen=True, kw_only=True):
    """Many files of one folder."""

    resource: str
    folder: str
    files: tuple[FileView, ...]

    @property
    def anchor(self) -> str:
        return f"d-{_letters(self.resource)}-{_letters(self.folder)}"

    @property
    def insertions(self) -> int:
        return sum(one.file.insertions for one in self.files)

    @property
    def deletions(self) -> int:
        return sum(one.file.deletions for one in self.files)

    @property
    def who(self) -> Writers:
        rows = {row.key: row for one in self.files for row in one.who.by}
        return Writers(by=tuple(rows.values()))


Card = FileView | TableView | FolderView


def _letters(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text)


def signed_piece(piece: Piece | None, file: FileDiff, mine: bool) -> Piece | None:
    """With the lines that are a person's: all, if nobody else changed the file."""
    if piece is None or not mine:
        return piece
    if file.owner is Owner.OTHERS:
        return signed(piece, lambda line: True)
    hand = file.by_hand or ByHand()

    def is_mine(line: Line) -> bool:
        return is_in(hand.added, line.new) or is_in(hand.removed, line.old)

    return signed(piece, is_mine)


def in_folders(files: Sequence[FileView]) -> list[FileView | FolderView]:
    """The files of one resource, those of large folders as one."""
    if len(files) <= MANY:
        return list(files)
    depth = len(_common([one.folder for one in files]))
    tops: dict[str, list[FileView]] = {}
    for one in files:
        rest = one.folder[depth:].partition("/")[0]
        if rest and not one.who.mine and not one.who.unsure:
            tops.setdefault(f"{one.folder[:depth]}{rest}/", []).append(one)
    large = {top: own for top, own in tops.items() if len(own) >= FOLDED}
    inside = {one.anchor for own in large.values() for one in own}
    cards: list[FileView | FolderView] = [one for one in files if one.anchor not in inside]
    cards += [
        FolderView(
            resource=own[0].file.resource,
            folder=top,
            files=tuple(own),
        )
        for top, own in large.items()
    ]
    return cards


def _common(folders: Iterable[str]) -> str:
    """The folder that all are in, with its slash."""
    head, slash, _ = posixpath.commonprefix(list(folders)).rpartition("/")
    return head + slash
