"""The width of text in a terminal, and fitting it into columns."""

import os
from typing import TextIO

COLOURS = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36",
    "bold red": "1;31",
}  # fmt: skip


def width(text: str) -> int:
    """The width in cells; East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def fitted(text: str, cells: int) -> str:
    """The text cut to that width, with a mark."""
    if width(text) <= cells:
        return text
    kept, left = "", cells - 1
    for c in text:
        left -= width(c)
        if left < 0:
            break
        kept += c
    return kept + "…" if cells > 0 else ""


def padded(text: str, cells: int) -> str:
    return text + " " * max(0, cells - width(text))


def columns_of(stream: TextIO) -> int:
    """The width of a line: COLUMNS, else the terminal's, else 80."""
    if (said := os.environ.get("COLUMNS", "")).isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def has_colour(stream: TextIO) -> bool:
    """Whether the reader wants colours (NO_COLOR) and can show them."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def styled(text: str, style: str, stream: TextIO) -> str:
    if not style or not text or not has_colour(stream):
        return text
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m"


def can_show(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def is_live(stream: TextIO) -> bool:
    """Whether written lines can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "", None)
