"""The ref on the base commit stays as long as the plan has groups: nothing is copied for it.

If it or the repository goes nevertheless, what kept groups borrow is held again, or copied.
"""

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


def ran(agents: Agents, app: Path, name: str) -> Path:
    """A plan that changed nothing of the commit; its sandbox."""
    script = ("sh", "-c", "echo new > new")
    done = agents.run("run", "--json", "--name", name, "--", *script, cwd=app).expect(0).data
    return Path(done["sandboxes"]["work"])


def forget_commit(agents: Agents, app: Path) -> None:
    """The user begins anew and collects: only what a ref of ours holds is left."""
    before = git(agents, app, "branch", "--show-current")
    git(agents, app, "checkout", "-q", "--orphan", "other")
    git(agents, app, "rm", "-rqf", ".")
    git(agents, app, "commit", "-q", "--allow-empty", "-m", "another beginning")
    git(agents, app, "branch", "-q", "-D", before)
    git(agents, app, "reflog", "expire", "--expire=now", "--all")
    git(agents, app, "gc", "-q", "--prune=now")


def drop_ref(agents: Agents, app: Path, name: str) -> None:
    """As a fetch that mirrors another repository does."""
    plan = agents.run("plan", "status", name, "--json").expect(0).data["plan_id"]
    git(agents, app, "update-ref", "-d", f"refs/cleveragents/{plan}")


def damaged_and_rolled_back(agents: Agents, name: str, sandbox: Path) -> None:
    before = (sandbox / "large").read_bytes()
    (sandbox / "large").write_bytes(b"damaged")
    agents.run("plan", "rollback", name, "first", "--yes").expect(0)
    assert (sandbox / "large").read_bytes() == before
    assert (sandbox / "small").read_text() == "small\n"
    assert not (sandbox / "new").exists()


def test_deleting_a_plan_holds_what_another_borrows_from_the_same_commit(
    agents: Agents, app: Path
) -> None:
    ran(agents, app, "one")
    sandbox = ran(agents, app, "two")
    drop_ref(agents, app, "two")
    agents.run("plan", "delete", "one", "--yes").expect(0)
    assert len(refs(agents, app).splitlines()) == 1
    assert stored(agents) < LARGE / 10, "a ref is enough"
    forget_commit(agents, app)
    damaged_and_rolled_back(agents, "two", sandbox)


def test_a_ref_that_somebody_removed_is_found_and_put_back(agents: Agents, app: Path) -> None:
    sandbox = ran(agents, app, "one")
    drop_ref(agents, app, "one")
    found = agents.run("check", "--json").expect(6).data
    [problem] = found["problems"]
    assert "no ref of ours holds" in problem
    assert not found["damaged"]
    assert "backup" not in found["error"]["hint"], "the problem says itself what to do"
    [loose] = agents.run("doctor", "--json").expect(0).data["loose"]
    assert (loose["is_gone"], loose["kept"]) == (False, False)
    assert "can be held again" in agents.run("doctor").stdout
    [loose] = agents.run("doctor", "--fix", "--json").expect(0).data["loose"]
    assert loose["kept"]
    forget_commit(agents, app)
    agents.run("check").expect(0)
    damaged_and_rolled_back(agents, "one", sandbox)


def test_what_the_sandbox_has_is_kept_when_the_repository_went_away(
    agents: Agents, app: Path
) -> None:
    sandbox = ran(agents, app, "one")
    app.rename(agents.work / "moved")
    [problem] = agents.run("check", "--json").expect(6).data["problems"]
    assert "agents doctor --fix" in problem
    assert "not there" in agents.run("doctor").stdout
    [loose] = agents.run("doctor", "--fix", "--json").expect(0).data["loose"]
    assert (loose["is_gone"], loose["kept"]) == (True, True)
    assert stored(agents) > LARGE
    agents.run("check", "--read-data").expect(0)
    assert agents.run("doctor", "--json").data["loose"] == []
    damaged_and_rolled_back(agents, "one", sandbox)


def test_a_cancelled_plans_content_outlives_repository_and_sandbox(
    agents: Agents, app: Path
) -> None:
    sandbox = ran(agents, app, "one")
    (app / ".git").rename(agents.work / "moved.git")
    agents.run("plan", "cancel", "one", "--set", "sandbox.cleanup=on_terminal").expect(0)
    assert not sandbox.exists()
    assert stored(agents) > LARGE
    assert agents.run("doctor", "--json").data["loose"] == []


def test_what_is_nowhere_any_more_stays_missing_and_is_named(agents: Agents, app: Path) -> None:
    sandbox = ran(agents, app, "one")
    app.rename(agents.work / "moved")
    (sandbox / "large").unlink()
    [loose] = agents.run("doctor", "--fix", "--json").expect(0).data["loose"]
    assert not loose["kept"]
    told = agents.run("doctor", "--fix").expect(0).stdout
    assert "not all of it could be kept" in told
    assert "next: agents doctor --fix" not in told
    agents.run("check").expect(6)
    (agents.work / "moved").rename(app)
    agents.run("check").expect(0)
    damaged = (sandbox / "small").read_text()
    agents.run("plan", "rollback", "one", "first", "--yes").expect(0)
    assert ((sandbox / "large").stat().st_size, damaged) == (LARGE, "small\n")


def test_two_work_trees_of_one_repository_are_both_held(agents: Agents, app: Path) -> None:
    side = agents.work / "side"
    git(agents, app, "worktree", "add", "-q", "--detach", str(side))
    git(agents, side, "checkout", "-q", "--orphan", "side")
    git(agents, side, "rm", "-rqf", ".")
    (side / "only").write_text("only here\n")
    git(agents, side, "add", "-A")
    git(agents, side, "commit", "-q", "-m", "of the side")
    (agents.work / "plan.yaml").write_text(
        "name: both\nresources:\n  app: {kind: git-checkout, path: app}\n"
        "  side: {kind: git-checkout, path: side}\n"
        "steps:\n  - {id: a, on: app, run: echo new > new}\n"
        "  - {id: b, on: side, run: echo new > new}\n"
    )
    made = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    assert len(refs(agents, app).splitlines()) == 1
    boxes = {name: Path(path) for name, path in made["sandboxes"].items()}
    git(agents, side, "checkout", "-q", "--detach")
    git(agents, side, "commit", "-q", "--amend", "-m", "another")
    git(agents, side, "rm", "-qf", "only")
    git(agents, side, "commit", "-q", "--amend", "--allow-empty", "-m", "another")
    git(agents, side, "branch", "-D", "side")
    forget_commit(agents, app)
    agents.run("check").expect(0)
    (boxes["side"] / "only").write_text("damaged")
    damaged_and_rolled_back(agents, "both", boxes["app"])
    assert (boxes["side"] / "only").read_text() == "only here\n"
    agents.run("plan", "delete", "both", "--yes").expect(0)
    assert refs(agents, app) == ""
