"""Long output through the user's pager, while it is still being computed."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    import subprocess

DEFAULT = "less"
SHELLS = frozenset("|&;<>()$`\\\"'*?[#~=%")
"""Characters that mean something to a shell."""


def pager_of() -> str:
    """The pager's command; empty if there is none or none is wanted."""
    found = os.environ.get("PAGER", DEFAULT)
    dumb = os.environ.get("TERM") in ("dumb", "", None)
    return "" if dumb or found.strip() == "cat" else found.strip()


def _started(command: str) -> "subprocess.Popen[str] | None":
    """The pager; None where there is no such program."""
    import subprocess

    # A shell is started only if needed, as git does.
    shell = ["/bin/sh", "-c", command] if SHELLS.intersection(command) else command.split()
    try:
        return subprocess.Popen(
            shell,
            stdin=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            env={"LESS": "FRX", "LV": "-c", **os.environ},
        )
    except OSError:
        return None


@contextmanager
def paged(wanted: bool = True) -> Generator[TextIO]:
    """The stream to write to; writing stops when the user leaves the pager.

    `less` ends at once if everything fits on the screen, and shows colours, unless LESS says
    otherwise, as with git.
    """
    command = pager_of() if wanted and sys.stdout.isatty() else ""
    process = _started(command) if command else None
    if process is None:
        yield sys.stdout
        return
    assert process.stdin is not None
    # Ctrl-C is for the pager: it stops a search there.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):
            yield cast("TextIO", _Terminal(cast("TextIO", process.stdin)))
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


class _Terminal:
    """The pager's input, which counts as the terminal behind it."""

    def __init__(self, pipe: TextIO) -> None:
        self._pipe = pipe
        self.encoding = "utf-8"
        self.write = pipe.write
        self.flush = pipe.flush

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return sys.stdout.fileno()
