"""Which pages one transaction changed, according to its rollback journal.

The commit itself still changes pages and then unlinks the journal, so the journal is opened before
and read after. It names every changed page except those behind the old end of the file and those
that were free; these are added. If anything is unexpected, the file is scanned instead.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

from cleveragents.content.files import stamp
from cleveragents.sandbox.sqlite import image
from cleveragents.sandbox.sqlite.image import Known, Touched

_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEADER = 28
_UNSYNCED = 0xFFFFFFFF
"""In place of the number of records: up to the end of the journal."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_FREE = 4096
"""Free pages that are still listed."""


class Unknown(Exception):
    """The changed pages cannot be determined."""


class Watch:
    """Around one script on a sandbox's file: reports the pages its only transaction changed."""

    def __init__(self, path: str, known: Known, tell: Callable[[Touched], None]) -> None:
        self._path = path
        self._known = known
        self._tell = tell
        self._fd = self._journal = -1
        self._pages: set[int] | None = None
        self._begun = self._page = self._count = self._counter = 0

    def __enter__(self) -> Self:
        # Opened before the script's connection and closed after: closing drops SQLite's locks.
        self._fd = os.open(self._path, _READ)
        return self

    def __exit__(self, *_error: object) -> None:
        for fd in (self._fd, self._journal):
            if fd >= 0:
                os.close(fd)

    def began(self) -> None:
        """Called with the write lock held and nothing written yet."""
        self._pages, self._begun = None, self._begun + 1
        head = os.pread(self._fd, 100, 0)
        size = int.from_bytes(head[16:18], "big")
        self._page = 1 << 16 if size == 1 else size
        self._counter, self._count = _number(head, 24), _number(head, 28)
        at_rest = image.is_at(self._path, self._known)
        if self._begun != 1 or not at_rest or head[18:19] != b"\x01":
            return
        if self._page < 512 or self._page * self._count != os.fstat(self._fd).st_size:
            return
        try:
            self._pages = set(self._free(_number(head, 32), _number(head, 36)))
        except Unknown:
            return

    def _free(self, trunk: int, count: int) -> Iterator[int]:
        if count > _MOST_FREE:
            raise Unknown
        while trunk:
            if count <= 0:
                raise Unknown
            page = os.pread(self._fd, self._page, (trunk - 1) * self._page)
            leaves = _number(page, 4)
            yield trunk
            yield from (_number(page, 8 + 4 * at) for at in range(min(leaves, self._page // 4 - 2)))
            trunk, count = _number(page, 0), count - 1 - leaves

    def committing(self) -> None:
        """Called just before the commit."""
        if self._pages is not None:
            with suppress(OSError):
                self._journal = os.open(f"{self._path}-journal", _READ)

    def committed(self) -> None:
        """Called after the commit; the change counter proves that there was no other."""
        if self._pages is None or stamp(os.fstat(self._fd)) == self._known.stamp:
            return
        try:
            pages = self._pages.union(self._journalled())
        except Unknown:
            return
        after = image.mark(self._fd)
        if after and _number(os.pread(self._fd, 28, 0), 24) == (self._counter + 1) % (1 << 32):
            ranges = (((page - 1) * self._page, page * self._page) for page in pages)
            self._tell(Touched(self._known.stamp, after, tuple(ranges)))

    def _journalled(self) -> Iterator[int]:
        if self._journal < 0 or os.fstat(self._journal).st_nlink:
            raise Unknown
        fd, size, at = self._journal, os.fstat(self._journal).st_size, 0
        while at < size:
            head = os.pread(fd, _HEADER, at)
            sector, page = _number(head, 20), _number(head, 24)
            if head[:8] != _JOURNAL_MAGIC or page != self._page or sector < _HEADER:
                raise Unknown
            count, at = _number(head, 8), at + sector
            if count == _UNSYNCED:
                count = (size - at) // (page + 8)
            for record in range(at, at + count * (page + 8), page + 8):
                number = int.from_bytes(os.pread(fd, 4, record), "big")
                if not 0 < number <= self._count:
                    raise Unknown
                yield number
            at = -(-(at + count * (page + 8)) // sector) * sector


def _number(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 4], "big")
