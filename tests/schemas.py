"""What commands print is compared with `agents schema`."""

import copy
from functools import cache
from typing import Any

from cleveragents.cli.outputs.table import OUTPUTS
from cleveragents.cli.start.schema import schema_of


def closed(schema: Any) -> Any:
    """The same schema with every object having just the keys it names."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if found.get("type") == "object" and "properties" in found:
        found["additionalProperties"] = False
    return found


@cache
def _checker(name: str, is_closed: bool) -> Any:
    from jsonschema import Draft202012Validator

    schema = schema_of(name)
    if is_closed:
        schema = {**schema, "$defs": closed(copy.deepcopy(schema["$defs"]))}
        for branch in ("then", "else"):
            schema[branch] = closed(copy.deepcopy(schema[branch]))
    return Draft202012Validator(schema)


def wrong_with(envelope: dict[str, Any], *, is_closed: bool = False) -> str:
    """How an answer differs from its schema; empty if it does not."""
    from jsonschema.exceptions import best_match

    name = envelope["command"].removeprefix("agents").strip()
    if name not in OUTPUTS:
        return "" if envelope["status"] == "error" else f"agents {name} has no schema"
    found = best_match(_checker(name, is_closed).iter_errors(envelope))
    where = "cleveragents/cli/outputs"
    return f"agents {name}: {found.json_path}: {found.message[:300]} ({where})" if found else ""
