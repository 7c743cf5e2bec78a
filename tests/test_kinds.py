"""Kinds declare what differs: nobody outside of `sandbox/` asks for one by its name or class."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cleveragents
from cleveragents.model.plan_spec import ResourceSpec
from cleveragents.model.resource import Kind
from cleveragents.sandbox import protocol, registry
from cleveragents.sandbox.traits import Traits
from tests.harness import Agents

PACKAGE = Path(cleveragents.__file__).parent
ALLOWED = ("sandbox/", "planfile/resources.py", "model/resource.py", "testing/")
"""Where kinds have their names: their own room, what a plan file may say, the enumeration."""
KINDS = {kind for kind, _ in registry.BUILT_IN}
STRATEGIES = {strategy for _, strategy in registry.BUILT_IN}


def asked_for(source: str) -> Iterator[str]:
    """Every place where a program asks for a kind, a strategy or a class of sandboxes."""
    tree = ast.parse(source)
    classes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "cleveragents.sandbox"
        ):
            classes |= {a.asname or a.name for a in node.names if not _is_protocol(a.name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            quoted = any(f"'{kind}'" in node.value for kind in KINDS)
            if node.value in KINDS or quoted:
                yield f"{node.lineno}: {node.value!r}"
        elif isinstance(node, ast.Attribute) and node.attr in Kind.__members__:
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare):
            sides = ast.walk(node)
            found = {side.value for side in sides if isinstance(side, ast.Constant)}
            # A snapshot is also what a row of a checkpoint holds.
            if found & STRATEGIES - {"snapshot"} or (
                found & STRATEGIES and "strategy" in ast.unparse(node)
            ):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            if names & classes:
                yield f"{node.lineno}: {ast.unparse(node)}"


def _is_protocol(name: str) -> bool:
    """What a sandbox can do, not what it is."""
    return getattr(getattr(protocol, name, None), "_is_protocol", False)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = resource.kind == 'sqlite'", ["1: 'sqlite'"]),
        ("FOLDERS = ('git-checkout',)", ["1: 'git-checkout'"]),
        (
            "db.execute(\"SELECT 1 WHERE kind = 'postgres'\")",
            ["1: \"SELECT 1 WHERE kind = 'postgres'\""],
        ),
        ("if kind is Kind.SQLITE: pass", ["1: Kind.SQLITE"]),
        ("if record.strategy != 'none': pass", ["1: record.strategy != 'none'"]),
        ("text = label or 'none'", []),
        (
            "from cleveragents.sandbox.tree import TreeSandbox\nisinstance(s, TreeSandbox)",
            ["2: isinstance(s, TreeSandbox)"],
        ),
        (
            "from cleveragents.sandbox.protocol import TakesSql\nisinstance(s, TakesSql)",
            [],
        ),
    ],
)
def test_the_rule_itself(source: str, found: list[str]) -> None:
    assert list(asked_for(source)) == found


def test_nobody_asks_for_a_kind_by_its_name_or_class() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(ALLOWED)
        for text in asked_for(path.read_text())
    ]
    assert wrong == [], (
        "let the kind declare it: sandbox/traits.py, or a protocol of what it can do"
    )


def test_what_the_kinds_declare() -> None:
    declared = {kind: registry.traits_of(kind) for kind in KINDS}
    assert {k for k, t in declared.items() if t.is_directory} == {
        "git-checkout",
        "git-remote",
        "fs-directory",
    }
    assert {k for k, t in declared.items() if t.is_repository} == {"git-checkout", "git-remote"}
    assert {k for k, t in declared.items() if t.has_address} == {"git-remote", "postgres"}
    assert {k for k, t in declared.items() if t.is_sqlite and t.is_file} == {"sqlite"}
    assert {k for k, t in declared.items() if t.server is not None} == {"postgres"}
    assert {k for k, t in declared.items() if t.problems is not None} == {
        "git-remote",
        "postgres",
    }


@pytest.mark.parametrize(("kind", "strategy"), registry.BUILT_IN)
def test_only_none_has_nothing_to_roll_back(kind: str, strategy: str) -> None:
    spec = ResourceSpec(name="x", kind=kind, path="/x", strategy=strategy)
    assert registry.is_captured(spec) == (strategy != "none")


def test_a_kind_that_is_not_installed_any_more_is_what_its_path_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    traits = registry.traits_of("no-such-kind")
    assert traits == Traits()
    assert traits.is_file_at(f"{tmp_path}/file")
    assert traits.is_folder_at(str(tmp_path))
    spec = ResourceSpec(name="x", kind="no-such-kind", path=str(tmp_path))
    assert registry.has_copy(spec)
    assert registry.is_captured(spec)


NOTES = """
import os

from cleveragents.errors import SandboxError
from cleveragents.sandbox.copy_on_write import CopyOnWrite
from cleveragents.sandbox.traits import Traits


def require(path):
    if not os.path.exists(f"{path}/notes.md"):
        raise SandboxError(f"{path} has no notes", "write some")


class Notes(CopyOnWrite):
    traits = Traits(is_directory=True, require=require)
"""


def registered(folder: Path, *points: str) -> dict[str, str]:
    """The environment in which another package has registered these."""
    about = folder / "other-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    lines = [f"[{registry.ENTRY_POINTS}]", *points]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / "notes_kind.py").write_text(NOTES)
    return {"PYTHONPATH": str(folder)}


def test_what_a_kind_of_another_package_declares_is_asked(agents: Agents, tmp_path: Path) -> None:
    known = registered(tmp_path / "site", "notes:copied = notes_kind:Notes")
    (agents.work / "texts").mkdir()
    (agents.work / "plan.yaml").write_text(
        """
        name: notes
        resources: {texts: {kind: notes, path: texts}}
        steps:
          - {id: query, tool: sql, on: texts, with: {script: SELECT 1}}
        """,
    )
    said = agents.run("plan", "run", "plan.yaml", env=known).expect(2).stderr
    assert "texts has no notes (write some)" in said
    assert "is no database but a notes" in said


def test_a_kind_whose_package_is_broken_hinders_no_other_plan(
    agents: Agents, tmp_path: Path
) -> None:
    known = registered(tmp_path / "site", "notes:copied = notes_kind:Notes")
    (agents.work / "texts").mkdir()
    (agents.work / "texts/notes.md").touch()
    (agents.work / "plan.yaml").write_text(
        """
        name: notes
        resources: {texts: {kind: notes, path: texts}}
        steps:
          - {id: write, run: "echo more >> notes.md"}
        """,
    )
    agents.run("plan", "run", "plan.yaml", env=known).expect(0)
    (tmp_path / "site/notes_kind.py").unlink()
    agents.run("doctor", env=known).expect(0)
    agents.run("plan", "list", env=known).expect(0)
