"""Virtual environments in a copy that still name the original's path.

Run from the copy they use the original: an editable install imports the user's code, and a plan's
tests pass for the wrong reason.
"""

import os
from collections.abc import Callable, Generator

DEPTH = 3
MOST_FOLDERS = 2000
LONGEST = 1 << 16
_NOT_INTO = {".git", "node_modules", "__pycache__"}


def naming_files(top: str, original: str, excluded: Callable[[str], bool]) -> list[str]:
    """For each environment below `top`, the first file in it that names `original`."""
    name = os.fsencode(original)
    found = (_first_naming(folder, name) for folder in _environments(top, excluded))
    return [os.path.relpath(path, top) for path in found if path]


def _environments(top: str, excluded: Callable[[str], bool]) -> Generator[str]:
    level = [top]
    seen = 0
    for _ in range(DEPTH + 1):
        below: list[str] = []
        for folder in level:
            seen += 1
            if seen > MOST_FOLDERS:
                return
            if os.path.isfile(f"{folder}/pyvenv.cfg"):
                yield folder
            else:
                below += _folders(folder, top, excluded)
        level = below


def _folders(folder: str, top: str, excluded: Callable[[str], bool]) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.path
                for entry in entries
                if entry.name not in _NOT_INTO and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    return sorted(path for path in names if not excluded(os.path.relpath(path, top)))


def _first_naming(folder: str, name: bytes) -> str | None:
    """The first file naming the original; imported files first, as they do the most harm."""
    for path in _imported(folder):
        if name in _head(path):
            return path
    for path in _listed(f"{folder}/bin"):
        first = _head(path).partition(b"\n")[0]
        if first.startswith(b"#!") and name in first:
            return path
    config = f"{folder}/pyvenv.cfg"
    return config if name in _head(config) else None


def _imported(folder: str) -> list[str]:
    """Path files, and the finders that editable installs put beside them."""
    versions = [path for path in _listed(f"{folder}/lib") if "python" in os.path.basename(path)]
    files = [path for version in versions for path in _listed(f"{version}/site-packages")]
    return [
        path
        for path in files
        if path.endswith((".pth", ".egg-link")) or os.path.basename(path).startswith("__editable__")
    ]


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _head(path: str) -> bytes:
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(LONGEST)
    except OSError:
        return b""
