"""Child plans of a plan that a worker runs: others take them, and nobody waits for itself."""

import sqlite3
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, closing

import pytest

from tests.databases import query_shared, shared_store
from tests.harness import Agents
from tests.pgserver import PgServer
from tests.scratch import wait_until
from tests.team import Team, needs_root

pytestmark = needs_root

BELOW = """\
  - id: NAME
    subplan:
      group: both
      steps:
        - {id: NAME-begin, on: app, run: "hostname > NAME.txt; hostname >> TOP/begun-NAME; COMMAND"}
        - {id: NAME-code, on: code, run: "echo NAME > NAME.txt; git add -A; git log --oneline"}
"""
ROW = '        - {id: row, on: db, tool: sql, with: {script: "INSERT INTO t VALUES (1)"}}\n'
WAIT = "while ! test -e TOP/gate; do sleep 0.05; done"


class Family(Team):
    """A plan of two child plans side by side, and a step after them."""

    def submit(self, east: str = "true", west: str = "true") -> str:
        work = self.agents.work
        (work / "app").mkdir()
        (work / "code").mkdir()
        (work / "code" / "base.txt").write_text("base\n")
        for argv in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "base")):
            subprocess.run(["git", *argv], cwd=work / "code", env=self.agents.env, check=True)
        with closing(sqlite3.connect(work / "shop.db")) as db:
            db.execute("CREATE TABLE t (n)")
        steps = BELOW.replace("NAME", "east").replace("COMMAND", east)
        steps += ROW + BELOW.replace("NAME", "west").replace("COMMAND", west)
        text = (
            "name: family\nresources:\n  app: {kind: fs-directory, path: app}\n"
            "  code: {kind: git-checkout, path: code}\n  db: {kind: sqlite, path: shop.db}\n"
            f"steps:\n{steps}"
            '  - {id: after, on: app, run: "cat east.txt west.txt > both.txt"}\n'
        )
        (work / "plan.yaml").write_text(text.replace("TOP", str(self.top)))
        return self.run("plan", "submit", "plan.yaml")["plan_id"]

    def begun(self, name: str) -> list[str]:
        """The machines on which that child plan was begun."""
        path = self.top / f"begun-{name}"
        return path.read_text().split() if path.exists() else []

    def wait_for(self, plan_id: str, state: str) -> None:
        """The plan is so, and no worker has any of it: one killed before keeps its delivery."""
        wait_until(
            lambda: self.run("plan", "status", plan_id)["state"] == state, f"the plan is {state}"
        )
        wait_until(lambda: not self.queue.counts(), "no worker has any of it")

    def require_whole(self, plan_id: str) -> None:
        """Both child plans' work is in the parent once, and can be applied."""
        self.run("plan", "apply", plan_id, "--yes")
        work = self.agents.work
        both = (work / "app" / "both.txt").read_text().split()
        assert both == [self.begun("east")[-1], self.begun("west")[-1]]
        assert {path.name for path in (work / "code").glob("*.txt")} == {
            "base.txt",
            "east.txt",
            "west.txt",
        }
        with closing(sqlite3.connect(work / "shop.db")) as db:
            assert db.execute("SELECT n FROM t").fetchall() == [(1,)]
        done = query_shared(
            self.url, "SELECT step_id FROM tool_calls WHERE state = 'ok' ORDER BY step_id"
        )
        assert len(done) == len(set(done)) == 8


@pytest.fixture
def family(agents: Agents, pg: PgServer) -> Generator[Family]:
    with shared_store(pg, empty=True) as url:
        yield Family(agents, url)


def test_two_workers_run_two_child_plans_side_by_side(family: Family) -> None:
    with family.worker("one"), family.worker("two"):
        plan_id = family.submit(WAIT, WAIT)
        wait_until(lambda: family.begun("east") and family.begun("west"), "both are begun")
        assert {*family.begun("east"), *family.begun("west")} == {"one", "two"}
        (family.top / "gate").touch()
        family.wait_for(plan_id, "complete")
    family.require_whole(plan_id)


def test_a_single_worker_runs_the_child_plans_of_its_plan_itself(family: Family) -> None:
    plan_id = family.submit()
    with family.worker("one"):
        family.wait_for(plan_id, "complete")
    family.require_whole(plan_id)


def test_a_child_plan_of_a_machine_that_died_is_continued(family: Family) -> None:
    with ExitStack() as stack:
        workers = {name: stack.enter_context(family.worker(name)) for name in ("one", "two")}
        plan_id = family.submit(WAIT, WAIT)
        wait_until(lambda: family.begun("east") and family.begun("west"), "both are begun")
        held = family.run("plan", "status", plan_id)["held_by"]
        parents = "one" if "on one" in held else "two"
        other = "two" if parents == "one" else "one"
        workers[other].kill()
        child = "east" if family.begun("east") == [other] else "west"
        wait_until(lambda: len(family.begun(child)) == 2, "somebody took it over")
        (family.top / "gate").touch()
        family.wait_for(plan_id, "complete")
    family.require_whole(plan_id)


def test_a_parent_of_a_machine_that_died_finds_its_child_plans_again(family: Family) -> None:
    with ExitStack() as stack:
        workers = {name: stack.enter_context(family.worker(name)) for name in ("one", "two")}
        plan_id = family.submit(WAIT, WAIT)
        wait_until(lambda: family.begun("east") and family.begun("west"), "both are begun")
        held = family.run("plan", "status", plan_id)["held_by"]
        parents = "one" if "on one" in held else "two"
        workers[parents].kill()
        stack.enter_context(family.worker("three"))
        (family.top / "gate").touch()
        family.wait_for(plan_id, "complete")
    family.require_whole(plan_id)


def test_cancelling_the_parent_cancels_its_child_plans_wherever_they_run(family: Family) -> None:
    with family.worker("one"), family.worker("two"):
        plan_id = family.submit(WAIT, WAIT)
        wait_until(lambda: family.begun("east") and family.begun("west"), "both are begun")
        assert family.run("plan", "cancel", plan_id)["state"] == "cancelled"
        states = query_shared(family.url, "SELECT DISTINCT state FROM plans")
        assert states == [("cancelled",)]
        wait_until(lambda: not family.queue.counts(), "no worker has any of it")


def test_a_child_plan_that_fails_elsewhere_fails_once(family: Family) -> None:
    own = f"{WAIT}; false"
    with family.worker("one"), family.worker("two"):
        plan_id = family.submit(own, own)
        wait_until(lambda: family.begun("east") and family.begun("west"), "both are begun")
        (family.top / "gate").touch()
        family.wait_for(plan_id, "errored")
        error = family.run("plan", "status", plan_id)["error"]
        assert "child plan" in error["message"]
    assert len(family.begun("east")) == len(family.begun("west")) == 1
