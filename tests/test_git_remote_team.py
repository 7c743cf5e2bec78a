"""A plan over a git repository by its address, on machines that have nothing else in common."""

import json
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.databases import query_shared, shared_store
from tests.harness import Agents
from tests.pgserver import PgServer
from tests.remotes import Origin, git, served
from tests.scratch import wait_until
from tests.team import Team, needs_root

pytestmark = needs_root

PLAN = """\
name: far
resources:
  code: {kind: git-remote, url: $CODE_URL, branch: main}
steps:
  - {id: edit, run: "sed -i s/^1$/one/ kept.txt; git log --format=%s > log.txt"}
  - {id: wait, run: "test -e GO && echo last > last.txt"}
"""


class Far(Team):
    """The first machine has files that nobody else sees: the plan and, in the end, nothing more."""

    def __init__(self, agents: Agents, url: str, origin: Origin, address: str) -> None:
        super().__init__(agents, url)
        self.origin, self.go = origin, self.top / "go"
        self.env["CODE_URL"] = address
        (agents.work / "plan.yaml").write_text(PLAN.replace("GO", str(self.go)))

    def run_on_first(self, *words: str) -> int:
        silent = subprocess.DEVNULL
        return self.on("first", *words, stdout=silent, stderr=silent).wait()

    def lose_the_first(self) -> None:
        """With everything that it had."""
        home = self.top / "store-of-first"
        assert home.is_dir()
        home.rename(self.top / "lost")

    def state(self) -> str:
        return self.run("plan", "status", "far")["state"]

    def require_applied_once(self, *since: str) -> None:
        assert self.origin.log() == [*since, "far", "second", "base"]
        assert self.origin.show("kept.txt").splitlines()[0] == "one"
        assert self.origin.show("log.txt") == "second"
        assert self.origin.show("last.txt") == "last"
        assert self.state() == "applied"
        rows = query_shared(self.url, "SELECT detail FROM journal WHERE operation = 'apply'")
        done = [json.loads(detail).get("outcome") for (detail,) in rows]
        assert done.count("done") == 1


@pytest.fixture
def team(agents: Agents, pg: PgServer, tmp_path: Path) -> Generator[Far]:
    origin = Origin(tmp_path / "far")
    with shared_store(pg, empty=True) as url, served(origin) as address:
        login = address.replace("://", "://robot:s3cret-w0rd@")
        yield Far(agents, url, origin, login)


def test_what_one_machine_began_another_one_ends_and_applies(team: Far) -> None:
    assert team.run_on_first("plan", "run", "plan.yaml") == 5
    team.lose_the_first()
    team.go.touch()
    assert team.run("plan", "resume", "far")["state"] == "complete"
    box = Path(team.run("plan", "status", "far")["sandboxes"]["code"])
    assert git(box, "status", "--porcelain").split() == ["M", "kept.txt", "??", "last.txt", "??",
                                                         "log.txt"]  # fmt: skip
    theirs = team.origin.commit("theirs", {"own.txt": "own\n"})
    team.run("plan", "apply", "far", "--yes")
    assert team.origin.log() == ["far", "theirs", "second", "base"]
    assert git(team.origin.path, "rev-parse", "main^") == theirs
    assert team.origin.show("log.txt") == "second"
    assert not list(box.parent.parent.iterdir())


def test_a_complete_plan_is_applied_from_a_machine_without_workers_or_checkouts(team: Far) -> None:
    team.go.touch()
    assert team.run_on_first("plan", "run", "plan.yaml") == 0
    team.lose_the_first()
    [done] = team.run("plan", "apply", "far", "--yes")["applied"]
    assert done["commit"] == team.origin.tip()
    team.require_applied_once()


