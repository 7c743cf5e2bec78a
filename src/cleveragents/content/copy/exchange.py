"""The queues between the threads that copy and the caller's thread."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from cleveragents.content.files import Stamp

MOST_WAITING = 16 << 20
WORTH_WAKING = 1 << 20
"""Bytes, each file a thousand more, for which the thread with the books is woken."""
Known = tuple[Stamp, bytes]
"""The stamp of a copy, and the key of its content."""


class CopyResult(NamedTuple):
    """Files that a thread copied in one go, and the large ones it left."""

    sizes: list[int]
    known: dict[bytes, Known]
    content: dict[bytes, bytes]
    """What has to go into the store, by key."""
    large: list[bytes]
    weight: int


Folder = tuple[bytes, list[bytes] | None]
"""Path of a directory, and which directories in it to copy; None: everything."""


class Exchange:
    """Folders still to copy, and results of the others."""

    def __init__(self, first: Folder) -> None:
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._news = threading.Condition(lock)
        self._todo = [first]
        self._busy = 0
        self._idle = 0
        self._done: deque[CopyResult] = deque()
        self._weight = 0
        self._over = False
        self._error: BaseException | None = None

    def take(self) -> Folder | None:
        """The next folder to copy; None when all are done."""
        with self._work:
            self._idle += 1
            while not self._todo and self._busy and not self._over:
                self._work.wait()
            self._idle -= 1
            if self._over or not self._todo:
                return None
            self._busy += 1
            return self._todo.pop()

    def finished(self) -> None:
        with self._work:
            self._busy -= 1
            if not self._busy and not self._todo:
                self._work.notify_all()
                self._news.notify()

    def add(self, folder: Folder) -> None:
        with self._work:
            self._todo.append(folder)
            self._work.notify()

    @property
    def over(self) -> bool:
        return self._over

    @property
    def has_idle_thread(self) -> bool:
        """Whether a thread has nothing to do."""
        return bool(self._idle) and not self._todo

    def submit(self, result: CopyResult) -> None:
        """Queue a result; waits while too much is queued."""
        with self._work:
            while self._weight > MOST_WAITING and not self._over:
                self._work.wait()
            self._done.append(result)
            self._weight += result.weight
            if self._weight > WORTH_WAKING or result.large:
                self._news.notify()

    def results(self) -> Iterator[CopyResult]:
        """Results in order of arrival, until everything is copied."""
        while True:
            with self._work:
                while not self._done and not self._over and (self._todo or self._busy):
                    self._news.wait()
                if self._error is not None:
                    raise self._error
                if not self._done:
                    return
                found = list(self._done)
                self._done.clear()
                self._weight = 0
                self._work.notify_all()
            yield from found

    def stop(self, error: BaseException | None = None) -> None:
        with self._work:
            self._over = True
            self._error = self._error or error
            self._work.notify_all()
            self._news.notify()
