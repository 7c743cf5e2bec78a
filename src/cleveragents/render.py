"""How a reply looks: rich in a terminal, plain in a pipe, JSON or YAML for programs.

A reply is data for programs and blocks for people; nothing here decides anything.
"""

import sys
from typing import Any, TextIO

import msgspec


class Panel(msgspec.Struct, frozen=True):
    """Names and values under a title."""

    title: str
    rows: tuple[tuple[str, str], ...]


class Table(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


class Text(msgspec.Struct, frozen=True):
    text: str
    style: str = ""


Block = Panel | Table | Text


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    data: dict[str, Any]
    blocks: tuple[Block, ...] = ()
    messages: tuple[str, ...] = ()
    exit_code: int = 0
    on_stderr: bool = False
    """What is for people goes there: standard output is somebody else's."""


def envelope(
    command: str, reply: Reply, started: str, duration_ms: float, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "command": command,
        "status": "ok" if reply.exit_code == 0 else "error",
        "exit_code": reply.exit_code,
        "data": reply.data,
        "timing": {"started": started, "duration_ms": round(duration_ms, 3)},
        "messages": [*notes, *reply.messages],
    }


def write_json(value: dict[str, Any], out: TextIO) -> None:
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except UnicodeEncodeError:
        import json

        # Text that is not UTF-8 was shown as \xNN before; what is left must not break the pipe.
        text = json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode()
    out.write(text)
    out.write("\n")


def write_yaml(value: dict[str, Any], out: TextIO) -> None:
    import yaml

    yaml.safe_dump(value, out, sort_keys=False, allow_unicode=True)


def write_plain(reply: Reply, out: TextIO) -> None:
    for block in reply.blocks:
        for line in plain_lines(block):
            out.write(safe(line) + "\n")


def safe(text: str) -> str:
    """No terminal takes orders from a file name or a tool's output."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def _one_line(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cell.replace("\n", "\\n") for cell in row)


def plain_lines(block: Block) -> list[str]:
    if isinstance(block, Text):
        return block.text.splitlines() or [""]
    if isinstance(block, Panel):
        width = max((len(name) for name, _ in block.rows), default=0)
        return [block.title, *(f"  {name:<{width}}  {value}" for name, value in block.rows)]
    block = Table(block.columns, tuple(_one_line(row) for row in block.rows), block.title)
    widths = [
        max(len(row[n]) for row in (block.columns, *block.rows)) for n in range(len(block.columns))
    ]
    rows = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (block.columns, *block.rows)
    ]
    return [block.title, *rows] if block.title else rows


def write_rich(reply: Reply, out: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.panel import Panel as RichPanel
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = Ours(file=out, highlight=False)
    for block in reply.blocks:
        if isinstance(block, Text):
            console.print(RichText(safe(block.text), style=block.style))
        elif isinstance(block, Panel):
            grid = RichTable.grid(padding=(0, 2))
            for name, value in block.rows:
                grid.add_row(RichText(safe(name), style="dim"), RichText(safe(value)))
            console.print(RichPanel(grid, title=block.title, title_align="left", expand=False))
        else:
            table = RichTable(box=box.SIMPLE_HEAD, title=block.title or None, title_justify="left")
            for column in block.columns:
                table.add_column(column)
            for row in map(_one_line, block.rows):
                table.add_row(*(RichText(safe(cell)) for cell in row))
            console.print(table)


def write(
    reply: Reply,
    *,
    form: str,
    command: str,
    started: str,
    duration_ms: float,
    notes: tuple[str, ...] = (),
    quiet: bool = False,
) -> None:
    """Print a reply in the form that was asked for."""
    if form in ("json", "yaml"):
        value = envelope(command, reply, started, duration_ms, notes)
        (write_json if form == "json" else write_yaml)(value, sys.stdout)
        return
    if not quiet:
        error: dict[str, Any] = (reply.data.get("error") or {}) if reply.exit_code else {}
        shown = {error.get("message"), *error.get("problems", ())}
        for note in (*notes, *(text for text in reply.messages if text not in shown)):
            sys.stderr.write(f"note: {safe(note)}\n")
        out = sys.stderr if reply.on_stderr else sys.stdout
        (write_rich if form == "rich" else write_plain)(reply, out)
