"""Shared by all commands: options, the context they open, replies and failures."""

import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cleveragents import machine
from cleveragents.cli import render
from cleveragents.cli.again import as_typed
from cleveragents.cli.render import Block, Reply, Text
from cleveragents.context import Talk, utc_now
from cleveragents.errors import AgentsError, CarryLimit, Declined, PlanFileError, UsageError
from cleveragents.model.units import plural
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace, open_workspace, settings_here

if TYPE_CHECKING:
    from cleveragents.cli.terminal.progress import Progress

GARBAGE = 20_000
"""New objects after which garbage is looked for."""
FORMATS = ("rich", "plain", "json", "yaml")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The output options of a command."""

    form: str
    quiet: bool
    debug: bool
    settings: dict[str, str]
    stream: bool = False
    """Show all that the steps print."""

    @property
    def interactive(self) -> bool:
        return self.form in ("rich", "plain") and sys.stdin.isatty()

    def confirm(self, question: str, hint: str) -> None:
        """Ask; without a terminal, refuse and say which flag answers."""
        if not self.interactive:
            raise Declined(f"not done without a yes: {question}", hint)
        try:
            agreed = click.confirm(render.safe_item(question), err=True)
        except click.Abort as abort:
            click.echo(err=True)
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            agreed = False
        if not agreed:
            raise Declined("not done: declined")


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "--format", "form", type=click.Choice(FORMATS), help="Choose the output format."
            ),
            click.option(
                "--json", "as_json", is_flag=True, help="Print JSON; short for --format json."
            ),
            click.option("--quiet", "-q", is_flag=True, help="Print errors only."),
            click.option("--debug", is_flag=True, help="Show tracebacks."),
            click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="KEY=VALUE",
                help="Override a setting for this command.",
            ),
        )
    ):
        function = option(function)
    return function


def command(
    name: str, context: bool = True, own_failure: int | None = None, **attributes: Any
) -> Callable[[Callable[..., Reply]], click.Command]:
    """A click command around `function(workspace, options, ...) -> Reply`.

    `own_failure`: the exit code of our own errors, as others are those of the command it runs.
    """

    def wrap(function: Callable[..., Reply]) -> click.Command:
        @functools.wraps(function)
        def run(
            form: str | None,
            as_json: bool,
            quiet: bool,
            debug: bool,
            overrides: tuple[str, ...],
            **arguments: Any,
        ) -> int:
            form = form_of(form, as_json)
            settings = {key: value for key, _, value in (item.partition("=") for item in overrides)}
            # Exclude loaded modules from garbage collection.
            gc.freeze()
            gc.set_threshold(GARBAGE, 20, 20)
            gc.enable()
            stream = arguments.pop("stream", False)
            options = Options(form=form, quiet=quiet, debug=debug, settings=settings, stream=stream)
            return run_command(name, function, options, context, arguments, own_failure)

        return click.command(name.rpartition(" ")[2], **attributes)(_options(run))

    return wrap


def form_of(form: str | None, as_json: bool) -> str:
    return "json" if as_json else form or ("rich" if sys.stdout.isatty() else "plain")


def run_command(
    name: str,
    function: Callable[..., Reply],
    options: Options,
    context: bool,
    arguments: dict[str, Any],
    own_failure: int | None = None,
) -> int:
    started, clock = utc_now(), time.perf_counter()
    notes: tuple[str, ...] = ()
    warnings: list[str] = []
    voice = Voice(options, warnings)
    try:
        try:
            if context:
                settings = settings_here(overrides=options.settings)
                with open_workspace(settings=settings, talk=voice.talk) as workspace:
                    notes = workspace.recovered
                    _record_left_events(workspace)
                    with _telemetry(workspace, started):
                        reply = function(workspace, options, **arguments)
            else:
                reply = function(options, **arguments)
        finally:
            voice.end()
    except AgentsError as error:
        if options.debug:
            raise
        error.hint = as_typed(error.hint, name)
        notes = tuple(note for note in notes if not note.startswith(error.message))
        reply = failure(error, own_failure=own_failure)
    except KeyboardInterrupt:
        reply = _interrupted(voice.interrupted)
    except Exception as error:
        if options.debug:
            raise
        ours = machine.of_any(error) or internal_error(error)
        reply = failure(ours, own_failure=own_failure)
    duration = (time.perf_counter() - clock) * 1000
    if reply.exit_code and options.form in ("rich", "plain") and "error" in reply.data:
        _print_error(reply)
    render.write(
        reply,
        form=options.form,
        command=f"agents {name}",
        started=started,
        duration_ms=duration,
        notes=(*notes, *warnings),
        quiet=options.quiet,
    )
    sys.stdout.flush()
    return reply.exit_code


def _record_left_events(workspace: Workspace) -> None:
    """Record agents' events that hooks left in files; nearly always none."""
    settings = workspace.ctx.settings
    if not os.path.isdir(folder := f"{settings.home}/sidecars"):
        return
    from cleveragents.maintenance.sidecars import events_wait

    if events_wait(folder) and not workspace.ctx.store.read_only:
        from cleveragents.integrations.launch import record_left_events

        record_left_events(settings)


