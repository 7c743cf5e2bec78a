"""Times, counts and lists as the page says them."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

T = TypeVar("T")

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def count(number: int, one: str, many: str = "") -> str:
    """A count with its noun and separators: `1 file`, `1,028 moments`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def spelled(number: int) -> str:
    """Small numbers as words: `four`."""
    return NUMBERS[number] if number < len(NUMBERS) else f"{number:,}"


def first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


_UNSEEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NUMBERS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\t\n\r"
}
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_WRITTEN_OVER = re.compile(r"[^\n]*\r(?=[^\n])")


def straight(value: T) -> T:
    """Control characters, and what turns the direction of text, are shown as their numbers.

    So no name reads as another.
    """
    if isinstance(value, str) and _UNSEEN.search(value):
        return cast("T", value.translate(_NUMBERS))  # of markup that is markup again
    return value


def one_line(text: str) -> str:
    """A name, which may have line breaks in it."""
    return straight(text).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def printed(text: str) -> str:
    """What a program printed, as a terminal would leave it: of a line its last version."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if "\r" in text:
        text = _WRITTEN_OVER.sub("", text.replace("\r\n", "\n")).replace("\r", "")
    return straight(text)


def shortened(text: str, most: int = 140) -> str:
    """The first line, and not too much of it."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def ago(moment: str, now: datetime | None = None) -> str:
    """`now`, `12 min ago`, `2 h ago`, `yesterday`, `3 days ago`, else the date."""
    then = datetime.fromisoformat(moment)
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < 0 or seconds >= 7 * 86400:
        return f"{then.astimezone():%-d %b %Y}"
    if seconds < 60:
        return "now" if seconds < 10 else f"{int(seconds)} s ago"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h ago"
    days = int(seconds // 86400)
    return "yesterday" if days == 1 else f"{days} days ago"


def minute(moment: str) -> str:
    """`2026-11-19 14:02`, the same wherever and whenever it is read."""
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M}"


def dated(moment: str) -> str:
    return f"{minute(moment)} UTC"


def clock(moment: str, now: datetime | None = None) -> str:
    """`today at 14:02`, `yesterday at 18:21`, `13 Nov at 10:40`, in local time."""
    then = datetime.fromisoformat(moment).astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    if then.date() == today:
        return f"today at {then:%H:%M}"
    if then.date() == today - timedelta(days=1):
        return f"yesterday at {then:%H:%M}"
    return f"{then:%-d %b} at {then:%H:%M}"


def lasted(start: str, end: str) -> str:
    """`62 ms`, `1.4 s`, `1 min 12 s`, `2 h 5 min`."""
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return duration(max(0.0, seconds))


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
