"""Every command's JSON is what `agents schema` says, and nothing more; plan files are, too."""

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator

from cleveragents.cli.main import root
from cleveragents.cli.outputs.table import OUTPUTS
from cleveragents.cli.start.schema import schema_of
from cleveragents.model.plan_spec import DecisionSpec, KeepSpec, PlanSpec, PolicySpec
from cleveragents.planfile import ACTORS, DEFAULT_KINDS, MODEL_KEYS, TOOL_KEYS
from cleveragents.planfile.resources import KEYS as RESOURCE_KEYS
from cleveragents.planfile.schema import INPUT_TYPES, plan_schema
from cleveragents.planfile.steps import STEP_KEYS, SUBPLAN_KEYS
from cleveragents.tools.builtin import TYPES
from tests.harness import Agents
from tests.in_process import Yard, cli
from tests.schemas import wrong_with
from tests.scratch import git

PLAN = """\
name: whole
resources:
  repo: {kind: git-checkout, path: repo}
  db: {kind: sqlite, path: shop.db}
  app: {kind: fs-directory, path: app, exclude: [tmp]}
tools:
  mail: {run: "true", side_effects: [a mail], compensate: "true"}
steps:
  - {id: one, on: repo, run: "echo one > one.txt", decision: {question: what, chosen: one}}
  - {id: rows, on: db, tool: sql, with: {script: "INSERT INTO t VALUES (1)"}, checkpoint: early}
  - {id: mail, on: app, tool: mail}
  - {id: last, on: app, run: "echo last; test -e ok"}
"""
CHILD = "name: more\nsteps: [{id: extra, on: app, run: 'echo x > extra.txt'}]\n"
QUICK = "name: quick\nresources: {app: {kind: fs-directory, path: app}}\nsteps: [{run: ls}]\n"


@pytest.fixture
def stage(agents: Agents, yard: Yard) -> Yard:
    repo = yard.top / "repo"
    repo.mkdir()
    (repo / "old.txt").write_text("old\n")
    git(agents, repo, "init", "-q")
    git(agents, repo, "add", ".")
    git(agents, repo, "commit", "-qm", "first")
    with sqlite3.connect(yard.top / "shop.db") as db:
        db.execute("CREATE TABLE t (x)")
    yard.plan(CHILD, "child.yaml")
    yard.plan(QUICK, "quick.yaml")
    yard.plan(PLAN)
    return yard


class Recorder:
    """Runs commands for programs and keeps what each printed."""

    def __init__(self) -> None:
        self.printed: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, *argv: str, expect: int = 0) -> dict[str, Any]:
        at = argv.index("--") if "--" in argv else len(argv)
        words = (*argv[:at], "--json", *argv[at:])
        envelope = cli(*words, expect=expect).json
        self.printed.setdefault(envelope["command"].removeprefix("agents "), []).append(envelope)
        return envelope["data"]


def run_everything(run: Recorder, stage: Yard) -> None:
    """The life of a plan, and what is around it."""
    run("init")
    run("plan", "new", "--from-commands", "ls", "-o", "new.yaml")
    run("plan", "lint", "plan.yaml")
    run("plan", "lint", str(stage.plan("name: x\nsteps: [{rn: ls}]\n", "bad.yaml")), expect=2)
    run("plan", "run", "bad.yaml", expect=2)
    whole = run("plan", "use", "plan.yaml")["plan_id"]
    run("plan", "execute", whole, expect=5)
    run("plan", "status", whole)
    run("plan", "errors", whole)
    run("plan", "output", whole)
    run("plan", "resume", whole, "--dry-run")
    (Path(run("plan", "status", whole)["sandboxes"]["app"]) / "ok").touch()
    run("plan", "resume", whole)
    preview(run, whole)
    going_back(run, whole)
    run("plan", "run", "quick.yaml")
    run("plan", "cancel", "quick")
    run("plan", "delete", "quick", "--yes")
    run("run", "--on", "app", "--", "echo", "hi")
    upkeep(run)


