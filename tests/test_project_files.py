"""What surrounds the code says what the code says: workflows, hooks, wheels, rules for agents."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_workflows_run_what_everybody_runs() -> None:
    jobs = yaml.safe_load(WORKFLOWS["checks"])["jobs"]
    commands = [step["run"] for step in jobs["checks"]["steps"] if "run" in step]
    assert commands[-1] == ".ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert ".ci/run -s dist" in WORKFLOWS["release"]


def test_workflows_may_only_read_and_use_actions_by_their_hash() -> None:
    for name, text in WORKFLOWS.items():
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}, name
        for action in re.findall(r"uses: (\S+)", text):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action


def test_wheels_are_built_for_every_python_that_is_checked() -> None:
    matrix = yaml.safe_load(WORKFLOWS["checks"])["jobs"]["checks"]["strategy"]["matrix"]["python"]
    wheels = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert wheels == [f"cp{version.replace('.', '')}-*" for version in matrix]
    assert PROJECT["project"]["requires-python"] == f">={matrix[0]}"


def test_a_wheel_without_its_compiled_parts_is_noticed() -> None:
    tried = PROJECT["tool"]["cibuildwheel"]["linux"]["test-command"]
    for module in PROJECT["tool"]["setuptools"]["ext-modules"]:
        assert module["name"].rpartition(".")[2] in tried


def test_hooks_are_local_and_name_tests_that_exist() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    entries = [shlex.split(hook["entry"]) for hook in repos[0]["hooks"]]
    assert {argv[0] for argv in entries} == {"ruff", "vulture", "python"}
    named = [word for argv in entries for word in argv if word.startswith("tests/")]
    assert named
    assert all((ROOT / name).exists() for name in named)


def test_the_scripts_of_ci_are_shell_that_bash_understands() -> None:
    for script in (ROOT / ".ci").iterdir():
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), script
        assert "set -euo pipefail" in script.read_text()


def test_the_rules_for_agents_name_files_that_exist() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    files = re.findall(r"\b(?:tests|docs)/[\w/]+\.(?:py|md)", text)
    assert len(files) >= 5
    assert [name for name in files if not (ROOT / name).exists()] == []
