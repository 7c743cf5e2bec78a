"""The examples, run as their READMEs say: fail, go back, reconcile, go on, apply."""

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository, snapshot, without

EXAMPLES = Path(__file__).parents[1] / "examples"


def take(agents: Agents, name: str) -> Path:
    """The example, copied to where the command is run."""
    shutil.copytree(EXAMPLES / name, agents.work, dirs_exist_ok=True)
    return agents.work / "project"


def python(agents: Agents, *argv: str, cwd: Path | None = None) -> None:
    subprocess.run([sys.executable, *argv], cwd=cwd or agents.work, env=agents.env, check=True)


def run_failing(agents: Agents, step: str, why: str) -> dict[str, Any]:
    """Run the plan; it stops at that step, and its output tells why."""
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(5).data
    assert ran["error"]["step"] == step
    told = agents.run("plan", "errors", "last", "--json").expect(0).data
    assert why in told["output"] + told["error"]["message"]
    return ran


def back_to(agents: Agents, target: str) -> None:
    agents.run("plan", "rollback", "last", target, "--yes").expect(0)


def test_a_codemod_with_tests(agents: Agents) -> None:
    project = take(agents, "codemod")
    make_repository(agents, project)
    before = snapshot(project)
    ran = run_failing(agents, "test", "has no attribute 'get_users'")
    sandbox = Path(ran["sandboxes"]["shop"])
    assert "def list_people" in (sandbox / "shop/store.py").read_text()
    assert "def get_users_by_age" in (sandbox / "shop/store.py").read_text()
    back_to(agents, "first")
    assert without(snapshot(sandbox), b".git") == without(before, b".git")
    report = sandbox / "shop/report.py"
    report.write_text(report.read_text().replace('"get_users"', '"list_people"'))
    agents.run("plan", "resume", "last").expect(0)
    after = snapshot(project)
    assert without(after, b".git") == without(before, b".git")
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert git(agents, project, "log", "-1", "--format=%s") == "Rename get_users to list_people"
    assert git(agents, project, "status", "--porcelain") == ""
    python(agents, "-B", "-m", "unittest", "-q", cwd=project)
    assert "list_people" in (project / "test_shop.py").read_text()


def test_a_schema_migration_with_a_data_fix(agents: Agents) -> None:
    take(agents, "schema_migration")
    python(agents, "tools/make_db.py", "shop.db")
    before = (agents.work / "shop.db").read_bytes()
    ran = run_failing(agents, "unique", "UNIQUE constraint failed")
    sandbox = Path(ran["sandboxes"]["db"])
    back_to(agents, "columns")
    with closing(sqlite3.connect(sandbox)) as db, db:
        assert db.execute("SELECT count(*), count(given) FROM people").fetchone() == (3, 0)
        db.execute("DELETE FROM people WHERE name = 'A. Lovelace'")
    agents.run("plan", "resume", "last").expect(0)
    assert (agents.work / "shop.db").read_bytes() == before
    agents.run("plan", "apply", "last", "--yes").expect(0)
    with closing(sqlite3.connect(agents.work / "shop.db")) as db:
        assert db.execute("SELECT * FROM people ORDER BY id").fetchall() == [
            (1, "ada@example.org", "Ada", "Lovelace"),
            (2, "grace@example.org", "Grace Brewster", "Hopper"),
        ]
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO people (email) VALUES ('ada@example.org')")


def test_a_dependency_upgrade_that_fails_first(agents: Agents) -> None:
    project = take(agents, "dependency_upgrade")
    python(agents, "tools/make_wheels.py", "wheels")
    python(agents, "../tools/install.py", "../wheels", "requirements.txt", "vendor", cwd=project)
    make_repository(agents, project)
    before = snapshot(project)
    ran = run_failing(agents, "test", "cannot import name 'shout'")
    sandbox = Path(ran["sandboxes"]["app"])
    assert without(snapshot(sandbox), b".git") == without(before, b".git"), "rollback_plan"
    app = sandbox / "app/__init__.py"
    app.write_text(app.read_text().replace("shout", "upper"))
    agents.run("plan", "resume", "last").expect(0)
    assert without(snapshot(project), b".git") == without(before, b".git")
    agents.run("plan", "apply", "last", "--ignored", "--yes").expect(0)
    assert (project / "requirements.txt").read_text() == "textkit==2.0\n"
    assert (project / "vendor/textkit-2.0.dist-info").is_dir()
    assert not (project / "vendor/textkit-1.0.dist-info").exists()
    env = agents.env | {"PYTHONPATH": "vendor"}
    argv = [sys.executable, "-B", "-m", "unittest", "-q"]
    subprocess.run(argv, cwd=project, env=env, check=True)


def test_a_documentation_rewrite_in_parallel_child_plans(agents: Agents) -> None:
    project = take(agents, "docs_rewrite")
    make_repository(agents, project)
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    plans = agents.run("plan", "list", "--json").expect(0).data["plans"]
    assert sum(p["parent_plan_id"] == ran["plan_id"] for p in plans) == 3
    agents.run("plan", "apply", ran["plan_id"], "--yes").expect(0)
    for name in ("guide", "reference", "faq"):
        text = (project / f"docs/{name}.md").read_text()
        assert text.endswith("See [terms](terms.md).\n")
        assert not re.search(r"\bjob", text)


@pytest.mark.parametrize(
    "folder", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
)
def test_each_has_a_short_readme_that_is_listed(folder: str) -> None:
    lines = (EXAMPLES / folder / "README.md").read_text().splitlines()
    assert 5 <= len(lines) <= 20
    assert f"({folder}/README.md)" in (EXAMPLES / "README.md").read_text()
