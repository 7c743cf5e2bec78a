"""The parts of the reference that are made from the code: usage and options, and settings.

Of a command what stands between `<!-- help -->` and `<!-- end of help -->` below its heading, of a
setting all columns but the last, which is written by people. `python -m tests.test_pages --write`
makes them anew.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from cleveragents.cli.main import root
from cleveragents.model.settings import KEYS, Key, Settings
from cleveragents.model.units import show_bytes
from tests import test_errors_page as errors

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
COMMANDS = REFERENCE / "commands.md"
CONFIGURATION = REFERENCE / "configuration.md"
EVERYWHERE = {"--format", "--json", "--quiet", "--debug", "--set", "--help"}
"""Options that every command has; a section of their own tells of them."""
HELP = re.compile(
    r"^### (agents [^\n]*)\n\n(?:<!-- help -->\n.*?<!-- end of help -->\n\n)?", re.M | re.S
)
ROW = re.compile(r"^\| `([a-z-]+\.[a-z.-]+)`.* \| (.*?) \|$", re.M)


def all_commands(
    group: click.Group = root, path: str = "agents"
) -> Iterator[tuple[str, click.Command]]:
    """Every command with what is typed for it."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from all_commands(found, f"{path} {name}")
        elif found:
            yield f"{path} {name}", found


def row(option: click.Option) -> str:
    """In a table no sign for "or": what escapes it is shown in one viewer and not in another."""
    names, text = shown(option).replace("|", "/"), option.help or ""
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    values = f" ({', '.join(f'`{choice}`' for choice in choices)})" if choices else ""
    return f"| `{names}` | {text.replace('|', '/')}{values} |"


def shown(option: click.Option) -> str:
    """An option as it is typed."""
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    if option.metavar:
        return names + ("" if option.metavar.startswith("[=") else " ") + option.metavar
    return f"{names} {option.opts[0].lstrip('-').upper()}"


def help_of(path: str, command: click.Command) -> str:
    pieces = command.collect_usage_pieces(click.Context(command))
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    own = [option for option in options if not EVERYWHERE.intersection(option.opts)]
    arguments = [piece for piece in pieces if piece != "[OPTIONS]"]
    dashes = [piece for piece in arguments if piece.startswith("--")]
    plain = [piece for piece in arguments if piece not in dashes]
    words = " ".join((path, *plain, *(["[OPTIONS]"] if own else []), *dashes))
    lines = [f"`{words}`", ""]
    if own:
        lines += ["| option | |", "| --- | --- |"]
        lines += [row(option) for option in own]
        lines.append("")
    return "\n".join(lines)


def commands_page(text: str) -> str:
    """The page of commands with usage and options as they are now (pure)."""
    known = dict(all_commands())

    def anew(heading: re.Match[str]) -> str:
        if heading[1] not in known:
            return heading[0]
        body = help_of(heading[1], known[heading[1]])
        return f"### {heading[1]}\n\n<!-- help -->\n{body}<!-- end of help -->\n\n"

    return HELP.sub(anew, text)


def kind_of(key: Key) -> str:
    if key.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in key.choices)
    return f"{key.kind}, at least {key.minimum}" if key.minimum else key.kind


def default_of(key: Key) -> str:
    defaults: dict[str, Any] = {f.name: f.default for f in msgspec.structs.fields(Settings)}
    value = defaults[key.field]
    if value is msgspec.NODEFAULT or value in ("", ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{word}`" for word in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if key.kind == "bytes":
        return show_bytes(value) if value else "0"
    if key.kind == "duration":
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def project_of(key: Key) -> str:
    """Whether a project's file may set it."""
    if key.personal == ("*",):
        return "no"
    return "not " + ", ".join(f"`{value}`" for value in key.personal) if key.personal else "yes"


def configuration_page(text: str) -> str:
    """The page of settings with their table as it is now (pure)."""
    meanings = {match[1]: match[2] for match in ROW.finditer(text)}
    lines = [
        "| key | kind | default | in a project's file | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for key in KEYS:
        names = f"`{key.name}`" + (f", also `{key.alias}`" if key.alias else "")
        cells = (names, kind_of(key), default_of(key), project_of(key))
        lines.append(f"| {' | '.join(cells)} | {meanings.get(key.name, key.help)} |")
    head, _, rest = text.partition("## Settings\n\n")
    rest = re.sub(r"\A(\|.*\n)+", "", rest)
    return f"{head}## Settings\n\n" + "\n".join(lines) + "\n" + rest


PAGES = {COMMANDS: commands_page, CONFIGURATION: configuration_page}


def write() -> None:
    """All that is made from the code, the page of errors too."""
    errors.PAGE.write_text(errors.page())
    for page, made in PAGES.items():
        page.write_text(made(page.read_text()))
