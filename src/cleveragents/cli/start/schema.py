"""`agents schema`: JSON Schema of the plan file and of what each command prints for programs."""

from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from cleveragents.cli.common import Options, command
from cleveragents.cli.outputs.table import OUTPUTS, Shape
from cleveragents.cli.outputs.values import ErrorInfo
from cleveragents.cli.render import Reply, Table, Text
from cleveragents.errors import NotFound
from cleveragents.execution.plan_files.draft import plan_file_schema
from cleveragents.model.triggers import nearest

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAN_FILE = "plan"


def _complete(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The next word of a name."""
    typed: tuple[str, ...] = context.params.get("name") or ()
    names = [tuple(name.split()) for name in OUTPUTS]
    at = len(typed)
    after = [words[at] for words in names if words[:at] == typed and len(words) > at]
    return [CompletionItem(word) for word in dict.fromkeys(after) if word.startswith(begun)]


@command("schema", context=False)
@click.option("--list", "listed", is_flag=True, help="List the names.")
@click.argument("name", nargs=-1, shell_complete=_complete)
def schema(options: Options, listed: bool, name: tuple[str, ...]) -> Reply:
    """Print the JSON Schema of the plan file, or of what a command prints with --json.

    agents schema plan; agents schema plan status; agents schema --list
    """
    names = [PLAN_FILE, *OUTPUTS]
    if listed or not name:
        rows = tuple((one, _about(one)) for one in names)
        return Reply(data={"names": names}, blocks=(Table(("name", "schema of"), rows),))
    wanted = " ".join(name)
    if wanted not in names and f"plan {wanted}" in names:
        wanted = f"plan {wanted}"
    if wanted not in names:
        raise NotFound(f"no schema {wanted!r}{nearest(wanted, names)}", "agents schema --list")
    found = plan_file_schema() if wanted == PLAN_FILE else schema_of(wanted)
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    data = {"name": wanted, "schema": found}
    return Reply(data=data, blocks=(Text(text, verbatim=True),))


def _about(name: str) -> str:
    return "the plan file" if name == PLAN_FILE else f"agents {name} --json"


def schema_of(name: str) -> dict[str, Any]:
    """The envelope of a command with its data, or with an error."""
    shapes = OUTPUTS[name]
    types = [one for shape in shapes for one in shape]
    _, parts = msgspec.json.schema_components([*types, ErrorInfo], ref_template="#/$defs/{name}")
    answers = [_answer(shape, parts) for shape in shapes]
    failed = {
        "type": "object",
        "properties": {"error": {"$ref": "#/$defs/ErrorInfo"}},
        "required": ["error"],
    }
    return {
        "$schema": DRAFT,
        "title": f"agents {name} --json",
        "type": "object",
        "properties": {
            "command": {"const": f"agents {name}"},
            "status": {"enum": ["ok", "error"]},
            "exit_code": {"type": "integer"},
            "data": {"type": "object"},
            "timing": {
                "type": "object",
                "properties": {
                    "started": {"type": "string", "format": "date-time"},
                    "duration_ms": {"type": "number"},
                },
                "required": ["started", "duration_ms"],
            },
            "messages": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["command", "status", "exit_code", "data", "timing", "messages"],
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"properties": {"data": {"anyOf": answers}}},
        "else": {"properties": {"data": {"anyOf": [*answers, failed]}}},
        "$defs": parts,
    }


def _answer(shape: Shape, parts: dict[str, Any]) -> dict[str, Any]:
    """One object with the members of all its types."""
    if len(shape) == 1:
        return {"$ref": f"#/$defs/{shape[0].__name__}"}
    found: list[dict[str, Any]] = [parts[one.__name__] for one in shape]
    return {
        "type": "object",
        "properties": {key: value for one in found for key, value in one["properties"].items()},
        "required": sorted({key for one in found for key in one.get("required", ())}),
    }
