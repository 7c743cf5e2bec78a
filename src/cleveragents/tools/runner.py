"""One call of one tool: its inputs, environment and result.

A tool's own failure is a result, never an exception; an exception is an internal error or Ctrl-C,
and even then the tool's processes are ended first.
"""

import errno
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from subprocess import SubprocessError
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from cleveragents.content import removal
from cleveragents.errors import NotAllowed, ToolFailed
from cleveragents.model.resource import show_path
from cleveragents.model.tool import Attach, CallState, ToolResult, ToolSpec
from cleveragents.tools import pycall
from cleveragents.tools.builtin import check_inputs, filled
from cleveragents.tools.confinement.bwrap import failure as bwrap_failure
from cleveragents.tools.confinement.confine import BWRAP, Bounds, Cell, Launch
from cleveragents.tools.confinement.mounts import is_inside
from cleveragents.tools.files import OPERATIONS, Job, run_file_tool
from cleveragents.tools.leftovers import end_leftovers
from cleveragents.tools.limits import Capture, Deadline, OutOfTime
from cleveragents.tools.paths import Root
from cleveragents.tools.process import Ended, run_process
from cleveragents.tools.sql import Watch, run_sql

__all__ = [
    "CallContext",
    "Command",
    "command_of",
    "end_leftovers",
    "environment",
    "remove_temporary",
    "run_tool",
]

PASSED_ON = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_[A-Z]+|TERM|TZ|USER|LOGNAME|SHELL|NO_COLOR|CI|SOURCE_DATE_EPOCH"
    r"|VIRTUAL_ENV"
)
LONGEST_ERROR = 300
ATTEMPTS = 5
"""How often bwrap is started while what it hides comes and goes."""
CANNOT_RUN, NO_SUCH = 126, 127


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a call: where it runs and what it may know."""

    plan_id: str
    step_id: str
    plan_dir: str
    cwd: str
    """The sandbox of the step's resource; for a database, the directory that holds its file."""
    database: str | None = None
    """The SQLite file, when the resource is one."""
    run_sql: Callable[[str, Any, Capture, Deadline, bool], None] | None = None
    watch: Callable[[], Watch | None] | None = None
    """How SQL is run, when the resource is a database with its own way."""
    secrets: tuple[str, ...] = ()
    """What the tool is told and must not be kept of its output."""
    sandboxes: dict[str, str] = {}
    links: dict[str, str] = {}
    """Places in the sandbox (relative) where a nested resource's sandbox (absolute) is linked."""
    guidance: str = ""
    temp_parent: str
    """Where the call's own TMPDIR is made, and removed again."""
    output_limit: int
    environ: dict[str, str]
    """The caller's environment; only what is on the list reaches the tool."""
    private: dict[str, str] = {}
    """What this process needs of it beyond the list, such as the key of its provider."""
    bounds: Bounds = Bounds()
    meanwhile: Callable[[], None] | None = None
    """Called again and again while a tool's process runs."""
    hear: Callable[[bytes], None] | None = None
    """Told of all output as it comes."""
    attach: Attach = Attach.NOTHING
    """What of our own streams a process has; with any it also has all the time it wants."""


class Command(NamedTuple):
    argv: list[str]
    stdin: bytes
    folder: str = ""
    """Where in the sandbox it starts; empty: at the top."""


class NotStarted(ToolFailed):
    """The program could not be run; `code` is the exit code that a shell gives for that."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_tool(
    tool: ToolSpec, inputs: dict[str, Any], call: CallContext, timeout: float | None = None
) -> ToolResult:
    """Run a tool to its end; `timeout` overrides the tool's own."""
    out = Capture(call.output_limit, call.hear)
    if problems := check_inputs(tool, inputs):
        return _failed(out, "; ".join(problems))
    limit = tool.timeout if timeout is None else timeout
    deadline = Deadline(None if call.attach else limit, call.meanwhile)
    try:
        result = _run(tool, filled(tool, inputs), call, out, deadline)
    except NotStarted as error:
        result = _failed(out, error.message, error.code)
    except ToolFailed as error:
        result = _failed(out, error.message)
    except OutOfTime:
        result = _timed_out(out, deadline)
    return _without(call.secrets, result)


def _without(secrets: tuple[str, ...], result: ToolResult) -> ToolResult:
    """The result without secrets, also in their URL-encoded form."""
    error = hidden(secrets, result.error) if result.error else result.error
    return msgspec.structs.replace(result, output=hidden(secrets, result.output), error=error)


