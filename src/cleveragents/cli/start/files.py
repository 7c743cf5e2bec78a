"""`agents init`, `agents plan new`, `agents plan lint`."""

import os
import shlex
import sys
from shlex import quote
from typing import Any

import click

from cleveragents.cli.common import Options, command
from cleveragents.cli.render import Block, Panel, Reply, Text
from cleveragents.errors import UsageError
from cleveragents.execution.plan_files import draft as drafts
from cleveragents.model.units import plural
from cleveragents.workspace import Workspace, settings_here

FIRST_PLAN = "plan.yaml"


@command("init", context=False)
def init(options: Options) -> Reply:
    """Write settings and a first plan into the current directory; no file is replaced.

    The plan covers the git repository around this directory, or the directory itself, and the
    SQLite databases in it.
    """
    draft = drafts.drafted(".", None, drafts.FIRST_STEPS, settings_here(None, options.settings))
    written, kept = drafts.write_first(draft, FIRST_PLAN)
    following = [f"agents plan run {FIRST_PLAN}", "agents diff", "agents apply"]
    data = {
        "folder": os.getcwd(),
        "written": list(written),
        "kept": list(kept),
        "resources": _resources(draft),
        "next": following,
    }
    rows = [
        *(("written", path) for path in written),
        *(("already there", path) for path in kept),
        *_resource_rows(draft),
    ]
    return Reply(data=data, blocks=(Panel("Begin", tuple(rows)), _next(following)))


@command("plan new", context=False)
@click.option(
    "--from-commands",
    is_flag=True,
    help="Make a step of each argument; '-': of each line of stdin.",
)
@click.option("--name", help="Name the plan; default: the file's name, or the directory's.")
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="Write to FILE; default: plan.yaml, or plan-2.yaml if that is there, and so on.",
)
@click.argument("commands", nargs=-1, metavar="[CMD]...")
def new(
    options: Options,
    from_commands: bool,
    name: str | None,
    file: str | None,
    commands: tuple[str, ...],
) -> Reply:
    """Write a plan file for the current directory, from commands if you have them.

    \b
    agents plan new --from-commands "npm install" "npm test"
    agents plan new --from-commands - < commands.txt
    """
    if from_commands != bool(commands):
        example = 'agents plan new --from-commands "npm install" "npm test"'
        if from_commands:
            raise UsageError("commands are missing", example)
        raise UsageError(
            f"unexpected argument {commands[0]!r}: commands come after --from-commands",
            shlex.join(["agents", "plan", "new", "--from-commands", *commands]),
        )
    if commands == ("-",):
        commands = tuple(drafts.commands_in(sys.stdin.read()))
        if not commands:
            raise UsageError("standard input has no command")
    file = file or drafts.free_name(FIRST_PLAN)
    stem = os.path.splitext(os.path.basename(file))[0]
    called = name or (stem if file != FIRST_PLAN else None)
    steps = drafts.from_commands(commands) if commands else drafts.FIRST_STEPS
    draft = drafts.drafted(
        os.path.dirname(file) or ".", called, steps, settings_here(None, options.settings)
    )
    drafts.write(file, drafts.text_of(draft, file, guide=not commands))
    following = [f"agents plan lint {quote(file)}", f"agents plan run {quote(file)}"]
    data = {
        "file": file,
        "name": draft.name,
        "resources": _resources(draft),
        "steps": list(draft.steps),
        "next": following,
    }
    rows = (
        ("file", file),
        ("name", draft.name),
        *_resource_rows(draft),
        *((f"step {step['id']}", step["run"]) for step in draft.steps),
    )
    return Reply(data=data, blocks=(Panel("New plan file", rows), _next(following)))


def _resources(draft: drafts.Draft) -> list[dict[str, str]]:
    return [{"name": name, **given} for name, given in draft.resources.items()]


def _resource_rows(draft: drafts.Draft) -> list[tuple[str, str]]:
    return [
        (f"resource {name}", f"{given['kind']}, {given['path']}")
        for name, given in draft.resources.items()
    ]


def _next(commands: list[str]) -> Text:
    return Text("next: " + ", ".join(commands))


@command("plan lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
def lint(ws: Workspace, options: Options, files: tuple[str, ...]) -> Reply:
    """Show everything that is wrong with a plan file: file, line, key, and what was meant.

    Nothing is stored and nothing runs. Exit code 0: it can be run; 2: it cannot.
    """
    checked = {file: ws.lint(file) for file in files}
    problems = [problem for one in checked.values() for problem in one.problems]
    warnings = [f"{file}: {text}" for file, one in checked.items() for text in one.warnings]
    blocks: list[Block] = [
        Text(f"{one.file}:{one.line}:{f'{one.key}:' if one.key else ''} {one.message}", "red")
        for one in problems
    ]
    if not problems:
        blocks.append(Text(f"{plural(len(files), 'plan file')} checked: nothing is wrong"))
    data: dict[str, Any] = {
        "files": list(files),
        "problems": [one._asdict() for one in problems],
        "warnings": warnings,
    }
    return Reply(
        data=data, blocks=tuple(blocks), messages=tuple(warnings), exit_code=2 if problems else 0
    )
