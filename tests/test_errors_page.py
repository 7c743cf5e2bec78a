"""docs/reference/errors.md lists every error: type, exit code, messages, what to do.

The messages are read from the source: every place that makes an error with a literal message.
`python -m tests.test_errors_page` writes the page anew; tests/test_docs.py compares it.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cleveragents import errors
from cleveragents.errors import AgentsError

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src" / "cleveragents"
PAGE = PROJECT / "docs" / "reference" / "errors.md"

KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, AgentsError)
}
HEAD = """\
# Errors

Every type of error, the messages it comes with and what to do. With `--json` the type is
`error.type`, the message `error.message`, what to do `error.hint`. Placeholders are in braces. A
message that is only passed on, for example from git or a database, is not listed. This page is
generated from the source: `python -m tests.test_errors_page` writes it anew.
"""
PROBLEMS = {"add": 1, "bad": 1, "stop": 1}
"""Methods that note what is wrong with a plan file, and which argument says it."""


def shown(node: ast.expr | None) -> str | None:
    """A message as a person would write it down; None if it is not a literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = shown(node.left), shown(node.right)
        return None if left is None else left + (right or "{...}")
    return None


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    return _placeholder(node.value)


def _placeholder(node: ast.expr) -> str:
    plain = ast.unparse(node)
    if plain.replace(".", "").isidentifier():
        return "{" + plain.removeprefix("self.").lstrip("_") + "}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id == "plural":
            return (
                "{n} "
                + (shown(node.args[-1]) or _placeholder(node.args[-1]))
                + ("s" if len(node.args) == 2 else "")
            )
        if node.func.id in ("nearest", "suggest"):
            return "{did you mean ...?}"
        return _placeholder(node.args[0])
    return "{...}"


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if len(call.args) > position else None


def _hint_position(name: str) -> int:
    return list(inspect.signature(KINDS[name].__init__).parameters).index("hint") - 1


def found(tree: ast.AST, plan_file: bool) -> Iterator[tuple[str, str, str]]:
    """(type, message, hint) of every error that a module makes with a literal message."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in KINDS:
            message = shown(_argument(node, 0, "message"))
            hint = shown(_argument(node, _hint_position(name), "hint"))
        elif plan_file and method in PROBLEMS:
            name, message = "PlanFileError", shown(_argument(node, PROBLEMS[method], "text"))
            hint = shown(_argument(node, 2, "hint"))
        else:
            continue
        if message and message.strip("{.}:; "):
            yield name, message, hint or ""


def collected() -> dict[str, list[tuple[str, str]]]:
    rows: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0]
        if folder in ("testing", "testing.py") or path.name == "demo.py":
            continue
        for name, message, hint in found(ast.parse(path.read_text()), folder == "planfile"):
            rows[name].add((message, hint))
    return {name: sorted(pairs) for name, pairs in rows.items()}


def _cell(text: str) -> str:
    text = " ".join(text.split())
    for char in "\\|<>*_`[]":
        text = text.replace(char, f"\\{char}")
    return text


def page() -> str:
    rows, lines = collected(), [HEAD]
    for code in sorted({kind.exit_code for kind in KINDS.values()}):
        lines.append(f"## Exit code {code}\n")
        for name, kind in KINDS.items():
            if kind.exit_code != code:
                continue
            lines.append(f"### {name}\n")
            if kind.__doc__ and kind.__doc__ != (kind.__base__ and kind.__base__.__doc__):
                lines.append(f"{kind.__doc__}\n")
            if name not in rows:
                lines.append("Has no message of its own.\n")
                continue
            lines += ["| message | what to do |", "| --- | --- |"]
            lines += [f"| {_cell(message)} | {_cell(hint)} |" for message, hint in rows[name]]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def test_most_types_have_a_message() -> None:
    without = set(KINDS) - set(collected()) - {"ExecutionFailed", "NotAllowed", "AgentsError"}
    assert len(without) <= 10, without


def test_placeholders_are_readable() -> None:
    source = "raise NotFound(f'no plan {text!r}{nearest(text, names)}: {plural(n, \"file\")}', 'x')"
    expected = ("NotFound", "no plan {text}{did you mean ...?}: {n} files", "x")
    assert list(found(ast.parse(source), False)) == [expected]


if __name__ == "__main__":
    PAGE.write_text(page())