def hidden(secrets: tuple[str, ...], text: str) -> str:
    """The text without the secrets, however they are written."""
    forms = {
        form
        for secret in secrets
        for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])
    }
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _run(
    tool: ToolSpec, given: dict[str, Any], call: CallContext, out: Capture, deadline: Deadline
) -> ToolResult:
    if tool.builtin in OPERATIONS:
        run_file_tool(tool.builtin, Job(Root(call.cwd, call.links), given, out, deadline))
    elif tool.sql is not None or tool.builtin == "sql":
        script = given["script"] if tool.sql is None else tool.sql
        if call.run_sql is not None:
            _run_elsewhere(call.run_sql, script, given["params"], out, deadline, tool.read_only)
            return _result(out, CallState.OK)
        if call.database is None:
            raise ToolFailed(f"{tool.name} needs a database", "name one with on:")
        params, watch = given["params"], call.watch() if call.watch else None
        run_sql(call.database, script, params, out, deadline, tool.read_only, watch)
    else:
        return _run_command(command_of(tool, given), tool, call, out, deadline)
    return _result(out, CallState.OK)


def _run_elsewhere(
    run: Callable[[str, Any, Capture, Deadline, bool], None],
    script: str,
    params: Any,
    out: Capture,
    deadline: Deadline,
    read_only: bool,
) -> None:
    try:
        run(script, params, out, deadline, read_only)
    except ToolFailed:
        deadline.check()
        raise


def command_of(tool: ToolSpec, given: dict[str, Any]) -> Command:
    """The command of a tool that is a program; `given` has its defaults filled in."""
    if tool.python is not None:
        # Without -B and -P it would write `__pycache__` and import modules beside pycall.
        argv = [sys.executable, "-B", "-P", pycall.__file__, tool.python]
        return Command(argv, json.dumps(given, default=str).encode())
    stdin = (given["stdin"] or "").encode("utf-8", "surrogateescape")
    if tool.builtin == "run":
        return Command([str(each) for each in given["argv"]], stdin, given["cwd"] or "")
    args = [str(each) for each in given["args"]]
    if tool.builtin == "shell":
        return Command(["/bin/sh", "-c", given["command"], "shell", *args], stdin)
    if isinstance(tool.run, str):
        return Command(["/bin/sh", "-c", tool.run, tool.name, *args], stdin)
    return Command([*(tool.run or ()), *args], stdin)


def environment(tool: ToolSpec, call: CallContext, temp: str, cell: Cell) -> dict[str, str]:
    """The whole environment of the tool's process."""
    passed = {name: value for name, value in call.environ.items() if PASSED_ON.fullmatch(name)}
    sandboxes = {
        f"AGENTS_SANDBOX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}": cell.seen.at(path)
        for name, path in call.sandboxes.items()
    }
    return {
        **cell.rewritten({**passed, **cell.caches(), **tool.env}),
        **call.private,
        **sandboxes,
        "AGENTS_PLAN_ID": call.plan_id,
        "AGENTS_STEP_ID": call.step_id,
        "AGENTS_PLAN_DIR": cell.plan_dir,
        "AGENTS_GUIDANCE": call.guidance,
        "TMPDIR": temp,
    }


def _run_command(
    command: Command, tool: ToolSpec, call: CallContext, out: Capture, deadline: Deadline
) -> ToolResult:
    program = command.argv[0]
    call = msgspec.structs.replace(call, cwd=_folder(call.cwd, command.folder))
    with temporary(call.temp_parent) as temp:
        cell = cell_of(call, temp)
        env = environment(tool, call, temp, cell)
        try:
            words = _argv(command, call, cell)
            launch, ended = _run_in(cell, words, env, command.stdin, tool, call, out, deadline)
        except (OSError, ValueError) as error:
            raise not_started(program, call.cwd, error) from error
        except SubprocessError as error:
            raise ToolFailed(f"cannot run {program} under {cell.how}: {error}") from error
    if ended.timed_out:
        return _timed_out(out, deadline)
    if ended.exit_code == 0:
        return _result(out, CallState.OK, 0)
    output = out.text()
    if gave_up := _gave_up(launch, ended, out):
        where = cell.seen.real(os.path.join(call.cwd, program))
        raise not_wrapped(program, call.cwd, where, *gave_up)
    how = how_it_ended(ended.exit_code, output, launch.namespace)
    denied = cell.denied(output, ended.exit_code, call.cwd)
    return _failed(out, "; ".join([how, *denied]), ended.exit_code)


def _run_in(
    cell: Cell,
    words: list[str],
    env: dict[str, str],
    stdin: bytes,
    tool: ToolSpec,
    call: CallContext,
    out: Capture,
    deadline: Deadline,
) -> tuple[Launch, Ended]:
    left = ATTEMPTS
    while True:
        with cell.launch(words, call.cwd, tool.network, env) as launch:
            ended = run_process(launch, stdin, out, deadline, call.attach)
        left -= 1
        if not left or not launch.is_outdated or not _gave_up(launch, ended, out):
            return launch, ended
        # A folder that bwrap should hide disappeared meanwhile, and the tool never started.
        out.clear()


