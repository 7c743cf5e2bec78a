"""bubblewrap: a view of the file system for the tool, read-only except for named places.

The sandbox appears at the resource's own path, the store not at all, and the tool's processes have
a namespace of their own, which ends with the first of them. bwrap itself never gets the tool's
environment: LD_PRELOAD would take effect outside.
"""

import ctypes
import functools
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import msgspec

from cleveragents.tools.confinement import landlock
from cleveragents.tools.confinement.capabilities import UNDER_BWRAP
from cleveragents.tools.confinement.mounts import Seen, is_inside
from cleveragents.tools.confinement.sides import Sides

PATIENCE = 10.0
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Whether bubblewrap can be used here, tried once."""

    path: str = ""
    works: bool = False
    reason: str = ""


@functools.cache
def probe() -> Found:
    path = shutil.which("bwrap")
    if path is None:
        return Found(reason="bwrap is not installed")
    path = os.path.abspath(path)
    reason = _try(path)
    return Found(path=path, works=not reason, reason=reason)


@functools.cache
def cuts_network() -> bool:
    """Whether it can also cut off the network; asked only for a tool that wants that."""
    found = probe()
    return found.works and not _try(found.path, "--unshare-net")


def _try(path: str, *more: str) -> str:
    """Why it cannot be used; empty if it can."""
    argv = [path, *_base(), *more, "--", "/bin/sh", "-c", ":"]
    try:
        done = subprocess.run(
            argv,
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return (said[-1] if said else f"exit code {done.returncode}") if done.returncode else ""


def version() -> str:
    try:
        done = subprocess.run(
            [probe().path, "--version"], capture_output=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip().rpartition(" ")[2]


def _base() -> list[str]:
    # A session of its own inside: SIGTERM can be sent to the tool and not to bwrap itself.
    base = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    base += ["--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"]
    if os.geteuid() == 0:
        # Root may write to /proc and /sys, and bwrap covers only some of that.
        base += ["--remount-ro", "/proc", "--cap-drop", "ALL"]
        base += [word for name in UNDER_BWRAP for word in ("--cap-add", f"CAP_{name}")]
    return base


def _receives_mounts() -> bool:
    with open("/proc/self/mountinfo", "rb") as file:
        return re.search(rb" (?:shared|master):\d+ ", file.read()) is not None


@contextmanager
def before() -> Generator[Callable[[], None]]:
    """What the child calls before exec of bwrap."""
    libc = ctypes.CDLL(None, use_errno=True)
    part = os.geteuid() == 0 and _receives_mounts()
    # A set-uid bwrap could not work without new privileges.
    plain = not os.stat(probe().path).st_mode & stat.S_ISUID
    with landlock.scope() if plain else nullcontext() as scope:

        def prepare() -> None:  # pragma: no cover - runs in the child, before exec
            # A file system mounted meanwhile would appear inside, writable.
            if part and libc.unshare(_CLONE_NEWNS) == 0:
                libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
            if scope is not None:
                scope()

        yield prepare


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the file system that a tool sees, and those it may write."""

    seen: Seen
    hidden: Sequence[str]
    """The store and the sandboxes."""
    writable: Sequence[str]
    """May lie anywhere, and is covered by what is hidden."""
    roots: Sequence[str]
    """May be written and may lie in what is hidden."""
    looked_at: Sequence[str]
    """The same, but only read."""
    doors: tuple[Sequence[str], Sequence[str]]
    """Folders and sockets that are covered."""
    sides: Sides


def arguments(view: View, *, texts: Sequence[int], network: bool, cwd: str) -> list[str]:
    """bwrap's arguments up to the command. A later mount covers an earlier one.

    `texts`: descriptors with the texts of `view.sides.files`.
    """
    folders, sockets = view.doors
    words = _base()
    words += [] if network else ["--unshare-net"]
    words += [word for path in folders for word in ("--tmpfs", path)]
    words += [word for path in sockets for word in ("--ro-bind", "/dev/null", path)]
    closed = [os.path.realpath(path) for path in view.hidden if os.path.isdir(path)]
    closed = [path for path in closed if not any(is_inside(path, o) for o in closed if o != path)]
    words += _bind("--bind", view.writable)
    words += [word for path in closed for word in ("--tmpfs", path)]
    for original, where in view.sides.mounts:
        words += ["--ro-bind", original, where]
    words += _bind("--bind", view.roots)
    words += _bind("--ro-bind", view.looked_at)
    for one in view.seen.mounted:
        option = "--ro-bind" if one.folder in view.looked_at else "--bind"
        words += [option, one.root, os.path.realpath(one.own)]
    for fd, (where, _) in zip(texts, view.sides.files, strict=True):
        words += ["--ro-bind-data", str(fd), where]
    covers = [os.path.realpath(one.own) for one in view.seen.mounted]
    # What a mounted sandbox covers has disappeared: it was never copied.
    emptied = [*folders, *closed]
    there = [path for path in emptied if not any(is_inside(path, own) for own in covers)]
    words += [word for path in there for word in ("--remount-ro", path)]
    return [*words, "--chdir", cwd]


def setting(env: Mapping[str, str]) -> list[str]:
    """Arguments that set the tool's environment; raises ValueError as starting it would."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError("illegal environment variable")
    return [word for name, value in env.items() for word in ("--setenv", name, value)]


def _bind(option: str, paths: Sequence[str]) -> list[str]:
    real = dict.fromkeys(os.path.realpath(path) for path in paths if os.path.exists(path))
    return [word for path in real for word in (option, path, path)]


def failure(output: str) -> tuple[bool, str] | None:
    """(whether the program could not be started, why) if bwrap itself failed."""
    pattern = r"bwrap: (?:execvp (?P<program>.*): )?(?P<reason>[^\n]*)\n?"
    match = re.fullmatch(pattern, output, re.DOTALL)
    return (match["program"] is not None, match["reason"]) if match else None
