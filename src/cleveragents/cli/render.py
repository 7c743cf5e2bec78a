"""Renders a reply: rich in a terminal, plain in a pipe, JSON or YAML for programs.

A reply is data for programs and blocks for people; nothing is decided here.
"""

import sys
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

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

if TYPE_CHECKING:
    import re

__all__ = [
    "Block",
    "Panel",
    "Reply",
    "Table",
    "Text",
    "envelope",
    "plain_lines",
    "safe",
    "safe_cell",
    "safe_item",
    "write",
]


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

        # Text that is not UTF-8 was shown as \xNN before; the rest must not break the pipe.
        text = json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode()
    # Inside strings an escape is the same value.
    is_plain = text.isascii() and "\x7f" not in text
    out.write(text if is_plain else _hidden().sub(_escaped, text))
    out.write("\n")


def write_yaml(value: dict[str, Any], out: TextIO) -> None:
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if _hidden().search(text):
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
    out.write(text)


def write_plain(reply: Reply, out: TextIO) -> None:
    for block in reply.blocks:
        for line in plain_lines(block):
            out.write(line + "\n")


def _hidden() -> "re.Pattern[str]":
    """Characters that JSON and YAML allow but a terminal does not show as they are."""
    import re

    return re.compile(
        "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
        "\U000e0000-\U000e0fff]"
    )


def _escaped(found: "re.Match[str]") -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _shown(block: Text) -> str:
    return safe(block.text) if block.verbatim else safe_item(block.text)


def plain_lines(block: Block) -> list[str]:
    """Lines that are safe to show."""
    if isinstance(block, Text):
        return _shown(block).removesuffix("\n").split("\n")
    title = safe_cell(block.title)
    if isinstance(block, Panel):
        rows = [(safe_cell(name), value) for name, value in block.rows]
        width = max((len(name) for name, _ in rows), default=0)
        return [
            title,
            *(f"  {name:<{width}}  {safe_item(value, width + 4)}" for name, value in rows),
        ]
    cells = tuple(tuple(safe_cell(cell) for cell in row) for row in block.rows)
    block = Table(tuple(safe_cell(column) for column in block.columns), cells, title)
    widths = [
        max(len(row[n]) for row in (block.columns, *block.rows)) for n in range(len(block.columns))
    ]
    rows = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (block.columns, *block.rows)
    ]
    return [block.title, *rows] if block.title else rows


def write_rich(reply: Reply, out: TextIO) -> None:
    from cleveragents.cli.terminal import screen

    screen.write(reply, out)


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
            sys.stderr.write(f"note: {safe_item(note)}\n")
        out = sys.stderr if reply.on_stderr else sys.stdout
        (write_rich if form == "rich" else write_plain)(reply, out)
