"""Moments at which a crash would matter: tests make the process die, or raise, at them."""

import itertools
import os
from collections.abc import Callable

_KILL_AT = "CLEVERAGENTS_TEST_KILL_AT"
_fault: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Mark a moment at which a crash would matter; tests make the process die at the n-th."""
    if _fault is not None:
        _fault(name)


def arm(fault: Callable[[str], None] | int | None) -> None:
    """For tests: call `fault` with the name of every point, where it may raise.

    A number: die at the n-th point from now. None: no more faults.
    """
    global _fault
    _fault = _death_at(fault) if isinstance(fault, int) else fault


def _death_at(number: int) -> Callable[[str], None]:
    numbers = itertools.count(1)

    def die(name: str) -> None:
        passed = next(numbers)
        if passed == number:
            import signal

            os.write(2, f"killed at point {passed}: {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    return die


if _KILL_AT in os.environ:
    arm(int(os.environ[_KILL_AT]))
