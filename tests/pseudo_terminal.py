"""The command in a terminal of its own, and what that terminal shows."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from typing import Self

from tests.harness import PATIENCE, Agents, command

_ORDER = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>]|[\r\n\b]|[^\x1b\r\n\b]+")


class Screen:
    """What is on the screen and above it, as a terminal of endless height would have it."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for order in _ORDER.finditer(text):
            word = order[0]
            if word == "\r":
                self._column = 0
            elif word == "\n":
                self._row += 1
                self._rows += [[] for _ in range(self._row + 1 - len(self._rows))]
            elif word == "\b":
                self._column = max(0, self._column - 1)
            elif word[0] == "\x1b":
                self._obey(order[1] or "", order[2] or "")
            else:
                self._write(word)

    def _write(self, text: str) -> None:
        row = self._rows[self._row]
        row += [" "] * (self._column - len(row))
        row[self._column : self._column + len(text)] = text
        self._column += len(text)

    def _obey(self, given: str, order: str) -> None:
        count = int(given) if given.isdigit() else 1
        if order == "A":
            self._row = max(0, self._row - count)
        elif order == "G":
            self._column = count - 1
        elif order == "K" and given == "2":
            self._rows[self._row] = []
        elif order == "K":
            del self._rows[self._row][self._column :]
        elif order == "J":
            del self._rows[self._row][self._column :]
            del self._rows[self._row + 1 :]

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip() + "\n"


class PseudoTerminal:
    """A running command; `shown` is what one sees now."""

    def __init__(self, agents: Agents, *argv: str, columns: int = 80, **env: str) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
        whole = agents.env | {"TERM": "xterm-256color", "LANG": "C.UTF-8", **env}
        self.process = subprocess.Popen(
            [command(), *argv],
            cwd=agents.work,
            env=whole,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509
        )
        os.close(slave)
        self.screen = Screen()
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def read_until(self, seen: Callable[[str], object]) -> str:
        while not seen(self.screen.text):
            assert self._read(), f"it ended before that was seen:\n{self.screen.text}"
        return self.screen.text

    def ended(self) -> int:
        """Its exit code, after all that it shows was read."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        assert select.select([self._master], [], [], PATIENCE)[0], "nothing more is shown"
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # how Linux says that nobody has the other end any more
            return False
        text = data.decode("utf-8", "replace")
        self.raw += text
        self.screen.feed(text)
        return bool(data)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def shown(agents: Agents, *argv: str, columns: int, **env: str) -> str:
    """All that a command shows in a terminal."""
    with PseudoTerminal(agents, *argv, columns=columns, **env) as terminal:
        terminal.ended()
        return terminal.screen.text
