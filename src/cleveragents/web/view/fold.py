"""Rows folded so that a plan of a thousand groups is some sixty lines (pure).

What is folded are stretches of plain rows: in force, of the agent, done at the first attempt, not
labelled. Where their steps differ only in the file, a stretch is a matrix of files by steps.
"""

import posixpath
import re

import msgspec

from cleveragents.model.journal import JournalEntry, Operation
from cleveragents.model.plan import Step
from cleveragents.web.view.facts import Facts
from cleveragents.web.view.line import DIVIDERS
from cleveragents.web.view.rows import Row
from cleveragents.web.view.words import count

MOST = 60
SHORTEST = 8
"""A stretch below this is never folded."""
KEPT = 4
"""Rows left to be seen at the end of the newest stretch."""
FILES = 50
"""Files of a matrix that are shown at a time."""


class Cell(msgspec.Struct, frozen=True):
    key: str
    changed: bool


class Line(msgspec.Struct, frozen=True):
    """One file of a matrix."""

    file: str
    cells: tuple[Cell | None, ...]


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that differ only in their file: a line for each file of a folder."""

    folder: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    first: str
    last: str
    """Keys of its first and last row."""


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are not shown one by one."""

    key: str
    rows: tuple[Row, ...]
    text: str
    groups: int


class Divider(msgspec.Struct, frozen=True, kw_only=True):
    entry_id: str
    text: str
    when: str
    groups: int
    carry: bool = False
    """Whether a lane beside the rail passes it."""


Item = Row | Fold | Divider


def folded(facts: Facts, rows: list[Row], opened: frozenset[str] = frozenset()) -> list[Item]:
    """Rows with a divider before each operation, stretches folded until few enough are left."""
    stretches = _stretches(rows)
    items: list[Item] = list(rows)
    for number, stretch in enumerate(stretches):
        if len(items) <= MOST:
            break
        is_last = number == len(stretches) - 1
        taken = stretch[:-KEPT] if is_last else stretch
        if len(taken) < SHORTEST or taken[0].key in opened:
            continue
        start = items.index(taken[0])
        items[start : start + len(taken)] = [_fold(taken)]
    if len(items) > MOST:
        items = _older(items, opened)
    return _divided(facts, items)


def _stretches(rows: list[Row]) -> list[list[Row]]:
    """Consecutive plain rows of one operation."""
    found: list[list[Row]] = [[]]
    for row in rows:
        last = found[-1]
        if not row.is_plain or (last and last[-1].entry_id != row.entry_id):
            found.append([])
        if row.is_plain:
            found[-1].append(row)
    return [stretch for stretch in found if len(stretch) >= SHORTEST]


def _fold(rows: list[Row]) -> Fold:
    return Fold(
        key=rows[0].key,
        rows=tuple(rows),
        text=f"{count(len(rows), 'decision')}, from “{rows[0].title}” to “{rows[-1].title}”",
        groups=_groups(rows),
    )


def _older(items: list[Item], opened: frozenset[str]) -> list[Item]:
    """What cannot be folded in stretches: everything but the newest, as one."""
    cut = len(items) - MOST + 1
    old = [row for item in items[:cut] for row in (item.rows if isinstance(item, Fold) else [item])]
    rows = [row for row in old if isinstance(row, Row)]
    if not rows or rows[0].key in opened:
        return items
    return [_fold(rows), *items[cut:]]


def _groups(rows: list[Row]) -> int:
    return len({group for row in rows for group in (*row.groups, row.group_id) if group})


