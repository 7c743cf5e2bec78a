"""`agents init`, `plan new` and `plan lint`: from nothing to a plan file that runs."""

import os
import re
import sqlite3
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cleveragents.cli.main import root
from cleveragents.config import load_settings
from cleveragents.config.template import project_template
from cleveragents.errors import NotAllowed
from cleveragents.execution.plan_files.draft import commands_in, write
from cleveragents.model.settings import Settings
from cleveragents.planfile import parse_plan
from tests.harness import Agents
from tests.in_process import Yard, cli
from tests.scratch import git


@pytest.fixture
def project(agents: Agents, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a database in it; commands start there."""
    git(agents, yard.app, "init", "-q")
    git(agents, yard.app, "add", ".")
    git(agents, yard.app, "commit", "-qm", "first")
    (yard.app / "data").mkdir()
    sqlite3.connect(yard.app / "data" / "shop.db").execute("CREATE TABLE t (x)")
    (yard.app / "data" / "none.db").write_text("not a database")
    monkeypatch.chdir(yard.app)
    return yard.app


def test_init_writes_a_plan_that_runs_and_applies(project: Path) -> None:
    done = cli("init")
    assert "next: agents plan run plan.yaml, agents diff, agents apply" in done.stdout
    plan = parse_plan((project / "plan.yaml").read_text(), "plan.yaml", str(project))
    assert [(r.name, r.kind) for r in plan.resources] == [
        ("work", "git-checkout"),
        ("shop", "sqlite"),
    ]
    cli("plan", "lint", "plan.yaml")
    cli("plan", "run", "plan.yaml")
    cli("apply", "--yes")
    assert (project / "hello.txt").exists()


def test_what_init_leaves_as_comments_is_right_as_well(project: Path) -> None:
    cli("init")
    text = (project / "plan.yaml").read_text()
    more = re.sub(r"^# (validate:|  - \{run|policy:)", r"\1", text, flags=re.MULTILINE)
    assert more.count("\n#") < text.count("\n#") - 2
    (project / "plan.yaml").write_text(more)
    cli("plan", "lint", "plan.yaml")


def test_init_never_overwrites(project: Path) -> None:
    (project / "plan.yaml").symlink_to("nowhere")
    (project / ".cleveragents.toml").write_text("# mine\n")
    assert cli("init", "--json").data["kept"] == [
        ".cleveragents.toml",
        "plan.yaml",
    ]
    assert (project / ".cleveragents.toml").read_text() == "# mine\n"
    assert not (project / "nowhere").exists()
    before = (project / ".cleveragents.schema.json").read_text()
    assert cli("init", "--json").data["written"] == []
    assert (project / ".cleveragents.schema.json").read_text() == before


def test_a_folder_too_wide_for_a_sandbox_gets_no_plan(
    private_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plan run` would refuse what `init` had written."""
    home = Path(os.path.expanduser("~"))
    home.mkdir(exist_ok=True)
    monkeypatch.chdir(home)
    there = set(os.listdir())
    for command in ("init",), ("plan", "new", "--from-commands", "true"):
        refused = cli(*command, expect=5)
        assert f"{home} holds {home} and is not sandboxed" in refused.stderr
        assert set(os.listdir()) == there
    cli("init", "--set", f"sandbox.allow-wide={home}")
    assert "plan.yaml" in os.listdir()


def test_the_settings_of_init_are_the_defaults(project: Path) -> None:
    names = re.sub(r"^# ([a-z.-]+ = )", r"\1", project_template(), flags=re.MULTILINE)
    (project / ".cleveragents.toml").write_text(names)
    home = str(project / "home")
    with_file = load_settings(str(project), {"HOME": home, "CLEVERAGENTS_HOME": home})
    assert with_file == Settings(home=home, confine="required")  # no project may set the default
    assert "# how tools are confined: required, bwrap (default: auto)\n" in names
    assert len(re.findall(r"^[a-z.-]+ = ", names, flags=re.MULTILINE)) > 8


def test_a_plan_from_commands_has_a_step_for_each(project: Path) -> None:
    cli("init")
    commands = ["npm run build", "npm run build", "echo 'a: b' > \"$HOME/x\"\necho done", "é -x"]
    made = cli("plan", "new", "--from-commands", *commands, "-o", "b.yaml", "--json").data
    assert [step["id"] for step in made["steps"]] == [
        "npm-run-build",
        "npm-run-build-2",
        "echo",
        "step",
    ]
    text = (project / "b.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=.cleveragents.schema.json\nname: b\n")
    plan = parse_plan(text, "b.yaml", str(project))
    assert [step.inputs["command"] for step in plan.steps] == commands
    cli("plan", "lint", "b.yaml")


def test_after_init_the_next_plan_file_needs_no_name(project: Path) -> None:
    cli("init")
    first = (project / "plan.yaml").read_text()
    for number in (2, 3):
        made = cli("plan", "new", "--from-commands", "npm ci", "npm test", "--json").data
        assert made["file"] == made["name"] + ".yaml" == f"plan-{number}.yaml"
        cli("plan", "lint", made["file"])
    assert (project / "plan.yaml").read_text() == first


def test_a_plan_from_lines_runs_below_the_folder(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (yard.app / "$odd name").mkdir()
    monkeypatch.chdir(yard.app / "$odd name")
    lines = "# a comment\n\necho one > one.txt\necho two \\\n  > two.txt\n"
    assert commands_in(lines) == ["echo one > one.txt", "echo two    > two.txt"]
    file = str(yard.app / "$odd name" / "two.yaml")
    argv = ["plan", "new", "--from-commands", "-", "-o", file, "--name", "mine"]
    done = CliRunner().invoke(root, argv, input=lines, standalone_mode=False)
    assert done.return_value == 0
    plan = cli("plan", "run", file, "--json").data
    assert plan["name"] == "mine"
    assert {step["state"] for step in plan["steps"]} == {"complete"}
    assert sorted(os.listdir(plan["sandboxes"]["work"])) == ["one.txt", "two.txt", "two.yaml"]


def test_a_plan_written_elsewhere_covers_the_current_directory(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (yard.app / "$here").mkdir()
    (yard.app / "$here" / "mine").write_text("mine\n")
    (yard.app / "plans").mkdir()
    monkeypatch.chdir(yard.app / "$here")
    made = cli("plan", "new", "-o", "../plans/p.yaml", "--json").data
    assert made["resources"] == [{"name": "work", "kind": "fs-directory", "path": "../$$here"}]
    plan = cli("plan", "run", "../plans/p.yaml", "--json").data
    assert sorted(os.listdir(plan["sandboxes"]["work"])) == ["hello.txt", "mine"]
    made = cli("plan", "new", "-o", str(yard.top / "plan.yaml"), "--json").data
    assert made["resources"][0]["path"] == "app/$$here"


def test_new_refuses_what_it_cannot_mean(yard: Yard) -> None:
    cli("plan", "new")
    there = cli("plan", "new", "--output", "plan.yaml", expect=4).stderr
    assert "plan.yaml already exists" in there
    assert "commands are missing" in cli("plan", "new", "--from-commands", expect=2).stderr
    assert cli("plan", "new", "make all", "ls", expect=2).stderr == (
        "error: unexpected argument 'make all': commands come after --from-commands\n"
        "hint: agents plan new --from-commands 'make all' ls\n"
    )
    assert "is empty" in cli("plan", "new", "--from-commands", " ", "-o", "x", expect=2).stderr
    assert "no such folder" in cli("plan", "new", "-o", "no/x.yaml", expect=2).stderr
    argv = ["plan", "new", "--from-commands", "-", "-o", "x.yaml"]
    assert CliRunner().invoke(root, argv, input="\n", standalone_mode=False).return_value == 2
    with pytest.raises(NotAllowed):
        write("plan.yaml", "")


def test_databases_are_looked_for_where_people_keep_them(project: Path) -> None:
    for folder in (".venv", "node_modules", "a/b/c/d/e", "other"):
        (project / folder).mkdir(parents=True)
        sqlite3.connect(project / folder / "shop.db").execute("CREATE TABLE t (x)")
    (project / "link.db").symlink_to("data/shop.db")
    resources = cli("plan", "new", "--json").data["resources"]
    assert [(r["name"], r["path"]) for r in resources] == [
        ("work", "."),
        ("shop", "data/shop.db"),
        ("shop-2", "other/shop.db"),
    ]


WRONG = """\
name: shop
resources:
  app: {kind: fs-directory, path: app, cary: all}
  sql: {kind: sqlite, path: app/old.txt}
tools:
  mine: {run: [true], timeot: 3}
  risky: {run: [true], unsafe: true}
steps:
  - {id: a, on: app, tool: fil.write}
  - {id: b, on: app, tool: file.write, with: {pth: x, content: y}}
  - {id: c, on: app, tool: sql, with: {script: select 1}}
  - {id: d, on: ap, run: [x, [y]], needs: [q]}
"""


def test_lint_names_everything_with_file_line_and_key(yard: Yard) -> None:
    file = os.path.relpath(yard.plan(WRONG))
    failed = cli("plan", "lint", file, "--json", expect=2)
    assert failed.json["status"] == "error"
    found = [(p["line"], p["key"]) for p in failed.data["problems"]]
    assert found == [
        (3, "cary"),
        (4, ""),
        (6, "timeot"),
        (7, ""),
        (9, "tool"),
        (10, "pth"),
        (10, "with"),
        (11, ""),
        (12, "run"),
        (12, "on"),
        (12, "needs"),
    ]
    shown = cli("plan", "lint", file, expect=2).stdout.splitlines()
    assert len(shown) == len(found)
    assert shown[0].startswith("plan.yaml:3:cary: unknown key 'cary' in resource 'app', did you")
    assert "did you mean 'carry'?" in shown[0]
    assert "plan.yaml:4: resource 'sql': " in shown[1]
    assert not cli("plan", "list", "--json").data["plans"]


def test_lint_finds_what_only_a_look_at_the_world_shows(yard: Yard) -> None:
    text = "name: x\nresources:\n  db: {kind: sqlite, path: app/old.txt}\nsteps: [{run: ls}]\n"
    [problem] = cli("plan", "lint", yard.plan(text), "--json", expect=2).data["problems"]
    assert (problem["line"], problem["message"][:15]) == (3, "resource 'db': ")
    acted = "actor: {command: [no-such-program]}\n"
    text = "name: x\nresources:\n  app: {kind: fs-directory, path: app}\n" + acted
    [problem] = cli("plan", "lint", yard.plan(text), "--json", expect=2).data["problems"]
    assert problem["line"] == 4


def test_lint_of_several_files_and_of_none(yard: Yard) -> None:
    good, bad = yard.plan(), yard.plan("name: [", "bad.yaml")
    data = cli("plan", "lint", good, bad, "--json", expect=2).data
    assert {problem["file"] for problem in data["problems"]} == {bad}
    assert "1 plan file checked: nothing is wrong" in cli("plan", "lint", good).stdout
    told = cli("plan", "lint", "nope.yaml", expect=2).stderr
    assert told == "error: no such plan file: nope.yaml\nhint: agents plan new\n"


def test_what_lint_passes_can_be_run(project: Path) -> None:
    cli("plan", "new", "--from-commands", "true")
    steps = yaml.safe_load((project / "plan.yaml").read_text())["steps"]
    assert steps == [{"id": "true", True: "work", "run": "true"}]
    cli("plan", "lint", "plan.yaml")
    assert cli("plan", "run", "plan.yaml", "--json").data["state"] == "complete"
