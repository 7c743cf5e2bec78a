"""One plan over a git repository, a directory, a SQLite file and a PostgreSQL database.

All four go back together and become real together, also when the process is killed. More moments:
`FOUR_KILLS=20 pytest tests/test_four_resources.py`.
"""

import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.testing import look
from tests.harness import Agents, Outcome, command
from tests.pgserver import Shop

KILLS = int(os.environ.get("FOUR_KILLS", "3"))
SEED = int(os.environ.get("FOUR_SEED", "20261116"))
PLAN = """
name: four
resources:
  app: {kind: git-checkout, path: app}
  data: {kind: fs-directory, path: data}
  lite: {kind: sqlite, path: lite.db}
  db: {kind: postgres, url: $DATABASE_URL}
steps:
  - {id: git, on: app, run: "echo new > new.txt; echo changed >> README"}
  - {id: dir, on: data, run: "rm old; mkdir -p deep; echo x > deep/file"}
  - {id: lite, tool: sql, on: lite, with: {script: "INSERT INTO t VALUES (3)"}}
  - {id: pg, tool: sql, on: db, with: {script: "INSERT INTO users (name) VALUES ('eve')"}}
  - {id: last, on: app, run: "test -e $AGENTS_PLAN_DIR/go"}
apply: {as: changes}
"""


class Four:
    def __init__(self, agents: Agents, shop: Shop) -> None:
        self.agents, self.shop, self.top = agents, shop, agents.work
        self.env = {"DATABASE_URL": shop.full_url}
        git = ["git", "-C", str(self.top / "app")]
        (self.top / "app").mkdir()
        (self.top / "app" / "README").write_text("read me\n")
        for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run([*git, *argv], check=True, env=os.environ | agents.env)
        (self.top / "data").mkdir()
        (self.top / "data" / "old").write_text("old\n")
        with closing(sqlite3.connect(self.top / "lite.db")) as db:
            db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1), (2)")
        (self.top / "plan.yaml").write_text(PLAN)

    def let_it_succeed(self) -> None:
        (self.top / "go").touch()

    def run(self, *argv: str, rc: int = 0) -> Outcome:
        return self.agents.run(*argv, env=self.env).expect(rc)

    def places(self) -> dict[str, str]:
        return self.run("plan", "status", "--json").data["sandboxes"]

    def targets(self) -> dict[str, Any]:
        return self._seen(str(self.top / "app"), str(self.top / "data"), "lite.db", self.shop.name)

    def sandboxes(self) -> dict[str, Any]:
        at = self.places()
        return self._seen(at["app"], at["data"], at["lite"], at["db"].rpartition("/")[2])

    def _seen(self, app: str, data: str, lite: str, db: str) -> dict[str, Any]:
        with closing(sqlite3.connect(self.top / lite)) as connection:
            rows = connection.execute("SELECT x FROM t ORDER BY x").fetchall()
        return {
            "app": look(Path(app), (b".git",)),
            "data": look(Path(data)),
            "lite": rows,
            "db": self.shop.pg.dump(db),
        }

    def killed_during(self, when: float, *argv: str) -> None:
        """Kill -9 after that many seconds, or at the first fault point; it may end before."""
        at_point = {} if when else {"CLEVERAGENTS_TEST_KILL_AT": "1"}
        process = subprocess.Popen(
            [command(), *argv], cwd=self.top, env=self.agents.env | self.env | at_point,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if when:
            time.sleep(when)
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        assert when or code == -signal.SIGKILL, "nothing was killed"


def moments(seed: int) -> list[float]:
    """Seconds; 0 is the first fault point, which is reached however fast the machine is."""
    chance = random.Random(seed)
    return [0, *(chance.uniform(0.2, 2.5) for _ in range(KILLS - 1))]


@pytest.fixture
def four(agents: Agents, shop: Shop) -> Four:
    return Four(agents, shop)


def test_four_resources_fail_roll_back_resume_and_are_applied(four: Four) -> None:
    before = four.targets()
    four.run("plan", "run", "plan.yaml", rc=5)
    changed = four.sandboxes()
    assert all(changed[name] != before[name] for name in before)
    four.run("plan", "rollback", "last", "first", "--yes")
    assert four.sandboxes() == before
    rows = four.run("plan", "checkpoints", "--json").data["checkpoints"]
    assert {row["resource"] for row in rows if row["type"] == "pre_execute"} == before.keys()
    assert four.targets() == before
    four.let_it_succeed()
    four.run("plan", "resume", "last")
    assert four.sandboxes() == changed
    four.run("plan", "apply", "last", "--yes")
    assert four.targets() == changed
    ours = four.shop.pg.sandboxes()
    assert ours == [one["name"] for one in four.run("doctor", "--json").data["databases"]]
    assert len(ours) == 1, "what the database held before the last apply"


def test_rollback_killed_at_any_moment_is_all_or_nothing(four: Four) -> None:
    before = four.targets()
    four.let_it_succeed()
    four.run("plan", "run", "plan.yaml")
    changed = four.sandboxes()
    for when in moments(SEED):
        four.killed_during(when, "plan", "rollback", "last", "first", "--yes")
        found = four.sandboxes()
        state = four.run("plan", "status", "--json").data["state"]
        assert found in (before, changed), f"a mixture after {when} s (seed {SEED})"
        assert (state == "complete") == (found == changed), f"{state} after {when} s"
        four.run("plan", "resume", "last")
        assert four.sandboxes() == changed
    assert four.targets() == before


def test_apply_killed_at_any_moment_is_all_or_nothing(four: Four) -> None:
    before = four.targets()
    four.let_it_succeed()
    for when in moments(SEED + 1):
        four.run("plan", "run", "plan.yaml")
        changed = four.sandboxes()
        four.killed_during(when, "plan", "apply", "last", "--yes")
        state = four.run("plan", "status", "--json").data["state"]
        found = four.targets()
        assert found == (changed if state == "applied" else before), f"{state} after {when} s"
        four.run("plan", "apply", "last", "--yes")
        assert four.targets() == changed
        undo(four)
        assert four.targets() == before
    ours = four.shop.pg.sandboxes()
    assert ours == [one["name"] for one in four.run("doctor", "--json").data["databases"]]
    assert len(ours) == 1, "what the database held before the last apply"


def undo(four: Four) -> None:
    """The targets as they were before, for the next time."""
    (four.top / "app" / "new.txt").unlink()
    (four.top / "app" / "README").write_text("read me\n")
    (four.top / "data" / "old").write_text("old\n")
    (four.top / "data" / "deep" / "file").unlink()
    (four.top / "data" / "deep").rmdir()
    with closing(sqlite3.connect(four.top / "lite.db")) as db:
        db.executescript("DELETE FROM t WHERE x = 3")
    four.shop.sql("DELETE FROM users WHERE name = 'eve'; SELECT setval('users_id_seq', 2)")
