"""The commit a plan was made from is gone from the user's repository, ref of ours and all."""

import shutil
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository

PLAN = """name: job
resources: {app: {kind: git-checkout, path: ., carry: committed}}
steps:
  - {id: one, run: "rm -rf d; mkdir d; echo new > d/new"}
  - {id: two, run: "echo changed > changed.txt"}
"""


@pytest.fixture
def sandbox(agents: Agents) -> Path:
    """Of a plan that has run, before the user's gc took its base."""
    app = agents.work
    (app / "plan.yaml").write_text(PLAN)
    (app / "d").mkdir()
    for name in ("d/a", "d/b", "changed.txt", "same.txt"):
        (app / name).write_text(f"{name}\n")
    make_repository(agents, app)
    made = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    git(agents, app, "update-ref", "-d", f"refs/cleveragents/{made['plan_id']}")
    before = git(agents, app, "branch", "--show-current")
    git(agents, app, "checkout", "-q", "--orphan", "other")
    shutil.rmtree(app / "d")
    for name in ("same.txt", "changed.txt"):
        (app / name).write_text("quite another\n")
    git(agents, app, "add", "-A")
    git(agents, app, "commit", "-q", "-m", "another beginning")
    git(agents, app, "branch", "-q", "-D", before)
    git(agents, app, "reflog", "expire", "--expire=now", "--all")
    git(agents, app, "gc", "-q", "--prune=now")
    return Path(made["sandboxes"]["app"])


def inodes(sandbox: Path) -> dict[str, int]:
    paths = (path for path in sandbox.rglob("*") if ".git" not in path.parts)
    return {str(path.relative_to(sandbox)): path.stat().st_ino for path in paths}


def test_what_the_plan_changed_is_rolled_back_anyway(agents: Agents, sandbox: Path) -> None:
    agents.run("plan", "rollback", "job", "first", "--yes").expect(0)
    assert (sandbox / "d" / "a").read_text() == "d/a\n"
    assert (sandbox / "changed.txt").read_text() == "changed.txt\n"
    assert not (sandbox / "d" / "new").exists()
    agents.run("plan", "undo", "job").expect(0)
    assert (sandbox / "changed.txt").read_text() == "changed\n"


def test_what_is_lost_is_refused_before_anything_moves(agents: Agents, sandbox: Path) -> None:
    (sandbox / "same.txt").unlink()
    before = inodes(sandbox)
    error = (
        agents.run("plan", "rollback", "job", "first", "--yes", "--json").expect(6).data["error"]
    )
    assert "is no longer in" in error["message"]
    assert "git fetch" in error["hint"]
    assert inodes(sandbox) == before
    [problem] = agents.run("check", "--json").expect(6).data["problems"]
    assert "was made from" in problem
    assert "git fetch" in problem
