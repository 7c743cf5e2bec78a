"""Commands import only what they use."""

import os
import subprocess
import sys

import pytest

from cleveragents.content.native.compiled import copy
from cleveragents.integrations.agent import MODULES
from tests.harness import Agents
from tests.test_conversation import Talk

UNUSED = {"rich", "yaml", "tomlkit"}


@pytest.fixture
def planned(agents: Agents) -> Agents:
    (agents.work / "app").mkdir()
    agents.run("run", "--on", "app", "--name", "plain", "--", "true").expect(0)
    return agents


def imported_by(agents: Agents, *argv: str) -> set[str]:
    """Top-level packages."""
    return {name.split(".")[0] for name in imported_modules(agents, *argv)}


def imported_modules(agents: Agents, *argv: str) -> set[str]:
    """By Python's own account."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cleveragents", *argv],
        cwd=agents.work,
        # Measuring coverage would import modules of its own.
        env={k: v for k, v in agents.env.items() if not k.startswith("COVERAGE")},
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    found = {line.rpartition("|")[2].strip() for line in lines}
    assert "cleveragents" in found
    return found


def test_status_imports_only_what_it_uses(planned: Agents) -> None:
    assert imported_by(planned, "plan", "status", "plain", "--json").isdisjoint(UNUSED)


@pytest.mark.parametrize("words", [["rollback", "plain", "first", "--yes"], ["undo", "plain"]])
def test_what_goes_back_imports_nothing_that_runs_tools(planned: Agents, words: list[str]) -> None:
    code = f"""
import sys
from cleveragents.cli.entry import run
sys.argv = ["agents", "plan", *{words}]
try:
    run()
except SystemExit as ended:
    print(ended.code, *sys.modules)
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(
        argv, cwd=planned.work, env=planned.env, check=True, capture_output=True, text=True
    )
    found = done.stdout.splitlines()[-1].split()
    assert found[0] == "0"
    running = ("tools.runner", "tools.confinement.confine", "execution.preflight", "actors")
    running += ("execution.reconcile", "execution.compensation")
    preview = ("cli.data", "cli.plan.read", "cli.plan.read_data")
    assert set(found).isdisjoint(f"cleveragents.{name}" for name in (*running, *preview))


def test_a_session_is_rolled_back_and_looked_at_without_its_adapter(agents: Agents) -> None:
    """The one for opencode takes as long to import as half of a rollback."""
    talk = Talk(agents)
    for words in (["rollback", talk.plan, "first", "--yes", "--files-only"], ["diff", talk.plan]):
        found = imported_modules(agents, "plan", *words)
        adapters = {f"cleveragents.integrations.{name}" for name in MODULES.values()}
        assert found.isdisjoint(adapters | {"json"})


def modules_after(code: str) -> set[str]:
    argv = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    bare = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    done = subprocess.run(argv, env=bare, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_what_runs_plans_imports_nothing_that_few_plans_need() -> None:
    modules = modules_after("import cleveragents.execution.executor")
    assert "cleveragents.execution.child_plans" in modules
    assert modules.isdisjoint({"concurrent.futures", "logging", "secrets", "hashlib"})


@pytest.mark.skipif(copy is None or not copy.KNOWS_SHA, reason="this processor cannot hash SHA-1")
def test_a_small_file_of_git_is_hashed_without_hashlib() -> None:
    modules = modules_after("""
from cleveragents.content.files import hash_git
key = hash_git(iter([b"hi\\n"]), 3, bytes(21))
assert key.hex() == "6745b983be36b73c0788dc9cbcb76cbb80fc7bb057"
""")
    assert "hashlib" not in modules


def test_the_version_is_told_without_anything_else(agents: Agents) -> None:
    found = imported_by(agents, "--version")
    assert found.isdisjoint({*UNUSED, "click", "msgspec", "sqlite3", "json"})


def test_the_import_test_sees_what_is_imported(planned: Agents) -> None:
    """`--format yaml` needs yaml: the check above is able to fail."""
    assert "yaml" in imported_by(planned, "plan", "status", "plain", "--format", "yaml")
