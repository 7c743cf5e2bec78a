"""Imports only point down the list of rooms, and never in a circle.

Every import counts, also those inside functions and under TYPE_CHECKING. A new folder or module at
the top of the package has to be given its place here. `python -m tests.test_imports` writes the
table in docs/design.md anew.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src" / "cleveragents"
DESIGN = PROJECT / "docs" / "design.md"

ROOMS = (
    ("__init__", "__main__"),
    ("cli",),
    ("web",),
    ("integrations",),
    ("workspace",),
    ("plan_handle",),
    ("cluster",),
    ("maintenance",),
    ("apply",),
    ("history",),
    ("execution",),
    ("lookup", "context"),
    ("checkpoints",),
    ("lease",),
    ("store", "planfile", "config", "actors"),
    ("sandbox",),
    ("tools",),
    ("content",),
    ("model",),
    ("machine", "codec"),
    ("errors",),
)
"""From top to bottom; rooms of one line do not know each other."""
BEHIND = {"cli": {"store", "content", "sandbox", "tools", "actors", "planfile"}}
"""What a room must not reach for although it lies below: `workspace` alone wires."""
KIT = {
    "testing": {"testing", "cluster", "store", "sandbox", "content", "model", "codec", "errors"},
}
"""For other packages' tests: knows the seams, and nobody here knows it."""
RANK = {name: rank for rank, names in enumerate(ROOMS) for name in names}
MOST_MODULES, MOST_AT_THE_TOP = 20, 10


def may_import(room: str, other: str) -> bool:
    if room in KIT:
        return other in KIT[room]
    return other == room or (RANK.get(other, -1) > RANK[room] and other not in BEHIND.get(room, ()))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line, path of ours) for every import; `package` is where the file lives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _ours(node.lineno, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = list(package[: len(package) - node.level + 1]) if node.level else []
            path = start + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield from _ours(node.lineno, [*path, alias.name])


def _ours(line: int, path: list[str]) -> Iterator[tuple[int, list[str]]]:
    if path[0] == "cleveragents" and path[1:] != ["__version__"]:
        yield line, path[1:] or ["__init__"]


def uses(path: Path, source: str) -> list[tuple[int, list[str]]]:
    package = ("cleveragents", *path.relative_to(PACKAGE).parts[:-1])
    return list(imported(ast.parse(source), package))


def violations(path: Path, source: str) -> list[str]:
    room = room_of(path)
    if room not in RANK and room not in KIT:
        return [f"{path.relative_to(PACKAGE)}: {room} has no place, add it to ROOMS"]
    return [
        f"{path.relative_to(PACKAGE)}:{line}: {room} may not import {found[0]}"
        for line, found in uses(path, source)
        if not may_import(room, found[0])
    ]


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def test_imports_only_point_down() -> None:
    found = [v for path in sources() for v in violations(path, path.read_text())]
    assert not found, "\n".join(found)


def test_modules_do_not_import_in_a_circle() -> None:
    known = {module_name(path) for path in sources()}
    graph: dict[str, set[str]] = {}
    for path in sources():
        name = module_name(path)
        for _, found in uses(path, path.read_text()):
            full, above = ".".join(found), ".".join(found[:-1])
            target = full if full in known else above
            if target in known - {name}:
                graph.setdefault(name, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_room_is_crowded() -> None:
    for folder in {path.parent for path in sources()}:
        most = MOST_AT_THE_TOP if folder == PACKAGE else MOST_MODULES
        modules = [path.name for path in folder.glob("*.py")]
        assert len(modules) <= most, f"{folder.relative_to(PACKAGE)}: {len(modules)} modules"


def sentence_of(room: str) -> str:
    """The first paragraph of what a room says about itself."""
    folder = PACKAGE / room / "__init__.py"
    path = folder if folder.exists() else PACKAGE / f"{room}.py"
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{room} does not say what it is for"
    return " ".join(text.split("\n\n")[0].split())


def table() -> str:
    lines = ["| room | what it is for |", "| --- | --- |"]
    for names in ROOMS[1:]:
        for name in names:
            shown = f"`{name}/`" if (PACKAGE / name).is_dir() else f"`{name}.py`"
            lines.append(f"| {shown} | {sentence_of(name)} |")
    return "\n".join(lines)


START, END = "<!-- rooms -->\n", "\n<!-- end of rooms -->"


def test_the_design_shows_the_rooms_as_they_are() -> None:
    text = DESIGN.read_text()
    shown = text[text.index(START) + len(START) : text.index(END)]
    assert shown == table(), "python -m tests.test_imports writes the table anew"


def test_every_folder_says_what_it_is_for() -> None:
    for path in sources():
        if path.name == "__init__.py" and path.parent != PACKAGE:
            assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("model/plan.py", "from cleveragents.model.ids import new_id", []),
        ("model/plan.py", "from cleveragents import __version__", []),
        ("model/plan.py", "from cleveragents import open_workspace", ["open_workspace"]),
        ("model/plan.py", "import cleveragents", ["__init__"]),
        ("model/plan.py", "import json, cleveragents.content.trees", ["content"]),
        ("model/plan.py", "def f():\n    from ..store import sqlite", ["store"]),
        ("sandbox/copy.py", "from ..content import trees\nfrom . import registry", []),
        ("sandbox/copy.py", "if TYPE_CHECKING:\n    from ..store import Store", ["store"]),
        ("sandbox/git/tree.py", "from ...execution import executor", ["execution"]),
        ("store/sqlite.py", "from cleveragents.planfile import node", ["planfile"]),
        ("history/rollback.py", "from cleveragents.store import Store", []),
        ("history/rollback.py", "from cleveragents.apply import apply", ["apply"]),
        ("history/rollback.py", "from cleveragents.workspace import Workspace", ["workspace"]),
        ("cli/plan.py", "from cleveragents.workspace import open_workspace", []),
        ("cli/plan.py", "from cleveragents.store.sqlite import connect", ["store"]),
        ("cli/plan.py", "from cleveragents.testing import look", ["testing"]),
        ("__init__.py", "from cleveragents.testing import look", ["testing"]),
    ],
)
def test_the_rule_itself(file: str, source: str, wrong: list[str]) -> None:
    found = violations(PACKAGE / file, source)
    assert [text.split()[-1] for text in found] == wrong


def test_a_module_without_a_room_is_named() -> None:
    (found,) = violations(PACKAGE / "utils.py", "")
    assert found == "utils.py: utils has no place, add it to ROOMS"


if __name__ == "__main__":
    old = DESIGN.read_text()
    start, end = old.index(START) + len(START), old.index(END)
    DESIGN.write_text(old[:start] + table() + old[end:])
