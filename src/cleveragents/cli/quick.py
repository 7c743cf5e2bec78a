"""The installed command, and those that programs and people call again and again.

`plan checkpoint create` and `plan status` are recognised before click is imported: their start-up
is most of what they take. Whatever is not written in the plainest way goes to click, which has the
last word.
"""

import atexit
import gc
import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from cleveragents.cli.common import Options
    from cleveragents.cli.render import Reply
    from cleveragents.workspace import Workspace

CREATE = ("plan", "checkpoint", "create")


STATUS = ("plan", "status")


class Typed(NamedTuple):
    """What was typed: the command, and what stands behind it."""

    plan: str
    label: str | None = None
    form: str | None = None
    as_json: bool = False
    quiet: bool = False
    command: tuple[str, ...] = CREATE


def parsed(words: list[str]) -> Typed | None:
    """The plain forms of the commands; None for anything click should look at."""
    if words[:1] == ["status"]:
        words = ["plan", *words]
    command = next((one for one in (CREATE, STATUS) if tuple(words[: len(one)]) == one), None)
    if command is None or "_AGENTS_COMPLETE" in os.environ:
        return None
    plans: list[str] = []
    found = Typed("", command=command)
    rest = iter(words[len(command) :])
    for word in rest:
        if word == "--json":
            found = found._replace(as_json=True)
        elif word in ("--quiet", "-q"):
            found = found._replace(quiet=True)
        elif command is CREATE and word == "--label" and (label := next(rest, "-"))[:1] != "-":
            found = found._replace(label=label)
        elif word == "--format" and (form := next(rest, "")) in ("plain", "json", "yaml", "rich"):
            found = found._replace(form=form)
        elif word[:1] != "-" and word:
            plans.append(word)
        else:
            return None
    if len(plans) > 1 or (command is CREATE and not plans):
        return None
    return found._replace(plan="".join(plans))


def create(ws: "Workspace", options: "Options", plan: str, label: str | None) -> "Reply":
    """`plan checkpoint create`: make a group of the sandboxes as they are now."""
    from cleveragents.cli import data as reports
    from cleveragents.cli.common import found
    from cleveragents.cli.render import Reply, Text

    one, notes = found(ws, plan)
    group = one.checkpoint(label)
    data = reports.group_data(ws.ctx, one.plan, group)
    own = next(row["checkpoint_id"] for row in data["checkpoints"] if row["own"])
    data["checkpoint_id"] = own
    return Reply(
        data=data,
        blocks=(Text(f"checkpoint {own} in group {group.group_id}"),),
        messages=notes,
    )


def program() -> NoReturn:
    """The installed command: it ends without taking the interpreter apart.

    That takes a fifth of a short command's time, and nothing is left to be done by it.
    """
    try:
        entry()
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


def entry() -> NoReturn:
    """What was typed, done; for a process that continues afterwards."""
    _have_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, a tool's exit code would be lost
    if "--debug" in sys.argv:
        sys.excepthook = _show_traceback
    words = sys.argv[1:]
    given = parsed(words)
    try:
        code = _version() if words == ["--version"] else _with_click(given)
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
    from cleveragents import __version__

    sys.stdout.write(f"agents {__version__}\n")
    return 0


def _with_click(given: Typed | None) -> int:
    """Of what is imported nothing can be collected: that is looked for only afterwards."""
    gc.disable()
    import_msgspec()
    if given is not None:
        return _at_once(given)
    from cleveragents.cli.main import main

    return main()


def _at_once(given: Typed) -> int:
    """The garbage is left alone: nothing here lives long enough to be worth looking for."""
    from cleveragents.cli.common import Options, form_of, run_command

    options = Options(
        form=form_of(given.form, given.as_json), quiet=given.quiet, debug=False, settings={}
    )
    if given.command is STATUS:
        from cleveragents.cli.plan.status import show_status

        return run_command("plan status", show_status, options, True, {"plan": given.plan})
    words = {"plan": given.plan, "label": given.label}
    return run_command(" ".join(CREATE), create, options, True, words)


class Later(ModuleType):
    """Stands for a module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_msgspec() -> None:
    """Without what it imports and does not need here, which takes as long again.

    `uuid` asks `platform` for nothing but the system's name.
    """
    platform = Later("platform")
    vars(platform)["system"] = lambda: os.uname().sysname
    stand_ins = {"typing_extensions": None, "platform": platform}
    for name in ("textwrap", "msgspec.inspect", "msgspec.toml", "msgspec.yaml"):
        stand_ins[name] = Later(name)
    hidden = {name: one for name, one in stand_ins.items() if name not in sys.modules}
    sys.modules.update(hidden)  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        importlib.import_module("msgspec")
    finally:
        for name, one in hidden.items():
            if sys.modules.get(name) is one:
                del sys.modules[name]


def _interrupt(_signal: int, _frame: object) -> None:
    """A polite end is treated like Ctrl-C: the tool is ended, the plan stays resumable."""
    raise KeyboardInterrupt