def _divided(facts: Facts, items: list[Item]) -> list[Item]:
    entries = {entry.entry_id: entry for entry in facts.entries}
    counts: dict[str | None, int] = {}
    for item in items:
        entry = _entry(item)
        groups = item.groups if isinstance(item, Fold) else len(_row_groups(item))
        counts[entry] = counts.get(entry, 0) + groups
    found: list[Item] = []
    before: str | None = None
    for item in items:
        name = _entry(item)
        entry = entries.get(name or "")
        if entry is not None and name != before and entry.operation in DIVIDERS:
            found.append(
                Divider(
                    entry_id=entry.entry_id,
                    text=_called(entry),
                    when=entry.started_at,
                    groups=max(1, counts[name]),
                    carry=isinstance(item, Row) and item.lane in ("carry", "joins"),
                )
            )
        before = name if entry is not None and entry.operation in DIVIDERS else before
        found.append(item)
    return found


def _row_groups(item: Item) -> set[str]:
    if not isinstance(item, Row):
        return set()
    return {group for group in (*item.groups, item.group_id) if group}


def _entry(item: Item) -> str | None:
    return item.rows[0].entry_id if isinstance(item, Fold) else item.entry_id


def _called(entry: JournalEntry) -> str:
    if entry.operation is Operation.RESUME:
        return "Resumed with a changed plan file" if "correction" in entry.detail else "Resumed"
    return CALLED.get(entry.operation, str(entry.operation).capitalize())


CALLED = {
    Operation.EXECUTE: "Run",
    Operation.CORRECT: "Correction",
    Operation.PROMPT: "Prompt",
    Operation.APPLY: "Apply",
}


def matrices(rows: list[Row], steps: dict[str, Step]) -> list[Matrix]:
    """A stretch as matrices, one for each folder; empty if its steps are not alike."""
    parts = [_parts(row, steps) for row in rows]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return []
    kinds = list(dict.fromkeys(kind for _, kind in known))
    if len(kinds) * 3 > len(rows) or len(kinds) > 8:
        return []
    names = _column_names(rows, known, kinds)
    folders: dict[str, dict[str, dict[str, Row]]] = {}
    for row, (file, kind) in zip(rows, known, strict=True):
        lines = folders.setdefault(posixpath.dirname(file), {})
        lines.setdefault(file, {})[kind] = row
    return [
        Matrix(
            folder=f"{folder}/" if folder else "",
            columns=tuple(names[kind] for kind in kinds),
            lines=tuple(
                Line(file, tuple(_cell(cells.get(kind)) for kind in kinds))
                for file, cells in lines.items()
            ),
            first=next(iter(next(iter(lines.values())).values())).key,
            last=list(list(lines.values())[-1].values())[-1].key,
        )
        for folder, lines in folders.items()
    ]


def _cell(row: Row | None) -> Cell | None:
    return None if row is None else Cell(row.key, bool(row.changed))


_PATH = re.compile(r"[\w.@+-]+(?:/[\w.@+-]+)*\.\w{1,8}|[\w.@+-]+(?:/[\w.@+-]+)+")


def _parts(row: Row, steps: dict[str, Step]) -> tuple[str, str] | None:
    """The file that a row's step is about, and what is done to it with the file left out."""
    if len(row.steps) != 1 or (step := steps.get(row.steps[0])) is None:
        return None
    inputs = step.spec.get("inputs", {})
    words = " ".join(f"{name}={value}" for name, value in sorted(inputs.items()))
    paths = _PATH.findall(str(inputs.get("path") or words))
    if not paths:
        return None
    file = paths[-1]
    return file, f"{step.tool} {words.replace(file, '{}')}"


def _column_names(
    rows: list[Row], parts: list[tuple[str, str]], kinds: list[str]
) -> dict[str, str]:
    """A kind is called by what the ids of its steps have in common."""
    found: dict[str, str] = {}
    for kind in kinds:
        ids = [r.steps[0] for r, (_, own) in zip(rows, parts, strict=True) if own == kind]
        common = posixpath.commonprefix(ids).strip("-_. ")
        found[kind] = common or posixpath.commonprefix([i[::-1] for i in ids])[::-1].strip("-_. ")
    names = list(found.values())
    if len(set(names)) < len(names) or not all(names):
        return {kind: f"step {number}" for number, kind in enumerate(kinds, 1)}
    return found
