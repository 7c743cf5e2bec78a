"""The installed command: the streams, signals and exit codes of every command.

What is done here to start quickly helps every command alike: its figures are in
docs/measurements.md ("Start-up").
"""

import atexit
import gc
import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn


def program() -> NoReturn:
    """The installed command: it ends without taking the interpreter apart.

    That takes some of a short command's time, and nothing is left to be done by it.
    """
    try:
        run()
    except SystemExit as ended:
        if not isinstance(ended.code, int) or _has_threads():
            raise
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        with suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(ended.code)


def _has_threads() -> bool:
    """Whether there are threads that the interpreter would wait for."""
    threading = sys.modules.get("threading")
    return threading is not None and sum(not one.daemon for one in threading.enumerate()) > 1


def run() -> NoReturn:
    """What was typed, done; for a process that continues afterwards."""
    _have_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, a tool's exit code would be lost
    if "--debug" in sys.argv:
        sys.excepthook = _show_traceback
    try:
        code = _version() if sys.argv[1:] == ["--version"] else _with_click()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has gone; nothing of ours depends on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        if "--debug" in sys.argv:  # it may be any error then
            raise
        sys.stderr.write(f"error: the answer cannot be written: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _show_traceback(_kind: object, error: BaseException, _trace: object) -> None:
    import traceback

    from cleveragents.cli.render import safe

    sys.stderr.write(safe("".join(traceback.format_exception(error))))


def _have_streams() -> None:
    """Open what was closed: else a file of ours would get its number, and a tool could write it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _version() -> int:
    """Told without click, which takes as long again as an interpreter does to start."""
    from cleveragents import __version__

    sys.stdout.write(f"agents {__version__}\n")
    return 0


def _with_click() -> int:
    """Of what is imported nothing can be collected: that is looked for only afterwards."""
    gc.disable()
    import_msgspec()
    from cleveragents.cli.main import main

    return main()


def import_msgspec() -> None:
    """Without `typing_extensions`, of which it needs nothing that this Python has not got.

    Where that is installed it takes as long to import as msgspec itself.
    """
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # pyright: ignore[reportArgumentType]
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


def _interrupt(_signal: int, _frame: object) -> None:
    """A polite end is treated like Ctrl-C: the tool is ended, the plan stays resumable."""
    raise KeyboardInterrupt
