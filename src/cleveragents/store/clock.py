"""Two clocks read together: the one people set, and the machine's own, to detect a jump."""

from datetime import UTC, datetime, timedelta

import msgspec

from cleveragents.content.fsio import boot_id

JUMPED = timedelta(seconds=60)
"""A smaller difference may be the time between two looks at the clocks."""


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def uptime() -> float | None:
    """Seconds since the machine was started, by the monotonic clock."""
    try:
        with open("/proc/uptime", "rb") as found:
            return float(found.read().split()[0])
    except OSError:
        return None


class Clock(msgspec.Struct, frozen=True):
    """Both clocks at one moment."""

    at: str
    boot_id: str
    uptime: float | None


def read_clocks(at: str, is_given: bool) -> Clock:
    """Read both clocks; a time given by the caller has no machine clock."""
    return Clock(at, boot_id(), None if is_given else uptime())


def jump_between(last: Clock | None, now: Clock) -> timedelta | None:
    """By how much the clock was set; None if it was not, or that is unknown."""
    if last is None or last.boot_id != now.boot_id or not (last.uptime and now.uptime):
        return None
    shown = datetime.fromisoformat(now.at) - datetime.fromisoformat(last.at)
    jump = shown - timedelta(seconds=now.uptime - last.uptime)
    return jump if abs(jump) > JUMPED else None
