"""Finds the writes that confinement denied in a tool's output."""

import os
import re
from collections.abc import Iterable, Sequence

from cleveragents.tools.confinement.mounts import Seen, is_inside

# bubblewrap mounts read-only, Landlock denies permission: the texts differ.
PHRASES = {
    "bwrap": re.compile(r"read-only file system|\bEROFS\b", re.IGNORECASE),
    "landlock": re.compile(r"permission denied|\bEACCES\b|AccessDenied", re.IGNORECASE),
}
_QUOTED = re.compile("['\"`\u2018\u201c]([^'\"`\u2019\u201d]+)['\"`\u2019\u201d]")
_BARE = re.compile(r"(?<![\w./~-])(?:\.\.?)?/[^\s:'\"`()\[\]<>,;]+")
MOST = 3
CANNOT_EXECUTE = 126


def denied_writes(
    output: str,
    *,
    mechanism: str,
    exit_code: int,
    cwd: str,
    seen: Seen,
    writable: Sequence[str],
    hidden: Sequence[str],
) -> list[str]:
    """A sentence for each denied write, with the setting to add."""
    phrase = PHRASES.get(mechanism)
    if phrase is None or exit_code == CANNOT_EXECUTE:
        return []
    open_ = [*writable, *(one.own for one in seen.mounted), "/dev", "/proc"]
    found: dict[str, None] = {}
    for line in output.splitlines():
        if match := phrase.search(line):
            for path in _paths(line, match):
                path = os.path.normpath(os.path.join(cwd, path))
                if not _in_any(path, open_) and _could_write(path):
                    found[path] = None
    return [_sentence(path, seen, hidden) for path in list(found)[:MOST]]


def _paths(line: str, match: re.Match[str]) -> list[str]:
    """Paths after the phrase, as Python and node print them, else the last one before it."""
    after = _candidates(line[match.end() :])
    return after or _candidates(line[: match.start()])[-1:]


def _candidates(text: str) -> list[str]:
    quoted = [match[1] for match in _QUOTED.finditer(text) if "/" in match[1]]
    return quoted or [match[0] for match in _BARE.finditer(text)]


def _could_write(path: str) -> bool:
    """Whether we, unconfined, could write; if not, it is an ordinary permission problem."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.access(path, os.W_OK)


def _sentence(path: str, seen: Seen, hidden: Sequence[str]) -> str:
    said = f"writing {path} was denied: "
    if _in_any(path, hidden):
        return f"{said}the store is closed to tools"
    if original := seen.original_of(path):
        return f"{said}it is the original of {original.name!r}, whose sandbox is {original.path}"
    folder, missing = _to_add(path)
    return (
        said
        + (f"mkdir -p {folder}, then " if missing else "")
        + (f'add "{folder}" to sandbox.writable')
    )


def _to_add(path: str) -> tuple[str, bool]:
    """The folder to list, and whether it has to be made; never the whole home directory."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        while not os.path.isdir(os.path.dirname(folder)):
            folder = os.path.dirname(folder)
        return folder, True
    if folder in ("/", os.path.expanduser("~")):
        return path, not os.path.lexists(path)
    return folder, False


def _in_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_inside(path, folder) for folder in folders)
