"""Keeps the leases of this process alive.

A thread with its own connection, one for all stores of a process at one address: the working thread
may wait for a tool for hours. A stopped process sends nothing, and loses its leases.
"""

import os
import threading

from cleveragents.errors import AgentsError
from cleveragents.store.leases import Lease, LeaseRepository
from cleveragents.store.postgres import PostgresDatabase

_hearts: dict[str, "Heartbeat"] = {}
_guard = threading.Lock()


class Heartbeat:
    """Renews all leases of this lease's process, `every` so many seconds."""

    def __init__(self, url: str, lease: Lease, every: float) -> None:
        self.pid: int = os.getpid()
        self.users = 0
        self._url = url
        self._lease = lease
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        db: PostgresDatabase | None = None
        while not self._ended.wait(self._every):
            try:
                db = db or PostgresDatabase(self._url, lasts=False)
                with db.one_commit(lasts=False, alone=False):
                    LeaseRepository(db).renew(self._lease)
            except AgentsError:
                # The working thread notices in its own commit; here we only retry.
                continue
        if db is not None:
            db.close()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def begin(url: str, lease: Lease, every: float) -> None:
    """Start the heartbeat; it stops when `end` has been called as often."""
    with _guard:
        heart = _hearts.get(url)
        if heart is None or heart.pid != os.getpid():  # a thread does not follow a fork
            heart = _hearts[url] = Heartbeat(url, lease, every)
        heart.users += 1


def end(url: str) -> None:
    with _guard:
        heart = _hearts[url]
        heart.users -= 1
        if heart.users == 0:
            del _hearts[url]
            heart.end()