def preview(run: Recorder, whole: str) -> None:
    run("plan", "list")
    decision = run("plan", "tree", whole, "--show-superseded")["tree"][0]["decision_id"]
    run("plan", "explain", decision)
    run("plan", "checkpoints", whole)
    run("plan", "checkpoint", "create", whole, "--label", "mine")
    run("plan", "checkpoint", "show", whole, "early")
    run("plan", "checkpoint", "pin", whole, "mine")
    run("plan", "diff", whole)
    run("plan", "effects", whole)
    run("plan", "log", whole)
    fixed = ("first", "newest", "undo can reach it", "labelled", "pinned")
    kept = run("plan", "prune", whole, "--dry-run")["keep"]
    loose = [one["group_id"] for one in kept if one["reason"] not in fixed][-1]
    run("plan", "checkpoint", "delete", whole, loose, "--yes")
    run("plan", "prune", whole)
    run("plan", "export", whole, "--on", "repo", "--patch", "-")
    run("plan", "report", whole, "--markdown")
    run("plan", "open", whole, "first")
    os.environ["SHELL"] = "/bin/true"
    run("plan", "shell", whole)
    run("plan", "export", whole, "--on", "repo", "--branch", "exported")


def going_back(run: Recorder, whole: str) -> None:
    run("plan", "rollback", whole, "early", "--dry-run")
    run("plan", "rollback", whole, "early", "--yes")
    run("plan", "undo", whole)
    run("plan", "redo", whole)
    run("plan", "undo", whole)
    tree = run("plan", "tree", whole)["tree"]
    one = next(d for d in tree[0]["children"] if d["question"] == "what")["decision_id"]
    run("plan", "correct", one, "--guidance", "x", "--dry-run")
    run("plan", "correct", one, "--guidance", "x", "--yes")
    root_id = tree[0]["decision_id"]
    append = ("plan", "correct", root_id, "--mode", "append", "--plan-file", "child.yaml")
    run(*append, "--guidance", "y", "--dry-run")
    run(*append, "--guidance", "y")
    run("plan", "apply", whole, "--dry-run")
    run("plan", "apply", whole, "--yes")
    run("plan", "revert-applied", whole)


def upkeep(run: Recorder) -> None:
    run("store", "init")
    run("store", "status")
    run("store", "migrate")
    run("check")
    run("du")
    run("gc", "--dry-run")
    run("doctor")
    run("doctor", "--adopt")
    run("completion", "bash")
    run("schema", "--list")
    run("schema", "plan", "list")
    run("config", "list")
    run("config", "get", "sandbox.cleanup")
    run("config", "set", "sandbox.cleanup", "manual")
    run("config", "unset", "sandbox.cleanup")
    run("hook", "install", "claude-code", "--dry-run")
    run("hook", "uninstall", "claude-code")
    run("hook", "status")


ELSEWHERE = {"demo": "test_demo", "do": "test_model_actor", "store copy": "test_shared_store"}
ELSEWHERE |= dict.fromkeys(
    ("plan submit", "worker", "cluster status", "cluster unschedule"), "test_cluster"
)
"""Commands that need more than a folder: their answers are compared where they are tested."""
NOT_FOR_PROGRAMS = {"mcp", "web", "hook event", "hook sidecar"}
"""Commands that serve, or have a protocol of their own."""
MINE = Path(__file__).parents[1]


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, f"{path}{name} ")
        else:
            yield f"{path}{name}", found


def test_every_command_prints_what_its_schema_says_and_nothing_else(
    stage: Yard,
) -> None:
    run = Recorder()
    run_everything(run, stage)
    wrong = [
        text
        for answers in run.printed.values()
        for answer in answers
        if (text := wrong_with(answer, is_closed=True))
    ]
    assert not wrong, "\n".join(wrong)
    names: dict[click.Command, str] = {}
    for name, found in commands(root):
        names[found] = max(names.get(found, ""), name, key=len)  # not its short form
    known = set(names.values()) - NOT_FOR_PROGRAMS
    assert known == OUTPUTS.keys()
    assert known == run.printed.keys() | ELSEWHERE.keys()
    for module in ELSEWHERE.values():
        assert "wrong_with" in (MINE / "tests" / f"{module}.py").read_text()


