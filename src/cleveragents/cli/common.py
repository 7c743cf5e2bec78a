"""What every command shares: its options, the context it opens, how it replies and fails."""

import functools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from cleveragents import machine
from cleveragents.cli import render
from cleveragents.cli.render import Block, Reply, Text
from cleveragents.context import Talk, utc_now
from cleveragents.errors import AgentsError, CarryLimit, Declined, PlanFileError
from cleveragents.model.units import plural
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace, open_workspace, settings_here

if TYPE_CHECKING:
    import click

INTERRUPTED = "interrupted; nothing is lost"
RUN_STEPS = ("run", "plan run", "plan execute", "plan resume", "plan correct")
NO_READER = 141
FORMATS = ("rich", "plain", "json", "yaml")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the user wants to be spoken to."""

    form: str
    quiet: bool
    debug: bool
    settings: dict[str, str]

    @property
    def interactive(self) -> bool:
        return self.form in ("rich", "plain") and sys.stdin.isatty()

    def confirm(self, question: str, hint: str) -> None:
        """Ask; without a terminal, refuse and say which flag answers."""
        if not self.interactive:
            raise Declined(f"not done: {question}", hint)
        import click

        if not click.confirm(render.safe_item(question), err=True):
            raise Declined("not done: declined")


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    import click

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
) -> "Callable[[Callable[..., Reply]], click.Command]":
    """A click command around `function(workspace, options, ...) -> Reply`.

    `own_failure`: the exit code of every error, where all others are the command's that it runs.
    """
    import click

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
            options = Options(form=form, quiet=quiet, debug=debug, settings=settings)
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
    try:
        if context:
            settings = settings_here(overrides=options.settings)
            with open_workspace(settings=settings, talk=talk(options, warnings)) as workspace:
                notes = workspace.recovered
                reply = function(workspace, options, **arguments)
        else:
            reply = function(options, **arguments)
    except AgentsError as error:
        if options.debug:
            raise
        error.hint = _completed(error.hint, name)
        reply = failure(error, own_failure=own_failure)
    except KeyboardInterrupt:
        hint = _go_on_with(name, arguments)
        reply = Reply(
            data={"error": {"type": "Interrupted", "message": INTERRUPTED, "hint": hint}},
            messages=(INTERRUPTED,),
            exit_code=130,
        )
    except Exception as error:
        if options.debug:
            raise
        ours = machine.of_os(error) if isinstance(error, OSError) else internal_error(error)
        reply = failure(ours, own_failure=own_failure)
    duration = (time.perf_counter() - clock) * 1000
    try:
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
    except BrokenPipeError:
        # click would make it exit code 1; whoever read us has gone, as with `git diff | head`.
        return NO_READER
    return reply.exit_code


def _completed(hint: str, name: str) -> str:
    """Where the hint is to type the same with another option: with all that was typed."""
    if f"agents {name} " not in hint:
        return hint
    import click

    from cleveragents.cli.again import TYPED, completed

    here = click.get_current_context(silent=True)
    return hint if here is None else completed(hint, name, here.meta[TYPED], here.command)


def _go_on_with(name: str, arguments: dict[str, Any]) -> str:
    """What to type after Ctrl-C: what continues the steps, or the same once more."""
    if name in RUN_STEPS:
        return f"agents plan resume {arguments.get('plan', 'last')}"
    import shlex

    import click

    from cleveragents.cli.again import TYPED

    here = click.get_current_context(silent=True)
    return "" if here is None else shlex.join(["agents", *here.meta[TYPED]])


def internal_error(error: Exception) -> AgentsError:
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
    extra = {
        name: msgspec.to_builtins(found)
        for name in ("conflicts", "effects")
        if (found := getattr(error, name, ()))
    }
    return Reply(
        data={**(data or {}), **extra, "error": about},
        messages=(error.message,) if not isinstance(error, PlanFileError) else error.problems,
        exit_code=own_failure or error.exit_code,
    )


def _print_error(reply: Reply) -> None:
    error = reply.data["error"]
    for line in error.get("problems") or [error["message"]]:
        sys.stderr.write(f"error: {render.safe_item(line)}\n")
    conflicts: list[dict[str, str]] = reply.data.get("conflicts") or []
    for conflict in conflicts:
        line = f"{conflict['resource']}: {conflict['path']}: {conflict['reason']}"
        sys.stderr.write(f"  {render.safe_cell(line)}\n")
    if error.get("hint"):
        sys.stderr.write(f"hint: {render.safe_item(error['hint'])}\n")


def fail_usage(error: "click.UsageError", argv: list[str]) -> int:
    """click's own complaints, in our words and our envelope."""
    message = error.format_message()
    path = error.ctx.command_path if error.ctx else "agents"
    hint = f"{path} --help"
    exit_code = 125 if path == "agents run" else 2
    if "--json" in argv or "json" in argv:
        reply = Reply(
            data={"error": {"type": "UsageError", "message": message, "hint": hint}},
            messages=(message,),
            exit_code=exit_code,
        )
        render.write(reply, form="json", command=path, started=utc_now(), duration_ms=0)
    else:
        sys.stderr.write(f"error: {render.safe_item(message)}\nhint: {hint}\n")
    return exit_code


