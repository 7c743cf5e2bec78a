"""The worked example of a kind from another package: registered, proven, used."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.harness import Agents

EXAMPLE = Path(__file__).parents[1] / "examples/third_party_kind"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """As pip leaves it, from the example's own pyproject: the module and what it registers."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    folder = tmp_path / "site"
    about = folder / f"{project['project']['name'].replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    about.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 1.0\n"
    )
    groups = project["project"]["entry-points"]
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    about.joinpath("entry_points.txt").write_text("\n".join(lines) + "\n")
    for module in project["tool"]["setuptools"]["py-modules"]:
        shutil.copy(EXAMPLE / f"{module}.py", folder)
    return folder


def test_its_own_tests_pass(agents: Agents, installed: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "test_json_file.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_json_file.py"],
        cwd=tmp_path,
        env=agents.env | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [passed] = re.findall(r"(\d+) passed, \d+ subtests passed", done.stdout)
    assert int(passed) >= 31


def test_a_plan_over_it_is_rolled_back_merged_and_applied(agents: Agents, installed: Path) -> None:
    known = {"PYTHONPATH": str(installed)}
    settings = agents.work / "settings.json"
    settings.write_text(json.dumps({"theme": "light", "size": 12}))
    shutil.copy(EXAMPLE / "plan.yaml", agents.work)
    assert "json-file" in agents.run("plan", "run", "plan.yaml").expect(2).stderr
    ran = agents.run("plan", "run", "plan.yaml", "--json", env=known).expect(0).data
    copy = Path(ran["sandboxes"]["settings"])
    assert json.loads(copy.read_text())["theme"] == "dark"
    back = agents.run("plan", "rollback", "last", "first", "--yes", "--json", env=known).expect(0)
    assert [c["file"] for c in back.data["changes_reverted"]] == ["settings.json"]
    assert json.loads(copy.read_text())["theme"] == "light"
    agents.run("plan", "resume", "last", env=known).expect(0)
    shown = agents.run("plan", "diff", "last", "--json", env=known).expect(0).data
    assert '"theme": "dark"' in shown["patch"]
    settings.write_text(json.dumps({"theme": "light", "size": 14}))
    agents.run("plan", "apply", "last", "--yes", env=known).expect(0)
    assert json.loads(settings.read_text()) == {"theme": "dark", "size": 14}
    assert [path.name for path in agents.work.iterdir() if path.name.startswith(".")] == []
    agents.run("plan", "revert-applied", "last", env=known).expect(5)
    agents.run("gc", "--grace", "0s", env=known).expect(0)
    agents.run("check", "--read-data", env=known).expect(0)
