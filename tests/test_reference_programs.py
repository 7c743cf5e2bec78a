"""The programs in the reference run, and print what is written below them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import Agents

REFERENCE = Path(__file__).parents[1] / "docs/reference"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n+(?:```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


def examples(name: str, language: str) -> list[tuple[str, str]]:
    """(program, what it prints) for each block of that language."""
    found = FENCE.findall((REFERENCE / name).read_text())
    return [(body, printed) for kind, body, printed in found if kind == language]


@pytest.mark.parametrize(("program", "printed"), examples("python.md", "python"))
def test_programs_of_the_python_reference(agents: Agents, program: str, printed: str) -> None:
    (agents.work / "app").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=agents.work,
        env=agents.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_there_are_programs_to_run() -> None:
    assert len(examples("python.md", "python")) == 3
    assert examples("python.md", "python")[0][1]


def test_actors_of_the_reference(agents: Agents) -> None:
    (agents.work / "notes").mkdir()
    (agents.work / "notes/b").write_text("")
    plans = [body for body, _ in examples("actors.md", "yaml")]
    scripts = examples("actors.md", "python")
    for script, _ in scripts:
        (agents.work / script.splitlines()[0].removeprefix("# ")).write_text(script)
    _, said = scripts[0]
    for text in plans:
        name = text.splitlines()[0].removeprefix("name: ")
        (agents.work / f"{name}.yaml").write_text(text)
        told = agents.run("plan", "run", f"{name}.yaml").expect(0).stderr
        told = re.sub(r"^  copying .*\n", "", told, flags=re.MULTILINE)  # only where it is slow
        if name in said:
            assert f"$ agents plan run {name}.yaml\n{told}" == said.removesuffix("...\n")
    tidy = agents.run("plan", "status", "tidy-notes", "--json").data["sandboxes"]["notes"]
    assert (Path(tidy) / "index.txt").read_text() == "b\n"
    count = agents.run("plan", "status", "count", "--json").data["sandboxes"]["notes"]
    assert (Path(count) / "count").read_text() == "x\n" * 3
