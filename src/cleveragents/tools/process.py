"""One child process with a session of its own, followed to its end and to the end of all it began.

The end is that of the process itself, not of its output: a child in the background that keeps the
pipe open is killed with the group and does not hold us up.
"""

import ctypes
import functools
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple

from cleveragents.tools.leftovers import end_leftovers, pidfd
from cleveragents.tools.limits import Capture, Deadline
from cleveragents.tools.namespace import Namespace

GRACE = 2.0
POLL = 0.02
BLOCK = 1 << 16
LARGEST_PIPE = 1 << 20
_PR_SET_PDEATHSIG = 1


class Ended(NamedTuple):
    exit_code: int
    timed_out: bool


def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin: bytes,
    out: Capture,
    deadline: Deadline,
    restrict: Callable[[], None] | None = None,
    namespace: bool = False,
    fds: tuple[int, ...] = (),
) -> Ended:
    """Run it to its end or the deadline, then end its group and what `end_leftovers` finds.

    `env` has AGENTS_PLAN_ID and AGENTS_STEP_ID. `restrict` is called in the child before exec;
    with `namespace` argv is bwrap's, which needs the descriptors `fds`. Raises OSError when it
    cannot be started, SubprocessError when `restrict` raised.
    """
    with Namespace() if namespace else nullcontext() as inner:
        if inner is not None:
            argv, fds = [argv[0], *inner.words, *argv[1:]], (*fds, inner.writer)
        return _run(argv, cwd, env, stdin, out, deadline, restrict, inner, fds)


def _run(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    stdin: bytes,
    out: Capture,
    deadline: Deadline,
    restrict: Callable[[], None] | None,
    namespace: Namespace | None,
    fds: tuple[int, ...],
) -> Ended:
    ids = env["AGENTS_PLAN_ID"], env["AGENTS_STEP_ID"]
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=fds,
            preexec_fn=before_exec(restrict),  # noqa: PLW1509 - four system calls, no lock
        )
    except BaseException:
        # Ctrl-C may have come when it was running already.
        end_leftovers(*ids)
        raise
    with process:
        try:
            timed_out = _follow(process, stdin, out, deadline, namespace)
        finally:
            # Before the process is reaped: until then nobody else can have its number.
            signal_group(process, signal.SIGKILL)
            if namespace is not None:
                namespace.end()
            process.wait()
            end_leftovers(*ids)
        _drain(process, out)
    return Ended(process.returncode, timed_out)


def before_exec(restrict: Callable[[], None] | None) -> Callable[[], None] | None:
    """For the child between fork and exec: a kill -9 of this process is to end it as well."""
    prctl = _prctl()
    if prctl is None:
        return restrict
    parent = os.getpid()

    def tie() -> None:  # pragma: no cover - runs in the child, before exec
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if restrict is not None:
            restrict()

    return tie


@functools.cache
def _prctl() -> Callable[..., int] | None:
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _follow(
    process: "subprocess.Popen[bytes]",
    stdin: bytes,
    out: Capture,
    deadline: Deadline,
    namespace: Namespace | None,
) -> bool:
    """Move bytes until the process ends; whether it had to be told to."""
    with _Pump(process, stdin, out, namespace) as pump:
        while not deadline.passed():
            if pump.turn(deadline.pause()):
                return False
        grace = Deadline(GRACE)
        # bwrap would not survive the signal, nor let the tool say goodbye.
        if namespace is None or not namespace.signal(signal.SIGTERM):
            signal_group(process, signal.SIGTERM)
        while not grace.passed() and not pump.turn(grace.left()):
            pass
    return True


class _Pump:
    """The process's input, output and end in one place to wait for."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        stdin: bytes,
        out: Capture,
        namespace: Namespace | None,
    ) -> None:
        self.process = process
        self.namespace = namespace
        self.stdin = memoryview(stdin)
        self.out = out
        self.exit_fd = pidfd(process.pid)
        """Can be read once the process has ended; None: we have to ask again and again."""
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> "_Pump":
        for pipe, event in (
            (self.process.stdout, selectors.EVENT_READ),
            (self.process.stdin, selectors.EVENT_WRITE),
        ):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self.selector.register(pipe, event)
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
        """Wait for something and deal with it; whether the process has ended."""
        if self.exit_fd is None:
            wait = POLL if wait is None else min(POLL, wait)
        ended = False
        for key, _ in self.selector.select(wait):
            if key.fileobj is self.process.stdout:
                self.read()
            elif key.fileobj is self.process.stdin:
                self.write()
            elif self.namespace is not None and key.fileobj == self.namespace.reader:
                self.selector.unregister(self.namespace.reader)
                self.namespace.learn()
            else:
                ended = True
        return ended or (self.exit_fd is None and self.process.poll() is not None)

    def read(self) -> None:
        pipe = self.process.stdout
        assert pipe is not None
        data = os.read(pipe.fileno(), BLOCK)
        self.out.feed(data)
        if not data:
            self.selector.unregister(pipe)

    def write(self) -> None:
        pipe = self.process.stdin
        assert pipe is not None
        try:
            self.stdin = self.stdin[os.write(pipe.fileno(), self.stdin[:BLOCK]) :]
        except BrokenPipeError:
            self.stdin = self.stdin[:0]
        if not self.stdin:
            self.selector.unregister(pipe)
            pipe.close()


def signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    # A group of nothing but a zombie answers with an error on some systems.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _drain(process: "subprocess.Popen[bytes]", out: Capture) -> None:
    """What is still in the pipe, and no more: somebody may hold it open and write for ever."""
    assert process.stdout is not None
    with suppress(BlockingIOError):
        for _ in range(LARGEST_PIPE // BLOCK):
            out.feed(os.read(process.stdout.fileno(), BLOCK))
