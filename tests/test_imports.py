"""Imports only point down: edges -> verbs -> seams -> rules -> nouns.

Every import counts, also those inside functions and under TYPE_CHECKING. A new module at the top
of the package has to be given its layer here.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "cleveragents"

LAYERS = {
    "nouns": "plan planspec decision checkpoint resource tool effect journal ids errors units "
    "codec machine",
    "rules": "triggers retention lifecycle impact revision settings",
    "seams": "store content sandbox tools actors planfile postgres",
    "verbs": "acting adopting appending applied apply calling check checkpoints context correction "
    "databases deciding difference doctor earlier effects ending executor export failing gc "
    "hanging keeping leases making moving names oneshot only preflight prune reboot recovery "
    "reports restoring resume reverting rollback sandboxes session settling snapshots subplans "
    "undo unsaved usage use validating working",
    "edges": "workspace config cli render demo",
    "kit": "testing",
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}
TOP = {"__init__", "__main__"}  # the public surface and `python -m cleveragents`


def members(*layers: str) -> set[str]:
    return {name for name, layer in LAYER_OF.items() if layer in layers}


# Nouns, rules and verbs may use their neighbours; a seam knows no other seam.
BY_LAYER = {
    "nouns": members("nouns"),
    "rules": members("nouns", "rules"),
    "seams": members("nouns", "rules"),
    "verbs": members("nouns", "rules", "seams", "verbs"),
}
# Only `workspace` wires: the other edges reach the seams through it.
EXCEPT = {
    "store": BY_LAYER["seams"] | {"content"},
    "planfile": BY_LAYER["seams"] | {"tools", "postgres"},
    "sandbox": BY_LAYER["seams"] | {"content", "postgres"},
    "tools": BY_LAYER["seams"] | {"content"},
    "workspace": BY_LAYER["verbs"] | {"config"},
    "config": BY_LAYER["rules"],
    "render": members("nouns", "rules", "verbs"),
    "demo": members("nouns", "rules", "verbs") | {"workspace", "config"},
    "cli": members("nouns", "rules", "verbs", "edges"),
    # For other packages' tests: knows the seams, and nobody here knows it.
    "testing": members("nouns", "seams"),
}


def allowed(module: str) -> set[str]:
    """What `module` may import; `module` has a layer or is one of TOP."""
    if module in TOP:
        return set(LAYER_OF) - members("kit")
    return {module} | (EXCEPT.get(module) or BY_LAYER[LAYER_OF[module]])


def top_module(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, top module of ours) for every import; `package` is where the file lives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _ours(node.lineno, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = list(package[: len(package) - node.level + 1]) if node.level else []
            path = start + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield from _ours(node.lineno, [*path, alias.name])


def _ours(line: int, path: list[str]) -> Iterator[tuple[int, str]]:
    if path[0] == "cleveragents" and path[1:] != ["__version__"]:
        yield line, path[1] if len(path) > 1 else "__init__"


def uses(path: Path, source: str) -> list[tuple[int, str]]:
    package = ("cleveragents", *path.relative_to(PACKAGE).parts[:-1])
    return list(imported(ast.parse(source), package))


def violations(path: Path, source: str) -> list[str]:
    module = top_module(path)
    if module not in LAYER_OF and module not in TOP:
        return [f"{path.relative_to(PACKAGE)}: {module} has no layer, add it to LAYERS"]
    return [
        f"{path.relative_to(PACKAGE)}:{line}: {module} may not import {name}"
        for line, name in uses(path, source)
        if name not in allowed(module)
    ]


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_imports_only_point_down() -> None:
    found = [v for path in sources() for v in violations(path, path.read_text())]
    assert not found, "\n".join(found)


def test_modules_do_not_import_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources():
        module = top_module(path)
        if module not in TOP:
            names = {name for _, name in uses(path, path.read_text())}
            graph.setdefault(module, set()).update(names - {module})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("plan.py", "from cleveragents.model.ids import new_id", []),
        ("plan.py", "from cleveragents import __version__", []),
        ("plan.py", "from cleveragents import open_workspace", ["open_workspace"]),
        ("plan.py", "import cleveragents", ["__init__"]),
        ("plan.py", "import json, cleveragents.model.retention", ["retention"]),
        ("plan.py", "def f():\n    from .store import sqlite", ["store"]),
        ("retention.py", "from cleveragents import store", ["store"]),
        ("sandbox/copy.py", "from ..content import trees\nfrom . import registry", []),
        ("sandbox/copy.py", "if TYPE_CHECKING:\n    from ..store import Store", ["store"]),
        ("sandbox/git/tree.py", "from ... import executor", ["executor"]),
        ("store/sqlite.py", "from cleveragents.sandbox import git", ["sandbox"]),
        ("rollback.py", "from cleveragents.store import Store", []),
        ("rollback.py", "from cleveragents.workspace import Workspace", ["workspace"]),
        ("cli/plan.py", "from cleveragents.workspace import open_workspace", []),
        ("cli/plan.py", "from cleveragents.store.sqlite import connect", ["store"]),
        ("cli/plan.py", "from cleveragents.testing import look", ["testing"]),
        ("__init__.py", "from cleveragents.testing import look", ["testing"]),
    ],
)
def test_the_rule_itself(file: str, source: str, wrong: list[str]) -> None:
    found = violations(PACKAGE / file, source)
    assert [text.split()[-1] for text in found] == wrong


def test_a_module_without_a_layer_is_named() -> None:
    (found,) = violations(PACKAGE / "utils.py", "")
    assert found == "utils.py: utils has no layer, add it to LAYERS"
