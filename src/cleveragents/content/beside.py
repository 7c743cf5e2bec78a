"""Work that goes on in a thread of its own while its caller does something else."""

import threading
from collections.abc import Callable


class Beside:
    """Begins at once; `wait` returns when it is done, or raises what it raised."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._error = error

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
