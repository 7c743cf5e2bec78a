"""Copy a tree unchanged: bytes, modes, mtimes, links as text; by reflink where possible.

Two threads copy and hash, a directory at a time, small files in compiled code. The caller's thread
reports progress, puts content into packs, and copies large files in pieces.
"""

import os
import stat
import threading

from cleveragents.content import attributes, descent, fsio
from cleveragents.content.copy.each_file import FileCopier
from cleveragents.content.copy.exchange import CopyResult, Exchange
from cleveragents.content.copy.walk import Walk, opened
from cleveragents.content.files import (
    CHUNK,
)

THREADS = 2
AT_ONCE = 2 << 20
"""Bytes that a thread reads before it looks at them."""


class Copier(FileCopier):
    """Copies what belongs to a resource into a new directory."""

    def copy(self, source: str, target: str) -> None:
        with fsio.directory(source) as here, fsio.directory(target) as there:
            self.lacks(b".", attributes.set_on_copy(there, attributes.of(here)))
            exchange = Exchange((b"", None))
            threads = [
                threading.Thread(target=self._work, args=(here, there, exchange), daemon=True)
                for _ in range(THREADS)
            ]
            try:
                for thread in threads:
                    thread.start()
                for result in exchange.results():
                    self._note(here, there, result)
            finally:
                exchange.stop()
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
            self._set_final_modes(there)
            os.fchmod(there, stat.S_IMODE(os.fstat(here).st_mode))

    def _note(self, here: int, there: int, result: CopyResult) -> None:
        fsio.point("copied")
        for key, data in result.content.items():
            assert self._batch is not None
            self._batch.put_keyed(key, data)
        self.known.update(result.known)
        for size in result.sizes:
            self._progress(size)
        for path in result.large:
            self.copy_large(here, there, path)

    def _set_final_modes(self, there: int) -> None:
        """Deepest first: a directory that is closed hides what is below it."""
        for path, mode in sorted(self._closed, key=lambda item: -item[0].count(b"/")):
            fd = descent.open_below(there, path)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def _work(self, here: int, there: int, exchange: Exchange) -> None:
        try:
            buffer = memoryview(bytearray(AT_ONCE + CHUNK))
            while (folder := exchange.take()) is not None:
                try:
                    at = opened(here, there, folder[0])
                except FileNotFoundError:
                    at = None  # removed since it was queued
                if at is not None:
                    Walk(self, exchange, buffer, at, *folder).go()
                exchange.finished()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            exchange.stop(error)
