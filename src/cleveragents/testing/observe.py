"""A walk that shares no code with what it judges, and comparisons that name what differs."""

import os
import stat
from pathlib import Path
from typing import cast

Seen = tuple[str, int, bytes]
"""Kind, permission bits, and content: a file's bytes, a link's text, a device's number."""


def look(root: Path, leave_out: tuple[bytes, ...] = ()) -> dict[bytes, Seen]:
    """Every path below, links not followed; `leave_out` are names at the top."""
    found: dict[bytes, Seen] = {}
    for path, about in _walk(os.fsencode(root), leave_out):
        found[path] = _seen(os.path.join(os.fsencode(root), path), about)
    return found


def _walk(root: bytes, leave_out: tuple[bytes, ...]) -> list[tuple[bytes, os.stat_result]]:
    found: list[tuple[bytes, os.stat_result]] = []
    waiting = [name for name in os.listdir(root) if name not in leave_out]
    while waiting:
        path = waiting.pop()
        about = os.lstat(os.path.join(root, path))
        found.append((path, about))
        if stat.S_ISDIR(about.st_mode):
            below = os.listdir(os.path.join(root, path))
            waiting += [os.path.join(path, name) for name in below]
    return sorted(found, key=lambda item: item[0])


def _seen(path: bytes, about: os.stat_result) -> Seen:
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISLNK(about.st_mode):
        return "link", 0, os.readlink(path)
    if stat.S_ISDIR(about.st_mode):
        return "directory", mode, b""
    if stat.S_ISREG(about.st_mode):
        with open(path, "rb") as content:
            return "file", mode, content.read()
    return f"special {stat.S_IFMT(about.st_mode):o}", mode, b"%d" % about.st_rdev


def require_same(found: object, wanted: object, when: str = "") -> None:
    """Equal, else an error that names what differs and not all the rest."""
    if found == wanted:
        return
    if isinstance(found, dict) and isinstance(wanted, dict):
        here = cast("dict[bytes, object]", found)
        there = cast("dict[bytes, object]", wanted)
        lines = [
            f"{path!r}: {_short(here.get(path))}, not {_short(there.get(path))}"
            for path in sorted(here.keys() | there.keys())
            if here.get(path) != there.get(path)
        ]
        raise AssertionError("\n".join([when or "differs", *lines]))
    raise AssertionError(f"{when} {_short(cast('object', found))}, not {_short(wanted)}")


def _short(value: object) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)} characters)"


def stamps(root: Path) -> dict[bytes, tuple[int, int]]:
    """Inode and mtime of everything that is not a directory."""
    return {
        path: (about.st_ino, about.st_mtime_ns)
        for path, about in _walk(os.fsencode(root), ())
        if not stat.S_ISDIR(about.st_mode)
    }
