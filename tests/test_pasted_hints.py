"""A hint that names a command can be pasted: it does what was asked for, and the one thing more."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Agents
from tests.rig import Shop
from tests.scratch import git

STEPS = """
    - {id: one, run: "echo 1 > one"}
    - {id: two, run: "echo 2 > two"}
"""


@pytest.fixture
def shop(agents: Agents) -> Shop:
    shop = Shop(agents)
    shop.ran(STEPS)
    return shop


def hint(shop: Shop, *argv: str) -> str:
    return shop.run(*argv).expect(4).data["error"]["hint"]


def pasted(shop: Shop, text: str) -> dict[str, Any]:
    words = shlex.split(text)
    assert words[0] == "agents"
    return shop.agents.run(*words[1:]).expect(0).data


def test_apply_as_a_branch_stays_one(shop: Shop) -> None:
    told = hint(shop, "plan", "apply", "plan", "--as", "branch")
    assert told == "agents plan apply plan --as branch --json --yes"
    assert [item["mode"] for item in pasted(shop, told)["applied"]] == ["branch"]


def test_a_name_and_a_label_with_a_space_are_quoted_and_keep_what_was_typed(shop: Shop) -> None:
    shop.run("plan", "checkpoint", "create", "plan", "--label", "it's here").expect(0)
    told = hint(shop, "plan", "rollback", "plan", "it's here", "--files-only")
    assert shlex.split(told)[4:] == ["it's here", "--files-only", "--json", "--yes"]
    shop.ran(STEPS, file="two words.yaml")
    told = hint(shop, "plan", "apply", "two words", "--as", "branch")
    assert told == "agents plan apply 'two words' --as branch --json --yes"
    assert [item["mode"] for item in pasted(shop, told)["applied"]] == ["branch"]


def test_a_correction_keeps_guidance_cascade_and_file(shop: Shop) -> None:
    file = shop.write(STEPS.replace("echo 1", "echo 11"), file="other.yaml")
    decision = shop.decision("one")
    options = ("--guidance", "it's another", "--plan-file", file, "--cascade")
    told = hint(shop, "plan", "correct", decision, *options)
    done = pasted(shop, told)
    assert len(done["superseded"]) == 2
    assert shop.read("one") == "11\n"
    [(said,)] = shop.rows("SELECT guidance FROM correction_attempts")
    assert said == "it's another"


def test_a_rollback_of_some_paths_stays_one(shop: Shop) -> None:
    told = hint(shop, "plan", "rollback", "plan", "first", "--only", "one")
    assert told == "agents plan rollback plan first --only one --json --yes"
    pasted(shop, told)
    assert (shop.read("one"), shop.read("two")) == (None, "2\n")


def test_a_loss_is_accepted_with_everything_else_that_was_asked(agents: Agents) -> None:
    shop = Shop(agents)
    shop.ran(
        '- {id: mail, tool: mail}\n- {id: two, run: "echo 2 > two"}',
        more='tools: {mail: {run: "echo sent > sent", side_effects: [mail]}}',
    )
    told = hint(shop, "plan", "rollback", "plan", "first", "--yes")
    command = told.removesuffix(" rolls back anyway")
    assert command == "agents plan rollback plan first --yes --json --accept-loss"
    pasted(shop, command)
    assert shop.read("sent") is None


def test_another_way_to_apply_takes_the_place_of_the_one_that_was_refused(shop: Shop) -> None:
    git(shop.agents, shop.app, "checkout", "-q", "-b", "elsewhere")
    told = hint(shop, "plan", "apply", "plan", "--as", "commit", "--ignored", "--yes")
    command = told.partition(", or ")[2]
    assert command == "agents plan apply plan --ignored --yes --json --as branch"
    stored = shop.status()["error"]["hint"]
    assert f"agents plan apply {shop.status()['plan_id']} --as branch" in stored
    assert [item["mode"] for item in pasted(shop, command)["applied"]] == ["branch"]


def test_a_delete_is_pasted_with_what_was_asked(shop: Shop) -> None:
    told = hint(shop, "plan", "delete", "plan", "--set", "sandbox.confine=off")
    command = told.partition(", or ")[2]
    assert command == "agents plan delete plan --set sandbox.confine=off --json --yes"
    assert pasted(shop, command)["deleted"]


def test_what_a_hint_says_behind_the_command_is_no_part_of_it(agents: Agents) -> None:
    agents.run("plan", "list").expect(0)
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    env = {"CLEVERAGENTS_HOME": str(store.rename(store.with_name("moved")))}
    told = agents.run("doctor", "--fix", "--json", env=env).expect(4).data["error"]["hint"]
    assert told.startswith("if it was moved: agents doctor --fix --json --adopt; if it is a copy:")


def test_a_name_that_a_newer_plan_has_too_is_not_what_to_type(shop: Shop) -> None:
    shop.ran(STEPS)
    older = shop.run("plan", "list").expect(0).data["plans"][-1]["plan_id"]
    back = shop.agents.run("plan", "rollback", older, "one", "--yes").expect(0).stdout
    (told,) = (line for line in back.splitlines() if line.lstrip().startswith("next "))
    assert told.split() == ["next", "agents", "plan", "resume", older]
    done = shop.agents.run(*told.split()[2:]).expect(0)
    assert f"next: agents plan diff {older}, agents plan apply {older}" in done.stdout
