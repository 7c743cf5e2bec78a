"""Landlock: a process gives up writing outside some places, for itself and its children.

The rules are made in our own process; the child only applies them between fork and exec. `cannot`
lists what Landlock cannot prevent.
"""

import ctypes
import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from cleveragents.errors import ToolFailed

LEAST_ABI = 2
"""Before it every rename and link between two folders fails, inside the sandbox too."""
SCOPED = 6
"""From here on signals and abstract sockets can be kept inside."""
ABSTRACT = "use abstract sockets of other processes"
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE = 1 << 1
_REFER, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _WRITE_FILE | _TRUNCATE | _DEVICE_CONTROL
# Removing and making, from REMOVE_DIR (4) to MAKE_SYM (12); reading is not limited.
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
_TCP = 0b11
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2

# Devices that programs write to; shm holds the semaphores of multiprocessing.
DEVICES = tuple(
    f"/dev/{name}"
    for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
)


@functools.cache
def abi() -> int:
    """The kernel's version of Landlock; 0: none, or too old."""
    if sys.platform != "linux":
        return 0
    found = _libc().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    return found if found >= LEAST_ABI else 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def limits_network(version: int) -> bool:
    return version >= 4


def cannot(version: int) -> tuple[str, ...]:
    """What a tool can still do under these rules."""
    late = (
        (3, "cut files short with truncate(2)"),
        (4, "use the network in spite of network: false"),
        (5, "control devices that you may read"),
        (SCOPED, "send signals to other processes of yours"),
        (SCOPED, ABSTRACT),
    )
    udp = ("use UDP and sockets in folders in spite of network: false",)
    return (
        "change mode, times and extended attributes of your files outside",
        "read the store: a file inside a readable folder cannot be hidden",
        "write to /dev/shm, to System V shared memory and to your terminals",
        "change limits and priorities of other processes of yours",
        "leave a process behind that cleared its environment and left the session",
        *(text for least, text in late if version < least),
        *(udp if limits_network(version) else ()),
    )


@contextmanager
def restriction(writable: Iterable[str], network: bool) -> Generator[Callable[[], None]]:
    """A function for the child before exec; raises ToolFailed if the rules cannot be made."""
    version = abi()
    handled = _WRITE_FILE | _CHANGE_FOLDER | _REFER
    handled |= (_TRUNCATE if version >= 3 else 0) | (_DEVICE_CONTROL if version >= 5 else 0)
    net = 0 if network or not limits_network(version) else _TCP
    rules = _create(version, handled, net)
    try:
        for path in (*writable, *DEVICES):
            _allow(rules, path, handled)
        yield _applying(rules)
    finally:
        os.close(rules)


@contextmanager
def scope() -> Generator[Callable[[], None] | None]:
    """The same for a child under bwrap: limits only signals and abstract sockets.

    Rules for files would keep bwrap from mounting. None if the kernel lacks it.
    """
    if abi() < SCOPED:
        yield None
        return
    rules = _create(abi(), 0, 0)
    try:
        yield _applying(rules)
    finally:
        os.close(rules)


def _create(version: int, handled: int, net: int) -> int:
    scoped = _SIGNALS | _ABSTRACT_SOCKETS if version >= SCOPED else 0
    size = 24 if version >= SCOPED else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", handled, net, scoped)[:size]
    return _call(_CREATE, attributes, ctypes.c_size_t(size), 0)


def _allow(rules: int, path: str, handled: int) -> None:
    try:
        fd = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        access = handled if is_folder else handled & _OF_FILES
        _call(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
    finally:
        os.close(fd)


def _applying(rules: int) -> Callable[[], None]:
    libc = _libc()
    prctl, syscall = libc.prctl, libc.syscall

    def take_on() -> None:  # pragma: no cover - runs in the child, before exec
        if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or syscall(_RESTRICT, rules, 0):
            raise OSError(errno.EPERM, "Landlock")

    return take_on


def _call(number: int, *arguments: object) -> int:
    found = _libc().syscall(number, *arguments)
    if found < 0:
        code = ctypes.get_errno()
        raise ToolFailed(f"Landlock: {os.strerror(code).lower()}")
    return found
