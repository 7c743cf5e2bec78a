"""Work that runs in a background thread while its caller does something else."""

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Starts at once; `wait` returns the result or raises the error.

    As a `with` block it also waits at the end, whatever happened.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._going_on = threading.Lock()
        self._going_on.acquire()
        # `threading` would wait until it sees the thread begin: longer than most of the work takes.
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # there can be no more threads: it is done here and now
            self._run()

    def _run(self) -> None:
        sys.settrace(threading.gettrace())  # as `threading` does
        try:
            self._made.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`
            self._error = error
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
