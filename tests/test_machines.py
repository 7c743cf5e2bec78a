"""Workers on machines with nothing in common, some of which die with all they had.

A machine here is a set of namespaces: its own host name, processes and home, which is in memory
and goes with it; the project of whoever submitted is not there. What they share is a PostgreSQL
server and an S3 server. `CLEVERAGENTS_MACHINES=4:200:100` is workers, plans and deaths; the default
is small.
"""

import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from cleveragents.store.clock import utc_now
from tests.buckets import make_bucket, s3_server
from tests.databases import query_shared, shared_store
from tests.harness import Agents
from tests.pgserver import PgServer
from tests.scratch import git, make_repository, wait_until

WORKERS, PLANS, DEATHS = map(int, os.environ.get("CLEVERAGENTS_MACHINES", "2:2:1").split(":"))
SEED = int(os.environ.get("CLEVERAGENTS_SEED", "1"))
LEASE = 3.0
MACHINE = """
hostname "$1" && mount -t tmpfs none "$2" && mkdir "$2/home" && cd / && shift 2 && exec "$@"
"""
PLAN = """\
name: {name}
resources:
  app: {{kind: fs-directory, path: app}}
  code: {{kind: git-checkout, path: code}}
  db: {{kind: sqlite, path: app.db}}
tools: {{call: {{run: ["{python}", "-c", "{send}"], side_effects: [a call]}}}}
steps:
  - {{id: s0, on: app, run: "echo 0 >> log"}}
  - {{id: s1, on: code, run: "echo 1 >> log; git add log; git commit -qm one"}}
  - {{id: s2, on: db, tool: sql, with: {{script: "INSERT INTO t VALUES (2)"}}}}
  - {{id: s3, on: app, run: "echo 3 >> log; sleep 0.2"}}
  - {{id: s4, on: app, tool: call}}
  - {{id: s5, on: app, run: "echo 5 >> log; sleep 0.2"}}
  - {{id: s6, on: code, run: "echo 6 >> log; git commit -qam six"}}
  - {{id: s7, on: db, tool: sql, with: {{script: "INSERT INTO t VALUES (7)"}}}}
  - {{id: s8, on: app, run: "echo 8 >> log"}}
  - {{id: s9, on: app, run: "echo 9 >> log"}}
"""
SEND = "import urllib.request as u; u.urlopen(u.Request('{world}/{name}', method='POST'))"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces with mounts need root")


class Calls(BaseHTTPRequestHandler):
    """The world outside: counts who called."""

    seen: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.seen[self.path] += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


class Machine(NamedTuple):
    name: str
    process: subprocess.Popen[bytes]

    def die(self) -> None:
        self.process.kill()
        self.process.wait()


class Team:
    def __init__(self, agents: Agents, url: str, bucket: str) -> None:
        self.agents = agents
        self.top = agents.work.parent
        self.env = {
            "CLEVERAGENTS_STORE_URL": url,
            "CLEVERAGENTS_STORE_LEASE": f"{LEASE:g}s",
            "CLEVERAGENTS_CONTENT_URL": "s3://team/x",
            "CLEVERAGENTS_SANDBOX_CONFINE": "off",
            "AWS_ENDPOINT_URL": f"http://{bucket}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
        }
        self._numbers = iter(range(10**6))
        self.repository = self.top / "repository"
        self.repository.mkdir()
        (self.repository / "kept.txt").write_text("kept\n")
        make_repository(agents, self.repository)
        git(agents, self.repository, "config", "user.name", "someone")
        git(agents, self.repository, "config", "user.email", "someone@example.org")

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query_shared(self.env["CLEVERAGENTS_STORE_URL"], sql, parameters)

    def run(self, *words: str) -> Any:
        return self.agents.run(*words, "--json", env=self.env).expect(0).data

    def submit(self, name: str, world: str) -> str:
        project = self.agents.work / name
        project.mkdir()
        with closing(sqlite3.connect(project / "app.db")) as db:
            db.execute("CREATE TABLE t (n)")
        (project / "app").mkdir()
        shutil.copytree(self.repository, project / "code")
        send = SEND.format(world=world, name=name)
        plan = PLAN.format(name=name, python=sys.executable, send=send)
        (project / "plan.yaml").write_text(plan)
        return self.run("plan", "submit", str(project / "plan.yaml"))["plan_id"]

    def worker(self) -> "Machine":
        """A machine of its own; killing it takes all that it had with it."""
        number = next(self._numbers)
        place = self.agents.work  # what the submitter has here, the machine has not
        env = self.agents.env | self.env | {"CLEVERAGENTS_HOME": f"{place}/home/store"}
        unshare = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        argv = ("sh", "-c", MACHINE, "sh", f"machine-{number}", str(place))
        command = (sys.executable, "-m", "cleveragents", "worker", "--at-once", "2")
        with open(self.top / f"worker-{number}.log", "wb") as log:
            process = subprocess.Popen([*unshare, *argv, *command], env=env, stdout=log, stderr=log)
        return Machine(f"machine-{number}", process)


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
    plans: dict[str, str] = {}
    interrupted: list[tuple[str, str]] = []
    with world_outside() as world:
        first = min(PLANS, 2 * WORKERS)
        plans |= {f"p{n}": team.submit(f"p{n}", world) for n in range(first)}
        machines = [team.worker() for _ in range(WORKERS)]
        more = iter(range(first, PLANS))
        try:
            for death in range(DEATHS):
                # Evenly: a machine that has nothing to do is not worth killing.
                count = first + (PLANS - first) * (death + 1) // DEATHS - len(plans)
                for n in itertools.islice(more, count):
                    plans[f"p{n}"] = team.submit(f"p{n}", world)
                wait_until(lambda: all_work(team, machines), "every machine takes plans")
                wait_until(lambda: held(team) or not left(team), "a plan is being run")
                time.sleep(chance.random())
                interrupted += die(team, machines, chance)
            for n in more:
                plans[f"p{n}"] = team.submit(f"p{n}", world)
            wait_until(lambda: not left(team), "every plan has been run", seconds=7200)
        finally:
            for machine in machines:
                machine.die()
    in_doubt = [name for name, plan_id in plans.items() if not completed(team, name, plan_id)]
    assert len(in_doubt) <= len(interrupted)
    waits = sorted(filter(None, (waited(team, *one, interrupted) for one in interrupted)))
    late = [one for one in waits if one > LEASE + 2]
    print(
        f"{PLANS} plans, {DEATHS} moments, {len(interrupted)} plans interrupted,"
        f" {len(in_doubt)} left to a person; the next step of {len(waits)} began after, in seconds:"
        f" {[round(one, 1) for one in waits]}; {len(late)} later than {LEASE + 2:g}"
    )


