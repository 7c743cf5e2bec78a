"""Sockets of sidecars that were killed: nobody listens there any more."""

import fcntl
import os
import shutil
from contextlib import suppress

FOLDER = "sidecars"
"""In the store: the sockets of sidecars, and a lock for each."""
RUN_FOLDER = "agents-run-"
"""How the folder of one `agents run` begins; its lock in the store holds its path."""


def sweep(folder: str) -> None:
    """Remove those whose lock nobody has; a sidecar that lives keeps its own."""
    try:
        locks = [name for name in os.listdir(folder) if name.endswith(".lock")]
    except OSError:
        return
    for name in locks:
        with suppress(OSError):
            _remove_if_free(folder, name)


def _remove_if_free(folder: str, name: str) -> None:
    lock = os.open(f"{folder}/{name}", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if name.startswith(RUN_FOLDER):
            _remove_run(os.fsdecode(os.read(lock, 4096)))
        for one in (name.removesuffix(".lock"), name):
            with suppress(FileNotFoundError):
                os.unlink(f"{folder}/{one}")
    finally:
        os.close(lock)


def _remove_run(folder: str) -> None:
    """The name may be somebody else's by now: only what is ours goes, and no link is followed."""
    if os.path.basename(folder).startswith(RUN_FOLDER) and os.lstat(folder).st_uid == os.geteuid():
        shutil.rmtree(folder, ignore_errors=True)
