"""Root's capabilities: those a tool keeps, and how a child drops the rest."""

import ctypes
import errno
import struct
from collections.abc import Callable, Collection

_NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18,
}  # fmt: skip
UNDER_BWRAP = tuple(_NUMBERS)
"""Enough to own and install files where it may write, not to mount, trace or reach devices."""
UNDER_LANDLOCK = ("DAC_OVERRIDE",)
"""Landlock stops writes but no change of owner or mode, so what allows those has to go."""

_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _AMBIENT_CLEAR = 24, 47, 4
_VERSION = 0x20080522


def dropping(kept: Collection[str]) -> Callable[[], None]:
    """A function for a child of root before exec, which keeps only these for ever."""
    numbers = {_NUMBERS[name] for name in kept}
    mask = sum(1 << number for number in numbers) & _permitted()
    header = struct.pack("=Ii", _VERSION, 0)
    sets = struct.pack("=6I", mask, mask, 0, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    prctl, capset = libc.prctl, libc.capset

    def drop() -> None:  # pragma: no cover - runs in the child, before exec
        prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
        for number in range(64):
            if number not in numbers and prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
                break  # beyond the last one, or not permitted, and then there is none to drop
        if capset(header, sets):
            raise OSError(errno.EPERM, "capset")

    return drop


def _permitted() -> int:
    """The permitted capabilities: in a container root may lack some."""
    with open("/proc/self/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"CapPrm:"))
    return int(line.split()[1], 16)
