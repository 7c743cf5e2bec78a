"""Shared options; and preview, ask, do, for all commands that destroy something."""

import functools
from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import click
import msgspec
from click.core import ParameterSource

from cleveragents.cli.common import Options
from cleveragents.cli.render import Reply
from cleveragents.errors import NotFound, UsageError
from cleveragents.model.effect import Outlook

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any] | click.Command)
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


class Decorator(Protocol):
    """The decorator that click makes for an option or an argument."""

    def __call__(self, function: F, /) -> F: ...


def complete_with(kind: str) -> Complete:
    """Shell completion of an argument, imported on demand."""

    def complete(
        ctx: click.Context, _parameter: click.Parameter, begun: str
    ) -> "list[CompletionItem]":
        from cleveragents.cli import completion

        return completion.offered(kind, ctx.params.get("plan") or "", begun)

    return complete


def resource_option(help: str) -> Decorator:
    complete = complete_with("resource")
    return click.option("--on", metavar="RESOURCE", shell_complete=complete, help=help)


def _argument(name: str, kind: str, **attributes: Any) -> Decorator:
    """Refuse an empty argument: `agents plan delete "$ID" --yes` must not hit another plan."""

    def given(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
        source = ctx.get_parameter_source(name)
        if not value and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{name.upper()} is empty", ctx)
        return value

    return click.argument(name, callback=given, shell_complete=complete_with(kind), **attributes)


plan_argument: Decorator = _argument("plan", "plan", default="", metavar="[PLAN]")
"""Left out: the newest plan of this directory, else the newest; the reply says which."""
named_plan_argument: Decorator = _argument("plan", "plan")
"""For what cannot be undone: nobody is to hit another plan by leaving it out."""
first_argument: Decorator = _argument("plan", "plan or checkpoint", default="", metavar="[PLAN]")
decision_argument: Decorator = _argument("decision", "decision")
checkpoint_argument: Decorator = _argument(
    "checkpoint", "checkpoint", default="", metavar="CHECKPOINT"
)
loss_option: Decorator = click.option(
    "--accept-loss", is_flag=True, help="Roll back even past effects that cannot be undone."
)
repeat_option: Decorator = click.option(
    "--repeat",
    multiple=True,
    metavar="STEP",
    shell_complete=complete_with("step"),
    help="Repeat this step even if its effects outside the sandboxes may have happened.",
)
stream_option: Decorator = click.option(
    "--stream", is_flag=True, help="Show all that the steps print, as it comes."
)
"""Becomes `Options.stream`."""
dry_option: Decorator = click.option(
    "--dry-run", is_flag=True, help="Show what would happen and change nothing."
)
yes_option: Decorator = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask for confirmation."
)
_CONSENT = {"accept_loss": loss_option, "yes": yes_option, "dry_run": dry_option}


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """What the user allows a command to do without asking."""

    yes: bool = False
    dry_run: bool = False
    accept_loss: bool = False

    def preview_ask_do(
        self,
        options: Options,
        command: str,
        *,
        preview: Callable[[], T],
        show: Callable[[T], Reply],
        question: Callable[[T], str],
        do: Callable[[], Reply],
    ) -> Reply:
        """With --dry-run only preview, with --yes only do; `command`: the command as typed."""
        if self.dry_run or not self.yes:
            todo = preview()
            if self.dry_run:
                return show(todo)
            options.confirm(question(todo), f"{command} --yes")
        return do()

    def require_accepted(self, effects: Outlook, command: str) -> None:
        from cleveragents.checkpoints.effects import require_accepted

        require_accepted(effects, self.accept_loss, command)


def of_plan(name: str, notes: tuple[str, ...], question: str) -> str:
    """The question, naming the plan if it was left out or ambiguous."""
    return f"{name}: {question}" if notes else question


class CheckpointCommand(click.Command):
    """A command with a checkpoint argument: `-1` is a checkpoint, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"@{{{w}}}" if _is_ago(w) else w for w in args])


def _is_ago(word: str) -> bool:
    return word[:1] == "-" and word[1:].isdigit()


def plan_and_checkpoint(function: Callable[..., Reply]) -> Callable[..., Reply]:
    """Arguments PLAN, which may be left out, and CHECKPOINT."""

    @functools.wraps(function)
    def run(*positional: Any, plan: str, checkpoint: str, **arguments: Any) -> Reply:
        if not plan:
            raise UsageError("no checkpoint was named", "agents plan checkpoints")
        if checkpoint:
            return function(*positional, plan=plan, checkpoint=checkpoint, **arguments)
        try:
            return function(*positional, plan="", checkpoint=plan, **arguments)
        except NotFound:
            if not positional[0].ctx.store.plans.named(plan):
                raise
            raise UsageError(
                f"no checkpoint of plan {plan!r} was named",
                f"agents plan checkpoints {quote(plan)}",
            ) from None

    return first_argument(checkpoint_argument(run))


def consent_options(
    *names: Literal["accept_loss", "yes", "dry_run"],
) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    """These options as one argument, `consent`."""

    def wrap(function: Callable[..., Reply]) -> Callable[..., Reply]:
        @functools.wraps(function)
        def run(*positional: Any, **arguments: Any) -> Reply:
            consent = Consent(**{name: arguments.pop(name) for name in names})
            return function(*positional, consent=consent, **arguments)

        wrapped: Callable[..., Reply] = run
        for name in reversed(names):
            wrapped = _CONSENT[name](wrapped)
        return wrapped

    return wrap
