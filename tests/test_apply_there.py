"""A plan is applied by a machine that does not have its target: the one that has it does the work.

The first machine has a project that nobody else sees; the second is this one.
"""

import json
import signal
import subprocess
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cleveragents.cluster.queue import Order, own_queue
from cleveragents.errors import ApplyRefused
from cleveragents.store.postgres import SCHEMA
from cleveragents.workspace import open_workspace
from tests.databases import query_shared, shared_store
from tests.harness import Agents
from tests.pgserver import PgServer
from tests.scratch import wait_until
from tests.team import Team, needs_root

pytestmark = needs_root

PLAN = """\
name: shop
resources:
  app: {kind: fs-directory, path: app}
  code: {kind: git-checkout, path: code}
steps:
  - {id: files, on: app, run: "test -e GO && echo 1 >> log"}
  - {id: code, on: code, run: "echo more >> kept.txt"}
"""
HOOK = """#!/bin/sh
echo begun >> GATE.begun
while ! test -e GATE; do sleep 0.05; done
"""


class Two(Team):
    def __init__(self, agents: Agents, url: str) -> None:
        super().__init__(agents, url)
        self.real, self.place = self.top / "real", agents.work / "place"
        self.gate, self.go = self.top / "gate", self.top / "go"
        self.plan_id = ""
        self.place.mkdir()
        (self.real / "app").mkdir(parents=True)
        self.git("init", "-q", "code")
        (self.real / "code" / "kept.txt").write_text("base\n")
        self.git("-C", "code", "add", "-A")
        self.git("-C", "code", "commit", "-qm", "base")
        (self.real / "plan.yaml").write_text(PLAN.replace("GO", str(self.go)))

    def git(self, *argv: str) -> str:
        done = subprocess.run(
            ["git", *argv],
            cwd=self.real,
            env=self.agents.env,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def hook(self, name: str) -> None:
        path = self.real / "code" / ".git" / "hooks" / name
        path.write_text(HOOK.replace("GATE", str(self.gate)))
        path.chmod(0o755)

    @property
    def _project(self) -> str:
        return f"mount --bind {self.real} {self.place} && cd {self.place}"

    def run_on_first(self) -> int:
        silent = subprocess.DEVNULL
        words = ("plan", "run", "plan.yaml")
        return self.on("first", *words, prepare=self._project, stdout=silent, stderr=silent).wait()

    def worker_on_first(self) -> AbstractContextManager[subprocess.Popen[str]]:
        return self.worker("first", prepare=self._project)

    def apply(self, *options: str) -> subprocess.Popen[str]:
        """From the second machine, in the background."""
        pipe: Any = subprocess.PIPE
        words = ("plan", "apply", "shop", "--yes", *options)
        return self.started(*words, stdout=pipe, stderr=pipe)

    def require_applied_once(self) -> None:
        assert (self.real / "app" / "log").read_text() == "1\n"
        assert (self.real / "code" / "kept.txt").read_text() == "base\nmore\n"
        assert self.git("-C", "code", "log", "--format=%s").split() == ["shop", "base"]
        assert self.git("-C", "code", "status", "--porcelain") == ""
        applies = query_shared(self.url, "SELECT detail FROM journal WHERE operation = 'apply'")
        assert [json.loads(detail).get("outcome") for (detail,) in applies].count("done") == 1


@pytest.fixture
def team(agents: Agents, pg: PgServer) -> Generator[Two]:
    with shared_store(pg, empty=True) as url:
        made = Two(agents, url)
        assert made.run_on_first() == 5
        made.go.touch()
        done = made.run("plan", "resume", "shop")
        assert done["state"] == "complete"
        made.plan_id = done["plan_id"]
        yield made


def test_the_machine_that_has_the_target_applies_with_what_was_done_by_hand_elsewhere(
    team: Two,
) -> None:
    refused = team.run("plan", "apply", "shop", "--yes", expect=4)["error"]
    assert "app is not on this machine" in refused["message"]
    assert refused["hint"].startswith("on first: agents plan apply ")
    box = Path(team.run("plan", "status", "shop")["sandboxes"]["app"])
    (box / "by-hand").write_text("edited on the second machine\n")
    with team.worker_on_first():
        assert "is not on this machine" in str(
            team.run("plan", "apply", "shop", "--dry-run", expect=4)
        )
        unasked = team.run("plan", "apply", "shop", expect=4)["error"]
        assert (
            unasked["message"] == "not done without a yes: apply it on first, which has the target?"
        )
        said = team.agents.run("plan", "apply", "shop", "--yes", env=team.env).expect(0)
        assert "the target is on first: a worker there applies the plan" in said.stderr
        assert "applied just now" in said.stdout
        again = team.run("plan", "apply", "shop", "--yes")
        assert {item["resource"] for item in again["applied"]} == {"app", "code"}
    assert (team.real / "app" / "by-hand").read_text() == "edited on the second machine\n"
    team.require_applied_once()


def test_python_does_what_the_command_does(team: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in team.env.items():
        monkeypatch.setenv(name, value)
    with open_workspace() as ws:
        plan = ws.find("shop")
        with pytest.raises(ApplyRefused, match="app is not on this machine") as refused:
            plan.apply()
        assert refused.value.hint.startswith(f"on first: agents plan apply {team.plan_id}")
        with team.worker_on_first():
            done = plan.apply()
            assert {item["resource"] for item in done["applied"]} == {"app", "code"}
            assert plan.apply() == done
    team.require_applied_once()


def test_without_a_bucket_the_machine_that_has_the_target_is_known_too(
    agents: Agents, pg: PgServer
) -> None:
    with shared_store(pg, empty=True) as url:
        team = Two(agents, url)
        del team.env["CLEVERAGENTS_CONTENT_URL"]
        team.go.touch()
        assert team.run_on_first() == 0
        refused = team.run("plan", "apply", "shop", "--yes", expect=4)["error"]
        assert refused["hint"].startswith("on first: agents plan apply ")
        with team.worker_on_first():
            team.run("plan", "apply", "shop", "--yes")
        team.require_applied_once()


def test_two_deliveries_at_once_apply_once(team: Two) -> None:
    team.hook("pre-commit")
    with team.worker_on_first(), team.worker_on_first():
        waits = team.apply("--hooks")
        wait_until(Path(f"{team.gate}.begun").exists, "the first delivery applies")
        joins = team.apply("--hooks")
        with psycopg.connect(team.url, options=f"-c search_path={SCHEMA}") as connection:
            order = Order(queue=own_queue("first"))
            team.queue.submit(team.plan_id, order, connection, ("--hooks",))
        wait_until(lambda: sum(c.running for c in team.queue.counts()) == 2, "both are delivered")
        team.gate.touch()
        for one in (waits, joins):
            said = one.communicate(timeout=600)
            assert one.returncode == 0, said
            assert "applied just now" in said[0]
        wait_until(lambda: not team.queue.counts(), "both have ended")
    assert Path(f"{team.gate}.begun").read_text() == "begun\n"
    team.require_applied_once()


@pytest.mark.parametrize("hook", ["pre-commit", "post-commit"])
def test_a_machine_that_dies_while_it_applies_has_applied_once_when_it_is_back(
    team: Two, hook: str
) -> None:
    team.hook(hook)
    with team.worker_on_first() as worker:
        waits = team.apply("--hooks")
        wait_until(Path(f"{team.gate}.begun").exists, "it applies")
        worker.kill()
        worker.wait()
    team.gate.touch()
    with team.worker_on_first():
        said = waits.communicate(timeout=600)
        assert waits.returncode == 0, said
    team.require_applied_once()


def test_why_the_other_machine_did_not_apply_is_said_here(team: Two) -> None:
    (team.real / "code" / "kept.txt").write_text("another\n")
    with team.worker_on_first():
        refused = team.run("plan", "apply", "shop", "--yes", expect=4)["error"]
        assert refused["message"].startswith("on first: ")
        assert "kept.txt" in refused["message"]
        (team.real / "code" / "kept.txt").write_text("base\n")
        (team.real / "app").rename(team.real / "moved")
        gone = team.run("plan", "apply", "shop", "--yes", expect=4)["error"]
        assert "first could not apply it" in gone["message"]
        (team.real / "moved").rename(team.real / "app")
        team.run("plan", "apply", "shop", "--yes")
    team.require_applied_once()


def test_who_no_longer_waits_takes_the_job_back(team: Two) -> None:
    team.hook("pre-commit")
    with team.worker_on_first():
        waits = team.apply("--hooks")
        wait_until(Path(f"{team.gate}.begun").exists, "it applies")
        waits.send_signal(signal.SIGINT)
        waits.communicate(timeout=600)
        assert waits.returncode == 130
        wait_until(lambda: not team.queue.counts(), "the job has ended")
    assert team.git("-C", "code", "log", "--format=%s").split() == ["base"]
    assert not (team.real / "app" / "log").exists()


def test_a_worker_that_leaves_before_it_began_leaves_no_job(team: Two) -> None:
    (team.agents.work / "d").mkdir()
    (team.agents.work / "long.yaml").write_text(
        "name: long\nresources: {d: {kind: fs-directory, path: d}}\n"
        f'steps: [{{id: s, run: "touch {team.gate}.begun; sleep 1000"}}]\n'
    )
    team.run("plan", "submit", "long.yaml")
    with team.worker_on_first() as worker:
        wait_until(Path(f"{team.gate}.begun").exists, "it has something else to do")
        waits = team.apply()
        wait_until(lambda: team.queue.job(team.plan_id), "the job waits")
        worker.kill()
    said = waits.communicate(timeout=600)
    assert waits.returncode == 4, said
    assert "no worker is left on first; nothing was applied" in said[1]
    assert "on first: agents plan apply" in said[1]
    assert team.queue.job(team.plan_id) is None
