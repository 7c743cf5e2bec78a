"""Who says how a plan is confined: the plan file, the project, the user; and what is said of it."""

import os
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import git, make_repository
from tests.test_confinement import needs_bwrap, needs_landlock, plan, tool_outputs

WORD = "the plan file turns confinement off: its tools can write wherever you can"
OFF = "policy: {confine: off}\n"


def test_a_plan_file_that_turns_it_off_is_named_at_every_run_and_in_status(agents: Agents) -> None:
    plan(agents, '  - {id: a, run: "test -e ok"}\n', OFF)
    first = agents.run("plan", "run", "plan.yaml", "--json").expect(5)
    again = agents.run("plan", "resume", "last", "--json").expect(5)
    for done in (first, again):
        assert [text for text in done.json["messages"] if WORD in text]
    found = agents.run("plan", "status", "--json").expect(0).data["confinement"]
    assert found == {"in_force": "off", "setting": "auto", "plan_file": "off"}
    shown = agents.run("plan", "status", "--format", "plain").expect(0).stdout
    assert "off by the plan file: tools can write wherever you can" in shown
    said = agents.run("plan", "run", "plan.yaml", "--format", "plain").expect(5)
    assert WORD in said.stdout + said.stderr


def test_who_turned_it_off_for_themselves_is_not_told_at_each_run(agents: Agents) -> None:
    agents.run("config", "set", "sandbox.confine", "off").expect(0)
    plan(agents, '  - {id: a, run: "true"}\n', OFF)
    done = agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    assert not [text for text in done.json["messages"] if "confine" in text]
    shown = agents.run("plan", "status", "--format", "plain").expect(0).stdout
    assert "off by sandbox.confine" in shown


def test_a_plan_without_programs_has_nothing_to_confine(agents: Agents) -> None:
    plan(agents, "  - {id: a, tool: file.list}\n", OFF)
    done = agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    assert not [text for text in done.json["messages"] if WORD in text]


@needs_bwrap
@pytest.mark.parametrize("policy", ["off", "auto", "landlock"])
@pytest.mark.parametrize("setting", ["required", "bwrap"])
def test_what_the_user_requires_no_plan_file_weakens(
    agents: Agents, setting: str, policy: str
) -> None:
    agents.run("config", "set", "sandbox.confine", setting).expect(0)
    secret = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    steps = f'  - {{id: leak, run: "cat {secret} || echo x >$HOME/leak"}}\n'
    plan(agents, steps, f"policy: {{confine: {policy}}}\n")
    agents.run("plan", "run", "plan.yaml", "--json").expect(5)
    [output] = tool_outputs(agents, "leak")
    assert "SQLite format" not in output
    assert not Path(agents.env["HOME"], "leak").exists()
    found = agents.run("plan", "status", "--json").expect(0).data["confinement"]
    assert found["in_force"] == setting


@needs_bwrap
@needs_landlock
def test_a_plan_file_that_takes_the_weaker_mechanism_is_named(agents: Agents) -> None:
    plan(agents, '  - {id: a, run: "true"}\n', "policy: {confine: landlock}\n")
    done = agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    assert [text for text in done.json["messages"] if "landlock instead of bwrap" in text]


@pytest.mark.parametrize("value", ["off", "auto", "landlock"])
def test_a_projects_file_can_only_strengthen_it(agents: Agents, value: str) -> None:
    agents.run("config", "set", "sandbox.confine", "required").expect(0)
    plan(agents, '  - {id: a, run: "true"}\n')
    (agents.work / ".cleveragents.toml").write_text(f'[sandbox]\nconfine = "{value}"\n')
    done = agents.run("plan", "run", "plan.yaml", "--json").expect(2)
    assert f"sandbox.confine = {value} cannot be set by a project" in str(done.data["error"])
    (agents.work / ".cleveragents.toml").write_text('[sandbox]\nconfine = "required"\n')
    agents.run("config", "list").expect(0)


# What a sandbox's git borrows


def two_plans(agents: Agents) -> tuple[Path, Path]:
    """A repository with a plan of its own, and the sandbox of another plan of it."""
    app = agents.work / "app"
    app.mkdir()
    (app / "f").write_text("one")
    make_repository(agents, app)
    plan(agents, '  - {id: a, run: "true"}\n', kind="git-checkout")
    other = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data["sandboxes"]["app"]
    secret = Path(other) / ".git" / "objects" / "secret"
    secret.write_text("of another plan")
    return app, secret


@needs_bwrap
@pytest.mark.parametrize("way", ["climbing", "plain", "linked"])
def test_objects_of_another_plan_are_not_mounted_for_what_a_tool_writes(
    agents: Agents, way: str
) -> None:
    app, secret = two_plans(agents)
    objects = secret.parent
    line = {
        "climbing": f"{app}/{os.path.relpath(objects, app)}",
        "plain": str(objects),
        "linked": f"{app}/.git/objects",
    }[way]
    plant = f"mv .git/objects/info x; mkdir info; echo {line} >info/alternates"
    place = "ln -s ../../info" if way == "linked" else "mv info"
    plant = f"{plant}; {place} .git/objects/info"
    look = f"cat {secret}; cat $(dirname {agents.env['CLEVERAGENTS_HOME']})/store/.beside/*/secret"
    steps = f'  - {{id: plant, run: "{plant}"}}\n  - {{id: look, run: "{look}; true"}}\n'
    plan(agents, steps, "policy: {confine: bwrap}\n", "git-checkout")
    agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    [output] = tool_outputs(agents, "look")
    assert "of another plan" not in output


@needs_bwrap
def test_a_link_on_the_way_to_what_is_replaced_makes_no_file_outside(agents: Agents) -> None:
    """bwrap would follow it while the machine's own files are still to be seen, and writable."""
    two_plans(agents)
    victim = Path(agents.env["HOME"]) / "victim"
    victim.mkdir()
    plant = f"rm -r .git/objects/info; ln -s /oldroot{victim} .git/objects/info"
    steps = f'  - {{id: plant, run: "{plant}"}}\n  - {{id: next, run: "true"}}\n'
    plan(agents, steps, "policy: {confine: bwrap}\n", "git-checkout")
    agents.run("plan", "run", "plan.yaml").expect(0)
    assert os.listdir(victim) == []


@needs_bwrap
def test_git_in_a_submodule_and_in_a_child_plan_reads_what_it_borrows(agents: Agents) -> None:
    inner, app = agents.work / "inner", agents.work / "app"
    inner.mkdir()
    (inner / "g").write_text("inner")
    make_repository(agents, inner)
    make_repository(agents, app)
    git(agents, app, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "in")
    git(agents, app, "commit", "-qm", "with")
    look = "git log --format=%s; git -C in log --format=%s; git -C in show HEAD:g"
    child = f'{{id: look2, run: "set -e; {look}"}}'
    steps = (
        f'  - {{id: look, run: "set -e; {look}"}}\n  - {{id: c, subplan: {{steps: [{child}]}}}}\n'
    )
    plan(agents, steps, "policy: {confine: bwrap}\n", "git-checkout")
    agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    for step in ("look", "look2"):
        assert tool_outputs(agents, step) == ["with\nstart\nstart\ninner"]
