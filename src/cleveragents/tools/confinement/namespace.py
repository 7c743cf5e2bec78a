"""The process namespace that bwrap makes for a tool; it ends with its first process.

bwrap writes that process's id to a descriptor as soon as it exists; then we hold a pidfd.
"""

import os
import re
import select
import signal
from contextlib import suppress

from cleveragents.tools.leftovers import PATIENCE, pidfd


class Namespace:
    """Made before bwrap is started, with the arguments that bwrap needs for it."""

    def __init__(self) -> None:
        self.reader: int
        self.writer: int
        self.reader, self.writer = os.pipe()
        self._pid: int | None = None
        self._fd: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return ("--info-fd", str(self.writer))

    def __enter__(self) -> "Namespace":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self.reader, self.writer, self._fd):
            if fd is not None:
                os.close(fd)

    def learn(self) -> None:
        """Read the process id, which bwrap writes as one piece of JSON."""
        found = re.search(rb'"child-pid":\s*(\d+)', os.read(self.reader, 4096))
        if found:
            self._pid = int(found[1])
            self._fd = pidfd(self._pid)

    def signal(self, number: signal.Signals) -> bool:
        """Signal the tool's process group; False if it cannot be reached."""
        if self._fd is None or self._pid is None:
            return False
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def end(self) -> None:
        """Kill the first process, and with it all others, and wait until they are gone."""
        if self._fd is None:
            return
        with suppress(OSError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        select.select([self._fd], [], [], PATIENCE)
