"""Scratch repositories and databases, seen by a walk that shares no code with the program."""

import os
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.databases import store_of
from tests.harness import Agents

Seen = tuple[str, int, bytes]
"""Kind (file, link, dir), permission bits, content or the link's text."""
Snapshot = dict[bytes, Seen]


def git(agents: Agents, folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ["git", *argv], cwd=folder, env=agents.env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_repository(agents: Agents, folder: Path) -> None:
    """Commit whatever lies in the folder; an existing repository is not needed."""
    folder.mkdir(parents=True, exist_ok=True)
    git(agents, folder, "init", "-q", "-b", "main")
    git(agents, folder, "add", "-A")
    git(agents, folder, "commit", "-q", "--allow-empty", "-m", "start")


def query(database: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run SQL and commit; the rows it gave."""
    with closing(sqlite3.connect(database)) as db, db:
        return db.execute(sql, parameters).fetchall()


def snapshot(root: Path) -> Snapshot:
    """Every path below, as raw bytes; a directory counts itself, so empty ones are seen too."""
    found: Snapshot = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = _seen(path)
    return found


def _seen(path: bytes) -> Seen:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return "link", 0, os.readlink(path)
    if stat.S_ISDIR(mode):
        return "dir", stat.S_IMODE(mode), b""
    with open(path, "rb") as content:
        return "file", stat.S_IMODE(mode), content.read()


def without(tree: Snapshot, top: bytes) -> Snapshot:
    """The tree but for one name at its root and all below that."""
    return {path: seen for path, seen in tree.items() if path.split(b"/")[0] != top}


def reverted(before: Snapshot, after: Snapshot) -> dict[bytes, str]:
    """Path -> what a rollback from `before` to `after` did to it, in the program's words."""
    actions = dict.fromkeys(before.keys() - after.keys(), "removed")
    actions |= dict.fromkeys(after.keys() - before.keys(), "recreated")
    both = before.keys() & after.keys()
    return actions | {path: "restored" for path in both if before[path] != after[path]}


def wait_until(happened: Callable[[], object], what: str, seconds: float = 600) -> None:
    start, end = time.monotonic(), time.monotonic() + seconds
    while not happened():
        now = time.monotonic()
        assert now < end, f"waited {seconds} s for {what}"
        time.sleep(min(0.01 + (now - start) / 10, 0.2))  # who is slow has other things to do


def running_step(agents: Agents) -> str | None:
    """The id of the step that a tool is at work on, read from the store's own table."""
    store = store_of(agents.env)
    if not store.url and not Path(store.home, "store.db").exists():
        return None
    try:
        rows = store.query("SELECT step_id FROM tool_calls WHERE state = 'running'")
    except sqlite3.OperationalError:  # the tables are being made
        return None
    return rows[0][0] if rows else None


def is_gone(pid: int) -> bool:
    """No process any more, or only its entry waits to be reaped by whoever is responsible."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def sleeps(pid: int) -> bool:
    """Whether it waits, as for an answer; a signal between question and waiting is forgotten."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
