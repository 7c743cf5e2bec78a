"""Limits of a call: bytes of kept output, and time."""

import time
from collections.abc import Callable


class OutOfTime(Exception):
    """The call's time limit has passed."""


PAUSE = 0.02


class Deadline:
    """A time limit, None for none, with a function to call while waiting."""

    def __init__(self, seconds: float | None, meanwhile: Callable[[], None] | None = None) -> None:
        self.seconds = seconds
        self._meanwhile = meanwhile
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def pause(self) -> float | None:
        """How long to wait at a time."""
        left = self.left()
        if self._meanwhile is None:
            return left
        self._meanwhile()
        return PAUSE if left is None else min(PAUSE, left)

    def passed(self) -> bool:
        return self.left() == 0.0

    def check(self) -> None:
        if self.passed():
            raise OutOfTime


class Capture:
    """Collects output; above `limit` bytes the middle is discarded as it comes."""

    def __init__(self, limit: int, hear: Callable[[bytes], None] | None = None) -> None:
        self.total: int = 0
        self._hear = hear
        self._head_size = limit // 2
        self._tail_size = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()

    def clear(self) -> None:
        """Drop all output."""
        self.total = 0
        self._head.clear()
        self._tail.clear()

    def feed(self, data: bytes) -> None:
        if self._hear is not None:
            self._hear(data)
        self.total += len(data)
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room else data
        # Trimmed at twice the size: each byte is moved once, not with every call.
        if len(self._tail) > 2 * self._tail_size:
            self._trim()

    def line(self, text: str) -> None:
        self.feed(text.encode("utf-8", "backslashreplace") + b"\n")

    def text(self) -> str:
        self._trim()
        left_out = self.total - len(self._head) - len(self._tail)
        if not left_out:
            return _decoded(self._head + self._tail)
        head, tail = _whole_end(self._head), _whole_start(self._tail)
        left_out = self.total - len(head) - len(tail)
        gap = "" if not head or head.endswith(b"\n") else "\n"
        return f"{_decoded(head)}{gap}[... {left_out} bytes left out ...]\n{_decoded(tail)}"

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_size)]


def _decoded(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace")


def _whole_end(data: bytearray) -> bytearray:
    """Without a character that was cut in two at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if needs > back else data
    return data


def _whole_start(data: bytearray) -> bytearray:
    """Without the rest of a character that was cut in two at the start."""
    skip = 0
    while skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]