def all_work(team: Team, machines: list[Machine]) -> bool:
    """Whether every machine has begun to take plans: one that still starts is no worker to kill."""
    found = team.query("SELECT split_part(name, ':', 1) FROM agents_workers")
    return {(machine.name,) for machine in machines} <= set(found)


def held(team: Team) -> list[tuple[str, str]]:
    """The plans that machines work on, and which."""
    asked = "SELECT plan_id, host FROM leases WHERE held = 1 AND host LIKE 'machine-%'"
    return [(plan_id, host) for plan_id, host in team.query(asked)]


def delivered(team: Team) -> list[tuple[str, str]]:
    """The plans that machines were handed, also those that they do not hold yet."""
    asked = (
        "SELECT queueing_lock, split_part(name, ':', 1) FROM procrastinate_jobs"
        " JOIN agents_workers USING (worker_id) WHERE status = 'doing'"
    )
    return [(plan_id, host) for plan_id, host in team.query(asked)]


def left(team: Team) -> int:
    asked = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    return team.query(asked)[0][0]


def die(team: Team, machines: list[Machine], chance: random.Random) -> list[tuple[str, str]]:
    """Half of the machines, at once; the plans that they had, and when. Others take their place."""
    busy = {host for _, host in held(team)}
    places = chance.sample(range(WORKERS), WORKERS)
    places.sort(key=lambda place: machines[place].name not in busy)
    del places[max(1, WORKERS // 2) :]
    names = {machines[place].name for place in places}
    for place in places:
        machines[place].die()
    now = utc_now()
    for place in places:
        machines[place] = team.worker()
    return [(one, now) for one in {one for one, at in held(team) + delivered(team) if at in names}]


def waited(
    team: Team, plan_id: str, since: str, interrupted: list[tuple[str, str]]
) -> float | None:
    """Seconds until the plan's next step began; what began sooner, the machine itself began.

    None: all of its steps were done, or the next machine died before its time was over. Of one
    that died later than that, the time until then is what the plan waited at least.
    """
    asked = "SELECT min(started_at) FROM tool_calls WHERE plan_id = ? AND started_at > ?"
    soonest = datetime.fromisoformat(since) + timedelta(seconds=LEASE / 2)
    ((next_at,),) = team.query(asked, plan_id, soonest.isoformat())
    again = [at for one, at in interrupted if one == plan_id and at > since]
    if next_at is None and not again:
        return None
    until: str = min([*again, *([next_at] if next_at else [])])
    took = (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()
    return took if until == next_at or took > LEASE + 2 else None


def completed(team: Team, name: str, plan_id: str) -> bool:
    """False if its machine died between noting the call and its group: a person has to say."""
    found = team.run("plan", "status", plan_id)
    told = f"{name}: {found['state']}, {found.get('error')}"
    assert Calls.seen[f"/{name}"] <= 1, told
    if found["state"] != "complete":
        seen = team.agents.run("plan", "resume", plan_id, env=team.env).expect(4).stderr
        assert "this would be repeated: step 's4'" in seen, told
        return False
    assert Calls.seen[f"/{name}"] == 1, told
    team.run("plan", "apply", plan_id, "--yes")
    project = team.agents.work / name
    logs = [(project / folder / "log").read_text().split() for folder in ("app", "code")]
    with closing(sqlite3.connect(project / "app.db")) as db:
        rows = db.execute("SELECT n FROM t ORDER BY n").fetchall()
    assert (logs, rows) == ([["0", "3", "5", "8", "9"], ["1", "6"]], [(2,), (7,)]), name
    return True


def test_machines_have_nothing_of_each_other(team: Team, tmp_path: Path) -> None:
    (team.agents.work / "mine").write_text("x")
    unshare = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    argv = ("sh", "-c", MACHINE, "sh", "m", str(team.agents.work), "ls", str(team.agents.work))
    seen = subprocess.run([*unshare, *argv], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["home"]
