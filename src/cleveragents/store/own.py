"""This machine's own part of a shared store: locations of its content, clocks.

It stays in the home's SQLite database. A commit of both writes here first, so that rows which need
content come after the rows that locate it. These need not be on disk by then, as the content itself
is: after a power cut the packs are read again after their known ends.
"""

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from cleveragents.content import fsio
from cleveragents.store.database import SqliteDatabase

NAMES = frozenset({"id", "home", "url", "gc_clock", "retention_clock", "boot"})
"""Facts that are this machine's own."""


class OwnPart:
    """The part of a transaction in the home's database, begun on the first write there."""

    def __init__(self, db: SqliteDatabase, make_room: Callable[[], None]) -> None:
        self._db = db
        self._make_room = make_room
        self._lock = f"{os.path.dirname(db.path)}/content.lock"
        self._held: int | None = None
        self._must_last = fsio.boot_id() == fsio.UNKNOWN_BOOT
        """Nobody would notice that the machine was restarted."""

    def begin(self) -> None:
        """Begin; until the commit no content is collected that this transaction may reuse."""
        if self._held is None:
            self._held = self._locked(fcntl.LOCK_SH)
            if not self._must_last:
                self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("BEGIN IMMEDIATE")

    @contextmanager
    def lock(self) -> Generator[None]:
        """Around the whole transaction: keeps garbage collection out until both parts are done."""
        try:
            yield
        finally:
            if self._held is not None:
                self._db.execute("PRAGMA synchronous=FULL")
                os.close(self._held)
                self._held = None

    @contextmanager
    def commit(self) -> Generator[None]:
        """Commit this part, just before the other one."""
        try:
            yield
            if self._held is not None:
                self._db.commit_now(self._make_room)
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def collecting(self, exclusive: bool) -> Generator[None]:
        """A commit of this part alone; `exclusive`: no checkpoint is made meanwhile."""
        self._held = self._locked(fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        with self.lock(), self._db.one_commit(make_room=self._make_room):
            yield

    def _locked(self, how: int) -> int:
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, how)
        except BaseException:
            os.close(fd)
            raise
        return fd
