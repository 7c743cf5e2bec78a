"""The installed command: the streams, signals and exit codes of every command.

What makes start-up quick is here, for every command alike; figures in docs/measurements.md
("Start-up").
"""

import atexit
import gc
import importlib
import io
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn, TextIO

ELSEWHERE = "hint: write it somewhere else; what the command changed stays changed: agents plan log"


class Unwritten(BaseException):
    """The answer cannot be written; not an OSError, which would count as the store's disk."""


class NoReader(BaseException):
    """The reader of the answer is gone, as with `| head`; not an error to report."""


class _Checked(io.FileIO):
    """Writes to a stream's descriptor; keeps the stream, which would close it when collected."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream


class _Answer(_Checked):
    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # the descriptor is non-blocking
                select.select([], [self], [])
        except BrokenPipeError:
            raise NoReader from None
        except OSError as error:
            raise Unwritten(error.strerror) from error
        return written


class _Remarks(_Checked):
    """Remarks beside the answer: failing to write them does not fail the command."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def program() -> NoReturn:
    """The installed command: exits without interpreter shutdown.

    Shutdown takes part of a short command's time, and has nothing left to do.
    """
    try:
        run()
    except SystemExit as ended:
        if not isinstance(ended.code, int) or _has_threads():
            raise
        with suppress(NoReader, KeyboardInterrupt):
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code)


def _has_threads() -> bool:
    """Whether threads are running that the interpreter would wait for."""
    threading = sys.modules.get("threading")
    return threading is not None and sum(not one.daemon for one in threading.enumerate()) > 1


def run() -> NoReturn:
    """Run the command line, in a process that continues afterwards."""
    try:
        code = _run()
    except KeyboardInterrupt:  # outside the command's own work, which has an answer for it
        _drop_answer()  # nobody may be reading it
        sys.stderr.write("error: interrupted; nothing is lost\n")
        code = 130
    sys.exit(code)


def _run() -> int:
    _have_streams()
    sys.stdout = _checked(_Answer, sys.stdout)
    sys.stderr = _checked(_Remarks, sys.stderr)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, a tool's exit code would be lost
    try:
        code = _version() if sys.argv[1:] == ["--version"] else _with_click()
        sys.stdout.flush()
    except NoReader:
        _drop_answer()
        code = 141
    except Unwritten as error:
        sys.stderr.write(f"error: the answer cannot be written: {error}\n{ELSEWHERE}\n")
        _drop_answer()
        code = 6
    except Exception as error:
        if "--debug" not in sys.argv:
            raise
        _show_traceback(error)
        code = getattr(error, "exit_code", 1)
    return code


def _drop_answer() -> None:
    """Let what is left of the answer be written to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_traceback(error: Exception) -> None:
    import traceback

    from cleveragents.cli.render import safe

    sys.stderr.write(safe("".join(traceback.format_exception(error))))


def _have_streams() -> None:
    """Open closed streams: else a file of ours gets the number, and a tool could write to it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _checked(kind: type[_Checked], stream: TextIO) -> TextIO:
    """The same stream, handling failed writes as `kind` does."""
    at_once = bool(stream.line_buffering) or getattr(stream, "write_through", False)
    try:
        writer = kind(stream)
    except io.UnsupportedOperation:  # in the memory of a program that calls us
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(writer),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=at_once,
    )


def _version() -> int:
    """Print the version without click, which takes as long to import as Python to start."""
    from cleveragents import __version__

    sys.stdout.write(f"agents {__version__}\n")
    return 0


def _with_click() -> int:
    """Run with click; garbage collection starts after the imports, which leave no garbage."""
    gc.disable()
    import_msgspec()
    from cleveragents.cli.main import main

    return main()


def import_msgspec() -> None:
    """Import msgspec without `typing_extensions`, which it does not need on this Python.

    That takes as long to import as msgspec itself.
    """
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # pyright: ignore[reportArgumentType]
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


def _interrupt(_signal: int, _frame: object) -> None:
    """Treat SIGTERM like Ctrl-C: the tool is ended, the plan stays resumable."""
    raise KeyboardInterrupt
