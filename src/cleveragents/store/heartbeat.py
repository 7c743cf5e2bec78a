"""Says again and again that this process is alive, so that others leave its plans alone.

A thread with a connection of its own, one for all stores of a process at one address: the thread
that works may wait for a tool for hours. A process that is stopped says nothing, and loses.
"""

import os
import threading

from cleveragents.errors import AgentsError
from cleveragents.store.leases import Lease, LeaseRepository
from cleveragents.store.postgres import PostgresDatabase

_hearts: dict[str, "Heartbeat"] = {}
_guard = threading.Lock()


class Heartbeat:
    """Renews everything that the process of this lease holds, `every` so many seconds."""

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
                # Whoever works will be told by its own commit; here it is only tried again.
                continue
        if db is not None:
            db.close()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def begin(url: str, lease: Lease, every: float) -> None:
    """Be heard of from now on, until `end` was called as often."""
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
