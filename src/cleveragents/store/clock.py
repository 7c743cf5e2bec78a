"""Two clocks noted together: the one people set, and the machine's own, which tells of a jump."""

from datetime import UTC, datetime, timedelta

import msgspec

from cleveragents.content.fsio import boot_id

JUMPED = timedelta(seconds=60)
"""A smaller difference may be the time between two looks at the clocks."""


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def uptime() -> float | None:
    """Seconds since the machine was started, by a clock that nobody sets."""
    try:
        with open("/proc/uptime", "rb") as found:
            return float(found.read().split()[0])
    except OSError:
        return None


class Clock(msgspec.Struct, frozen=True):
    """What both showed at one moment."""

    at: str
    boot_id: str
    uptime: float | None


def read_clocks(at: str, is_given: bool) -> Clock:
    """A time that the caller gives has nothing to do with the machine's own clock."""
    return Clock(at, boot_id(), None if is_given else uptime())


def jump_between(last: Clock | None, now: Clock) -> timedelta | None:
    """By how much the clock was set; None: it was not, or nobody can tell."""
    if last is None or last.boot_id != now.boot_id or not (last.uptime and now.uptime):
        return None
    shown = datetime.fromisoformat(now.at) - datetime.fromisoformat(last.at)
    jump = shown - timedelta(seconds=now.uptime - last.uptime)
    return jump if abs(jump) > JUMPED else None
