"""The ref on the base commit stays as long as the plan has groups: nothing is copied for it."""

import os
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository

LARGE = 3_000_000


@pytest.fixture
def app(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "large").write_bytes(os.urandom(LARGE))
    (app / "small").write_text("small\n")
    make_repository(agents, app)
    return app


def stored(agents: Agents) -> int:
    packs = Path(agents.env["CLEVERAGENTS_HOME"], "content").glob("*.pack")
    return sum(path.stat().st_size for path in packs)


def refs(agents: Agents, app: Path) -> str:
    return git(agents, app, "for-each-ref", "--format=%(refname)", "refs/cleveragents")


def applied(agents: Agents, app: Path, script: str) -> str:
    agents.run("run", "-q", "--", "sh", "-c", script, cwd=app).expect(0)
    return agents.run("plan", "apply", "last", "--yes", "--json", cwd=app).expect(0).data["plan_id"]


def test_apply_copies_nothing_of_the_base_commit_into_the_store(agents: Agents, app: Path) -> None:
    plan = applied(agents, app, "echo new > new")
    assert stored(agents) < LARGE / 10
    assert refs(agents, app) == f"refs/cleveragents/{plan}"
    made = agents.run("plan", "checkpoints", plan, "--json").data["checkpoints"]
    assert sum(item["size_bytes"] for item in made) <= stored(agents)


def test_an_applied_plan_can_be_reverted_after_the_users_own_collection(
    agents: Agents, app: Path
) -> None:
    before = (app / "large").read_bytes()
    plan = applied(agents, app, "rm large; echo new > new")
    git(agents, app, "checkout", "-q", "--orphan", "other")
    git(agents, app, "commit", "-q", "-m", "all in one")
    git(agents, app, "branch", "-D", "main")
    git(agents, app, "reflog", "expire", "--expire=now", "--all")
    git(agents, app, "gc", "-q", "--prune=now")
    agents.run("check", "--read-data").expect(0)
    assert "large" in agents.run("plan", "diff", plan, "--stat").expect(0).stdout
    agents.run("plan", "revert-applied", plan).expect(0)
    agents.run("plan", "apply", "last", "--yes").expect(0)
    assert (app / "large").read_bytes() == before
    assert not (app / "new").exists()


def test_the_ref_goes_with_the_plan(agents: Agents, app: Path) -> None:
    plan = applied(agents, app, "echo new > new")
    agents.run("plan", "delete", plan).expect(0)
    assert refs(agents, app) == ""
    assert not (app / ".git" / "refs" / "cleveragents").exists()


def test_without_groups_nothing_stays(agents: Agents, app: Path) -> None:
    (agents.work / "plan.yaml").write_text(
        "name: plan\nresources: {app: {kind: git-checkout, path: app}}\n"
        "policy: {rollback_enabled: false}\nsteps: [{run: 'echo new > new'}]\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    assert refs(agents, app) != ""
    agents.run("plan", "apply", "plan", "--yes").expect(0)
    assert refs(agents, app) == ""
