"""The tools that steps call: the built-in ones, their inputs, and how any tool is run.

`runner.run_tool` runs one; a tool changes files or a database only in the sandbox of its resource,
in our own process (`files`, `sql`) or in a child that is ended with all it started (`process`).
"""

from collections.abc import Mapping

from cleveragents.errors import UsageError
from cleveragents.model.tool import ToolSpec
from cleveragents.model.triggers import nearest
from cleveragents.tools.builtin import BUILTINS, INPUTS, check_inputs

__all__ = ["BUILTINS", "INPUTS", "check_inputs", "resolve_tool"]


def resolve_tool(name: str, declared: Mapping[str, ToolSpec]) -> ToolSpec:
    """The tool of that name: one of the plan's own, else a built-in."""
    known = {**BUILTINS, **declared}
    if name in known:
        return known[name]
    raise UsageError(
        f"no tool named '{name}'{nearest(name, known)}",
        f"declare it under tools:, or use one of {', '.join(sorted(known))}",
    )
