"""Runs one child process in its own session, until it and all it started have ended.

The end is that of the process itself, not of its output: a background child that keeps the pipe
open is killed with the group and does not block us.
"""

import ctypes
import functools
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cleveragents.model.tool import Attach
from cleveragents.tools.confinement.confine import Launch
from cleveragents.tools.confinement.namespace import Namespace
from cleveragents.tools.leftovers import end_leftovers, pidfd
from cleveragents.tools.limits import Capture, Deadline

if TYPE_CHECKING:
    from cleveragents.tools.attached import Attached

GRACE = 2.0
POLL = 0.02
BLOCK = 1 << 16
LARGEST_PIPE = 1 << 20
_PR_SET_PDEATHSIG = 1


class Ended(NamedTuple):
    exit_code: int
    timed_out: bool


class Streams(Protocol):
    """The streams of a process, and the transfer of their bytes while it runs."""

    stdin: int
    stdout: int
    stderr: int

    def in_child(self) -> Callable[[], None] | None: ...
    def started(self) -> None: ...
    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register descriptors to wait for, each with a function to call."""
        ...

    def drain(self, exit_code: int) -> None: ...


def run_process(
    launch: Launch,
    stdin: bytes,
    out: Capture,
    deadline: Deadline,
    attach: Attach = Attach.NOTHING,
) -> Ended:
    """Run to its end or the deadline, then end its group and what `end_leftovers` finds.

    Its environment has AGENTS_PLAN_ID and AGENTS_STEP_ID. With `attach` it uses our streams, and
    `stdin` is ignored. Raises OSError if it cannot be started, SubprocessError if the function
    called in the child before exec raised.
    """
    with (
        Namespace() if launch.namespace else nullcontext() as inner,
        _attached(out, attach, launch.namespace) if attach else Piped(stdin, out) as streams,
    ):
        if inner is not None:
            argv = [launch.argv[0], *inner.words, *launch.argv[1:]]
            launch = launch._replace(argv=argv, fds=(*launch.fds, inner.writer))
        return _run(launch, streams, deadline, inner)


def _attached(out: Capture, attach: Attach, namespace: bool) -> "Attached":
    from cleveragents.tools.attached import Attached

    return Attached(out, attach is Attach.ALL, namespace)


def _run(
    launch: Launch, streams: Streams, deadline: Deadline, namespace: Namespace | None
) -> Ended:
    ids = launch.env["AGENTS_PLAN_ID"], launch.env["AGENTS_STEP_ID"]
    try:
        process = start(
            launch.argv,
            cwd=launch.cwd,
            env=launch.env,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            start_new_session=True,
            pass_fds=launch.fds,
            preexec_fn=before_exec(launch.restrict, streams.in_child()),
        )
    except BaseException:
        end_leftovers(*ids)
        raise
    with process:
        try:
            streams.started()
            timed_out = _follow(process, streams, deadline, namespace)
        finally:
            # Before the process is reaped: until then its pid is not reused.
            signal_group(process, signal.SIGKILL)
            if namespace is not None:
                namespace.end()
            process.wait()
            end_leftovers(*ids)
        streams.drain(process.returncode)
    return Ended(process.returncode, timed_out)


def start(argv: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process, or none if Ctrl-C comes meanwhile."""
    made: list[subprocess.Popen[bytes]] = []
    # In the child, coverage or a debugger may wait for a lock of a thread that is not there.
    watching = sys.gettrace()
    sys.settrace(None)
    try:
        with _interrupted_afterwards():
            made.append(subprocess.Popen[bytes](argv, **options))
    except BaseException:
        for process in made:
            signal_group(process, signal.SIGKILL)
            process.wait()
        raise
    finally:
        sys.settrace(watching)
    return made[0]


@contextmanager
def _interrupted_afterwards() -> Generator[None]:
    """Delay Ctrl-C to the end of the block.

    Python calls functions around a fork that hold locks. KeyboardInterrupt raised in one of them
    would be lost, and its lock held for ever.
    """
    ours: dict[int, Callable[[int, FrameType | None], Any]] = {}
    came: list[int] = []
    if threading.current_thread() is threading.main_thread():  # nowhere else is it raised
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):
                ours[number] = handler
                signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in came:
            ours[number](number, None)


