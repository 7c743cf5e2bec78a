"""A child process that exchanges lines with us; started, confined and ended like a tool's.

It may read the sandboxes and write only to its own temporary directory. Waiting for a line also
serves the other pipes, so that neither side can block the other for ever.
"""

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from cleveragents.errors import ActorFailed, ToolFailed
from cleveragents.model.tool import ToolSpec
from cleveragents.tools.confinement.bwrap import failure as bwrap_failure
from cleveragents.tools.confinement.namespace import Namespace
from cleveragents.tools.leftovers import end_leftovers, pidfd
from cleveragents.tools.limits import Capture, Deadline
from cleveragents.tools.process import (
    BLOCK,
    GRACE,
    LARGEST_PIPE,
    POLL,
    before_exec,
    signal_group,
    start,
)
from cleveragents.tools.runner import (
    CallContext,
    cell_of,
    environment,
    hidden,
    how_it_ended,
    not_started,
    not_wrapped,
    temporary,
)

LONGEST_LINE = 4 << 20
KEPT_ERRORS = 100_000


@contextmanager
def conversation(
    argv: Sequence[str], call: CallContext, patience: float
) -> Generator["Conversation"]:
    """Start it in `call.cwd`, the plan's folder; it and its children end with the block."""
    bounds = msgspec.structs.replace(call.bounds, look_only=True)
    call = msgspec.structs.replace(call, bounds=bounds)
    if not os.path.isdir(call.cwd):
        raise ActorFailed(f"the actor: the folder {call.cwd} is missing")
    with temporary(call.temp_parent) as temp, ExitStack() as stack:
        try:
            cell = cell_of(call, temp)
            env = environment(ToolSpec(name="actor"), call, temp, cell)
            with cell.launch(argv, cell.plan_dir, True, env) as launch:
                inner = stack.enter_context(Namespace()) if launch.namespace else None
                words, fds = launch.argv, launch.fds
                if inner is not None:
                    words = [words[0], *inner.words, *words[1:]]
                    fds = (*fds, inner.writer)
                process = start(
                    words,
                    cwd=launch.cwd,
                    env=launch.env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    pass_fds=fds,
                    preexec_fn=before_exec(launch.restrict),
                )
        except ToolFailed as error:
            raise ActorFailed(f"the actor: {error.message}", error.hint) from error
        except (OSError, ValueError) as error:
            reason = not_started(argv[0], call.cwd, error)
            raise ActorFailed(f"the actor: {reason.message}", reason.hint) from error
        except subprocess.SubprocessError as error:
            raise ActorFailed(f"the actor cannot be confined: {error}") from error
        except BaseException:
            end_leftovers(call.plan_id, call.step_id)
            raise
        with process, Conversation(process, argv[0], inner, call, patience) as talk:
            yield talk


