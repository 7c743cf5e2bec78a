"""What a session leaves behind that was killed: sidecars and their sockets."""

import os
from contextlib import suppress
from pathlib import Path


def sidecars(home: Path) -> list[int]:
    """The processes that hold the lock of a socket in a store."""
    folder = home / "sidecars"
    locks = {lock.stat().st_ino for lock in folder.glob("*.lock")} if folder.is_dir() else set()
    found: list[int] = []
    for row in Path("/proc/locks").read_text().splitlines():
        fields = row.split()
        if fields[1] != "->" and int(fields[5].rpartition(":")[2]) in locks:
            found.append(int(fields[4]))
    return found


def left_over(home: Path) -> list[str]:
    """Sockets and locks of sidecars, and processes that work on the store."""
    folder = home / "sidecars"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return names + [f"process {pid}" for pid in _processes_of(home)]


def _processes_of(home: Path) -> list[int]:
    mark = f"CLEVERAGENTS_HOME={home}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                own = mark in (entry / "environ").read_bytes().split(b"\0")
                if own and b"hook" in words:
                    found.append(int(entry.name))
    return found
