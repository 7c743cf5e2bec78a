"""`agents doctor`: what it says of the machine, finds left over, and removes with `--fix`."""

from pathlib import Path

import pytest

from cleveragents.maintenance.doctor import not_confined
from cleveragents.model.ids import new_id
from cleveragents.tools.confinement import bwrap, landlock
from cleveragents.tools.confinement.confine import mechanism
from tests.harness import Agents
from tests.scratch import git, make_repository

PLAN = """name: t
resources: {app: {kind: git-checkout, path: .}}
steps: [{id: a, tool: file.write, with: {path: made, content: x}}]
"""


@pytest.fixture
def app(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "plan.yaml").write_text(PLAN)
    make_repository(agents, app)
    return app


def test_it_says_what_the_machine_offers(agents: Agents) -> None:
    data = agents.run("doctor", "--json").expect(0).data
    assert data["git"][0].isdigit()
    assert data["sqlite"][0].isdigit()
    assert data["store"] == agents.env["CLEVERAGENTS_HOME"]
    assert data["free_bytes"] > 0
    assert data["reflink"] in (True, False)
    assert set(data["inotify"]) <= {"max_user_watches", "max_user_instances", "max_queued_events"}
    found = data["confinement"]
    assert (found["setting"], found["in_force"]) == ("auto", mechanism("auto"))
    assert found["bwrap"]["works"] == bwrap.probe().works
    assert found["landlock_abi"] == landlock.abi()
    assert bool(found["landlock_cannot"]) == bool(landlock.abi())
    assert found["not_confined"]
    assert data["leftovers"] == []


def test_people_read_it_too(agents: Agents) -> None:
    shown = agents.run("doctor", "--set", "sandbox.confine=off").expect(0).stdout
    assert "everything that you can do" in shown
    assert "nothing is left over" in shown
    found = bwrap.probe()
    assert ("works" if found.works else found.reason) in shown


def test_what_cannot_be_had_is_said(agents: Agents, tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path)}
    data = (
        agents.run("doctor", "--json", "--set", "sandbox.confine=bwrap", env=empty).expect(0).data
    )
    assert data["confinement"]["in_force"] == "refused"
    assert data["confinement"]["problem"].endswith("bwrap is not installed")
    assert data["git"] == "git is not installed"


def test_each_mechanism_says_what_it_lets_through() -> None:
    assert set(not_confined("bwrap")) < set(not_confined("landlock"))
    assert not_confined("refused") == ()
    texts = " ".join(landlock.cannot(2))
    assert "truncate" in texts
    assert "network" in texts
    assert len(landlock.cannot(7)) < len(landlock.cannot(2))


def deleted_while_away(agents: Agents, app: Path) -> str:
    """A plan that was deleted while its repository was not there: our ref in it stays."""
    gone = agents.run("plan", "run", "plan.yaml", "--json", cwd=app).expect(0).data["plan_id"]
    app.rename(app.with_name("away"))
    agents.run("plan", "delete", gone, "--yes").expect(0)
    app.with_name("away").rename(app)
    return gone


def test_what_plans_left_behind_is_found_and_removed(agents: Agents, app: Path) -> None:
    agents.run("plan", "run", "plan.yaml", cwd=app).expect(0)
    plan_id = agents.run("plan", "status", "--json").data["plan_id"]
    sandboxes = Path(agents.env["CLEVERAGENTS_HOME"]) / "sandboxes"
    stray, gone = sandboxes / new_id(), deleted_while_away(agents, app)
    (stray / "app").mkdir(parents=True)
    (stray / "app" / "f").write_text("x")
    (sandboxes / "notes").mkdir()

    found = agents.run("doctor", "--json").expect(0).data["leftovers"]
    assert [(one["kind"], one["name"]) for one in found] == [
        ("sandbox", stray.name),
        ("ref", f"refs/cleveragents/{gone}"),
    ]
    assert stray.exists()
    assert "agents doctor --fix" in agents.run("doctor").stdout

    fixed = agents.run("doctor", "--fix", "--json").expect(0).data["leftovers"]
    assert [one["removed"] for one in fixed] == [True, True]
    assert sorted(path.name for path in sandboxes.iterdir()) == sorted([plan_id, "notes"])
    refs = git(agents, app, "for-each-ref", "--format=%(refname)", "refs/cleveragents")
    assert refs == f"refs/cleveragents/{plan_id}"
    assert agents.run("doctor", "--json").data["leftovers"] == []
    agents.run("plan", "apply", "last", "--yes").expect(0)


def test_the_last_thing_that_holds_a_commit_is_kept(agents: Agents, app: Path) -> None:
    """Somebody's commit that was amended away may be wanted all the same."""
    lonely = git(agents, app, "rev-parse", "HEAD")
    deleted_while_away(agents, app)
    git(agents, app, "commit", "-q", "--amend", "-m", "another")
    [one] = agents.run("doctor", "--fix", "--json").expect(0).data["leftovers"]
    assert not one["removed"]
    assert one["kept_because"] == f"nothing else holds commit {lonely[:12]}"
    assert "kept: nothing else holds" in agents.run("doctor", "--fix").stdout


def test_a_shared_sandbox_directory_is_looked_at_and_left_alone(agents: Agents) -> None:
    shared = agents.work / "shared"
    stray = shared / new_id()
    stray.mkdir(parents=True)
    option = ("--set", f"sandbox.dir={shared}")
    [one] = agents.run("doctor", "--fix", "--json", *option).expect(0).data["leftovers"]
    assert one["kept_because"] == "sandbox.dir may hold another store's plans"
    assert stray.exists()


def test_a_repository_that_is_gone_is_no_problem(agents: Agents, app: Path) -> None:
    agents.run("plan", "use", "plan.yaml", cwd=app).expect(0)
    app.rename(app.with_name("moved"))
    assert agents.run("doctor", "--json").expect(0).data["leftovers"] == []


def test_the_refs_and_sandboxes_of_another_store_are_left_alone(agents: Agents, app: Path) -> None:
    shared = {"CLEVERAGENTS_SANDBOX_DIR": str(agents.work / "shared")}
    other = shared | {"CLEVERAGENTS_HOME": str(agents.work / "other")}
    theirs = agents.run("plan", "run", "plan.yaml", "--json", cwd=app, env=other).expect(0).data
    agents.run("plan", "run", "plan.yaml", cwd=app, env=shared).expect(0)
    found = agents.run("doctor", "--fix", "--json", env=shared).expect(0).data["leftovers"]
    assert {one["kind"] for one in found} == {"ref", "sandbox"}
    assert not any(one["removed"] for one in found)
    assert all("another" in one["kept_because"] for one in found)
    git(agents, app, "commit", "-q", "--amend", "-m", "another")
    git(agents, app, "reflog", "expire", "--expire=now", "--all")
    git(agents, app, "gc", "-q", "--prune=now")
    first = ("plan", "rollback", theirs["plan_id"], "first", "--yes")
    agents.run(*first, env=other).expect(0)
    agents.run("plan", "undo", theirs["plan_id"], env=other).expect(0)
