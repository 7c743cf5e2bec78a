"""The built-in tools, and the inputs (`with`) that a step may give any tool."""

import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from cleveragents.model.tool import ToolSpec
from cleveragents.model.triggers import nearest


class Input(msgspec.Struct, frozen=True):
    """One input of a tool; `type` is a key of `TYPES`."""

    name: str
    type: str
    required: bool = False
    default: Any = None


# Tools in our own process use no network: all of their effects are known.
_FILE = {"network": False}
_READ: dict[str, Any] = {"network": False, "read_only": True, "writes": False, "idempotent": True}


def _builtin(name: str, description: str, **flags: Any) -> ToolSpec:
    return ToolSpec(name=name, description=description, builtin=name, **flags)


BUILTINS: dict[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        _builtin("file.read", "show a file", **_READ),
        _builtin("file.write", "write a whole file", idempotent=True, **_FILE),
        _builtin("file.edit", "replace one text in a file by another", **_FILE),
        _builtin("file.delete", "delete a file or a directory", **_FILE),
        _builtin("file.list", "list a directory", **_READ),
        _builtin("file.search", "find lines that match a regular expression", **_READ),
        _builtin("file.move", "move or rename a file or a directory", **_FILE),
        _builtin("file.copy", "copy a file or a directory", **_FILE),
        _builtin("file.mkdir", "make a directory", idempotent=True, **_FILE),
        _builtin("shell", "run a shell command"),
        _builtin("run", "run a program with its arguments"),
        _builtin("sql", "run SQL against the resource's database", network=False),
    )
}

_ARGS, _STDIN = Input("args", "texts", default=()), Input("stdin", "text")
_PARAMS = Input("params", "params")
_PATH, _HERE = Input("path", "path", required=True), Input("path", "path", default=".")
_FROM, _TO = Input("from", "path", required=True), Input("to", "path", required=True)

INPUTS: dict[str, tuple[Input, ...]] = {
    "file.read": (_PATH,),
    "file.write": (_PATH, Input("content", "text", required=True), Input("mode", "mode")),
    "file.edit": (
        _PATH,
        Input("old", "text", required=True),
        Input("new", "text", required=True),
        Input("all", "flag", default=False),
    ),
    "file.delete": (_PATH, Input("recursive", "flag", default=False)),
    "file.list": (_HERE, Input("recursive", "flag", default=False)),
    "file.search": (Input("pattern", "regex", required=True), _HERE, Input("glob", "text")),
    "file.move": (_FROM, _TO),
    "file.copy": (_FROM, _TO),
    "file.mkdir": (_PATH, Input("parents", "flag", default=True)),
    "shell": (Input("command", "text", required=True), _ARGS, _STDIN),
    "run": (Input("argv", "argv", required=True), _STDIN, Input("cwd", "path")),
    "sql": (Input("script", "text", required=True), _PARAMS),
}


def runs_process(tool: ToolSpec) -> bool:
    """Whether the tool starts a program; all others work in our own process."""
    return tool.sql is None and not (tool.builtin or "").startswith(("file.", "plan.", "sql"))


def inputs_of(tool: ToolSpec) -> tuple[Input, ...] | None:
    """The tool's inputs; None: any that its callable takes."""
    if tool.builtin is not None:
        return INPUTS[tool.builtin]
    if tool.python is not None:
        return None
    return (_PARAMS,) if tool.sql is not None else (_ARGS, _STDIN)


def check_inputs(tool: ToolSpec, inputs: dict[str, Any]) -> list[str]:
    """Everything wrong with a step's inputs, as texts."""
    declared = inputs_of(tool)
    if declared is None:
        return []
    known = {each.name: each for each in declared}
    problems = [
        f"unknown input '{name}' for {tool.name}{nearest(name, known)}"
        for name in inputs
        if name not in known
    ]
    for name, each in known.items():
        where = f"input '{name}' of {tool.name}"
        # `stdin:` with nothing after it is the same as no `stdin` at all.
        if inputs.get(name) is None:
            problems += [f"{where} is missing"] if each.required else []
        elif problem := TYPES[each.type](inputs[name]):
            problems.append(f"{where} {problem}")
    return problems


def filled(tool: ToolSpec, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs, with defaults for those left out."""
    declared = inputs_of(tool)
    if declared is None:
        return inputs
    given = {name: value for name, value in inputs.items() if value is not None}
    return {each.name: each.default for each in declared} | given


def parse_mode(value: str | int | None) -> int | None:
    return int(value, 8) if isinstance(value, str) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return f"must be text, not {_kind(value)}"
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        return f"holds {value[error.start]!a}, which cannot be written as bytes"
    return ""


def _path(value: Any) -> str:
    if problem := _text(value):
        return problem
    return "is empty" if not value else "holds a NUL character" if "\0" in value else ""


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, not {_kind(value)}"


def _texts(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return f"must be a list, not {_kind(value)}"
    for each in cast("list[Any]", value):
        if not _plain(each):
            return f"must hold texts and numbers only, not {_kind(each)}"
        if problem := _text(str(each)):
            return problem
    return ""


def _argv(value: Any) -> str:
    return _texts(value) or ("" if value else "is empty")


def _params(value: Any) -> str:
    fine = isinstance(value, list | tuple | dict)
    return "" if fine else f"must be a list or a mapping, not {_kind(value)}"


def _regex(value: Any) -> str:
    if problem := _text(value):
        return problem
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    return ""


def _mode(value: Any) -> str:
    if isinstance(value, str):
        fine = re.fullmatch(r"(0o)?[0-7]{1,5}", value) and int(value, 8) <= 0o7777
        return "" if fine else f"is not a file mode: '{value}'"
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a file mode like '0644', not {_kind(value)}"
    # 755 without quotes is the number 755, a different mode.
    return "" if 0 <= value <= 0o777 else f"is not a file mode: {value}; write it as '0644'"


TYPES: dict[str, Callable[[Any], str]] = {
    "text": _text,
    "path": _path,
    "flag": _flag,
    "texts": _texts,
    "argv": _argv,
    "params": _params,
    "regex": _regex,
    "mode": _mode,
}


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names: dict[type[object], str] = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
    }
    names |= {list: "a list", tuple: "a list", dict: "a mapping"}
    kind = type(cast("object", value))
    return names.get(kind, f"a {kind.__name__}")