@contextmanager
def _telemetry(workspace: Workspace, started: str) -> Generator[None]:
    """If the environment asks for telemetry, send the command's trace when it is done."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        yield
        return
    from cleveragents.cluster.telemetry import Telemetry, is_configured

    telemetry = Telemetry(workspace.ctx.store, started) if is_configured(os.environ) else None
    try:
        yield
    finally:
        if telemetry is not None:
            telemetry.send()


def _interrupted(plan: dict[str, Any] | None) -> Reply:
    """The error after Ctrl-C: what is kept, and which command continues."""
    if plan is not None:
        step = f" in step {plan['step']}, which resume runs again" if plan["step"] else ""
        count = f"{plan['done']} of {plural(plan['of'], 'step')}"
        message = f"interrupted{step}; {count} done and kept"
        hint = f"agents plan resume {plan['plan_id']}"
    else:
        import shlex

        from cleveragents.cli.again import TYPED

        here = click.get_current_context(silent=True)
        message = "interrupted; nothing is lost"
        hint = "" if here is None else shlex.join(["agents", *here.meta[TYPED]])
    return Reply(
        data={"error": {"type": "Interrupted", "message": message, "hint": hint}},
        messages=(message,),
        exit_code=130,
    )


def internal_error(error: Exception) -> AgentsError:
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return UsageError(f"not UTF-8: {error.object!r}", "what is kept of a command is UTF-8")
    return AgentsError(
        f"internal error: {type(error).__name__}: {error}",
        "run it again with --debug and report the traceback",
    )


def failure(
    error: AgentsError, data: dict[str, Any] | None = None, own_failure: int | None = None
) -> Reply:
    about: dict[str, Any] = {
        "type": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }
    if isinstance(error, PlanFileError):
        about["problems"] = list(error.problems)
    extra: dict[str, Any] = {}
    if conflicts := getattr(error, "conflicts", ()):
        extra["conflicts"] = msgspec.to_builtins(conflicts)
    if effects := getattr(error, "effects", ()):
        from cleveragents.cli.rollback_data import effect_data

        extra["effects"] = [effect_data(effect) for effect in effects]
    return Reply(
        data={**(data or {}), **extra, "error": about},
        messages=(error.message,) if not isinstance(error, PlanFileError) else error.problems,
        exit_code=own_failure or error.exit_code,
    )


def _print_error(reply: Reply) -> None:
    error = reply.data["error"]
    for line in error.get("problems") or [error["message"]]:
        sys.stderr.write(red(f"error: {render.safe_item(line)}") + "\n")
    for line in reply.said:
        sys.stderr.write(f"  {render.safe_item(line)}\n")
    conflicts: list[dict[str, str]] = reply.data.get("conflicts") or []
    for conflict in conflicts:
        line = f"{conflict['resource']}: {conflict['path']}: {conflict['reason']}"
        sys.stderr.write(f"  {render.safe_cell(line)}\n")
        if error["type"] == "RollbackConflict":
            from cleveragents.cli.in_place import sides_text

            for side in sides_text(conflict["ours"], conflict["theirs"]).splitlines():
                sys.stderr.write(f"  {render.safe_item(side)}\n")
    if error.get("hint"):
        sys.stderr.write(f"hint: {render.safe_item(error['hint'])}\n")


def red(text: str) -> str:
    if not sys.stderr.isatty():
        return text
    from cleveragents.cli.terminal.cells import styled

    return styled(text, "bold red", sys.stderr)


class Voice:
    """Progress on stderr while a command works, and questions if there is a terminal.

    If no progress is shown, `warnings` go into the envelope's messages.
    """

    def __init__(self, options: Options, warnings: list[str] | None = None) -> None:
        self._options = options
        self._warnings = [] if warnings is None else warnings
        self._made: Progress | None = None
        self.interrupted: dict[str, Any] | None = None
        """The plan that Ctrl-C ended, if one ran."""

    @property
    def talk(self) -> Talk:
        return Talk(
            tell=self._tell,
            idle=lambda: self._progress().idle(),
            confirm=self._confirm_large,
        )

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        if event == "interrupted":
            self.interrupted = data
        else:
            self._progress().tell(event, data)

    def end(self) -> None:
        if self._made is not None:
            self._made.end()

    def _progress(self) -> "Progress":
        """Created on demand: most commands show no progress."""
        if self._made is None:
            self._made = self._fitting()
        return self._made

    def _fitting(self) -> "Progress":
        from cleveragents.cli.terminal.progress import Kept, Progress

        options = self._options
        if options.quiet or options.form not in ("rich", "plain"):
            return Kept(self._warnings, options.stream)
        if options.form == "rich" and not options.stream:
            from cleveragents.cli.terminal.cells import is_live

            if is_live(sys.stderr):
                from cleveragents.cli.terminal.live import LiveProgress

                return LiveProgress()
        return Progress(options.stream)

    def _confirm_large(self, problem: str, hint: str) -> None:
        if not self._options.interactive:
            raise CarryLimit(problem, hint)
        self.end()
        sys.stderr.write(f"{render.safe_item(problem)}\n{render.safe_item(hint)}\n")
        self._options.confirm("copy it anyway?", hint)


def found(ws: Workspace, text: str) -> tuple[PlanHandle, tuple[str, ...]]:
    """The named plan, and a note if the name could mean another."""
    from cleveragents.lookup import find_plan

    plan, remark = find_plan(ws.ctx.store, text)
    return PlanHandle(ws.ctx, plan.plan_id), (remark,) if remark else ()


def require_web(name: str) -> None:
    """Refuse if the packages for the page and its reports are missing."""
    from importlib.util import find_spec

    for package in ("jinja2", "starlette", "uvicorn"):
        if find_spec(package) is None:
            raise UsageError(
                f"{name} needs the package {package}", "pip install 'cleveragents[web]'"
            )


def lines(*texts: str) -> tuple[Block, ...]:
    return tuple(Text(text) for text in texts)


__all__ = ["Options", "command", "failure", "lines"]
