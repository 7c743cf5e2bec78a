"""The kind of a resource of which the user gave only a path."""

import os

from cleveragents.errors import SandboxError
from cleveragents.model.resource import Kind
from cleveragents.sandbox.git import command


def kind_at(path: str) -> str:
    """The kind at a path; a file counts as SQLite, and preflight checks that it is."""
    if os.path.isfile(path):
        return Kind.SQLITE.value
    is_git = os.path.exists(os.path.join(path, ".git"))
    return (Kind.GIT_CHECKOUT if is_git else Kind.FS_DIRECTORY).value


def around(where: str) -> tuple[str, str]:
    """The repository around a directory, or the directory itself, and its kind."""
    try:
        shown = command.run("-c", "safe.directory=*", "rev-parse", "--show-toplevel", cwd=where)
    except SandboxError:
        return where, Kind.FS_DIRECTORY.value
    return os.path.realpath(os.fsdecode(shown).rstrip("\n")), Kind.GIT_CHECKOUT.value


def databases_in(top: str) -> list[str]:
    """SQLite files in the upper folders of a tree, sorted; never follows a link."""
    found: list[str] = []
    looked_at = 0
    for folder, names, files in os.walk(top):
        depth = folder.removeprefix(top).count(os.sep)
        names[:] = sorted(n for n in names if n[0] != "." and n not in _OTHERS and depth < DEEPEST)
        looked_at += len(files)
        paths = [os.path.join(folder, name) for name in files if name.endswith(SUFFIXES)]
        found += [path for path in paths if not os.path.islink(path) and _is_sqlite(path)]
        if looked_at > MOST_FILES or len(found) >= MOST_DATABASES:
            break
    return sorted(found)[:MOST_DATABASES]


def _is_sqlite(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


SUFFIXES = (".db", ".db3", ".sqlite", ".sqlite3")
DEEPEST, MOST_FILES, MOST_DATABASES = 4, 50_000, 8
_OTHERS = {"node_modules", "venv", "__pycache__", "site-packages", "target", "dist", "build"}
"""Folders whose databases belong to some program."""
