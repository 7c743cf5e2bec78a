"""A patch as files, places and lines, with the words that differ marked; for one column or two."""

import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from itertools import groupby

import msgspec

LONGEST = 400
"""Longer lines have no words marked."""


class Line(msgspec.Struct, frozen=True):
    """`kind`: add, del, same or at; `parts`: (text, is it what differs)."""

    kind: str
    old: int | None
    new: int | None
    parts: tuple[tuple[str, bool], ...]
    mine: bool = False
    """Whether it is a manual edit."""
    is_first: bool = False
    """Of theirs that follow each other, the one that says so."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a patch."""

    resource: str
    path: str
    lines: tuple[Line, ...]
    left_out: int = 0
    """Lines that are not shown."""
    mode: tuple[str, str] | None = None
    binary: bool = False

    def sides(self) -> Iterator[tuple[Line | None, Line | None]]:
        """Its lines beside each other."""
        waiting: list[Line] = []
        for line in self.lines:
            if line.kind == "del":
                waiting.append(line)
                continue
            if line.kind == "add":
                yield (waiting.pop(0) if waiting else None), line
                continue
            yield from ((old, None) for old in waiting)
            waiting = []
            yield line, line
        yield from ((old, None) for old in waiting)


_AT = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
_RESOURCE = "# resource "


def pieces_of(patch: str, most: int = 2000, resource: str = "") -> list[Piece]:
    """The files of a patch; of each at most `most` lines."""
    found: list[Piece] = []
    for text in re.split(r"^(?=diff --git |# resource )", patch, flags=re.MULTILINE):
        if text.startswith(_RESOURCE):
            resource = text.removeprefix(_RESOURCE).partition("\n")[0]
        elif text.startswith("diff --git "):
            found.append(_piece(text.splitlines(), most, resource))
    return found


def _piece(rows: list[str], most: int, resource: str) -> Piece:
    path, old_mode, new_mode, binary = _path(rows[0]), "", "", False
    start = len(rows)
    for number, row in enumerate(rows[1:], 1):
        if row.startswith("@@ "):
            start = number
            break
        for word in ("old mode ", "deleted file mode "):
            old_mode = row.removeprefix(word) if row.startswith(word) else old_mode
        for word in ("new mode ", "new file mode "):
            new_mode = row.removeprefix(word) if row.startswith(word) else new_mode
        path = _side(row, path)
        binary = binary or row.startswith(("Binary files ", "GIT binary patch"))
    body = rows[start:]
    changed = (old_mode, new_mode) if old_mode and new_mode and old_mode != new_mode else None
    return Piece(
        resource=resource,
        path=path,
        lines=tuple(_marked(_lines(body[:most]))),
        left_out=max(0, len(body) - most),
        mode=changed,
        binary=binary,
    )


def _path(header: str) -> str:
    """From `diff --git a/x b/x`, where both sides are as long."""
    names = header.removeprefix("diff --git ")
    return _unquoted(names[len(names) // 2 + 1 :])


def _side(row: str, path: str) -> str:
    if row.startswith(("--- ", "+++ ")) and row[4:] != "/dev/null":
        return _unquoted(row[4:].rstrip("\t"))
    return path


def _unquoted(name: str) -> str:
    """Without the side, and without git's quotes."""
    if name[:1] == name[-1:] == '"' and len(name) > 1:
        raw = name[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
        name = raw.encode("latin-1", "replace").decode("utf-8", "backslashreplace")
    return name.partition("/")[2] or name


def _lines(rows: list[str]) -> list[Line]:
    found: list[Line] = []
    old = new = 0
    for row in rows:
        if place := _AT.match(row):
            old, new = int(place[1]), int(place[2])
            found.append(Line("at", None, None, ((place[3] or f"line {new or old}", False),)))
        elif row.startswith("+"):
            found.append(Line("add", None, new, ((row[1:], False),)))
            new += 1
        elif row.startswith("-"):
            found.append(Line("del", old, None, ((row[1:], False),)))
            old += 1
        elif row.startswith("\\"):
            found.append(Line("note", None, None, ((row[2:], False),)))
        else:
            found.append(Line("same", old, new, ((row[1:], False),)))
            old, new = old + 1, new + 1
    return found


def _marked(lines: list[Line]) -> list[Line]:
    """Where as many lines went as came, the words in which each pair differs are marked."""
    found = list(lines)
    at = 0
    while at < len(found):
        gone = _stretch(found, at, "del")
        come = _stretch(found, at + gone, "add")
        for number in range(gone if gone == come else 0):
            first, second = at + number, at + gone + number
            found[first], found[second] = _pair(found[first], found[second])
        at += max(1, gone + come)
    return found


def _stretch(lines: list[Line], start: int, kind: str) -> int:
    end = start
    while end < len(lines) and lines[end].kind == kind:
        end += 1
    return end - start


def signed(piece: Piece, is_mine: Callable[[Line], bool]) -> Piece:
    """With the lines that a person did marked as theirs; of those that came, the first says so."""
    found = [
        msgspec.structs.replace(line, mine=line.kind in ("add", "del") and is_mine(line))
        for line in piece.lines
    ]
    start = 0
    for mine, run in groupby(found, key=lambda line: line.mine):
        own = list(run)
        if mine:
            came = next((n for n, line in enumerate(own) if line.kind == "add"), 0)
            found[start + came] = msgspec.structs.replace(own[came], is_first=True)
        start += len(own)
    return msgspec.structs.replace(piece, lines=tuple(found))


_WORD = re.compile(r"\w+|\s+|.")


def _pair(old: Line, new: Line) -> tuple[Line, Line]:
    if max(len(old.text), len(new.text)) > LONGEST:
        return old, new
    before, after = _WORD.findall(old.text), _WORD.findall(new.text)
    match = SequenceMatcher(None, before, after, autojunk=False)
    if match.ratio() < 0.4:
        return old, new
    left: list[tuple[str, bool]] = []
    right: list[tuple[str, bool]] = []
    for kind, a, b, c, d in match.get_opcodes():
        differs = kind != "equal"
        if b > a:
            left.append(("".join(before[a:b]), differs))
        if d > c:
            right.append(("".join(after[c:d]), differs))
    return (
        msgspec.structs.replace(old, parts=tuple(left)),
        msgspec.structs.replace(new, parts=tuple(right)),
    )
