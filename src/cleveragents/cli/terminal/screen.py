"""A reply in a terminal: boxes, columns and colours.

Text that somebody may want to copy is never cut or broken: a long line is left to the terminal,
which knows that it is one line.
"""

from collections.abc import Iterator
from typing import TextIO

from cleveragents.cli.terminal.blocks import (
    Block,
    Panel,
    Reply,
    Table,
    Text,
    safe,
    safe_cell,
    safe_item,
)
from cleveragents.cli.terminal.cells import columns_of, fitted, padded, styled, width

PATCH = "patch"
"""The style of a text that is a patch: each line has its own."""
_PATCH = {"+": "green", "-": "red", "@": "cyan", "d": "bold", "i": "bold", "r": "bold", "#": "bold"}
"""First character of a line -> style; in a patch only headings begin with a letter."""


def write(reply: Reply, out: TextIO) -> None:
    for number, block in enumerate(reply.blocks):
        is_open = isinstance(block, Table) and not block.title
        if number and is_open and not isinstance(reply.blocks[number - 1], Text):
            out.write("\n")
        for line in lines_of(block, out):
            out.write(line + "\n")


def lines_of(block: Block, out: TextIO) -> Iterator[str]:
    if isinstance(block, Panel):
        yield from _panel(block, out)
    elif isinstance(block, Table):
        lines = list(_columns(block, out))
        boxed = [(styled(text, style, out), width(text)) for text, style in lines]
        yield from _box(block.title, boxed, out) if block.title else (text for text, _ in boxed)
    elif block.style == PATCH:
        yield from patch_lines(block.text.removesuffix("\n"), out)
    else:
        text = safe(block.text) if block.verbatim else safe_item(block.text)
        yield from (styled(line, block.style, out) for line in text.split("\n"))


def patch_lines(text: str, out: TextIO) -> Iterator[str]:
    is_header = False
    for line in safe(text).split("\n"):
        # `--- a` and `+++ b` are a heading only before the first hunk.
        if line.startswith("diff "):
            is_header = True
        elif line.startswith("@@"):
            is_header = False
        style = _PATCH.get(line[:1], "")
        yield styled(line, "bold" if is_header and style else style, out)


def _panel(panel: Panel, out: TextIO) -> Iterator[str]:
    names = [safe_cell(name) for name, _ in panel.rows]
    side = max((width(name) for name in names), default=0)
    rows = [
        (name if not number else "", part)
        for name, (_, value) in zip(names, panel.rows, strict=True)
        for number, part in enumerate(safe(value).split("\n"))
    ]
    lines = [
        (f"{styled(padded(name, side), 'dim', out)}  {part}", side + 2 + width(part))
        for name, part in rows
    ]
    yield from _box(panel.title, lines, out)


def _box(title: str, lines: list[tuple[str, int]], out: TextIO) -> Iterator[str]:
    """A box, closed on the right if everything fits; else open, and long lines overflow."""
    title = f"─ {safe_cell(title)} "
    inner = max(width(title) - 1, *(size for _, size in lines), 0)
    room = columns_of(out)
    closed = inner + 4 <= room
    line = inner + 2 if closed else room - 2
    yield f"╭{title}{'─' * (line - width(title))}{'╮' if closed else '─'}"
    for text, size in lines:
        yield f"│ {text}{' ' * (inner - size) + ' │' if closed else ''}"
    yield f"╰{'─' * line}{'╯' if closed else '─'}"


def _columns(table: Table, out: TextIO) -> Iterator[tuple[str, str]]:
    """Lines, each with its style."""
    header = tuple(safe_cell(column) for column in table.columns)
    rows = [tuple(safe_cell(cell) for cell in row) for row in table.rows]
    sizes = [max(width(row[n]) for row in (header, *rows)) for n in range(len(header))]
    room = columns_of(out) - (4 if table.title else 0)  # beside a frame
    over = sum(sizes) + 2 * len(sizes) - room
    if table.shortened in table.columns and over > 0:
        at = table.columns.index(table.shortened)
        sizes[at] = max(sizes[at] - over, 12)
        rows = [(*row[:at], fitted(row[at], sizes[at]), *row[at + 1 :]) for row in rows]
    yield _joined(header, sizes), "dim"
    for number, row in enumerate(rows):
        yield _joined(row, sizes), table.styles[number] if table.styles else ""


def _joined(row: tuple[str, ...], sizes: list[int]) -> str:
    return "  ".join(padded(cell, size) for cell, size in zip(row, sizes, strict=True)).rstrip()
