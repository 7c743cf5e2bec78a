"""Whose a store, a repository or a file is: nothing of somebody else's is taken for one's own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
PLAN = (
    "name: owners\nresources: {app: {kind: git-checkout, path: app}}\n"
    "steps:\n  - {id: work, run: echo more > new}\n"
)


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture
def app(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(PLAN)
    return app


@root_only
@pytest.mark.parametrize("part", ["", ".git"])
def test_a_repository_of_somebody_else_is_refused_as_git_does(
    agents: Agents, app: Path, part: str
) -> None:
    give_away(app / part)
    refused = agents.run("plan", "run", "plan.yaml")
    assert refused.rc in (2, 4)
    assert "belongs to somebody else" in refused.stderr
    assert f"safe.directory {app}" in refused.stderr


@root_only
def test_a_repository_that_the_user_calls_safe_is_taken(agents: Agents, app: Path) -> None:
    give_away(app)
    settings = agents.work / "gitconfig"
    settings.write_text(f"[safe]\n\tdirectory = {app}\n")
    agents.run("plan", "run", "plan.yaml", env={"GIT_CONFIG_GLOBAL": str(settings)}).expect(0)


@root_only
@pytest.mark.parametrize("part", ["", "store.db", "content"])
def test_a_store_of_somebody_else_is_refused(agents: Agents, app: Path, part: str) -> None:
    agents.run("plan", "run", "plan.yaml").expect(0)
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    os.chown(store / part, NOBODY, NOBODY)
    for argv in (("plan", "list"), ("plan", "checkpoint", "create", "last"), ("gc",)):
        refused = agents.run(*argv).expect(6)
        assert "belongs to nobody, not to you" in refused.stderr
        assert "CLEVERAGENTS_HOME" in refused.stderr
    os.chown(store / part, 0, 0)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert git(agents, app, "status", "--porcelain") == ""


SWAPPED = """
import os, sys
from cleveragents.content import fsio

folder, victim = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.mkdir(f"{folder}/sandbox")
for name in ("file", "folder"):
    where = f"{folder}/sandbox/{name}"
    os.mkdir(where) if name == "folder" else open(where, "w").close()
    os.chmod(where, 0)


def swap(event, arguments):
    "What a tool that is still at work could do, at the worst moment."
    if event == "os.chmod":
        for name in ("file", "folder"):
            where = f"{folder}/sandbox/{name}"
            if not os.path.islink(where):
                os.rename(where, f"{where}.aside")
                os.symlink(victim, where)


sys.addaudithook(swap)
if "remove" in folder:
    fsio.remove_tree(f"{folder}/sandbox")
else:
    fsio.open_up(f"{folder}/sandbox")
"""


@pytest.mark.parametrize("what", ["open", "remove"])
def test_what_is_put_in_place_of_a_closed_file_keeps_its_mode(what: str) -> None:
    """A link to the user's file, put there between the look and the change."""
    with tempfile.TemporaryDirectory(prefix=f"{what}-", dir="/tmp") as name:
        if os.geteuid() == 0:
            os.chown(name, NOBODY, NOBODY)
        victim = Path(name) / "victim"
        victim.write_text("mine")
        victim.chmod(0o200)
        if os.geteuid() == 0:
            os.chown(victim, NOBODY, NOBODY)
        done = subprocess.run(
            [sys.executable, "-c", SWAPPED, name, str(victim)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert victim.stat().st_mode & 0o777 == 0o200, done.stderr
        assert victim.exists()
