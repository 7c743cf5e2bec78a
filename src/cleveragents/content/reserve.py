"""Disk space held for getting out of a full disk: files that are removed when space is needed.

Without it a tool that fills the disk locks everybody out: SQLite cannot even open a file for
reading without room for its side files. Ordinary content never uses this space, held or released; a
rollback may. A disk can also run out of inodes, so empty files hold some for side files, packs and
staging.
"""

import os
from contextlib import suppress

from cleveragents import machine
from cleveragents.content import fsio

SIZE = 32 << 20
LOW = 8 << 20
"""Free bytes below which it is given back: a commit and what a command opens need room."""
MARGIN = 2 << 20
"""Free bytes that content never takes: the commit that names it comes after it."""
FILES = 64
FEW = 32
"""Files that can still be made below which the empty ones are given back."""


class Reserve:
    """The reserve of one store. Nothing depends on it, so failures are ignored."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._path = f"{home}/reserve"
        self._files = f"{home}/reserve.files"
        self._given = 0
        """Bytes that this process gave back, and has to take again when it is done with them."""
        self._gave_files = False

    @property
    def held(self) -> int:
        """Bytes the file holds now."""
        try:
            return os.stat(self._path, follow_symlinks=False).st_blocks * 512
        except OSError:
            return 0

    def room(self) -> int:
        """Bytes for ordinary content."""
        return machine.free_bytes(self._home) + self.held - SIZE

    def release_below(self, wanted: int) -> None:
        """Release the bytes if less than this is free, and the files if inodes are short."""
        with suppress(OSError):
            if machine.free_files(self._home) < FEW:
                for name in os.listdir(self._files):
                    self._gave_files = True
                    fsio.unlink_if_there(f"{self._files}/{name}")
        with suppress(OSError):
            if machine.free_bytes(self._home) < wanted and (held := self.held):
                self._set(0)
                self._given = held

    def refill(self) -> None:
        """Hold released space again, before a tool runs or the command ends."""
        if self._given:
            self._hold(self._given)
            self._given = 0
        if self._gave_files:
            self._hold_files()
            self._gave_files = False

    def renew(self) -> None:
        """Hold the full reserve, if there is plenty of room."""
        with suppress(OSError):
            if self.held < SIZE and machine.free_bytes(self._home) > SIZE + 2 * LOW:
                self._hold(SIZE)
        with suppress(OSError):
            last = f"{self._files}/{FILES - 1}"
            if not os.path.exists(last) and machine.free_files(self._home) > FILES + 2 * FEW:
                self._hold_files()

    def _hold_files(self) -> None:
        """Make as many of the files as possible."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            fsio.make_private_dir(self._files)
            for number in range(FILES):
                os.close(os.open(f"{self._files}/{number}", flags, 0o600))

    def _hold(self, size: int) -> None:
        with suppress(OSError):
            self._set(min(size, machine.free_bytes(self._home) + self.held))

    def _set(self, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
            else:
                os.ftruncate(fd, 0)
                os.fsync(fd)  # freed blocks are usable once the journal is written
        finally:
            os.close(fd)
