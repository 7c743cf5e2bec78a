"""Runs a command with our own terminal, input and output, like `env`.

Output passes through us, because it is also recorded. If it goes to a terminal, the command gets a
pseudo-terminal of its own, and keys are passed on to that.
"""

import errno
import fcntl
import os
import select
import selectors
import signal
import struct
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from cleveragents.errors import ToolFailed
from cleveragents.tools import ctty
from cleveragents.tools.confinement.bwrap import failure
from cleveragents.tools.limits import Capture

IN, OUT, ERR = 0, 1, 2
BLOCK = 1 << 16
LARGEST_PIPE = 1 << 20
OF_BWRAP = b"bwrap: "


def wants_terminal() -> bool:
    return os.isatty(OUT) or os.isatty(ERR)


def with_terminal(argv: Sequence[str]) -> list[str]:
    """The command for a namespace, inside which it has to take its terminal itself."""
    return [sys.executable, "-I", "-S", ctty.__file__, *argv]


class Attached:
    """Our own streams, lent to one process while it runs."""

    def __init__(self, out: Capture, shown: bool, namespace: bool) -> None:
        self._kept = out
        self._shown = shown
        """Whether output is passed on; otherwise it is only kept."""
        self._namespace = namespace
        self._lent: list[int] = []
        """Ends that the process holds, and we only until it is started."""
        self._routes: dict[int, int] = {}
        """Where we read what it writes -> where that goes."""
        self._master: int | None = None
        self._slave: int | None = None
        self._before: list[Any] | None = None
        self._typed = b""
        self._held: tuple[int, bytes] | None = (ERR, b"") if namespace else None
        self._window: Any = None
        self.stdin: int = -1
        self.stdout: int = -1
        self.stderr: int = -1

    def __enter__(self) -> "Attached":
        foreground = _in_foreground()
        keyboard = self._shown and foreground and os.isatty(OUT)
        if self._shown and wants_terminal():
            self._make_terminal(keyboard)
        self.stdin = self._lend_input(foreground, keyboard)
        self.stdout = self._lend(OUT)
        # One pipe for both streams if both go to one place, to keep their order.
        together = not self._shown or (not os.isatty(ERR) and _same_file(OUT, ERR))
        self.stderr = self.stdout if together else self._lend(ERR)
        if keyboard:
            self._take_keyboard()
        return self

    def _make_terminal(self, keyboard: bool) -> None:
        own = OUT if os.isatty(OUT) else ERR
        self._master, self._slave = os.openpty()
        self._lent.append(self._slave)
        self._routes[self._master] = own
        with suppress(termios.error):
            attributes = termios.tcgetattr(own)
            if not keyboard:
                # Our terminal is not in raw mode then and ends lines itself.
                attributes[1] &= ~termios.OPOST
            termios.tcsetattr(self._slave, termios.TCSANOW, attributes)
        self._resize()
        with suppress(ValueError):  # not in the main thread: the size stays as it is
            self._window = signal.signal(signal.SIGWINCH, self._resize)

    def _resize(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        assert self._master is not None
        with suppress(OSError):
            size = fcntl.ioctl(self._routes[self._master], termios.TIOCGWINSZ, bytes(8))
            if any(struct.unpack("4H", size)[:2]):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _lend_input(self, foreground: bool, keyboard: bool) -> int:
        if not os.isatty(IN) or (foreground and not keyboard):
            return IN
        if keyboard and self._slave is not None:
            return self._slave
        # In the background there is no keyboard input for us.
        self._lent.append(os.open(os.devnull, os.O_RDONLY))
        return self._lent[-1]

    def _lend(self, own: int) -> int:
        if os.isatty(own) and self._slave is not None:
            return self._slave
        reader, writer = os.pipe()
        self._lent.append(writer)
        self._routes[reader] = own
        return writer

    def _take_keyboard(self) -> None:
        """Pass every key to the command's terminal, which knows what Ctrl-C means."""
        self._before = termios.tcgetattr(IN)
        tty.setraw(IN, termios.TCSADRAIN)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(IN, termios.TCSADRAIN, self._before)
        if self._window is not None:
            signal.signal(signal.SIGWINCH, self._window)
        for fd in (*self._lent, *self._routes):
            os.close(fd)
        self._lent.clear()
        self._routes.clear()

    def in_child(self) -> Callable[[], None] | None:
        """For the child before exec: make the terminal its controlling one."""
        slave = self._slave
        if slave is None or self._namespace:
            return None

        def take() -> None:  # pragma: no cover - runs in the child, before exec
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        return take

    def started(self) -> None:
        for fd in self._lent:
            os.close(fd)
        self._lent.clear()
        self._slave = None

    def watch(self, selector: selectors.BaseSelector) -> None:
        for reader in self._routes:
            os.set_blocking(reader, False)
            selector.register(reader, selectors.EVENT_READ, self._moved)
        if self._before is not None:
            selector.register(IN, selectors.EVENT_READ, self._type)

    def _moved(self, selector: selectors.BaseSelector, reader: int, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(selector)
        if events & selectors.EVENT_READ and not self._move(reader):
            selector.unregister(reader)

    def _type(self, selector: selectors.BaseSelector, fd: int, _events: int) -> None:
        """Read input; no more is read until the command's terminal has accepted it."""
        self._typed = os.read(fd, BLOCK)
        selector.unregister(fd)
        if self._typed:
            self._send(selector)

    def _send(self, selector: selectors.BaseSelector) -> None:
        assert self._master is not None
        with suppress(BlockingIOError):
            self._typed = self._typed[os.write(self._master, self._typed) :]
        if self._master in selector.get_map():
            waits = selectors.EVENT_WRITE if self._typed else 0
            selector.modify(self._master, selectors.EVENT_READ | waits, self._moved)
        if not self._typed and IN not in selector.get_map():
            selector.register(IN, selectors.EVENT_READ, self._type)

    def _move(self, reader: int) -> bool:
        """Pass one block on and record it; False at the end."""
        if reader not in self._routes:
            return False
        try:
            data = os.read(reader, BLOCK)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that nobody has open any more
                raise
            data = b""
        if not data:
            return False
        self._kept.feed(data.replace(b"\r\n", b"\n") if reader == self._master else data)
        if not self._shown:
            return True
        if self._hold(self._routes[reader], data):
            return True
        self._flush_held()
        return self._write(reader, self._routes[reader], data)

    def _hold(self, target: int, data: bytes) -> bool:
        """Hold back a first line that may be bwrap's own, until it is complete."""
        if self._held is None:
            return False
        said = self._held[1] + data
        if not (said.startswith(OF_BWRAP) or OF_BWRAP.startswith(said)) or b"\n" in said[:-1]:
            return False
        self._held = target, said
        return True

    def _flush_held(self) -> None:
        if self._held is not None:
            (target, data), self._held = self._held, None
            self._write(-1, target, data)

    def _write(self, reader: int, target: int, data: bytes) -> bool:
        """Write; False if nobody reads: then the system tells the command, as without us."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(target, left) :]
            except BlockingIOError:
                select.select([], [target], [])
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EIO):
                    reason = error.strerror
                    raise ToolFailed(f"the answer cannot be written: {reason}") from error
                if reader in self._routes and reader != self._master:
                    del self._routes[reader]
                    os.close(reader)
                return False
        return True

    def drain(self, exit_code: int) -> None:
        """Read what is still in the pipe, and no more: a child may keep writing for ever."""
        for reader in list(self._routes):
            for _ in range(LARGEST_PIPE // BLOCK):
                if not select.select([reader], [], [], 0)[0] or not self._move(reader):
                    break
        if self._held and exit_code == 1 and failure(self._held[1].decode("utf-8", "replace")):
            self._held = None  # bwrap's own message, which we report in our words
        self._flush_held()


def _in_foreground() -> bool:
    with suppress(OSError):
        return os.isatty(IN) and os.tcgetpgrp(IN) == os.getpgrp()
    return False


def _same_file(one: int, other: int) -> bool:
    return os.path.samestat(os.fstat(one), os.fstat(other))
