"""Workers on machines with nothing in common, some of which die with all they had.

A machine here is a set of namespaces: its own host name, processes and home, which is in memory
and goes with it; the project of whoever submitted is not there. What they share is a PostgreSQL
server and an S3 server. `CLEVERAGENTS_MACHINES=4:200:100` is workers, plans and deaths; the default
is small.
"""

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.buckets import make_bucket, s3_server
from tests.databases import shared_store
from tests.harness import Agents
from tests.pgserver import PgServer
from tests.scratch import wait_until

WORKERS, PLANS, DEATHS = map(int, os.environ.get("CLEVERAGENTS_MACHINES", "2:2:1").split(":"))
SEED = int(os.environ.get("CLEVERAGENTS_SEED", "1"))
MACHINE = """
hostname "$1" && mount -t tmpfs none "$2" && mkdir "$2/home" && cd / && shift 2 && exec "$@"
"""
STEP = '  - {{id: s{n}, on: app, run: "echo {n} >> log; sleep 0.2"}}\n'
ROW = '  - {{id: s{n}, on: db, tool: sql, with: {{script: "INSERT INTO t VALUES ({n})"}}}}\n'
CALL = "  - {{id: s{n}, on: app, tool: call}}\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces with mounts need root")


class Calls(BaseHTTPRequestHandler):
    """The world outside: counts who called."""

    seen: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.seen[self.path] += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


class Team:
    def __init__(self, agents: Agents, url: str, bucket: str) -> None:
        self.agents = agents
        self.top = agents.work.parent
        self.env = {
            "CLEVERAGENTS_STORE_URL": url,
            "CLEVERAGENTS_STORE_LEASE": "3s",
            "CLEVERAGENTS_CONTENT_URL": "s3://team/x",
            "CLEVERAGENTS_SANDBOX_CONFINE": "off",
            "AWS_ENDPOINT_URL": f"http://{bucket}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
        }
        self._numbers = iter(range(10**6))

    def run(self, *words: str) -> Any:
        return self.agents.run(*words, "--json", env=self.env).expect(0).data

    def submit(self, name: str, world: str) -> str:
        project = self.agents.work / name
        project.mkdir()
        with closing(sqlite3.connect(project / "app.db")) as db:
            db.execute("CREATE TABLE t (n)")
        (project / "app").mkdir()
        send = f"import urllib.request as u; u.urlopen(u.Request('{world}/{name}', method='POST'))"
        (project / "plan.yaml").write_text(
            f"name: {name}\nresources:\n  app: {{kind: fs-directory, path: app}}\n"
            "  db: {kind: sqlite, path: app.db}\n"
            f'tools: {{call: {{run: ["{sys.executable}", "-c", "{send}"],'
            " side_effects: [a call]}}\nsteps:\n"
            + "".join(text.format(n=n) for n, text in enumerate((STEP, ROW, CALL, STEP, ROW, STEP)))
        )
        return self.run("plan", "submit", str(project / "plan.yaml"))["plan_id"]

    def worker(self) -> subprocess.Popen[bytes]:
        """A machine of its own; killing it takes all that it had with it."""
        number = next(self._numbers)
        place = self.agents.work  # what the submitter has here, the machine has not
        env = self.agents.env | self.env | {"CLEVERAGENTS_HOME": f"{place}/home/store"}
        unshare = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        argv = ("sh", "-c", MACHINE, "sh", f"machine-{number}", str(place))
        command = (sys.executable, "-m", "cleveragents", "worker", "--at-once", "2")
        with open(self.top / f"worker-{number}.log", "wb") as log:
            return subprocess.Popen([*unshare, *argv, *command], env=env, stdout=log, stderr=log)


@contextmanager
def world_outside() -> Generator[str]:
    Calls.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def team(agents: Agents, pg: PgServer) -> Generator[Team]:
    with shared_store(pg, empty=True) as url, s3_server() as bucket:
        make_bucket(bucket, "team")
        made = Team(agents, url, bucket)
        made.agents.run("store", "init", env=made.env).expect(0)
        yield made


def test_plans_of_machines_that_are_gone_continue_and_no_step_is_recorded_twice(team: Team) -> None:
    chance = random.Random(SEED)
    with world_outside() as world:
        plans = {f"p{n}": team.submit(f"p{n}", world) for n in range(PLANS)}
        workers = [team.worker() for _ in range(WORKERS)]
        try:
            for _ in range(DEATHS):
                wait_until(lambda: any_runs(team), "a plan is being run")
                time.sleep(chance.random())
                place = chance.randrange(WORKERS)
                workers[place].kill()
                workers[place].wait()
                workers[place] = team.worker()
            wait_until(lambda: not waiting(team), "every plan has been run")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    in_doubt = []
    for name, plan_id in plans.items():
        found = team.run("plan", "status", plan_id)
        if found["state"] != "complete":
            in_doubt.append(name)
            assert Calls.seen[f"/{name}"] == 1, f"{name} stopped, and not because of the call"
            continue
        assert Calls.seen[f"/{name}"] == 1
        team.run("plan", "apply", plan_id, "--yes")
        project = team.agents.work / name
        assert (project / "app/log").read_text() == "0\n3\n5\n", name
        with closing(sqlite3.connect(project / "app.db")) as db:
            assert db.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (4,)], name
    assert len(in_doubt) <= DEATHS * 2
    print(f"{PLANS} plans, {DEATHS} deaths, {len(in_doubt)} left to a person")


def any_runs(team: Team) -> bool:
    return any(row["running"] for row in team.run("cluster", "status")["queues"])


def waiting(team: Team) -> int:
    rows = team.run("cluster", "status")["queues"]
    return sum(row["waiting"] + row["running"] + row["later"] for row in rows)


def test_machines_have_nothing_of_each_other(team: Team, tmp_path: Path) -> None:
    (team.agents.work / "mine").write_text("x")
    unshare = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    argv = ("sh", "-c", MACHINE, "sh", "m", str(team.agents.work), "ls", str(team.agents.work))
    seen = subprocess.run([*unshare, *argv], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["home"]
