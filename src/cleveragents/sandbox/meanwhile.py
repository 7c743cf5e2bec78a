"""Something done in a thread of its own while the caller does something else."""

import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Meanwhile(Generic[T]):
    """Begins at once; `result` waits for it. The end of the block does too, whatever happened."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made.append(self._action())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error

    def result(self) -> T:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """An error of the block itself comes first."""
        self._thread.join()
        if error is None:
            self.result()
