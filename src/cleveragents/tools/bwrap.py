"""bubblewrap: a view of the file system of the tool's own, read-only but for what is named.

The sandbox appears at the resource's own path, the store not at all, and the tool's processes have
a namespace of their own, which ends with the first of them.
"""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

import msgspec

from cleveragents.tools.standin import Seen, is_inside

PATIENCE = 10.0
# What root keeps: enough to own and install files, not to mount, trace or reach devices.
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
)  # fmt: skip


ALTERNATES = ".git/objects/info/alternates"


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
    """Whether it can take the network away as well; asked only for a tool that wants that."""
    found = probe()
    return found.works and not _try(found.path, "--unshare-net")


def _try(path: str, *more: str) -> str:
    """Why it cannot be used; empty: it can."""
    argv = [path, *_base(), *more, "--", "/bin/sh", "-c", ":"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
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
    base += ["--unshare-pid", "--die-with-parent", "--new-session"]
    if os.geteuid() == 0:
        base += ["--cap-drop", "ALL"]
        base += [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    return base


class Sides(msgspec.Struct, frozen=True):
    """Originals that a mounted sandbox covers and the tool has to read all the same."""

    mounts: tuple[tuple[str, str], ...]
    """(original, where it appears)."""
    files: tuple[tuple[str, str], ...]
    """(where, text) of files that are replaced to point there."""
    plan_dir: str


def beside(seen: Seen, plan_dir: str, place: str) -> Sides:
    """The plan file's folder, and the objects that a sandbox's git borrows from the user's.

    `place` is a hidden directory in which mount points can be made.
    """
    mounts: list[tuple[str, str]] = []
    files: list[tuple[str, str]] = []
    covered = [one.own for one in (*seen.mounted, *seen.linked)]
    if os.path.isdir(plan_dir) and any(is_inside(plan_dir, own) for own in covered):
        mounts.append((plan_dir, f"{place}/.beside/plan"))
        plan_dir = mounts[-1][1]
    for one in (*seen.mounted, *seen.linked):
        for name in (ALTERNATES, *_of_submodules(one.root)):
            lines = _alternates(one.root, name)
            moved: list[str] = []
            for line in lines:
                if os.path.basename(line) == "objects" and any(is_inside(line, o) for o in covered):
                    mounts.append((line, f"{place}/.beside/objects-{len(mounts)}"))
                    line = mounts[-1][1]
                moved.append(line)
            if moved != lines:
                tops = [one.root, one.own] if one in seen.mounted else [one.root]
                text = "\n".join(moved) + "\n"
                files += [(f"{os.path.realpath(top)}/{name}", text) for top in tops]
    return Sides(tuple(mounts), tuple(files), plan_dir)


def _of_submodules(root: str) -> list[str]:
    """The same files in the git directories of submodules; a tool may have put anything there."""
    found: list[str] = []
    if os.path.islink(f"{root}/.git"):
        return found
    for folder, names, _ in os.walk(f"{root}/.git/modules"):
        if "objects" in names:
            found.append(os.path.relpath(f"{folder}/objects/info/alternates", root))
        names[:] = [name for name in names if name not in ("objects", "refs", "logs", "info")]
    return sorted(found)


def _alternates(root: str, listing: str) -> list[str]:
    """Object directories that a git directory in the sandbox borrows from, if they are there."""
    path = root
    for name in listing.split("/"):
        path = f"{path}/{name}"
        if os.path.islink(path):
            return []
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line for line in file.read().splitlines() if os.path.isdir(line)]


def arguments(
    seen: Seen,
    *,
    hidden: Sequence[str],
    writable: Sequence[str],
    roots: Sequence[str],
    sides: Sides,
    texts: Sequence[int],
    network: bool,
    cwd: str,
) -> list[str]:
    """bwrap's words up to the command. A later mount covers an earlier one.

    `writable` may lie anywhere and is covered by the store and the sandboxes; `roots` may lie in
    the store; `texts` are descriptors with the texts of `sides.files`.
    """
    words = _base()
    words += [] if network else ["--unshare-net"]
    closed = [os.path.realpath(path) for path in hidden if os.path.isdir(path)]
    closed = [path for path in closed if not any(is_inside(path, o) for o in closed if o != path)]
    words += _bind("--bind", writable)
    words += [word for path in closed for word in ("--tmpfs", path)]
    for original, where in sides.mounts:
        words += ["--ro-bind", original, where]
    words += _bind("--bind", roots)
    for one in seen.mounted:
        words += ["--bind", one.root, os.path.realpath(one.own)]
    for fd, (where, _) in zip(texts, sides.files, strict=True):
        words += ["--ro-bind-data", str(fd), where]
    covers = [os.path.realpath(one.own) for one in seen.mounted]
    # What a mounted sandbox covers is not there any more: it was never copied.
    there = [path for path in closed if not any(is_inside(path, own) for own in covers)]
    words += [word for path in there for word in ("--remount-ro", path)]
    return [*words, "--chdir", cwd, "--"]


def _bind(option: str, paths: Sequence[str]) -> list[str]:
    real = dict.fromkeys(os.path.realpath(path) for path in paths if os.path.exists(path))
    return [word for path in real for word in (option, path, path)]


def failure(output: str) -> tuple[bool, str] | None:
    """(whether the program could not be started, why) when bwrap itself gave up."""
    pattern = r"bwrap: (?:execvp (?P<program>.*): )?(?P<reason>[^\n]*)\n?"
    match = re.fullmatch(pattern, output, re.DOTALL)
    return (match["program"] is not None, match["reason"]) if match else None
