"""A reply in a terminal: boxes, columns and colours.

Nothing that somebody may want to copy is cut or broken: a line that is too long is left to the
terminal, which knows that it is one line.
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
        if number and isinstance(block, Table) and not isinstance(reply.blocks[number - 1], Text):
            out.write("\n")
        for line in lines_of(block, out):
            out.write(line + "\n")


def lines_of(block: Block, out: TextIO) -> Iterator[str]:
    if isinstance(block, Panel):
        yield from _box(block, out)
    elif isinstance(block, Table):
        yield from _columns(block, out)
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


def _box(panel: Panel, out: TextIO) -> Iterator[str]:
    """Closed on the right if everything fits; else open, and long lines go on."""
    names = [safe_cell(name) for name, _ in panel.rows]
    side = max((width(name) for name in names), default=0)
    rows = [
        (name if not number else "", part)
        for name, (_, value) in zip(names, panel.rows, strict=True)
        for number, part in enumerate(safe(value).split("\n"))
    ]
    inner = max((side + 2 + width(part) for _, part in rows), default=0)
    title = f"─ {safe_cell(panel.title)} "
    inner = max(inner, width(title) - 1)
    room = columns_of(out)
    closed = inner + 4 <= room
    line = inner + 2 if closed else room - 2
    yield f"╭{title}{'─' * (line - width(title))}{'╮' if closed else '─'}"
    for name, part in rows:
        text = f"{styled(padded(name, side), 'dim', out)}  {part}"
        end = " " * (inner - side - 2 - width(part)) + " │" if closed else ""
        yield f"│ {text}{end}"
    yield f"╰{'─' * line}{'╯' if closed else '─'}"


def _columns(table: Table, out: TextIO) -> Iterator[str]:
    header = tuple(safe_cell(column) for column in table.columns)
    rows = [tuple(safe_cell(cell) for cell in row) for row in table.rows]
    sizes = [max(width(row[n]) for row in (header, *rows)) for n in range(len(header))]
    over = sum(sizes) + 2 * len(sizes) - columns_of(out)
    if table.shortened in table.columns and over > 0:
        at = table.columns.index(table.shortened)
        sizes[at] = max(sizes[at] - over, 12)
        rows = [(*row[:at], fitted(row[at], sizes[at]), *row[at + 1 :]) for row in rows]
    if table.title:
        yield styled(safe_cell(table.title), "bold", out)
    yield styled(_joined(header, sizes), "dim", out)
    for number, row in enumerate(rows):
        style = table.styles[number] if table.styles else ""
        yield styled(_joined(row, sizes), style, out)


def _joined(row: tuple[str, ...], sizes: list[int]) -> str:
    return "  ".join(padded(cell, size) for cell, size in zip(row, sizes, strict=True)).rstrip()
