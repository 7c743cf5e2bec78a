"""Leftovers of killed sidecars: dead sockets and unrecorded events."""

import fcntl
import os
import time
from contextlib import suppress

FOLDER = "sidecars"
"""In the store: the sockets of sidecars, and a lock for each."""
RUN_FOLDER = "agents-run-"
"""How the folder of one `agents run` begins; its lock in the store holds its path and its plan."""
EVENT, PART = ".event", ".part"
"""How a file is called that a hook wrote because nobody answered it in time, and while it does."""
OLD = 3600.0
"""Seconds after which nobody is writing such a file any more."""


def sweep(folder: str) -> None:
    """Remove those whose lock is free; a living sidecar holds its lock."""
    for name in _names(folder):
        with suppress(OSError):
            if name.endswith(".lock"):
                _remove_if_free(folder, name)
            elif name.endswith(PART) and time.time() - os.stat(f"{folder}/{name}").st_mtime > OLD:
                os.unlink(f"{folder}/{name}")


def events_wait(folder: str) -> bool:
    """Whether hooks left events that are not recorded yet."""
    return _has_events(folder) or any(_has_events(private) for private, _ in runs(folder))


def runs(folder: str) -> list[tuple[str, str]]:
    """The folder and plan of every `agents run` that did not end cleanly."""
    found: list[tuple[str, str]] = []
    for name in _names(folder):
        if name.startswith(RUN_FOLDER):
            with suppress(OSError), open(f"{folder}/{name}", encoding="utf-8") as note:
                private, _, plan_id = note.read().partition("\n")
                if plan_id and _is_ours(private):
                    found.append((private, plan_id))
    return found


def _remove_if_free(folder: str, name: str) -> None:
    lock = os.open(f"{folder}/{name}", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if name.startswith(RUN_FOLDER):
            private = os.fsdecode(os.read(lock, 4096)).partition("\n")[0]
            if _has_events(private):
                return  # until they are noted
            if _is_ours(private):
                from shutil import rmtree  # rare, and it takes long to import

                rmtree(private, ignore_errors=True)
        for one in (name.removesuffix(".lock"), name):
            with suppress(FileNotFoundError):
                os.unlink(f"{folder}/{one}")
    finally:
        os.close(lock)


def _is_ours(folder: str) -> bool:
    """The name may be somebody else's by now; no link is followed."""
    named = os.path.basename(folder).startswith(RUN_FOLDER)
    return named and os.path.isdir(folder) and os.lstat(folder).st_uid == os.geteuid()


def _has_events(folder: str) -> bool:
    return any(name.endswith(EVENT) for name in _names(folder))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
