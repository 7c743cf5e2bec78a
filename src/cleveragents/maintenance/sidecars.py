"""Sockets of sidecars that were killed: nobody listens there any more."""

import fcntl
import os
from contextlib import suppress


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
        for one in (name.removesuffix(".lock"), name):
            with suppress(FileNotFoundError):
                os.unlink(f"{folder}/{one}")
    finally:
        os.close(lock)
