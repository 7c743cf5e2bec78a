"""Errors in what was typed, which click finds: in our words and our envelope."""

import sys
from collections.abc import Sequence

import click

from cleveragents.cli import render
from cleveragents.cli.common import FORMATS, red
from cleveragents.cli.render import Reply
from cleveragents.context import utc_now


def fail_usage(error: click.UsageError, argv: Sequence[str], path: str) -> int:
    """Report an error in the command `path`; returns the exit code."""
    if isinstance(error, click.NoSuchOption):
        error = _no_such_option(error)
    message = " ".join(error.format_message().split()).removesuffix(".")
    message = message[:1].lower() + message[1:].replace("valid integer range", "valid integer")
    hint = f"{path} --help"
    exit_code = 125 if path == "agents run" else 2
    if (form := typed_form(argv)) in ("json", "yaml"):
        reply = Reply(
            data={"error": {"type": "UsageError", "message": message, "hint": hint}},
            messages=(message,),
            exit_code=exit_code,
        )
        render.write(reply, form=form, command=path, started=utc_now(), duration_ms=0)
    else:
        sys.stderr.write(red(f"error: {render.safe_item(message)}") + f"\nhint: {hint}\n")
    return exit_code


def typed_form(argv: Sequence[str]) -> str:
    """The form that `--json` or `--format` ask for, in words that click could not read."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    if "--json" in options:
        return "json"
    form = "plain"
    for word, following in zip(options, (*options[1:], ""), strict=True):
        name, _, value = word.partition("=")
        if name == "--format" and (value := value or following) in FORMATS:
            form = value
    return form


def _no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """The error with the nearest option."""
    from cleveragents.model.triggers import nearest

    params = error.ctx.command.params if error.ctx else []
    known = [name for option in params for name in (*option.opts, *option.secondary_opts)]
    name = error.option_name
    near = nearest(name, [one for one in known if one.startswith("--")])
    return click.UsageError(f"no such option {name!r}{near}", error.ctx)
