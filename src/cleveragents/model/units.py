"""Counts, sizes, times and rows as people write them: `1 file`, `500MB`, `1h 30m`, `x=NULL`."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_LARGEST = 2**63 - 1

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = rf"({_NUMBER})\s*(ms|s|m|h|d|w)"
_SIZE = rf"({_NUMBER})\s*([kmgtp]i?)?b?"


def parse_duration(value: str | float) -> float:
    """Seconds from a number of seconds or a text such as `30s`, `5m`, `1h30m`, `7d`."""
    seconds = _duration_of(value) if isinstance(value, str) else float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value!r} is not a duration: it has to be a time of 0 or more")
    return seconds


def _duration_of(text: str) -> float:
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped, re.ASCII):
        return float(stripped)
    parts = re.findall(_PART, stripped, re.ASCII)
    if not parts or re.sub(_PART, "", stripped, flags=re.ASCII).strip():
        raise ValueError(f"{text!r} is not a duration: write it like '30s', '5m', '2h' or '7d'")
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_bytes(value: str | int) -> int:
    """Bytes from a count or a text such as `500MB` (powers of 1000) or `1GiB` (of 1024)."""
    count = _bytes_of(value) if isinstance(value, str) else value
    if not 0 <= count <= _LARGEST:
        raise ValueError(f"{value!r} is not a size: it has to be between 0 and 2^63 bytes")
    return count


def _bytes_of(text: str) -> int:
    match = re.fullmatch(_SIZE, text.strip(), re.ASCII | re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size: write it like '500MB', '2GB' or '1GiB'")
    number, unit = match[1], (match[2] or "").lower()
    scale = (_DECIMAL | _BINARY)[unit]
    if "." not in number:
        return int(number[:400]) * scale
    size = float(number) * scale
    return round(size) if math.isfinite(size) else _LARGEST + 1


def show_bytes(count: int) -> str:
    """A size with at most one decimal: `0 B`, `26 KB`, `1.2 GB`."""
    size, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB", "PB"):
        if abs(size) < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def show_duration(seconds: float) -> str:
    """A time that something took: `0.4s`, `12s`, `1m 05s`, `2h 10m`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def show_when(moment: str, now: datetime | None = None) -> str:
    """A time of the store as people say it: `just now`, `5m ago`, `3h ago`, else the local date."""
    then = datetime.fromisoformat(moment)
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if not 0 <= seconds < 86400:
        return then.astimezone().strftime("%Y-%m-%d %H:%M")
    if seconds < 10:
        return "just now"
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit} ago"
    raise AssertionError(seconds)


def show_moment(moment: str) -> str:
    """The same with the local time to the second: `5m ago, 2026-11-19 14:02:31`."""
    exact = datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    said = show_when(moment)
    return exact if exact.startswith(said) else f"{said}, {exact}"


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun: `1 file`, `2 files`; `many` where adding an s is not enough."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def show_row(columns: Iterable[str], values: Iterable[int | float | str | None]) -> str:
    pairs = zip(columns, values, strict=True)
    return "  ".join(f"{name}={show_value(value)}" for name, value in pairs)


def show_value(value: int | float | str | None) -> str:
    """As SQL writes it; bytes come written like that already."""
    if value is None:
        return "NULL"
    if isinstance(value, str) and not value.startswith("x'"):
        return f"'{value}'"
    return str(value)
