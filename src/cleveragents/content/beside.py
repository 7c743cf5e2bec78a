"""Work that goes on in a thread of its own while its caller does something else."""

import os
import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class _Worker:
    """A thread that waits for the next thing to do."""

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._called = threading.Lock()
        self._called.acquire()
        threading.Thread(target=self._go_on, daemon=True).start()

    def call(self, work: Callable[[], None]) -> None:
        self._work = work
        self._called.release()

    def _go_on(self) -> None:
        while True:
            self._called.acquire()
            work, self._work = self._work, None
            assert work is not None
            work()
            del work


_idle: list[_Worker] = []
"""They are kept: to make a thread and see it begin takes longer than most of the work does."""
os.register_at_fork(after_in_child=_idle.clear)


class Beside(Generic[T]):
    """Begins at once; `wait` gives what it made, or raises what it raised.

    As a block: the end of it waits too, whatever happened.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._going_on = threading.Lock()
        self._going_on.acquire()
        try:
            self._worker = _idle.pop()
        except IndexError:
            self._worker = _Worker()
        self._worker.call(self._run)

    def _run(self) -> None:
        try:
            self._made.append(self._work())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._error = error
        _idle.append(self._worker)
        self._going_on.release()

    def wait(self) -> T:
        self._join()
        if self._error is not None:
            raise self._error
        return self._made[0]

    def _join(self) -> None:
        with self._going_on:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """An error of the block itself comes first."""
        self._join()
        if error is None:
            self.wait()