def talk(options: Options, warnings: list[str] | None = None) -> Talk:
    """Progress on stderr while steps run; questions where there is somebody to answer.

    Where nothing is shown, `warnings` are kept for the envelope's messages.
    """

    def confirm_large(problem: str, hint: str) -> None:
        if not options.interactive:
            raise CarryLimit(problem, hint)
        sys.stderr.write(f"{render.safe_item(problem)}\n{render.safe_item(hint)}\n")
        options.confirm("copy it anyway?", hint)

    def keep_warning(event: str, data: dict[str, Any]) -> None:
        if event == "warning" and warnings is not None:
            warnings.append(data["message"])

    silent = options.quiet or options.form not in ("rich", "plain")
    return Talk(tell=keep_warning if silent else Progress().tell, confirm=confirm_large)


class Progress:
    """A line per step, as it happens."""

    def __init__(self) -> None:
        self._copied: dict[str, tuple[int, int]] = {}
        self._pieces = 0
        self._shown = time.monotonic()

    def tell(self, event: str, data: dict[str, Any]) -> None:
        if event in ("copying", "copied"):
            self._copy(data["resource"], data["bytes"], event == "copied")
        elif event == "step":
            self._say(f"> {_which(data)} ({data['tool']})")
        elif event == "failed":
            self._say(f"x {_which(data)}: {data['error']}")
        elif event == "rolled_back":
            self._say(f"  rolled back {plural(len(data['changes']), 'change')}")
        elif event == "compensate":
            self._say(f"> compensate {data['id']} ({data['tool']})")
        elif event == "reverted":
            self._say(f"< the actor starts over: {data['reason']}")
        elif event == "validate":
            self._say(f"> validate: {data['run']}")
        elif event == "warning":
            self._say(f"warning: {data['message']}")

    def _copy(self, resource: str, added: int, is_whole: bool) -> None:
        """Pieces of a large file count as they come, and then the file itself instead of them."""
        files, size = self._copied.get(resource, (0, 0))
        if is_whole:
            files, size = files + 1, size + added
            self._copied[resource] = files, size
            self._pieces = 0
        else:
            self._pieces += added
        if time.monotonic() - self._shown > 1:
            self._shown = time.monotonic()
            so_far = (size + self._pieces) / 1e6
            self._say(f"  copying {resource}: {plural(files, 'file')}, {so_far:.0f} MB so far")

    def _say(self, line: str) -> None:
        with suppress(BrokenPipeError):  # nobody looks any more; the plan continues
            sys.stderr.write(render.safe_item(line) + "\n")
            sys.stderr.flush()


def _which(data: dict[str, Any]) -> str:
    """The step, and the child plan it belongs to."""
    return f"{data['plan']}: {data['id']}" if "plan" in data else data["id"]


def found(ws: Workspace, text: str) -> tuple[PlanHandle, tuple[str, ...]]:
    """The plan that was named, and a remark if the name could have meant another."""
    from cleveragents.lookup import find_plan

    plan, remark = find_plan(ws.ctx.store, text)
    return PlanHandle(ws.ctx, plan.plan_id), (remark,) if remark else ()


def lines(*texts: str) -> tuple[Block, ...]:
    return tuple(Text(text) for text in texts)


__all__ = ["Options", "command", "failure", "lines"]
