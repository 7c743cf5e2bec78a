"""The blocks of a reply, and text made safe to show."""

from typing import Any

import msgspec


class Panel(msgspec.Struct, frozen=True):
    """Names and values under a title."""

    title: str
    rows: tuple[tuple[str, str], ...]


class Table(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    shortened: str = ""
    """The column that may be cut where a terminal is too narrow: nobody wants to copy it."""
    styles: tuple[str, ...] = ()
    """Of each row, in a terminal."""


class Text(msgspec.Struct, frozen=True):
    text: str
    style: str = ""
    verbatim: bool = False
    """Lines of a patch: each begins where it began."""


Block = Panel | Table | Text


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    blocks: tuple[Block, ...] = ()
    messages: tuple[str, ...] = ()
    exit_code: int = 0
    said: tuple[str, ...] = ()
    """The last lines that a failed step printed, and where the rest is; shown with the error."""
    on_stderr: bool = False
    """What is for people goes there: standard output is somebody else's."""


def safe(text: str) -> str:
    """Escape text so that no file name or tool output can control the terminal.

    Everything shown to people passes here: escape sequences, invisible characters and changes of
    writing direction appear as \\x1b, \\u202e.
    """
    if text.isprintable():
        return text
    return "\n".join(
        line if line.replace("\t", "").isprintable() else _spelled(line)
        for line in text.split("\n")
    )


def _spelled(line: str) -> str:
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line
    )


def safe_item(text: str, indent: int = 2) -> str:
    """The same for one item among others: a line break in it cannot begin another item."""
    return safe(text).replace("\n", "\n" + " " * indent)


def safe_cell(text: str) -> str:
    """The same for a cell, which is one line."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")
