"""Small things that were wrong once."""

import os

import pytest

from tests.harness import Agents

PLAN = """
name: small
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, run: 'echo 1 > one'}
  - {id: two, run: 'test -e "$AGENTS_PLAN_DIR/ok" && echo 2 > two'}
"""


@pytest.fixture
def stopped(agents: Agents) -> dict[str, str]:
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN)
    return agents.run("plan", "run", "plan.yaml", "--json").expect(5).data["sandboxes"]


def test_what_became_of_edits_is_told_also_when_the_step_fails_again(
    agents: Agents, stopped: dict[str, str]
) -> None:
    with open(f"{stopped['app']}/mine", "w") as file:
        file.write("by hand\n")
    again = agents.run("plan", "resume", "last", "--discard-edits").expect(5)
    assert "note: 1 manual edit discarded" in again.stderr
    assert "note: resumed from checkpoint" in again.stderr
    assert again.stderr.count("step two: exit code 1") == 1
    refused = agents.run("plan", "rollback", "nope", "first").expect(3)
    assert "note:" not in refused.stderr


def test_a_pipe_in_place_of_the_settings_is_told_and_not_waited_for(agents: Agents) -> None:
    os.mkfifo(agents.work / ".cleveragents.toml")
    assert "it is not a file" in agents.run("plan", "list", timeout=20).expect(2).stderr


@pytest.mark.parametrize("label", ["first", "last"])
def test_words_that_name_a_checkpoint_cannot_be_labels(
    agents: Agents, stopped: dict[str, str], label: str
) -> None:
    refused = agents.run("plan", "checkpoint", "create", "last", "--label", label).expect(2)
    assert "cannot be a label" in refused.stderr
    marked = PLAN.replace("echo 1 > one'", f"echo 1 > one', checkpoint: {label}")
    (agents.work / "plan.yaml").write_text(marked)
    assert "'first' and 'last'" in agents.run("plan", "use", "plan.yaml").expect(2).stderr


def test_a_decision_that_was_taken_back_still_tells_its_steps(
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
