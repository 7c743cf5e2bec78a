"""System calls that a confined tool is denied, as a kernel filter (seccomp).

Keyrings have no namespace, so they are closed to every tool. Root is also denied user namespaces:
in one it would have every capability again, enough to mount control groups.
"""

import ctypes
import errno
import functools
import os
import struct
import sys
from collections.abc import Callable

_LOAD, _RETURN, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_NEW_USER_NAMESPACE = 0x10000000
_FOREIGN = 0x40000000
"""Numbers from here on are of x32, another set of calls under the same architecture."""
_CALLS = ("add_key", "request_key", "keyctl", "unshare", "clone", "clone3")
# Each machine's own programs, and those of its 32-bit predecessor.
_TABLES: dict[str, dict[int, tuple[int, ...]]] = {
    "x86_64": {
        0xC000003E: (248, 249, 250, 272, 56, 435),
        0x40000003: (286, 287, 288, 310, 120, 435),
    },
    "aarch64": {
        0xC00000B7: (217, 218, 219, 97, 220, 435),
        0x40000028: (309, 310, 311, 337, 120, 435),
    },
}


@functools.cache
def available() -> bool:
    """Whether the kernel supports filters and we know this machine's call numbers."""
    if sys.platform != "linux" or os.uname().machine not in _TABLES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


@functools.cache
def program(is_root: bool) -> bytes:
    """The filter for the kernel and `bwrap --seccomp`; empty if there is none."""
    if not available():
        return b""
    words = [_word(_LOAD, _ARCHITECTURE)]
    for architecture, numbers in _TABLES[os.uname().machine].items():
        table = _table(dict(zip(_CALLS, numbers, strict=True)), is_root)
        words += [_word(_EQUAL, architecture, no=len(table)), *table]
    # Another architecture, whose numbers we do not know.
    words.append(_word(_RETURN, _REFUSE | errno.ENOSYS))
    return b"".join(words)


def _table(number: dict[str, int], is_root: bool) -> list[bytes]:
    words = [_word(_LOAD, _NUMBER), *_if(_AT_LEAST, _FOREIGN, errno.ENOSYS)]
    for name in ("add_key", "request_key", "keyctl"):
        words += _if(_EQUAL, number[name], errno.ENOSYS)
    if is_root:
        # clone3's flags are in memory, where no filter can look; callers then fall back to clone.
        words += _if(_EQUAL, number["clone3"], errno.ENOSYS)
        check = [
            _word(_LOAD, _FIRST_ARGUMENT),
            *_if(_ANY_BIT, _NEW_USER_NAMESPACE, errno.EPERM),
            _word(_LOAD, _NUMBER),
        ]
        for name in ("unshare", "clone"):
            words += [_word(_EQUAL, number[name], no=len(check)), *check]
    return [*words, _word(_RETURN, _ALLOW)]


def _if(test: int, value: int, answer: int) -> list[bytes]:
    return [_word(test, value, no=1), _word(_RETURN, _REFUSE | answer)]


def _word(code: int, value: int, *, no: int = 0) -> bytes:
    """One instruction; `no` is how many to skip where its test fails."""
    return struct.pack("=HBBI", code, 0, no, value)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("words", ctypes.c_char_p))


def refusing(is_root: bool) -> Callable[[], None]:
    """A function for a child without new privileges, which applies the filter before exec."""
    words = program(is_root)
    filter_ = ctypes.pointer(_Program(len(words) // 8, words))
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def take_on() -> None:  # pragma: no cover - runs in the child, before exec
        if words and prctl(_PR_SET_SECCOMP, _MODE_FILTER, filter_, 0, 0):
            raise OSError(errno.EPERM, "seccomp")

    return take_on
