"""Options that several commands have; and preview, ask, do, for all that destroy something."""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click
import msgspec

from cleveragents.checkpoints.effects import require_accepted
from cleveragents.cli.common import Options
from cleveragents.cli.render import Reply
from cleveragents.model.effect import Outlook

T = TypeVar("T")

loss_option = click.option(
    "--accept-loss", is_flag=True, help="Roll back even past effects that cannot be undone."
)
repeat_option = click.option(
    "--repeat",
    multiple=True,
    metavar="STEP",
    help="Repeat this step even if its effects outside the sandboxes may have happened.",
)
dry_option = click.option(
    "--dry-run", is_flag=True, help="Show what would happen and change nothing."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
_CONSENT = {"accept_loss": loss_option, "yes": yes_option, "dry_run": dry_option}


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """How far the user lets a command go without being asked."""

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
        """With --dry-run only the preview, with --yes only the deed; `command`: what was typed."""
        if self.dry_run or not self.yes:
            todo = preview()
            if self.dry_run:
                return show(todo)
            options.confirm(question(todo), f"{command} --yes")
        return do()

    def require_accepted(self, effects: Outlook, command: str) -> None:
        require_accepted(effects, self.accept_loss, command)


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
