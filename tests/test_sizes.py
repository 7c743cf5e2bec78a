"""Modules, functions and lists of parameters stay small enough to be read at once.

The odd one out is listed with a sentence that says why.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "cleveragents"
MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_PARAMETERS = 400, 60, 8

LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
MANY_PARAMETERS: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Every function with its full name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{within}{node.name}", node
            yield from functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")
        else:
            yield from functions(node, within)


def parameters(function: Function) -> int:
    """Without `self`; `*args` and `**options` are one each."""
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    named += [one for one in (args.vararg, args.kwarg) if one]
    return sum(one.arg not in ("self", "cls") for one in named)


def too_large(source: str) -> dict[str, set[str]]:
    """Kind of excess -> names of functions; an empty name is the module."""
    found: dict[str, set[str]] = {"lines": set(), "function": set(), "parameters": set()}
    if len(source.splitlines()) > MOST_LINES:
        found["lines"].add("")
    for name, function in functions(ast.parse(source)):
        assert function.end_lineno is not None
        if function.end_lineno - function.lineno + 1 > MOST_LINES_OF_A_FUNCTION:
            found["function"].add(name)
        if parameters(function) > MOST_PARAMETERS:
            found["parameters"].add(name)
    return found


@pytest.mark.parametrize(
    ("kind", "listed"),
    [("lines", LONG_MODULES), ("function", LONG_FUNCTIONS), ("parameters", MANY_PARAMETERS)],
)
def test_only_what_is_listed_is_larger(kind: str, listed: dict[str, str]) -> None:
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        found |= {f"{module}:{n}" if n else module for n in too_large(path.read_text())[kind]}
    assert found - listed.keys() == set(), "too large: split it by noun, or say why not"
    assert all(listed.values())


def test_the_rule_itself() -> None:
    assert too_large("x = 1\n" * 400)["lines"] == set()
    assert too_large("x = 1\n" * 401)["lines"] == {""}
    body = "        x = 1\n"
    assert too_large("class A:\n    def f(self):\n" + body * 59)["function"] == set()
    assert too_large("class A:\n    def f(self):\n" + body * 60)["function"] == {"A.f"}
    assert too_large("def f(self, a, b, c, d, /, e, *f, g, h): ...")["parameters"] == set()
    assert too_large("def f(a, b, c, d, e, f, g, *, h, **i): ...")["parameters"] == {"f"}
    assert too_large("def f():\n    def g(" + "a,b,c,d,e,f,g,h,i" + "): ...")["parameters"] == {
        "f.g"
    }
