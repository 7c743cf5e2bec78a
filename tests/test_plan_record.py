"""What a plan says of itself is true: decisions in force, steps, the log of operations."""

import os
import signal
import subprocess

import pytest

from tests.harness import Agents, command
from tests.rig import Shop
from tests.scratch import git, wait_until


@pytest.fixture
def shop(agents: Agents) -> Shop:
    return Shop(agents, users=())


def two(test: str) -> str:
    return f"""
        - {{id: one, run: "echo 1 > one"}}
        - {{id: two, run: "echo 2 > two; {test}"}}
    """


def trailers(shop: Shop) -> list[str]:
    shop.ok("plan", "apply", "plan", "--yes")
    body = git(shop.agents, shop.app, "log", "-1", "--format=%B")
    return [line for line in body.splitlines() if line.startswith("Agents-Decision")]


def test_a_step_that_failed_and_was_changed_leaves_no_decision_in_force(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(two("false"))).expect(5)
    for test in ("test -e never", "exit 3"):
        shop.run("plan", "resume", "plan", "--plan-file", shop.write(two(test))).expect(5)
    shop.ok("plan", "resume", "plan", "--plan-file", shop.write(two("true")))
    assert [item["question"] for item in shop.tree()] == ["one", "two"]
    assert len(shop.tree("plan", "--show-superseded")) == 5
    assert trailers(shop) == ["Agents-Decision: one: shell", "Agents-Decision: two: shell"]


def test_a_correction_takes_the_failed_attempt_of_another_step_along(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(two("false"))).expect(5)
    changed = two("true").replace("echo 1 >", "echo 11 >")
    shop.ok("plan", "resume", "plan", "--plan-file", shop.write(changed))
    asked = [d["question"] for d in shop.tree() if not d["question"].startswith("correct")]
    assert sorted(name for name in asked if name in ("one", "two")) == ["one", "two"]


ACTOR = """
import json, sys
def say(**message):
    print(json.dumps(message), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
hear()
for name, command in (("a", "exit 3"), ("b", "exit 4"), ("c", "echo c > c")):
    say(type="decision", question="how", chosen=name)
    say(type="step", run=command)
    hear()
say(type="decision", question="is that all", chosen="yes")
say(type="done")
"""


def test_what_an_actor_tried_in_vain_is_not_in_force(shop: Shop) -> None:
    (shop.work / "actor.py").write_text(ACTOR)
    (shop.work / "plan.yaml").write_text(
        "name: plan\nresources: {app: {kind: git-checkout, path: app}}\n"
        "actor: {command: [python3, actor.py]}\n"
    )
    shop.ok("plan", "run", "plan.yaml")
    assert [item["chosen"] for item in shop.tree()] == ["c", "yes"]
    assert trailers(shop) == ["Agents-Decision: how: c", "Agents-Decision: is that all: yes"]


def states(shop: Shop) -> list[tuple[str, str]]:
    entries = shop.ok("plan", "log", "plan")["entries"]
    shown = shop.agents.run("plan", "log", "plan").expect(0).stdout.splitlines()[1:]
    assert [line.split()[1:3] for line in shown] == [[e["operation"], e["state"]] for e in entries]
    return [(entry["operation"], entry["state"]) for entry in entries]


def test_the_log_tells_what_failed_and_what_was_refused(shop: Shop) -> None:
    shop.run("plan", "run", shop.write(two("false"))).expect(5)
    assert states(shop) == [("use", "done"), ("execute", "failed")]
    shop.ok("plan", "resume", "plan", "--plan-file", shop.write(two("true")))
    (shop.app / "one").write_text("somebody else\n")
    shop.run("plan", "apply", "plan", "--yes").expect(4)
    assert states(shop)[2:] == [("resume", "done"), ("apply", "refused")]
    (shop.app / "one").unlink()
    shop.ok("plan", "apply", "plan", "--yes")
    assert states(shop)[4:] == [("apply", "done")]


def interrupted(shop: Shop, number: signal.Signals) -> None:
    steps = '- {id: slow, run: "echo half > half; touch SIGNALS/up; sleep 600"}'
    process = subprocess.Popen(
        [command(), "plan", "run", shop.write(steps), "-q"],
        cwd=shop.work,
        env=shop.agents.env,
        stderr=subprocess.DEVNULL,
    )
    wait_until((shop.signals / "up").exists, "the step")
    os.kill(process.pid, number)
    process.wait(600)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_step_that_was_interrupted_is_not_processing(shop: Shop, number: signal.Signals) -> None:
    interrupted(shop, number)
    status = shop.status()
    assert status["state"] == "errored"
    assert [(at["step"], at["status"]) for at in status["progress"]] == [("slow", "interrupted")]
    assert shop.rows("SELECT state FROM tool_calls") == [("interrupted",)]
    assert states(shop) == [("use", "done"), ("execute", "interrupted")]
    shop.ok("plan", "resume", "plan", "--plan-file", shop.write('- {id: slow, run: "true"}'))
    assert shop.steps() == {"slow": "complete"}
    assert shop.read("half") is None


def test_a_plan_that_is_complete_is_not_said_to_be_resumed(shop: Shop) -> None:
    shop.ran(two("true"))
    done = shop.run("plan", "resume", "plan").expect(0)
    assert done.data["resumed_from"] is None
    assert done.json["messages"] == ["all steps are already done: nothing was run"]


def test_a_superseded_decision_still_tells_its_steps(
    agents: Agents, stopped: dict[str, str]
) -> None:
    [root] = agents.run("plan", "tree", "last", "--json").data["tree"]
    old = root["children"][0]["decision_id"]
    agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
    (agents.work / "ok").touch()
    agents.run("plan", "resume", "last").expect(0)
    told = agents.run("plan", "explain", old, "--json").expect(0).data
    assert told["state"] == "superseded"
    assert [(s["id"], s["state"]) for s in told["steps"]] == [("one", "complete")]
    [root] = agents.run("plan", "tree", "last", "--json").data["tree"]
    new = root["children"][0]["decision_id"]
    assert new != old
    assert agents.run("plan", "explain", new, "--json").data["steps"][0]["id"] == "one"