def test_a_schema_can_fail(stage: Yard) -> None:
    cli("plan", "use", "quick.yaml")
    answer = cli("plan", "list", "--json").json
    assert not wrong_with(answer, is_closed=True)
    plan = answer["data"]["plans"][0]
    plan["surplus"] = 1
    assert not wrong_with(answer)
    assert "surplus" in wrong_with(answer, is_closed=True)
    del plan["surplus"]
    plan["attempt"] = "one"
    assert "'one' is not of type 'integer'" in wrong_with(answer)


def test_schemas_are_schemas_and_listed() -> None:
    names = cli("schema", "--list", "--json").data["names"]
    assert names == ["plan", *OUTPUTS]
    for name in names:
        answer = cli("schema", *name.split(), "--json")
        assert answer.data["name"] == name
        Draft202012Validator.check_schema(answer.data["schema"])
    printed = json.loads(cli("schema", "status").stdout)
    assert printed == json.loads(json.dumps(schema_of("plan status")))
    failed = cli("schema", "plan", "stats", expect=3)
    assert "no schema 'plan stats', did you mean 'plan status'?" in failed.stderr


PLAN_FILE = Draft202012Validator(plan_schema({**DEFAULT_KINDS, "json-file": ("copy",)}))


class Words(yaml.SafeLoader):
    """YAML as editors read it: `on` and `yes` are words."""


Words.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:bool"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Words.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))


def loaded(text: str) -> Any:
    return Words(text).get_single_data()


def plan_files() -> list[Any]:
    """Those of the documents and of the examples."""
    texts = [
        pytest.param(path.read_text(), id=str(path.relative_to(MINE)))
        for path in sorted((MINE / "examples").rglob("*.yaml"))
    ]
    for document in sorted((MINE / "docs").rglob("*.md")):
        blocks = re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)
        for number, block in enumerate(blocks):
            if re.match(r"(#.*\n)*name:", block):
                texts.append(pytest.param(block, id=f"{document.name}-{number}"))
    return texts


@pytest.mark.parametrize("text", plan_files())
def test_plan_files_fit_their_schema(text: str) -> None:
    errors = [error.message for error in PLAN_FILE.iter_errors(loaded(text))]
    assert not errors


def test_the_schema_of_plan_files_has_the_keys_that_are_read() -> None:
    schema = plan_schema()
    parts = schema["$defs"]
    keys = {name: set(part["properties"]) for name, part in parts.items()}
    assert set(schema["properties"]) == set(PlanSpec.__struct_fields__)
    assert keys["resource"] == set(RESOURCE_KEYS)
    assert keys["tool"] == set(TOOL_KEYS)
    assert keys["step"] == set(STEP_KEYS)
    assert set(parts["step"]["properties"]["subplan"]["properties"]) == set(SUBPLAN_KEYS)
    assert keys["policy"] == set(PolicySpec.__struct_fields__)
    kept = parts["policy"]["properties"]["keep"]["properties"]
    assert set(kept) == set(KeepSpec.__struct_fields__)
    assert keys["decision"] == set(DecisionSpec.__struct_fields__)
    assert keys["actor"] == {"kind", *ACTORS[1:], *MODEL_KEYS}
    assert INPUT_TYPES.keys() == TYPES.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        "resources: {a: {kind: fs-directory}}",
        "resources: {a: {kind: sqlite, path: x, strategy: git_worktree}}",
        "steps: [{id: a}]",
        "steps: [{id: a, run: ls, tool: shell}]",
        "steps: [{id: a, tool: file.write, with: {path: a}}]",
        "steps: [{id: a, run: ls, neds: b}]",
        "policy: {on_failure: never}",
        "policy: {auto_create_on: [sometimes]}",
    ],
)
def test_the_schema_of_plan_files_refuses(wrong: str) -> None:
    assert not list(PLAN_FILE.iter_errors({"name": "x"}))
    assert list(PLAN_FILE.iter_errors({"name": "x", **loaded(wrong)}))