def before_exec(
    restrict: Callable[[], None] | None, attach: Callable[[], None] | None = None
) -> Callable[[], None] | None:
    """For the child between fork and exec: make it die with this process."""
    prctl = _prctl()
    if prctl is None and attach is None:
        return restrict
    parent = os.getpid()

    def tie() -> None:  # pragma: no cover - runs in the child, before exec
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        if attach is not None:
            attach()
        if restrict is not None:
            restrict()

    return tie


@functools.cache
def _prctl() -> Callable[..., int] | None:
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _follow(
    process: "subprocess.Popen[bytes]",
    streams: Streams,
    deadline: Deadline,
    namespace: Namespace | None,
) -> bool:
    """Transfer bytes until the process ends; returns whether it had to be ended."""
    with _Pump(process, streams, namespace) as pump:
        while not deadline.passed():
            if pump.turn(deadline.pause()):
                return False
        grace = Deadline(GRACE)
        # bwrap would not survive the signal, and the tool could not clean up.
        if namespace is None or not namespace.signal(signal.SIGTERM):
            signal_group(process, signal.SIGTERM)
        while not grace.passed() and not pump.turn(grace.left()):
            pass
    return True


class _Pump:
    """Waits for the process's input, output and end together."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        streams: Streams,
        namespace: Namespace | None,
    ) -> None:
        self.process = process
        self.namespace = namespace
        self.streams = streams
        self.exit_fd = pidfd(process.pid)
        """Can be read once the process has ended; None: we have to ask again and again."""
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> "_Pump":
        self.streams.watch(self.selector)
        if self.exit_fd is not None:
            self.selector.register(self.exit_fd, selectors.EVENT_READ)
        if self.namespace is not None:
            self.selector.register(self.namespace.reader, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self.selector.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)

    def turn(self, wait: float | None) -> bool:
        """Wait for an event and handle it; returns whether the process has ended."""
        if self.exit_fd is None:
            wait = POLL if wait is None else min(POLL, wait)
        ended = False
        for key, events in self.selector.select(wait):
            if key.data is not None:
                key.data(self.selector, key.fd, events)
            elif self.namespace is not None and key.fileobj == self.namespace.reader:
                self.selector.unregister(self.namespace.reader)
                self.namespace.learn()
            else:
                ended = True
        return ended or (self.exit_fd is None and self.process.poll() is not None)


class Piped:
    """Given input and captured output."""

    def __init__(self, stdin: bytes, out: Capture) -> None:
        self._left = memoryview(stdin)
        self._out = out
        self.stdin: int
        self.stdout: int
        self._reader, self.stdout = os.pipe()
        self.stderr: int = self.stdout
        self._writer: int | None = None
        if stdin:
            self.stdin, self._writer = os.pipe()
        else:
            self.stdin = os.open(os.devnull, os.O_RDONLY)
        self._open = {self._reader, self.stdout, self.stdin, self._writer} - {None}

    def __enter__(self) -> "Piped":
        return self

    def __exit__(self, *_: object) -> None:
        self._close(*self._open)

    def _close(self, *fds: int | None) -> None:
        for fd in fds:
            if fd is not None and fd in self._open:
                self._open.remove(fd)
                os.close(fd)

    def in_child(self) -> None:
        return None

    def started(self) -> None:
        self._close(self.stdin, self.stdout)

    def watch(self, selector: selectors.BaseSelector) -> None:
        os.set_blocking(self._reader, False)
        selector.register(self._reader, selectors.EVENT_READ, self._read)
        if self._writer is not None:
            os.set_blocking(self._writer, False)
            selector.register(self._writer, selectors.EVENT_WRITE, self._write)

    def _read(self, selector: selectors.BaseSelector, fd: int, _events: int) -> None:
        data = os.read(fd, BLOCK)
        self._out.feed(data)
        if not data:
            selector.unregister(fd)

    def _write(self, selector: selectors.BaseSelector, fd: int, _events: int) -> None:
        try:
            self._left = self._left[os.write(fd, self._left[:BLOCK]) :]
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            selector.unregister(fd)
            self._close(fd)

    def drain(self, exit_code: int) -> None:
        """Read what is still in the pipe, and no more: a child may keep writing for ever."""
        with suppress(BlockingIOError):
            for _ in range(LARGEST_PIPE // BLOCK):
                self._out.feed(os.read(self._reader, BLOCK))


def signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    # A group of only a zombie gives an error on some systems.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
