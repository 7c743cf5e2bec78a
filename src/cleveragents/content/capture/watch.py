"""The progress of a capture."""

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from cleveragents.content import fsio
from cleveragents.content.capture.statcache import Known
from cleveragents.content.native import walker

MOMENT = 0.5
PAUSE = 0.1


class Reading:
    """Counts content as it is read; the total is computed only if it takes long."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self.total: Callable[[], int] = lambda: 0
        self._tell = tell
        self._done = 0
        self._of: int | None = None
        self._next = time.monotonic() + MOMENT

    def __call__(self, size: int) -> None:
        self._done += size
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PAUSE
        if self._of is None:
            self._of = self.total()
        self._tell(self._done, max(self._done, self._of))


def size_at(root: str, dirty: Mapping[bytes, Iterable[bytes]]) -> int:
    """The size of touched names, by directory, with all below them."""
    found = 0
    for folder, names in dirty.items():
        for name in names:
            path = os.path.join(os.fsencode(root), folder, name.rstrip(b"/"))
            with suppress(OSError):
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):
                    found += about.st_size
                elif stat.S_ISDIR(about.st_mode) and name[-1:] != b"/":
                    with fsio.directory(os.fsdecode(path)) as fd:
                        walked = walker.walk(fd, (), ())
                    found += sum(_size(blob) for _, blob in walked if isinstance(blob, bytes))
    return found


def size_between(known: Known | None, stats: Mapping[bytes, bytes]) -> int:
    """The size of files with unknown stat data."""
    if known is None:
        return sum(_size(blob) for blob in stats.values())
    found = 0
    for path, blob in stats.items():
        old = known.stats.get(path, walker.NOTHING)
        if old != blob:
            before = walker.unpack(old)
            found += sum(
                status[1]
                for name, status in walker.unpack(blob).items()
                if stat.S_ISREG(status[4]) and before.get(name) != status
            )
    return found


def _size(blob: bytes) -> int:
    return walker.totals(blob)[1]
