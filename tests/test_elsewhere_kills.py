"""Machines are killed with their homes at chance moments, and another one continues each time.

`CLEVERAGENTS_KILLS=25 pytest tests/test_elsewhere_kills.py`: so many plans, up to three kills each.
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from tests.buckets import Proxy, make_bucket, s3_server
from tests.harness import Agents, command
from tests.in_process import cli, damage_store
from tests.scratch import git, make_repository

PLANS = int(os.environ.get("CLEVERAGENTS_KILLS", "0"))
KILLS = 3
PLAN = """\
name: NAME
resources:
  app: {kind: fs-directory, path: app}
  code: {kind: git-checkout, path: code}
  db: {kind: sqlite, path: shop.db}
tools:
  mail: {run: "echo NAME >> SENT", side_effects: [a mail]}
steps:
  - {id: s0, on: app, run: "echo 0 >> log"}
  - {id: s1, on: code, run: "echo 1 >> log; git add log; git commit -qm one"}
  - {id: s2, on: db, tool: sql, with: {script: "INSERT INTO items VALUES (2)"}}
  - {id: s3, on: app, run: "echo 3 >> log"}
  - {id: s4, on: app, tool: mail}
  - {id: s5, on: app, run: "echo 5 >> log"}
  - {id: s6, on: code, run: "echo 6 >> log; git commit -qam six"}
  - {id: s7, on: db, tool: sql, with: {script: "INSERT INTO items VALUES (7)"}}
  - {id: s8, on: app, run: "echo 8 >> log"}
  - {id: s9, on: app, run: "echo 9 >> log"}
"""


class Fleet:
    """Homes that share a database and a bucket; the user's files are on all of them."""

    def __init__(self, agents: Agents, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = work
        self._monkeypatch = monkeypatch
        self._homes = 0
        (work / "app").mkdir(parents=True)
        (work / "code").mkdir()
        (work / "code" / "kept.txt").write_text("kept\n")
        make_repository(agents, work / "code")
        git(agents, work / "code", "config", "user.name", "someone")
        git(agents, work / "code", "config", "user.email", "someone@example.org")
        with closing(sqlite3.connect(work / "shop.db")) as db:
            db.executescript("CREATE TABLE items (id); INSERT INTO items VALUES (1)")
        self.sent = work / "sent"
        monkeypatch.chdir(work)

    def another(self) -> Path:
        """A machine that never saw any plan; commands are run there from now on."""
        self._homes += 1
        home = self.work.with_name(f"home{self._homes}")
        self._monkeypatch.setenv("CLEVERAGENTS_HOME", str(home))
        return home

    def killed_in(self, seconds: float, *argv: str) -> int:
        """The exit code of a command that is killed after that time, its tools and all."""
        with subprocess.Popen(
            [command(), *argv],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as running:
            try:
                running.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
            return running.returncode


@pytest.fixture
def fleet(
    agents: Agents,
    on_postgres: str,
    tmp_path: Path,
    unconfined: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[Fleet]:
    with s3_server() as address, Proxy(address) as proxy:
        make_bucket(address, "plans")
        proxy.delay = 0.02
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "us-east-1")
        monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", "s3://plans/team")
        yield Fleet(agents, tmp_path / "work", monkeypatch)


@pytest.mark.skipif(not PLANS, reason="CLEVERAGENTS_KILLS=25 runs it")
def test_nothing_is_lost_and_no_effect_is_repeated(fleet: Fleet) -> None:
    chance = random.Random(int(os.environ.get("CLEVERAGENTS_TEST_SEED", "1")))
    asked = 0
    for number in range(PLANS):
        name = f"plan{number}"
        (fleet.work / "plan.yaml").write_text(
            PLAN.replace("NAME", name).replace("SENT", str(fleet.sent))
        )
        argv = ("plan", "run", "plan.yaml")
        for _ in range(KILLS):
            home = fleet.another()
            if fleet.killed_in(chance.uniform(0.8, 5.0), *argv) != -signal.SIGKILL:
                argv = ("plan", "resume", name)
                break
            shutil.rmtree(home, ignore_errors=True)
            damage_store("UPDATE leases SET heard_at = heard_at - 60")  # it is silent from now on
            fleet.another()
            known = {one["name"] for one in cli("plan", "list", "--json").data["plans"]}
            argv = ("plan", "resume", name) if name in known else argv
        asked += not _completed(fleet, name, argv)
    print(f"{PLANS} plans, {asked} asked whether an effect may be repeated")


def _completed(fleet: Fleet, name: str, argv: tuple[str, ...]) -> bool:
    """False if the machine died between an effect and its group: then a person has to say."""
    fleet.another()
    done = subprocess.run([command(), *argv], capture_output=True, text=True, check=False)
    mails = fleet.sent.read_text().split().count(name) if fleet.sent.exists() else 0
    assert mails <= 1
    if done.returncode == 4:
        assert "this would be repeated: step 's4'" in done.stderr
        return False
    assert done.returncode == 0, done.stderr
    status = cli("plan", "status", name, "--json").data
    boxes = {key: Path(path) for key, path in status["sandboxes"].items()}
    with closing(sqlite3.connect(boxes["db"])) as db:
        items = [row[0] for row in db.execute("SELECT id FROM items")]
    logs = [(boxes[key] / "log").read_text().split() for key in ("app", "code")]
    assert (status["state"], status["bucket"]["behind_groups"]) == ("complete", 0)
    assert (logs, items, mails) == ([["0", "3", "5", "8", "9"], ["1", "6"]], [1, 2, 7], 1)
    return True