class Conversation:
    """Both ends of the pipes to one process."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        program: str,
        namespace: Namespace | None,
        call: CallContext,
        patience: float,
    ) -> None:
        self._process = process
        self._program = program
        self._namespace = namespace
        self._call = call
        self._patience = patience
        self._buffer = bytearray()
        self._errors = Capture(KEPT_ERRORS)
        self._open = True
        self._ended = False
        self._over = False
        self._exit_fd = pidfd(process.pid)
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "Conversation":
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._watch(process.stdout.fileno(), self._read)
        self._watch(process.stderr.fileno(), self._read_errors)
        if self._exit_fd is not None:
            self._watch(self._exit_fd, self._exited)
        if self._namespace is not None:
            self._watch(self._namespace.reader, self._learn)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._release()
        finally:
            self._end()
            end_leftovers(self._call.plan_id, self._call.step_id)
            self._selector.close()
            if self._exit_fd is not None:
                os.close(self._exit_fd)

    def _end(self) -> None:
        """End everything once, before the process is reaped: until then its pid is not reused."""
        if self._over:
            return
        self._over = True
        signal_group(self._process, signal.SIGKILL)
        if self._namespace is not None:
            self._namespace.end()
        self._process.wait()

    @property
    def errors(self) -> str:
        """Its stderr, bounded."""
        return hidden(self._call.secrets, self._errors.text())

    def send(self, line: bytes) -> None:
        """Send a line; if the process is gone, the next `receive` says why."""
        rest = memoryview(line + b"\n")
        deadline = self._deadline()
        fd = self._stdin.fileno()

        def write() -> None:
            nonlocal rest
            try:
                rest = rest[os.write(fd, rest[:BLOCK]) :]
            except BrokenPipeError:
                rest = rest[:0]

        self._watch(fd, write, selectors.EVENT_WRITE)
        try:
            while rest and self._open:
                self._turn(deadline)
        finally:
            self._selector.unregister(fd)

    def receive(self) -> bytes:
        """The next line that is not blank."""
        deadline = self._deadline()
        while True:
            while (line := self._next_line()) is not None:
                if line.strip():
                    return self._without_secrets(line)
            if not self._open:
                raise ActorFailed(f"the actor ended before it said done: {self._how_it_ended()}")
            self._turn(deadline)

    def _without_secrets(self, line: bytes) -> bytes:
        if not self._call.secrets:
            return line
        return os.fsencode(hidden(self._call.secrets, os.fsdecode(line)))

    def _deadline(self) -> Deadline:
        return Deadline(self._patience, self._call.meanwhile)

    def _next_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", 0, LONGEST_LINE)
        if end < 0 and len(self._buffer) >= LONGEST_LINE:
            raise ActorFailed(
                f"the actor sent a line of more than {LONGEST_LINE >> 20} MiB",
                "one JSON object per line; large content belongs in files",
            )
        if end < 0 and (self._open or not self._buffer):
            return None
        end = len(self._buffer) if end < 0 else end
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _watch(self, fd: int, then: Callable[[], None], event: int = selectors.EVENT_READ) -> None:
        self._selector.register(fd, event, then)

    def _turn(self, deadline: Deadline) -> None:
        """Wait for something and deal with it."""
        if deadline.passed():
            raise ActorFailed(
                f"the actor did not answer within {self._patience:g} s",
                "allow it more time: agents config set actors.answer-timeout 1h",
            )
        self._wait(deadline.pause())

    def _wait(self, seconds: float | None) -> None:
        if self._exit_fd is None:
            seconds = POLL if seconds is None else min(POLL, seconds)
        for key, _ in self._selector.select(seconds):
            # Another pipe's end may have removed this one.
            if key.fd in self._selector.get_map():
                key.data()
        if self._exit_fd is None and not self._ended and self._process.poll() is not None:
            self._exited()

    def _read(self) -> None:
        """Read at most a line's worth at a time, to hold back a process that does not listen."""
        data = os.read(self._stdout.fileno(), BLOCK)
        self._buffer += data
        if not data:
            self._selector.unregister(self._stdout.fileno())
            self._open = False
        elif len(self._buffer) > LONGEST_LINE + BLOCK:
            self._overflown()

    def _overflown(self) -> None:
        raise ActorFailed(
            f"the actor sent more than {LONGEST_LINE >> 20} MiB and does not read its answers"
        )

    def _read_errors(self) -> None:
        data = os.read(self._stderr.fileno(), BLOCK)
        self._errors.feed(data)
        if not data:
            self._selector.unregister(self._stderr.fileno())

    def _exited(self) -> None:
        """After its exit, read its last output, but do not wait for others with the pipes."""
        self._ended = True
        if self._exit_fd is not None:
            self._selector.unregister(self._exit_fd)
        for pipe, keep in ((self._stdout, self._buffer.extend), (self._stderr, self._errors.feed)):
            with suppress(BlockingIOError):
                for _ in range(LARGEST_PIPE // BLOCK):
                    keep(os.read(pipe.fileno(), BLOCK))
        if self._open:
            self._selector.unregister(self._stdout.fileno())
        self._open = False

    def _learn(self) -> None:
        assert self._namespace is not None
        self._selector.unregister(self._namespace.reader)
        self._namespace.learn()

    def _release(self) -> None:
        """It is done: give it time to exit, ignoring further output."""
        with suppress(OSError):
            self._stdin.close()
        grace = Deadline(GRACE)
        while not self._ended and not grace.passed():
            self._buffer.clear()
            self._wait(grace.left())

    def _how_it_ended(self) -> str:
        grace = Deadline(GRACE)
        while not self._ended and not grace.passed():
            self._wait(grace.left())
        if not self._ended:
            return "it closed its output"
        self._end()
        code, errors = self._process.returncode, self.errors
        wrapped = self._namespace is not None
        if wrapped and code == 1 and (gave_up := bwrap_failure(errors)):
            where = os.path.join(self._call.cwd, self._program)
            return not_wrapped(self._program, self._call.cwd, where, *gave_up).message
        return how_it_ended(code, errors, wrapped) if code else "exit code 0"
