"""The machines that share a store, on the page: what `agents cluster status` says."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import wait_until
from tests.test_cluster import Team, team
from tests.web.visitor import Visitor, words

__all__ = ["team"]


@pytest.fixture
def visitor(team: Team, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    for name, value in team.env.items():
        monkeypatch.setenv(name, value)
    return Visitor()


def test_without_a_shared_store_there_is_nothing_of_machines(agents: Agents) -> None:
    visitor = Visitor()
    assert "/cluster" not in visitor.get("/")
    assert "several machines share" in words(visitor.get("/cluster", expect=400))


def test_what_waits_runs_and_is_handed_back_is_shown(team: Team, visitor: Visitor) -> None:
    assert '<a class="to" href="/cluster">' in visitor.get("/")
    empty = words(visitor.get("/cluster"))
    assert "No worker is there 0 plans run, none waits." in empty
    assert "Nothing waits and nothing runs" in empty
    (team.agents.work / "plan.yaml").write_text(
        "name: lacks <b>\nresources: {a: {kind: fs-directory, path: d}}\n"
        "steps: [{id: s, run: [no-such-program]}]\n"
    )
    plan_id = team.run("plan", "submit", "plan.yaml", "--queue", "slow")["plan_id"]
    team.run("plan", "submit", team.plan(name="often"), "--every", "0 3 * * *")
    page = words(visitor.get("/cluster"))
    assert "1 waits, the oldest for" in page
    assert "Nobody takes them: agents worker" in page
    assert re.search(r"slow 1 0 0 \d+\.\d s", page)
    assert "often 0 3 * * *" in page
    with team.worker() as worker:
        wait_until(lambda: team.run("cluster", "status")["handed_back"], "the worker")
        html = visitor.get("/cluster")
        page = words(html)
        assert "1 worker" in page
        assert f":{worker.pid} " in page
        assert "no-such-program is not installed" in page
        assert f'<a href="/plans/{plan_id}">lacks &lt;b&gt;</a>' in html


def test_a_plan_that_was_taken_over_is_told_of(team: Team, visitor: Visitor) -> None:
    gate = team.agents.work / "gate"
    wait = f"test -e {gate} || (touch {gate}.begun; while :; do sleep 0.05; done); echo 2 >> f"
    plan_id = team.submit(second=wait)
    with team.worker() as first:
        wait_until(lambda: Path(f"{gate}.begun").exists(), "the worker")
        # a worker says its name with its first sign of life, and may have begun before
        wait_until(lambda: f":{first.pid}" in words(visitor.get("/cluster")), "its name")
        assert "1 plan runs, none waits." in words(visitor.get("/cluster"))
        held = re.search(r"process (\d+)", team.status(plan_id)["held_by"])
        assert held is not None
        first.kill()
        os.killpg(int(held[1]), signal.SIGKILL)
    gate.touch()
    with team.worker() as second:
        team.wait_for(plan_id, "complete")
        second.terminate()
        assert second.wait() == 0
    (taken,) = team.run("cluster", "status")["take_overs"]
    assert (taken["plan_id"], taken["operation"]) == (plan_id, "resume")
    assert f"Taken over plan what was going on by when p resume {taken['by']}" in words(
        visitor.get("/cluster")
    )
    text = team.agents.run("cluster", "status", env=team.env).expect(0).stdout
    assert "Taken Over" in text


def test_how_far_the_bucket_is_behind(
    team: Team, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert team.run("cluster", "status")["bucket"] is None
    plan_id = team.run("plan", "run", team.plan())["plan_id"]
    made = len(team.run("plan", "checkpoints", plan_id)["groups"])
    team.env["CLEVERAGENTS_CONTENT_URL"] = f"file://{tmp_path}/bucket"
    bucket = team.run("cluster", "status")["bucket"]
    (late,) = bucket["late"]
    assert (late["plan_id"], late["groups"]) == (plan_id, made)
    assert late["seconds"] > 0
    for name, value in team.env.items():
        monkeypatch.setenv(name, value)
    visitor = Visitor()
    assert f"moments not there for p {made}" in words(visitor.get("/cluster"))
    assert "groups not there" in team.agents.run("cluster", "status", env=team.env).stdout
    team.run("plan", "delete", plan_id, "--yes")
    assert "Everything is there." in words(visitor.get("/cluster"))
    said = team.agents.run("cluster", "status", env=team.env).expect(0).stdout
    assert f"everything is in the bucket file://{tmp_path}/bucket" in said
