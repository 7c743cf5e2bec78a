"""Writes a first plan file for a folder (`init`, `plan new`)."""

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cleveragents.config import PROJECT_FILE, project_file
from cleveragents.config.template import project_template
from cleveragents.content import fsio
from cleveragents.errors import NotAllowed, UsageError
from cleveragents.model.settings import Settings
from cleveragents.planfile.schema import plan_schema
from cleveragents.sandbox.recognize import around, databases_in, kind_at
from cleveragents.sandbox.registry import kinds
from cleveragents.sandbox.wide import require_not_too_wide

SCHEMA_FILE = ".cleveragents.schema.json"
"""What editors complete plan files with; `agents schema plan` prints it."""
LONGEST_ID = 40
WORDS_IN_ID = 3

FIRST_STEPS = ({"id": "hello", "run": "date > hello.txt"},)
GUIDE = """\
# What to work on, and the steps. Nothing of yours changes until you apply the plan.
#   agents plan lint {file}   show what is wrong with this file
#   agents plan run {file}    run it in sandboxes
#   agents diff               {pad}show what it changed
#   agents rollback first     {pad}roll it back to where it began
#   agents apply              {pad}make it real
"""
EXTRAS = """
# Before anything is applied these have to succeed, in the sandbox:
# validate:
#   - {run: "test -e hello.txt", on: work}

# When a step fails: rollback_step (default), rollback_plan or stop.
# policy: {on_failure: rollback_step}
"""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A plan file to write; paths of resources are relative to its folder."""

    name: str
    resources: dict[str, dict[str, str]]
    steps: tuple[dict[str, str], ...]


def drafted(
    folder: str, name: str | None, steps: Sequence[dict[str, str]], settings: Settings
) -> Draft:
    """A plan in `folder`, over the repository or directory around us and the databases in it."""
    here, beside = os.getcwd(), os.path.abspath(folder)
    top, kind = around(here)
    told = settings.allow_wide
    require_not_too_wide(top, settings.home, sandboxes=settings.sandboxes, told=told)
    resources = {"work": {"kind": kind, "path": _path(top, beside)}}
    for database in databases_in(top):
        stem = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(database).rpartition(".")[0])
        own = _unused(stem.strip("-") if stem[:1].isalpha() else "db", resources)
        resources[own] = {"kind": kind_at(database), "path": _path(database, beside)}
    on = {"on": "work"} if len(resources) > 1 else {}
    named = tuple({"id": step["id"], **on, "run": step["run"]} for step in steps)
    return Draft(name=name or _name_of(here), resources=resources, steps=named)


def from_commands(commands: Sequence[str]) -> list[dict[str, str]]:
    """A step for each command, named after its first words."""
    steps: dict[str, dict[str, str]] = {}
    for command in commands:
        if not command.strip():
            raise UsageError("a command is empty", 'agents plan new --from-commands "make test"')
        name = _unused(_id_of(command), steps)
        steps[name] = {"id": name, "run": command}
    return list(steps.values())


def commands_in(text: str) -> list[str]:
    """One command per line; a backslash at its end continues it, `#` begins a comment line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def text_of(draft: Draft, file: str, *, guide: bool = False) -> str:
    """The plan file's text; `guide`: with comments on how to use it."""
    schema = _schema_above(os.path.dirname(os.path.abspath(file)))
    head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    body = _yaml({"name": draft.name, "resources": draft.resources, "steps": list(draft.steps)})
    if not guide:
        return head + body
    name = os.path.basename(file)
    return head + GUIDE.format(file=name, pad=" " * (len(name) - 6)) + body + EXTRAS


def write_first(draft: Draft, file: str) -> tuple[list[str], list[str]]:
    """Write settings, schema and a first plan; returns written and existing files."""
    settings = project_file(os.getcwd(), os.environ)
    kept = [os.path.relpath(settings)] if settings else []
    written: list[str] = []
    files: list[tuple[str, Callable[[], str]]] = [
        *(() if settings else [(PROJECT_FILE, project_template)]),
        (SCHEMA_FILE, lambda: json.dumps(plan_file_schema(), indent=2) + "\n"),
        (file, lambda: text_of(draft, file, guide=True)),  # it names the existing schema
    ]
    for path, text in files:
        try:
            write(path, text())
        except NotAllowed:
            kept.append(path)
        else:
            written.append(path)
    return written, kept


def plan_file_schema() -> dict[str, Any]:
    """The JSON Schema of plan files, with the installed kinds of resources."""
    return plan_schema(kinds())


def free_name(file: str) -> str:
    """The name, or the first free one with a number appended."""
    stem, end = os.path.splitext(file)
    names = (file, *(f"{stem}-{number}{end}" for number in range(2, 1000)))
    return next((name for name in names if not os.path.lexists(name)), file)


def write(file: str, text: str) -> None:
    """Write a new file; an existing one is kept."""
    try:
        fsio.write_new(file, text.encode(), 0o666)
    except FileExistsError:
        raise NotAllowed(f"{file} already exists", "choose another: --output FILE") from None
    except FileNotFoundError:
        raise UsageError(f"no such folder: {os.path.dirname(file)}") from None


def _path(path: str, folder: str) -> str:
    return os.path.relpath(path, folder).replace("$", "$$")


def _name_of(folder: str) -> str:
    return re.sub(r"\s+", "-", os.path.basename(folder).strip()) or "plan"


def _id_of(command: str) -> str:
    first = command.strip().splitlines()[0]
    words = [word for word in first.split() if re.fullmatch(r"[A-Za-z0-9_./:=-]+", word)]
    plain = [word.rstrip("/").rpartition("/")[2] for word in words if not word.startswith("-")]
    called = "-".join(re.sub(r"[^A-Za-z0-9_.-]", "-", word) for word in plain[:WORDS_IN_ID])
    return called[:LONGEST_ID].strip("-.") or "step"


def _unused(name: str, taken: dict[str, Any]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _schema_above(folder: str) -> str:
    """The schema in this folder or one above it, relative to this; empty if there is none."""
    above = folder
    while not os.path.isfile(f"{above}/{SCHEMA_FILE}"):
        if above == os.path.dirname(above):
            return ""
        above = os.path.dirname(above)
    return os.path.relpath(f"{above}/{SCHEMA_FILE}", folder)


def _yaml(value: dict[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, *_: Any, **__: Any) -> None:
            super().increase_indent(flow, False)  # lists are indented

    def text(dumper: Any, given: str) -> Any:
        style = "|" if "\n" in given else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", given, style)

    Dumper.add_representer(str, text)
    written = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    # In YAML 1.1 `on` means true; as a key we read it as written.
    return re.sub(r"^    'on': ", "    on: ", written, flags=re.MULTILINE)
