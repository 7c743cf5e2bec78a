"""Plans that are submitted, and workers that run them, on a store that machines share."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from cleveragents.cli.cluster.work import moment_of
from cleveragents.errors import UsageError
from tests.databases import query_shared, shared_store
from tests.harness import Agents
from tests.pgserver import PgServer
from tests.pooler import pooled
from tests.schemas import wrong_with
from tests.scratch import wait_until as wait_for

PLAN = """\
name: {name}
resources: {{a: {{kind: fs-directory, path: d}}}}
steps:
  - {{id: first, run: "echo 1 >> f"}}
  - {{id: second, run: "{second}"}}
  - {{id: third, run: "echo 3 >> f"}}
"""


class Team:
    """A store on PostgreSQL with a queue, and the machine that uses it."""

    def __init__(self, agents: Agents, url: str) -> None:
        self.agents = agents
        self.env = {
            "CLEVERAGENTS_STORE_URL": url,
            "CLEVERAGENTS_STORE_LEASE": "2s",
            "CLEVERAGENTS_SANDBOX_CONFINE": "off",
        }
        (agents.work / "d").mkdir()
        self.said = agents.work / "worker.log"

    def run(self, *words: str) -> Any:
        said = self.agents.run(*words, "--json", env=self.env).expect(0)
        assert not wrong_with(said.json, is_closed=True)
        return said.data

    def plan(self, name: str = "p", second: str = "echo 2 >> f") -> str:
        (self.agents.work / "plan.yaml").write_text(PLAN.format(name=name, second=second))
        return "plan.yaml"

    def submit(self, *options: str, **plan: str) -> str:
        return self.run("plan", "submit", self.plan(**plan), *options)["plan_id"]

    @contextmanager
    def worker(self, *options: str) -> Generator[subprocess.Popen[bytes]]:
        with open(self.said, "ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "cleveragents", "worker", *options],
                env=self.agents.env | self.env,
                cwd=self.agents.work,
                stderr=said,
                stdout=said,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def status(self, plan_id: str) -> Any:
        return self.run("plan", "status", plan_id)

    def wait_for(self, plan_id: str, state: str) -> None:
        wait_for(lambda: self.status(plan_id)["state"] == state, "the worker")


@pytest.fixture
def team(agents: Agents, pg: PgServer) -> Generator[Team]:
    with shared_store(pg, empty=True) as url:
        made = Team(agents, url)
        assert "queue" in made.agents.run("store", "init", env=made.env).expect(0).stdout
        yield made


def test_a_submitted_plan_is_run_by_a_worker_which_drains_when_told(team: Team) -> None:
    plan_id = team.submit()
    assert team.run("cluster", "status")["queues"][0]["waiting"] == 1
    nobody = team.agents.run("cluster", "status", env=team.env).expect(0).stdout
    assert "no worker is heard of: agents worker" in nobody
    assert "Queues" in nobody
    with team.worker("--at-once", "2") as worker:
        team.wait_for(plan_id, "complete")
        (seen,) = team.run("cluster", "status")["workers"]
        assert seen["name"].endswith(f":{worker.pid}")
        worker.terminate()
        assert worker.wait() == 0
    found = team.status(plan_id)
    assert [step["status"] for step in found["progress"]] == ["complete"] * 3
    text = team.agents.run("cluster", "status", env=team.env).expect(0).stdout
    assert "no plan waits for a worker" in text
    team.agents.run("plan", "apply", plan_id, "--yes", env=team.env).expect(0)
    assert (team.agents.work / "d/f").read_text() == "1\n2\n3\n"


def test_behind_a_pooler_everything_is_as_without(agents: Agents, pg: PgServer) -> None:
    with shared_store(pg, empty=True) as url, pooled(url) as behind:
        team = Team(agents, behind)
        assert "queue" in team.agents.run("store", "init", env=team.env).expect(0).stdout
        plan_id = team.submit()
        with team.worker():
            team.wait_for(plan_id, "complete")
            assert len(team.run("cluster", "status")["workers"]) == 1
        team.run("plan", "apply", plan_id, "--yes")
        elsewhere = "SELECT 1 FROM pg_tables WHERE schemaname = 'public'"
        assert query_shared(url, elsewhere) == []


def test_a_machine_without_a_program_hands_the_plan_back_with_the_reason(team: Team) -> None:
    (team.agents.work / "plan.yaml").write_text(
        "name: p\nresources: {a: {kind: fs-directory, path: d}}\n"
        "steps: [{id: s, run: [no-such-program]}]\n"
    )
    plan_id = team.run("plan", "submit", "plan.yaml")["plan_id"]
    with team.worker():
        wait_for(lambda: team.run("cluster", "status")["handed_back"], "the worker")
    (back,) = team.run("cluster", "status")["handed_back"]
    assert (back["plan_id"], back["reason"]) == (plan_id, "no-such-program is not installed")
    text = team.agents.run("cluster", "status", env=team.env).expect(0).stdout
    assert "no-such-program is not installed" in text
    assert team.status(plan_id)["state"] == "queued"


def test_a_worker_whose_role_may_only_read_says_so_and_ends(team: Team, pg: PgServer) -> None:
    name = team.env["CLEVERAGENTS_STORE_URL"].rpartition("/")[2]
    pg.sql(
        name,
        "DO $$BEGIN IF to_regrole('onlooker') IS NULL THEN"
        " CREATE ROLE onlooker LOGIN PASSWORD 'pw'; END IF; END$$;"
        f"GRANT CONNECT ON DATABASE {name} TO onlooker;"
        "GRANT USAGE ON SCHEMA cleveragents TO onlooker;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA cleveragents TO onlooker",
    )
    env = team.env | {"CLEVERAGENTS_STORE_URL": pg.url(name, "onlooker", "pw")}
    ended = team.agents.run("worker", "--json", env=env).expect(6)
    assert "the role lacks the rights for that" in ended.json["data"]["error"]["message"]


def test_a_killed_machine_leaves_its_plan_to_another_and_no_step_is_recorded_twice(
    team: Team,
) -> None:
    gate = team.agents.work / "gate"
    wait = f"test -e {gate} || (touch {gate}.begun; while :; do sleep 0.05; done); echo 2 >> f"
    plan_id = team.submit(second=wait)
    with team.worker() as first:
        wait_for(lambda: Path(f"{gate}.begun").exists(), "the worker")
        held = re.search(r"process (\d+)", team.status(plan_id)["held_by"])
        assert held is not None
        first.kill()
        os.killpg(int(held[1]), signal.SIGKILL)
    gate.touch()
    with team.worker() as second:
        team.wait_for(plan_id, "complete")
        second.terminate()
        assert second.wait() == 0
    team.agents.run("plan", "apply", plan_id, "--yes", env=team.env).expect(0)
    assert (team.agents.work / "d/f").read_text() == "1\n2\n3\n"


def test_a_plan_that_only_its_worker_has_is_not_done(team: Team) -> None:
    bucket = team.agents.work / "bucket"
    team.env["CLEVERAGENTS_CONTENT_URL"] = f"file://{bucket}"
    # What is on its way just then makes the folder again.
    until = f"until echo >> {bucket}; do cp -r {bucket}/. {bucket}.away; rm -r {bucket}; done"
    plan_id = team.submit(second=f"mv {bucket} {bucket}.away; {until}")
    with team.worker():
        wait_for(lambda: team.run("cluster", "status")["handed_back"], "the worker")
    (back,) = team.run("cluster", "status")["handed_back"]
    assert back["plan_id"] == plan_id
    assert back["reason"].endswith("of it not in the bucket yet")
    assert team.status(plan_id)["state"] == "complete"
    bucket.unlink()
    Path(f"{bucket}.away").rename(bucket)
    assert team.run("plan", "resume", plan_id)["state"] == "complete"
    assert team.status(plan_id)["bucket"]["behind_groups"] == 0


def test_a_worker_says_why_a_plan_ended_badly(team: Team) -> None:
    plan_id = team.submit(second="echo broken; exit 3")
    with team.worker():
        team.wait_for(plan_id, "errored")
        wait_for(lambda: f"{plan_id} ended: " in team.said.read_text(), "the worker")
    assert "step second: exit code 3" in team.said.read_text()


def test_cancelling_ends_what_waits_and_what_runs(team: Team) -> None:
    waits = team.submit("--queue", "nobody", name="waits")
    assert team.run("plan", "cancel", waits)["state"] == "cancelled"
    runs = team.submit(name="runs", second="touch begun; sleep 1000")
    with team.worker() as worker:
        wait_for(lambda: team.status(runs)["progress"][1]["status"] == "processing", "the worker")
        assert team.run("plan", "cancel", runs)["state"] == "cancelled"
        wait_for(lambda: not team.run("cluster", "status")["workers"][0]["plans"], "the worker")
        worker.terminate()
        assert worker.wait() == 0
    left = "SELECT count(*) FROM procrastinate_jobs"
    assert query_shared(team.env["CLEVERAGENTS_STORE_URL"], left) == [(0,)]


def test_a_plan_is_submitted_once_and_again_when_it_has_failed(team: Team) -> None:
    plan_id = team.submit(second="test -e ../../../fixed || false")
    refused = team.agents.run("plan", "submit", plan_id, env=team.env).expect(4)
    assert "is already waiting for a worker" in refused.stderr
    with team.worker() as worker:
        team.wait_for(plan_id, "errored")
        assert team.run("plan", "submit", plan_id)["plan_id"] == plan_id
        wait_for(lambda: team.said.read_text().count(f"{plan_id} ended") == 2, "the worker")
        worker.terminate()
        worker.wait()
    assert team.status(plan_id)["state"] == "errored"


def test_a_worker_of_an_older_version_hands_plans_back_until_a_newer_one_has_them(
    team: Team,
) -> None:
    url = team.env["CLEVERAGENTS_STORE_URL"]
    (number,) = query_shared(url, "SELECT value FROM store WHERE name = 'schema'")[0]
    put = "UPDATE store SET value = ? WHERE name = 'schema'"
    back = "SELECT count(*) FROM agents_handed_back WHERE reason LIKE '%made by a newer version'"
    plan_id = team.submit("--at", "2999-01-01T00:00:00Z")
    with team.worker():
        wait_for(lambda: team.run("cluster", "status")["workers"], "the worker")
        query_shared(url, put, ("999",))
        query_shared(url, "UPDATE procrastinate_jobs SET scheduled_at = NULL")
        wait_for(lambda: query_shared(url, back) == [(1,)], "the worker")
        query_shared(url, put, (number,))
        query_shared(url, "UPDATE procrastinate_jobs SET scheduled_at = NULL")
        team.wait_for(plan_id, "complete")


def test_a_schedule_submits_its_file_until_it_is_ended(team: Team) -> None:
    file = team.plan(name="often")
    made = team.run("plan", "submit", file, "--every", "* * * * * */1", "--limit-key", "often")
    assert made["schedule"]["file"] == str(team.agents.work / file)
    with team.worker() as worker:
        wait_for(lambda: team.run("plan", "list")["plans"], "the worker")
        text = team.agents.run("cluster", "status", env=team.env).expect(0).stdout
        assert "often" in text
        team.run("cluster", "unschedule", "often")
        wait_for(lambda: team.run("plan", "list")["plans"][-1]["state"] == "complete", "the worker")
        worker.terminate()
        worker.wait()
    gone = team.agents.run("cluster", "unschedule", "often", env=team.env).expect(3)
    assert "no schedule is called 'often'" in gone.stderr


def test_times_and_options_that_make_no_sense_are_refused(team: Team) -> None:
    file = team.plan()
    wrong = team.agents.run("plan", "submit", file, "--at", "soon", env=team.env).expect(2)
    assert "not a time: 'soon'" in wrong.stderr
    both = ("--at", "23:59", "--every", "0 3 * * *")
    assert (
        "exclude" in team.agents.run("plan", "submit", file, *both, env=team.env).expect(2).stderr
    )
    assert "no plan waits for a worker" in team.agents.run("cluster", "status", env=team.env).stdout
    for name, said in (("", "queue"), ("a,b", "queue"), (os.fsdecode(b"\xff"), "not UTF-8")):
        wrong = team.agents.run("plan", "submit", file, "--queue", name, env=team.env).expect(2)
        assert said in wrong.stderr
    assert team.run("cluster", "status")["queues"] == []
    later = team.run("plan", "submit", file, "--at", "2999-01-01T00:00:00Z")
    assert later["not_before"] == "2999-01-01T00:00:00Z"
    assert team.run("cluster", "status")["queues"][0]["later"] == 1


def test_without_a_shared_store_there_are_no_workers(agents: Agents) -> None:
    refused = agents.run("worker").expect(2)
    assert "several machines share" in refused.stderr


def test_a_time_without_a_zone_is_local() -> None:
    now = datetime(2026, 11, 17, 8, 0, tzinfo=timezone(timedelta(hours=2)))
    assert moment_of("09:30", now).isoformat() == "2026-11-17T07:30:00+00:00"
    assert moment_of("2026-11-18T09:30", now).isoformat() == "2026-11-18T07:30:00+00:00"
    assert moment_of("2026-11-18T09:30Z", now).isoformat() == "2026-11-18T09:30:00+00:00"
    with pytest.raises(UsageError):
        moment_of("25:00", now)