def test_any_worker_runs_it_and_any_machine_applies_it(team: Far) -> None:
    team.go.touch()
    team.run("plan", "submit", "plan.yaml")
    with team.worker("first"):
        wait_until(lambda: not team.queue.counts(), "a worker has run it")
        assert team.state() == "complete"
    team.lose_the_first()
    team.run("plan", "apply", "far", "--yes")
    team.require_applied_once()


def test_what_died_before_anything_was_in_the_bucket_is_started_over_from_the_remote(
    team: Far,
) -> None:
    plan, begun = team.agents.work / "plan.yaml", team.top / "begun"
    loop = f"touch {begun}; while ! test -e {team.go}; do sleep 0.05; done"
    plan.write_text(plan.read_text().replace(f"test -e {team.go}", loop))
    bucket, way = team.env["CLEVERAGENTS_CONTENT_URL"], team.top / "way"
    way.write_text("not a folder\n")
    team.env["CLEVERAGENTS_CONTENT_URL"] = f"file://{way}/bucket"
    silent = subprocess.DEVNULL
    dying = team.on("first", "plan", "run", "plan.yaml", stdout=silent, stderr=silent)
    wait_until(begun.exists, "the step that waits")
    dying.kill()
    dying.wait()
    team.lose_the_first()
    team.env["CLEVERAGENTS_CONTENT_URL"] = bucket
    team.go.touch()
    resumed: list[str] = []

    def resume() -> bool:
        done = team.agents.run("plan", "resume", "far", env=team.env)
        assert done.rc in (0, 4), done
        resumed.append(done.stderr)
        return done.rc == 0

    wait_until(resume, "the first machine counts as dead")
    assert "started over here" in resumed[-1]
    team.run("plan", "apply", "far", "--yes")
    team.require_applied_once()


@pytest.mark.parametrize("is_built_on", [False, True])
def test_a_machine_that_dies_after_its_push_has_applied(team: Far, is_built_on: bool) -> None:
    """The push is there, its record is not: who comes next asks the remote."""
    gate, begun = team.top / "gate", team.top / "begun"
    team.origin.hook("post-update", f"touch {begun}; while ! test -e {gate}; do sleep 0.05; done")
    team.go.touch()
    assert team.run_on_first("plan", "run", "plan.yaml") == 0
    silent = subprocess.DEVNULL
    dying = team.on("first", "plan", "apply", "far", "--yes", stdout=silent, stderr=silent)
    wait_until(begun.exists, "the push has happened")
    dying.kill()
    dying.wait()
    team.lose_the_first()
    gate.touch()
    (team.origin.path / "hooks" / "post-update").unlink()
    if is_built_on:
        team.origin.commit("later", {"later.txt": "later\n"})
    wait_until(lambda: taken(team), "the first machine counts as dead")
    team.require_applied_once(*(["later"] if is_built_on else []))


def test_a_machine_that_dies_before_its_push_has_not(team: Far) -> None:
    gate, begun = team.top / "gate", team.top / "begun"
    team.origin.hook("pre-receive", f"touch {begun}; while ! test -e {gate}; do sleep 0.05; done")
    team.go.touch()
    assert team.run_on_first("plan", "run", "plan.yaml") == 0
    silent = subprocess.DEVNULL
    dying = team.on("first", "plan", "apply", "far", "--yes", stdout=silent, stderr=silent)
    wait_until(begun.exists, "the push has begun")
    dying.kill()
    dying.wait()
    team.lose_the_first()
    team.origin.hook("pre-receive", "exit 0")
    team.origin.commit("faster", {"own.txt": "own\n"})
    gate.touch()
    wait_until(lambda: taken(team), "the first machine counts as dead")
    assert team.origin.log()[:2] == ["far", "faster"]
    assert team.origin.log().count("far") == 1
    assert team.state() == "applied"


def taken(team: Far) -> bool:
    """Whether the plan could be applied from here; as long as its machine may live, it is busy."""
    done = team.agents.run("plan", "apply", "far", "--yes", env=team.env)
    assert done.rc in (0, 4), done
    return done.rc == 0