def _gave_up(launch: Launch, ended: Ended, out: Capture) -> tuple[bool, str] | None:
    """Why bwrap failed before the program started; None if it did not."""
    return bwrap_failure(out.text()) if launch.namespace and ended.exit_code == 1 else None


def _argv(command: Command, call: CallContext, cell: Cell) -> list[str]:
    if call.attach is not Attach.ALL or cell.how != BWRAP:
        return command.argv
    from cleveragents.tools.attached import wants_terminal, with_terminal

    return with_terminal(command.argv) if wants_terminal() else command.argv


def _folder(top: str, folder: str) -> str:
    """A folder of the sandbox, which no link may lead out of."""
    where = os.path.join(top, folder) if folder else top
    if folder and not is_inside(os.path.realpath(where), os.path.realpath(top)):
        raise ToolFailed(f"{show_path(os.fsencode(folder))} leads outside the sandbox")
    if folder and not os.path.isdir(where):
        raise ToolFailed(f"the sandbox has no folder {show_path(os.fsencode(folder))}")
    return where


def cell_of(call: CallContext, temp: str) -> Cell:
    if not os.path.isdir(call.cwd):
        raise not_started("", call.cwd, FileNotFoundError())
    try:
        return Cell(call.bounds, temp, call.plan_dir)
    except NotAllowed as error:
        raise ToolFailed(error.message, error.hint) from error


def not_wrapped(program: str, cwd: str, where: str, at_exec: bool, reason: str) -> ToolFailed:
    """The error for a program that bwrap could not start, like an OSError without it."""
    code = next((code for code in errno.errorcode if os.strerror(code) == reason), None)
    if not at_exec or code is None:
        return ToolFailed(f"cannot run {program} under bwrap: {reason}")
    return not_started(program, cwd, OSError(code, reason), where)


def not_started(
    program: str, cwd: str, error: OSError | ValueError, where: str | None = None
) -> ToolFailed:
    """The error for a program that could not be started; `where`: its path for us."""
    name = show_path(os.fsencode(program))
    if not os.path.isdir(cwd):
        return ToolFailed(f"the sandbox {show_path(os.fsencode(cwd))} is missing")
    if isinstance(error, FileNotFoundError):
        if "/" in program and os.path.exists(where or os.path.join(cwd, program)):
            return NotStarted(f"the interpreter that {name} names is missing", CANNOT_RUN)
        return NotStarted(f"no such command: {name}", NO_SUCH)
    if isinstance(error, PermissionError):
        return NotStarted(f"not executable: {name}", CANNOT_RUN)
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return NotStarted(f"cannot run {name}: {reason.lower()}", CANNOT_RUN)


def how_it_ended(code: int, output: str, wrapped: bool) -> str:
    what = f"exit code {code}" if code > 0 else f"killed by {_signal_name(-code)}"
    if wrapped and code > 128:
        # bwrap reports a death by signal as a shell does.
        what += f" ({_signal_name(code - 128)})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"{what}: {lines[-1]}"[:LONGEST_ERROR] if lines else what


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _result(out: Capture, state: CallState, code: int | None = None) -> ToolResult:
    return ToolResult(
        ok=state is CallState.OK,
        state=state,
        output=out.text(),
        output_bytes=out.total,
        exit_code=code,
    )


def _failed(out: Capture, error: str, code: int | None = None) -> ToolResult:
    one_line = " ".join(error.splitlines())
    return msgspec.structs.replace(_result(out, CallState.FAILED, code), error=one_line)


def _timed_out(out: Capture, deadline: Deadline) -> ToolResult:
    error = f"timed out after {deadline.seconds:g} s"
    return msgspec.structs.replace(_result(out, CallState.TIMEOUT), error=error)


@contextmanager
def temporary(parent: str) -> Generator[str]:
    path = tempfile.mkdtemp(prefix="agents-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if os.path.isdir(path):
            # Tools leave directories that even their owner may not write in.
            removal.open_up(path)
            shutil.rmtree(path, ignore_errors=True)


def remove_temporary(parent: str, sandboxes: Collection[str]) -> None:
    """Remove temporary directories left by calls of a dead process.

    A sandbox, named after the user's folder, may have the same name as one of them.
    """
    if not os.path.isdir(parent):
        return
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if name.startswith("agents-") and path not in sandboxes:
            removal.open_up(path)
            shutil.rmtree(path, ignore_errors=True)
