"""Trees of more levels than Python has frames and a process has descriptors by default."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Agents

LEVELS = 1100
MAKE = f"""
import os
fd = os.open(".", os.O_RDONLY)
for _ in range({LEVELS}):
    os.mkdir("b", dir_fd=fd)
    below = os.open("b", os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    fd = below
file = os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
os.write(file, b"made")
"""
PLAN = f"""
name: deep
resources: {{docs: {{kind: fs-directory, path: docs}}}}
steps:
  - {{id: make, run: "{sys.executable} $AGENTS_PLAN_DIR/make.py"}}
  - {{id: remove, run: "rm -rf a"}}
"""


def dig(root: Path, name: str) -> None:
    fd = os.open(root, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def depth(root: Path, name: str) -> int:
    """How many levels of that name there are, with a leaf at the end; -1 without one."""
    fd, found = os.open(root, os.O_RDONLY), 0
    while name in os.listdir(fd):
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd, found = below, found + 1
    ended = "leaf" in os.listdir(fd)
    os.close(fd)
    return found if ended else -1


@pytest.fixture(autouse=True)
def gone_afterwards(private_process: Path) -> Iterator[None]:
    """pytest itself cannot remove such trees."""
    yield
    subprocess.run(["rm", "-rf", private_process], check=True)


def test_a_very_deep_tree_is_copied_captured_rolled_back_applied_and_removed(
    agents: Agents,
) -> None:
    docs = agents.work / "docs"
    docs.mkdir()
    dig(docs, "a")
    (agents.work / "make.py").write_text(MAKE)
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.env["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    sandbox = Path(ran.data["sandboxes"]["docs"])
    assert (depth(sandbox, "a"), depth(sandbox, "b")) == (-1, LEVELS)
    agents.run("plan", "rollback", "deep", "first", "--yes").expect(0)
    assert (depth(sandbox, "a"), depth(sandbox, "b")) == (LEVELS, -1)
    agents.run("plan", "undo", "deep").expect(0)
    assert (depth(sandbox, "a"), depth(sandbox, "b")) == (-1, LEVELS)
    agents.run("plan", "apply", "deep", "--yes").expect(0)
    assert (depth(docs, "a"), depth(docs, "b")) == (-1, LEVELS)
    assert not sandbox.exists()
    assert agents.run("check", "--read-data", "--json").expect(0).data["problems"] == []
