"""What of a shared store belongs to this machine alone: where its content lies, its clocks.

It stays in the SQLite database of the home. A commit of both writes here first: the rows that need
content come after the rows that say where it lies. Those need not be on the disk by then, as the
content itself is: after a power cut the packs are read again behind what is known of them.
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
    """The part of a transaction that happens in the home; begun when something is written there."""

    def __init__(self, db: SqliteDatabase, make_room: Callable[[], None]) -> None:
        self._db = db
        self._make_room = make_room
        self._lock = f"{os.path.dirname(db.path)}/content.lock"
        self._held: int | None = None
        self._must_last = fsio.boot_id() == fsio.UNKNOWN_BOOT
        """Nobody would notice that the machine was restarted."""

    def begin(self) -> None:
        """From here to the commit nothing is collected that this transaction may want again."""
        if self._held is None:
            self._held = self._locked(fcntl.LOCK_SH)
            if not self._must_last:
                self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("BEGIN IMMEDIATE")

    @contextmanager
    def lock(self) -> Generator[None]:
        """Around the whole: what was begun keeps collections out until the other part is done."""
        try:
            yield
        finally:
            if self._held is not None:
                self._db.execute("PRAGMA synchronous=FULL")
                os.close(self._held)
                self._held = None

    @contextmanager
    def commit(self) -> Generator[None]:
        """Inside the other part's transaction: this one is committed just before it."""
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
        """A commit of this part alone; `exclusive`: no checkpoint is being made meanwhile."""
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
