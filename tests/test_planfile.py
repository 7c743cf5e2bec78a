"""Plan files: what is read from a right one, and every word said about a wrong one."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleveragents.errors import PlanFileError, UsageError
from cleveragents.model.plan import OnFailure
from cleveragents.model.plan_spec import ActorSpec, ApplyAs, DecisionSpec, KeepSpec, PlanSpec
from cleveragents.model.resource import Carry
from cleveragents.planfile import DEFAULT_KINDS, parse_plan, read_plan_file
from cleveragents.planfile import reading as planyaml

MANY = 300 if os.environ.get("CLEVERAGENTS_HEAVY") == "1" else 75

EXAMPLE = """\
name: rename-endpoint
resources:                       # paths are relative to this file
  app: {kind: git-checkout, path: ., carry: all}
  db:  {kind: sqlite, path: data/app.db}
tools:
  codemod: {run: [python, tools/codemod.py], timeout: 60}
policy: {on_failure: rollback_step, max_checkpoints_per_plan: 50}
steps:
  - id: rename
    decision: {question: how to rename, chosen: codemod, alternatives: [sed], confidence: 0.9}
    tool: codemod
    on: app
    with: {args: [--from, users, --to, people]}
  - {id: note, tool: file.write, on: app, with: {path: NOTES.md, content: "renamed\\n"}}
  - {id: schema, tool: sql, on: db, with: {script: "ALTER TABLE users RENAME TO people"}}
  - {id: tidy, on: app, run: "sed -i s/users/people/ README.md"}
  - {id: docs, subplan: {file: docs.yaml}}
validate:
  - {on: app, run: [python, -m, pytest, -q]}
apply: {as: commit, message: Rename users to people}
actor: {kind: steps}
"""

HEAD = """\
name: p
resources:
  app: {kind: fs-directory, path: .}
"""

TWO = """\
name: p
resources:
  app: {kind: fs-directory, path: .}
  db: {kind: sqlite, path: data/app.db}
"""


def words(text: str) -> set[str]:
    return set(text.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    sqlite3.connect(folder / "data" / "app.db").close()
    (folder / "data" / "app.db").touch()
    (folder / "docs.yaml").write_text("name: docs\nsteps: [{id: x, on: app, run: ls}]\n")
    return folder


class Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str, **more: Any) -> PlanSpec:
        return parse_plan(textwrap.dedent(text), "plan.yaml", str(self.folder), **more)

    def steps(self, text: str, head: str = HEAD) -> PlanSpec:
        """The plan with these steps, the first on line 5 (HEAD) or 6 (TWO)."""
        return self(f"{head}steps:\n{textwrap.indent(textwrap.dedent(text), '  ')}")

    def problems(self, text: str, **more: Any) -> tuple[str, ...]:
        with pytest.raises(PlanFileError) as caught:
            self(text, **more)
        return caught.value.problems

    def step_problems(self, text: str, head: str = HEAD) -> tuple[str, ...]:
        with pytest.raises(PlanFileError) as caught:
            self.steps(text, head)
        return caught.value.problems


@pytest.fixture
def read(folder: Path) -> Reader:
    return Reader(folder)


def minimal(**parts: str) -> str:
    """HEAD and one step, with other sections on the lines after: the first is line 6."""
    rest = "".join(f"{key}: {value}\n" for key, value in parts.items())
    return f"{HEAD}steps:\n  - {{id: a, run: x}}\n{rest}"


# a right file


def test_the_example_of_the_specification_is_read(read: Reader, folder: Path) -> None:
    plan = read(EXAMPLE)
    assert plan.name == "rename-endpoint"
    app, db = plan.resources
    assert (app.name, app.kind, app.path) == ("app", "git-checkout", str(folder))
    assert (app.strategy, app.carry, app.require_sandbox) == ("git_worktree", Carry.ALL, True)
    assert (db.path, db.strategy) == (str(folder / "data" / "app.db"), "snapshot")
    assert plan.tools["codemod"].run == ("python", "tools/codemod.py")
    assert plan.tools["codemod"].timeout == 60
    assert plan.policy.max_checkpoints_per_plan == 50
    assert [step.id for step in plan.steps] == ["rename", "note", "schema", "tidy", "docs"]
    assert [step.tool for step in plan.steps] == [
        *("codemod", "file.write", "sql", "shell", "subplan")
    ]
    assert plan.steps[0].inputs == {"args": ["--from", "users", "--to", "people"]}
    assert plan.steps[0].decision == DecisionSpec(
        question="how to rename", chosen="codemod", alternatives=("sed",), confidence=0.9
    )
    assert plan.steps[3].inputs == {"command": "sed -i s/users/people/ README.md"}
    assert plan.steps[4].subplan is not None
    assert plan.steps[4].subplan.file == str(folder / "docs.yaml")
    assert plan.validate[0].run == ("python", "-m", "pytest", "-q")
    assert (plan.apply.as_, plan.apply.message) == (ApplyAs.COMMIT, "Rename users to people")
    assert plan.actor == ActorSpec()


def test_a_plan_is_plain_data_that_can_be_stored(read: Reader) -> None:
    plan = read(EXAMPLE)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=PlanSpec) == plan


def test_a_file_gives_its_plan_and_its_text(folder: Path) -> None:
    path = folder / "plan.yaml"
    path.write_bytes(EXAMPLE.replace("\n", "\r\n").encode())
    plan, text = read_plan_file(str(path))
    assert plan.name == "rename-endpoint"
    assert text == EXAMPLE.replace("\n", "\r\n")


def test_a_relative_plan_file_starts_paths_at_its_own_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plan.yaml").write_text(EXAMPLE)
    monkeypatch.chdir(folder.parent)
    plan, _ = read_plan_file("project/plan.yaml")
    assert plan.resources[0].path == str(folder)


def test_a_byte_order_mark_is_no_part_of_the_plan(folder: Path) -> None:
    (folder / "plan.yaml").write_bytes(b"\xef\xbb\xbf" + EXAMPLE.encode())
    plan, text = read_plan_file(str(folder / "plan.yaml"))
    assert (plan.name, text) == ("rename-endpoint", EXAMPLE)


def test_reading_the_module_does_not_import_yaml() -> None:
    code = "import sys, cleveragents.planfile; print('yaml' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


# a file that cannot be read


def test_a_missing_plan_file_is_wrong_use(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no such plan file: .*nope.yaml") as caught:
        read_plan_file(str(folder / "nope.yaml"))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", [".", "a\0b"])
def test_what_is_no_file_is_wrong_use(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot read plan file") as caught:
        read_plan_file(f"{folder}/{name}")
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_utf8_is_refused_with_its_line(folder: Path) -> None:
    (folder / "plan.yaml").write_bytes(b"name: x\napply: {message: \xff}\n")
    with pytest.raises(PlanFileError) as caught:
        read_plan_file(str(folder / "plan.yaml"))
    assert caught.value.problems == (f"{folder}/plan.yaml:2: not UTF-8",)


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(PlanFileError, match="larger than 16,000,000 bytes"):
        read_plan_file("/dev/zero")


def test_problems_name_the_file_as_it_was_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plan.yaml").write_text(minimal(polcy="{}"))
    monkeypatch.chdir(folder.parent)
    with pytest.raises(PlanFileError) as caught:
        read_plan_file("project/plan.yaml")
    assert caught.value.problems[0].startswith("project/plan.yaml:6: unknown key 'polcy'")
    assert caught.value.exit_code == 2
    assert caught.value.hint == "correct project/plan.yaml and run the same command again"


# YAML


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(planyaml, "_LOADER", getattr(yaml, request.param))
    return request.param


@pytest.mark.usefixtures("loader")
class TestYaml:
    def test_the_example_is_read(self, read: Reader) -> None:
        assert read(EXAMPLE).name == "rename-endpoint"

    @pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n"])
    def test_an_empty_file_is_refused(self, read: Reader, text: str) -> None:
        assert read.problems(text) == ("plan.yaml:1: the file is empty",)

    @pytest.mark.parametrize(
        ("text", "kind"), [("- a", "a list"), ("hello", "text"), ("42", "a number")]
    )
    def test_a_plan_is_a_mapping(self, read: Reader, text: str, kind: str) -> None:
        assert read.problems(text) == (f"plan.yaml:1: a plan is a mapping, not {kind}",)

    def test_several_documents_are_refused(self, read: Reader) -> None:
        found = read.problems("name: a\n---\nname: b\n")
        assert found == ("plan.yaml:3: more than one document in the file",)

    @pytest.mark.parametrize("text", ["a: [1\nb: 2\n", "a: 1\nb: *none\n", "a: 1\n\tb: 2\n"])
    def test_broken_yaml_is_named_with_its_line(self, read: Reader, text: str) -> None:
        (found,) = read.problems(text)
        assert found.startswith("plan.yaml:2: not valid YAML: ")

    def test_a_character_that_yaml_does_not_allow_is_named(self, read: Reader) -> None:
        found = read.problems("name: a\n\nx: \x07\n")
        assert found == ("plan.yaml:3: the character '\\x07' is not allowed in YAML",)
        (found,) = read.problems("name: \ud800")
        assert found == "plan.yaml:1: the character '\\ud800' is not allowed in YAML"

    def test_an_escape_that_is_half_a_character_is_refused(self, read: Reader) -> None:
        (found,) = read.problems(minimal(description=r'"\ud800"'))
        assert found.startswith("plan.yaml:6: ")

    def test_duplicate_keys_are_named_with_both_lines(self, read: Reader) -> None:
        found = read.problems(minimal(name="again"))
        assert found == ("plan.yaml:6: duplicate key 'name', first on line 1",)

    def test_a_duplicate_key_deep_down_is_found(self, read: Reader) -> None:
        found = read.step_problems("- {id: a, tool: file.read, with: {path: a, path: b}}")
        assert found == ("plan.yaml:5: duplicate key 'path', first on line 5",)

    def test_a_key_that_is_no_text_is_refused(self, read: Reader) -> None:
        assert "plan.yaml:6: a key has to be text" in read.problems(minimal() + "? [a, b]\n: 1\n")

    @pytest.mark.parametrize(
        ("value", "tag"),
        [
            ("!foo bar", "!foo"),
            ("!!binary aGk=", "!!binary"),
            ("!!python/name:os.system ''", "!!python/name:os.system"),
            ("!!set {a, b}", "!!set"),
            ("!foo [a]", "!foo"),
        ],
    )
    def test_tags_are_refused(self, read: Reader, value: str, tag: str) -> None:
        found = read.problems(minimal(description=value))
        assert found == (f"plan.yaml:6: the tag '{tag}' is not allowed",)

    @pytest.mark.parametrize(
        "value",
        [".inf", ".nan", "0x_", "9" * 30, "9" * 5000, "!!int ''", "!!bool maybe", "!!float abc"],
    )
    def test_numbers_that_are_none_are_refused(self, read: Reader, value: str) -> None:
        (found,) = read.problems(minimal(policy=f"{{max_parallel: {value}}}"))
        assert found.startswith("plan.yaml:6: not a number we can use: ")

    def test_a_date_stays_the_text_that_was_written(self, read: Reader) -> None:
        plan = read.steps("- {id: a, checkpoint: 2024-99-01, run: x}")
        assert plan.steps[0].checkpoint == "2024-99-01"

    def test_anchors_aliases_and_merge_keys_may_be_used(self, read: Reader) -> None:
        plan = read.steps(
            """\
            - &first {id: a, tool: file.read, with: &with {path: x}}
            - {id: b, tool: file.read, with: *with}
            - {<<: *first, id: c}
            - {<<: [{id: d}, *first], needs: a}
            """
        )
        assert [step.id for step in plan.steps] == ["a", "b", "c", "d"]
        assert [step.inputs for step in plan.steps] == [{"path": "x"}] * 4

    def test_a_merge_key_names_a_mapping(self, read: Reader) -> None:
        found = read.step_problems("- {<<: [x], id: a, run: x}")
        assert found == ("plan.yaml:5: '<<' has to name a mapping",)

    def test_aliases_that_expand_without_end_are_refused(self, read: Reader) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
        found = read.problems("\n".join(lines))
        assert found == ("plan.yaml:6: aliases expand to more than 1,000,000 values",)

    def test_merges_that_expand_without_end_are_refused(self, read: Reader) -> None:
        lines = ["a0: &a0 {x: 1}"]
        lines += [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 25)]
        (found,) = read.problems("\n".join(lines))
        assert "aliases expand to more than" in found

    def test_an_alias_inside_itself_is_refused(self, read: Reader) -> None:
        (found,) = read.problems("name: p\nsteps: &a [*a, *a]\n")
        assert found.startswith("plan.yaml:2: nested more than 100 levels deep")

    def test_aliases_that_nest_deep_are_refused(self, read: Reader) -> None:
        deep = f"a: &a {'[' * 60}1{']' * 60}\nb: {'[' * 60}*a{']' * 60}\n"
        (found,) = read.problems(deep)
        assert "nested more than 100 levels deep" in found

    @pytest.mark.parametrize("levels", [200, 2_000])
    def test_deep_nesting_is_refused(self, read: Reader, levels: int) -> None:
        (found,) = read.problems(f"a: {'[' * levels}{']' * levels}")
        assert "nested more than 100 levels deep" in found


def test_very_deep_nesting_does_not_take_the_process_down(read: Reader) -> None:
    (found,) = read.problems(f"a: 1\nb: {'[' * 400_000}{']' * 400_000}")
    assert found == "plan.yaml:2: nested more than 100 levels deep"


def test_a_long_file_that_is_flat_is_read(read: Reader) -> None:
    plan = read.steps("".join(f"- {{id: s{n}, run: x}}\n" for n in range(2_000)))
    assert len(plan.steps) == 2_000


# keys


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (minimal(polcy="{}"), "6: unknown key 'polcy' in the plan, did you mean 'policy'?"),
        (
            minimal(policy="\n  on_failure: stop\n  fail_fsat: true"),
            "8: unknown key 'fail_fsat' in the policy, did you mean 'fail_fast'?",
        ),
        (
            minimal(policy="{keep: {lst: 1}}"),
            "6: unknown key 'lst' in 'keep' of the policy, did you mean 'last'?",
        ),
        (
            minimal(apply="{mesage: x}"),
            "6: unknown key 'mesage' in 'apply', did you mean 'message'?",
        ),
        (minimal(actor="{knd: x}"), "6: unknown key 'knd' in the actor, did you mean 'kind'?"),
        (
            minimal(validate="[{run: x, timout: 1}]"),
            "6: unknown key 'timout' in a validation, did you mean 'timeout'?",
        ),
        (
            minimal(tools="{t: {run: x, redonly: true}}"),
            "6: unknown key 'redonly' in tool 't', did you mean 'read_only'?",
        ),
        (
            HEAD.replace("path: .", "path: ., cary: all") + "steps: [{run: x}]",
            "3: unknown key 'cary' in resource 'app', did you mean 'carry'?",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(read: Reader, text: str, problem: str) -> None:
    assert read.problems(text) == (f"plan.yaml:{problem}",)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (
            "- id: a\n  run: x\n  need: b",
            "7: unknown key 'need' in step 'a', did you mean 'needs'?",
        ),
        (
            "- {id: a, run: x, decision: {question: q, chosen: c, rational: r}}",
            "5: unknown key 'rational' in the decision of step 'a', did you mean 'rationale'?",
        ),
        (
            "- {id: a, subplan: {fil: x, file: docs.yaml}}",
            "5: unknown key 'fil' in the subplan of step 'a', did you mean 'file'?",
        ),
    ],
)
def test_an_unknown_key_of_a_step_is_named(read: Reader, step: str, problem: str) -> None:
    assert read.step_problems(step) == (f"plan.yaml:{problem}",)


def test_a_key_that_is_near_to_none_gets_them_all(read: Reader) -> None:
    (found,) = read.problems(minimal(zzzz="1"))
    assert found == (
        "plan.yaml:6: unknown key 'zzzz' in the plan, valid: name, description, resources, "
        "tools, policy, steps, validate, apply, actor"
    )


def test_the_keys_are_those_of_the_specification(read: Reader) -> None:
    """A field added to a spec becomes a key: it has to be meant."""

    def valid(text: str) -> set[str]:
        (found,) = [each for each in read.problems(text) if "'zzzz'" in each]
        return set(found.split("valid: ")[1].split(", "))

    assert valid(minimal(policy="{zzzz: 1}")) == words(
        "on_failure max_retries_per_step require_checkpoints rollback_enabled allow_unsafe "
        "max_checkpoints_per_plan auto_create_on keep max_parallel fail_fast confine"
    )
    assert valid(minimal(tools="{t: {run: x, zzzz: 1}}")) == words(
        "name description run python sql writes read_only checkpointable checkpoint_scope "
        "write_scope side_effects compensate idempotent unsafe timeout network env"
    )
    assert valid(minimal(apply="{zzzz: 1}")) == {"as", "message", "ignored"}
    assert valid(minimal(validate="[{run: x, zzzz: 1}]")) == {"on", "run", "timeout"}
    resource = "{kind: sqlite, path: ., zzzz: 1}"
    assert valid(f"name: p\nresources: {{a: {resource}}}\nsteps: []") == words(
        "kind path url branch strategy carry exclude require_sandbox"
    )
    assert valid(f"{HEAD}steps: [{{run: x, zzzz: 1}}]") == words(
        "id tool run subplan on with decision needs checkpoint timeout on_failure retries"
    )
    assert valid(f"{HEAD}steps: [{{run: x, decision: {{zzzz: 1}}}}]") == words(
        "question chosen alternatives rationale confidence parent influences"
    )
    assert valid(f"{HEAD}steps: [{{subplan: {{file: docs.yaml, zzzz: 1}}}}]") == words(
        "file steps group needs"
    )


def test_all_problems_come_at_once_in_the_order_of_the_file(read: Reader) -> None:
    found = read.problems(
        """\
        resources:
          app: {kind: sqlite, path: data/aap.db}
          ap!: {kind: git-chekout, path: .}
        polcy: {}
        tools: {x: {run: a, sql: b}}
        steps:
          - {id: a, tool: x, on: app, needs: b}
          - {id: b, tool: file.wrte, on: ap, needs: [a]}
          - {id: c, tool: file.write, on: app, with: {pth: a, content: x}}
          - {id: c, run: [], on: app, decision: z}
        """
    )
    assert found == (
        "plan.yaml:1: the plan: 'name' is missing",
        (
            "plan.yaml:2: resource 'app': 'path': no such file or directory: data/aap.db, "
            "did you mean 'app.db'?"
        ),
        (
            "plan.yaml:3: resource 'ap!': a name starts with a letter and has only letters, "
            "digits, '_' and '-'"
        ),
        "plan.yaml:3: resource 'ap!': unknown kind 'git-chekout', did you mean 'git-checkout'?",
        "plan.yaml:4: unknown key 'polcy' in the plan, did you mean 'policy'?",
        "plan.yaml:5: tool 'x': only one of 'run', 'python', 'sql' may be given",
        "plan.yaml:7: step 'a': 'needs': steps need each other: a -> b -> a",
        "plan.yaml:8: step 'b': unknown tool 'file.wrte', did you mean 'file.write'?",
        "plan.yaml:8: step 'b': unknown resource 'ap', did you mean 'app'?",
        "plan.yaml:9: step 'c': unknown input 'pth' for file.write, did you mean 'path'?",
        "plan.yaml:9: step 'c': input 'path' of file.write is missing",
        "plan.yaml:10: step 'c': 'run' is empty",
        "plan.yaml:10: step 'c': duplicate step id, first on line 9",
        "plan.yaml:10: step 'c': unknown step 'z' in 'decision', valid: a, b, c",
    )


# types


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("42", 'a number: put it in quotes, "42"'),
        ("no", 'true or false: put it in quotes, "no"'),
        ("[a]", "a list"),
        ("{a: b}", "a mapping"),
    ],
)
def test_prose_has_to_be_text(read: Reader, value: str, shown: str) -> None:
    text = minimal().replace("name: p", f"name: {value}")
    assert read.problems(text) == (f"plan.yaml:1: the plan: 'name' has to be text, not {shown}",)


def test_a_name_is_not_empty(read: Reader) -> None:
    text = minimal().replace("name: p", "name: ' '")
    assert read.problems(text) == ("plan.yaml:1: the plan: 'name' is empty",)


def test_a_name_has_at_most_200_characters(read: Reader) -> None:
    assert read(minimal().replace("name: p", f"name: {'é' * 200}")).name == "é" * 200
    text = minimal().replace("name: p", f"name: {'é' * 201}")
    said = "'name' has 201 characters, at most 200 are allowed"
    assert read.problems(text) == (f"plan.yaml:1: the plan: {said}",)


def test_a_description_may_be_empty(read: Reader) -> None:
    assert read(minimal(description='""')).description == ""


def test_a_key_with_nothing_after_it_counts_as_left_out(read: Reader) -> None:
    plan = read(minimal(tools="", policy="", validate="", apply="", actor="", description=""))
    assert (plan.tools, plan.validate, plan.actor) == ({}, (), ActorSpec())


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"tools": "[a]"}, "the plan: 'tools' has to be a mapping, not a list"),
        ({"tools": "{t: 3}"}, "tool 't' has to be a mapping, not a number"),
        ({"policy": "stop"}, "the policy has to be a mapping, not text"),
        ({"validate": "{run: x}"}, "the plan: 'validate' has to be a list, not a mapping"),
        ({"validate": "[x]"}, "a validation has to be a mapping, not text"),
        ({"apply": "commit"}, "'apply' has to be a mapping, not text"),
        ({"actor": "steps"}, "the actor has to be a mapping, not text"),
        (
            {"policy": "{fail_fast: 1}"},
            "the policy: 'fail_fast' has to be true or false, not a number",
        ),
        (
            {"policy": "{max_parallel: true}"},
            "the policy: 'max_parallel' has to be a whole number, not true or false",
        ),
        (
            {"policy": "{max_parallel: 1.5}"},
            "the policy: 'max_parallel' has to be a whole number, not 1.5",
        ),
        ({"policy": "{max_parallel: 0}"}, "the policy: 'max_parallel' has to be 1 or more, not 0"),
        (
            {"policy": "{max_retries_per_step: -1}"},
            "the policy: 'max_retries_per_step' has to be 0 or more, not -1",
        ),
        (
            {"policy": "{max_checkpoints_per_plan: 0}"},
            "the policy: 'max_checkpoints_per_plan' has to be 1 or more, not 0",
        ),
        (
            {"policy": "{on_failure: [stop]}"},
            "the policy: 'on_failure' has to be a name, not a list",
        ),
        (
            {"policy": "{on_failure: rolback_plan}"},
            "the policy: unknown on_failure 'rolback_plan', did you mean 'rollback_plan'?",
        ),
        (
            {"policy": "{confine: lanlock}"},
            "the policy: unknown confine 'lanlock', did you mean 'landlock'?",
        ),
        ({"apply": "{as: comit}"}, "'apply': unknown as 'comit', did you mean 'commit'?"),
        ({"apply": "{ignored: x}"}, "'apply': 'ignored' has to be true or false, not text"),
        ({"policy": "{keep: 3}"}, "'keep' of the policy has to be a mapping, not a number"),
    ],
)
def test_a_wrong_value_is_named(read: Reader, parts: dict[str, str], problem: str) -> None:
    assert read.problems(minimal(**parts)) == (f"plan.yaml:6: {problem}",)


# resources


def resources(text: str) -> str:
    return f"name: p\nresources:\n{textwrap.indent(text, '  ')}\nsteps: [{{run: x, on: a}}]\n"


def test_at_least_one_resource_is_needed(read: Reader) -> None:
    assert read.problems("name: p\nsteps: [{run: x}]\n") == (
        "plan.yaml:1: the plan: 'resources' is missing",
    )
    assert read.problems("name: p\nresources: {}\nsteps: [{run: x}]\n") == (
        "plan.yaml:2: the plan: at least one resource is needed",
    )


def test_a_resource_needs_a_kind_and_a_place(read: Reader) -> None:
    assert read.problems(resources("a: {path: .}")) == (
        "plan.yaml:3: resource 'a': 'kind' is missing",
    )
    assert read.problems(resources("a: {kind: sqlite}")) == (
        "plan.yaml:3: resource 'a': 'path' is missing",
    )
    assert read.problems(resources("a: {kind: postgres}")) == (
        "plan.yaml:3: resource 'a': 'url' is missing",
    )


@pytest.mark.parametrize("name", ["1a", "_a", "a.b", "'a b'", "ä"])
def test_a_resource_name_is_plain(read: Reader, name: str) -> None:
    bad = f"{name}: {{kind: fs-directory, path: data}}"
    (found,) = read.problems(resources(f"{bad}\na: {{kind: fs-directory, path: .}}"))
    assert "a name starts with a letter" in found
    assert found.startswith("plan.yaml:3: ")


def test_a_path_that_is_not_there_is_named_as_written(read: Reader) -> None:
    [problem] = read.problems(resources("a: {kind: sqlite, path: data/ap.db}"))
    assert problem.startswith("plan.yaml:3: resource 'a': 'path': no such file or directory: ")
    assert problem.endswith("data/ap.db, did you mean 'app.db'?")


def test_a_path_fits_its_kind(read: Reader) -> None:
    for kind in ("git-checkout", "fs-directory"):
        assert read.problems(resources(f"a: {{kind: {kind}, path: docs.yaml}}")) == (
            "plan.yaml:3: resource 'a': not a directory: docs.yaml",
        )
    assert read.problems(resources("a: {kind: sqlite, path: data}")) == (
        "plan.yaml:3: resource 'a': not a file: data",
    )


def test_a_path_and_a_url_do_not_change_places(read: Reader) -> None:
    assert read.problems(resources("a: {kind: sqlite, path: data/app.db, url: x}")) == (
        "plan.yaml:3: resource 'a': a sqlite has a 'path', not a 'url'",
    )
    assert read.problems(resources("a: {kind: postgres, url: postgresql://h/x, path: .}")) == (
        "plan.yaml:3: resource 'a': a postgres has a 'url', not a 'path'",
    )


def test_a_path_that_no_system_knows_is_refused(read: Reader) -> None:
    (found,) = read.problems(resources(r'a: {kind: sqlite, path: "a\0b"}'))
    assert "resource 'a': 'path': not a path" in found
    (found,) = read.problems(resources(f"a: {{kind: sqlite, path: {'a' * 5000}}}"))
    assert "resource 'a': 'path': file name too long" in found


def test_links_in_a_path_are_resolved(read: Reader, folder: Path) -> None:
    (folder / "here").symlink_to("data")
    plan = read(resources("a: {kind: sqlite, path: here/app.db}"))
    assert plan.resources[0].path == str(folder / "data" / "app.db")


def test_a_path_may_name_the_home_directory(
    read: Reader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    plan = read(resources("a: {kind: fs-directory, path: ~/data}"))
    assert plan.resources[0].path == str(folder / "data")


def test_a_place_may_name_environment_variables(read: Reader, folder: Path) -> None:
    text = resources("a: {kind: fs-directory, path: $WHERE}\nb: {kind: postgres, url: '${U}/$$x'}")
    plan = read(text, environ={"WHERE": str(folder / "data"), "U": "postgresql://h"})
    assert plan.resources[0].path == str(folder / "data")
    assert plan.resources[1].url == "postgresql://h/$x#%24%7BU%7D%2F%24%24x"
    assert plan.resources[1].path == ""


def test_variables_come_from_the_process_when_not_given(
    read: Reader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", str(folder))
    assert read(resources("a: {kind: fs-directory, path: $WHERE}")).resources[0].path == str(folder)


@pytest.mark.parametrize("environ", [{}, {"WHERE": ""}])
def test_a_variable_that_is_not_set_is_a_problem(read: Reader, environ: dict[str, str]) -> None:
    text = resources("a: {kind: fs-directory, path: '${WHERE}/x'}")
    with pytest.raises(PlanFileError) as caught:
        read(text, environ=environ)
    assert caught.value.problems == (
        "plan.yaml:3: resource 'a': the environment variable WHERE is not set or empty",
    )
    assert caught.value.hint == "export WHERE=..."


@pytest.mark.parametrize(
    ("kind", "path", "strategy", "result"),
    [
        ("git-checkout", ".", None, "git_worktree"),
        ("git-checkout", ".", "copy_on_write", "copy_on_write"),
        ("git-checkout", ".", "filesystem_copy", "copy_on_write"),
        ("fs-directory", ".", None, "copy_on_write"),
        ("fs-directory", ".", "filesystem_copy", "copy_on_write"),
        ("sqlite", "data/app.db", None, "snapshot"),
    ],
)
def test_a_strategy_is_the_default_or_one_of_its_kind(
    read: Reader, kind: str, path: str, strategy: str | None, result: str
) -> None:
    more = f", strategy: {strategy}" if strategy else ""
    plan = read(resources(f"a: {{kind: {kind}, path: {path}{more}}}"))
    assert plan.resources[0].strategy == result


def test_a_postgres_database_may_journal_its_statements(read: Reader) -> None:
    asked = "kind: postgres, url: postgresql://h/x, strategy: transaction_rollback"
    plan = read(resources(f"a: {{{asked}}}"))
    assert plan.resources[0].strategy == "transaction_rollback"


def test_a_strategy_of_another_kind_is_refused(read: Reader) -> None:
    wrong = "plan.yaml:3: resource 'a': unknown strategy 'none' for a sqlite"
    assert read.problems(resources("a: {kind: sqlite, path: data/app.db, strategy: none}")) == (
        f"{wrong}, valid: snapshot, in_place",
    )
    assert read.problems(resources("a: {kind: fs-directory, path: ., strategy: copy_on_wrt}")) == (
        (
            "plan.yaml:3: resource 'a': unknown strategy 'copy_on_wrt' for a fs-directory, "
            "did you mean 'copy_on_write'?"
        ),
    )


def test_overlay_is_not_available_yet(read: Reader) -> None:
    assert read.problems(resources("a: {kind: fs-directory, path: ., strategy: overlay}")) == (
        "plan.yaml:3: resource 'a': strategy 'overlay' is not available yet",
    )


def test_no_sandbox_has_to_be_asked_for_twice(read: Reader) -> None:
    (found,) = read.problems(resources("a: {kind: fs-directory, path: ., strategy: none}"))
    assert found.startswith("plan.yaml:3: resource 'a': strategy 'none'")
    assert "cannot be rolled back" in found
    assert "require_sandbox: false" in found
    plan = read(
        resources("a: {kind: fs-directory, path: ., strategy: none, require_sandbox: false}")
    )
    assert plan.resources[0].strategy == "none"
    assert plan.resources[0].require_sandbox is False


def test_carry_and_exclude_are_read(read: Reader) -> None:
    text = "a: {kind: git-checkout, path: ., carry: tracked, exclude: [build, '*.log']}"
    resource = read(resources(text)).resources[0]
    assert resource.carry is Carry.TRACKED
    assert resource.exclude == ("build", "*.log")
    assert read(resources("a: {kind: git-checkout, path: ., exclude: build}")).resources[
        0
    ].exclude == ("build",)
    assert read.problems(resources("a: {kind: git-checkout, path: ., carry: comitted}")) == (
        "plan.yaml:3: resource 'a': unknown carry 'comitted', did you mean 'committed'?",
    )
    assert read.problems(resources("a: {kind: git-checkout, path: ., exclude: [[a]]}")) == (
        "plan.yaml:3: resource 'a': 'exclude' has to be a list of names",
    )


def test_a_kind_of_a_third_party_brings_its_strategies(read: Reader) -> None:
    kinds = {**DEFAULT_KINDS, "bucket": ("versions", "copies")}
    plan = read(resources("a: {kind: bucket, url: s3://x}"), kinds=kinds)
    assert (plan.resources[0].url, plan.resources[0].strategy) == ("s3://x", "versions")
    assert read.problems(resources("a: {kind: bucket}"), kinds=kinds) == (
        "plan.yaml:3: resource 'a': one of 'path', 'url' is missing",
    )
    assert "unknown kind 'bucket'" in read.problems(resources("a: {kind: bucket, url: s3://x}"))[0]


def test_the_kinds_of_third_parties_reach_a_file(folder: Path) -> None:
    (folder / "plan.yaml").write_text(resources("a: {kind: bucket, url: x}"))
    plan, _ = read_plan_file(str(folder / "plan.yaml"), {"bucket": ("versions",)})
    assert plan.resources[0].strategy == "versions"


def test_two_resources_with_one_path_are_refused(read: Reader, folder: Path) -> None:
    (folder / "link").symlink_to("data")
    for path in ("data/", "./data", "link"):
        text = f"a: {{kind: fs-directory, path: data}}\nb: {{kind: fs-directory, path: {path}}}"
        assert read.problems(resources(text)) == (
            "plan.yaml:4: resource 'b': is the same as resource 'a'",
        )


def test_two_names_of_one_file_are_refused(read: Reader, folder: Path) -> None:
    os.link(folder / "data" / "app.db", folder / "data" / "other.db")
    text = "a: {kind: sqlite, path: data/app.db}\nb: {kind: sqlite, path: data/other.db}"
    assert read.problems(resources(text)) == (
        "plan.yaml:4: resource 'b': is the same as resource 'a'",
    )


def test_a_resource_that_vanishes_meanwhile_is_no_crash(
    read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*paths: str) -> bool:
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(os.path, "samefile", gone)
    text = "a: {kind: fs-directory, path: data}\nb: {kind: fs-directory, path: .}"
    assert len(read(resources(text)).resources) == 2


def test_two_resources_with_one_url_are_refused(read: Reader) -> None:
    text = "\n".join(
        f"{name}: {{kind: postgres, url: postgresql://h/{database}}}"
        for name, database in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert read.problems(resources(text)) == (
        "plan.yaml:4: resource 'b': is the same as resource 'a'",
    )


def test_a_resource_may_lie_inside_another(read: Reader) -> None:
    text = (
        "a: {kind: git-checkout, path: .}\nb: {kind: fs-directory, path: data}\n"
        "c: {kind: sqlite, path: data/app.db}\nd: {kind: postgres, url: postgresql://h/x}"
    )
    assert len(read(resources(text)).resources) == 4


def test_folders_whose_names_begin_alike_do_not_overlap(read: Reader, folder: Path) -> None:
    (folder / "data-2").mkdir()
    text = "a: {kind: fs-directory, path: data}\nb: {kind: fs-directory, path: data-2}"
    assert len(read(resources(text)).resources) == 2


@pytest.mark.parametrize("swap", [False, True])
def test_the_git_directory_of_a_checkout_is_no_resource(
    read: Reader, folder: Path, swap: bool
) -> None:
    (folder / ".git").mkdir()
    lines = ["a: {kind: git-checkout, path: .}", "b: {kind: fs-directory, path: .git}"]
    (found,) = read.problems(resources("\n".join(lines[::-1] if swap else lines)))
    assert found.startswith("plan.yaml:4: resource ")
    assert "is the git directory of resource 'a'" in found


# tools


def tools(text: str) -> str:
    return minimal(tools=f"\n  t: {{{text}}}")


def test_everything_a_tool_can_say_is_read(read: Reader) -> None:
    tool = read(
        tools(
            "name: t, description: d, run: [head, -5, 007], read_only: false, writes: true, "
            "checkpointable: false, checkpoint_scope: plan, write_scope: [src], "
            "side_effects: [mail], compensate: [undo, 1], idempotent: true, unsafe: true, "
            "timeout: 5m, network: false, env: {PORT: 8080, DEBUG: yes}"
        )
    ).tools["t"]
    assert tool.run == ("head", "-5", "007")
    assert (tool.description, tool.writes, tool.read_only) == ("d", True, False)
    assert (tool.checkpointable, tool.checkpoint_scope) == (False, "plan")
    assert (tool.write_scope, tool.side_effects) == (("src",), ("mail",))
    assert tool.compensate == ("undo", "1")
    assert (tool.idempotent, tool.unsafe, tool.network) == (True, True, False)
    assert tool.timeout == 300
    assert tool.env == {"PORT": "8080", "DEBUG": "yes"}


def test_a_tool_writes_unless_it_says_otherwise(read: Reader) -> None:
    assert read(tools("run: x")).tools["t"].writes is True
    assert read(tools("run: x")).tools["t"].checkpointable is None
    assert read(tools("run: x, read_only: true")).tools["t"].writes is False
    quiet = read(tools("run: x, writes: false")).tools["t"]
    assert (quiet.writes, quiet.read_only) == (False, False)
    assert read(tools("run: x, writes: false, read_only: true")).tools["t"].read_only is True


def test_a_tool_can_be_python_or_sql(read: Reader) -> None:
    assert read(tools("python: 'pkg.mod:Class.call'")).tools["t"].python == "pkg.mod:Class.call"
    assert read(tools("sql: SELECT 1")).tools["t"].sql == "SELECT 1"
    assert read(tools("run: echo hi")).tools["t"].run == "echo hi"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("description: d", "one of 'run', 'python', 'sql' is missing"),
        ("run: x, sql: y", "only one of 'run', 'python', 'sql' may be given"),
        (
            "run: x, read_only: true, writes: true",
            "'writes: true' contradicts 'read_only: true'",
        ),
        ("run: x, timeout: 0", "'timeout' has to be more than 0"),
        (
            "run: x, timeout: -1",
            "'timeout': -1 is not a duration: it has to be a time of 0 or more",
        ),
        (
            "run: x, timeout: soon",
            "'timeout': 'soon' is not a duration: write it like '30s', '5m', '2h' or '7d'",
        ),
        (
            "run: x, timeout: true",
            "'timeout' has to be a number of seconds or a text such as '5m', not true or false",
        ),
        ("python: nothing", "'python' has to be 'module:callable', not 'nothing'"),
        ("python: 'os:system; x'", "'python' has to be 'module:callable', not 'os:system; x'"),
        ("run: 5", "'run' has to be a text or a list of words, not a number"),
        ("run: []", "'run' is empty"),
        ("run: ''", "'run' is empty"),
        ("run: [a, [b]]", "'run' has a list where a word should be"),
        ("run: [a, ~]", "'run' has nothing where a word should be"),
        ("run: x, env: [A]", "'env' has to be a mapping, not a list"),
        ("run: x, env: {A: [b]}", "'A' in 'env' has to be text, not a list"),
        ("run: x, name: u", "'name' says 'u'"),
    ],
)
def test_a_wrong_tool_is_named(read: Reader, text: str, problem: str) -> None:
    assert read.problems(tools(text)) == (f"plan.yaml:7: tool 't': {problem}",)


@pytest.mark.parametrize("name", ["shell", "file.write", "subplan"])
def test_a_tool_cannot_take_the_name_of_a_built_in(read: Reader, name: str) -> None:
    assert read.problems(minimal(tools=f"{{{name}: {{run: x}}}}")) == (
        f"plan.yaml:6: tool '{name}': a built-in tool has this name, choose another",
    )


def test_a_tool_name_is_plain(read: Reader) -> None:
    (found,) = read.problems(minimal(tools="{'a b': {run: x}}"))
    assert found.startswith("plan.yaml:6: tool 'a b': a name starts with a letter")


# steps


def test_a_plan_needs_steps(read: Reader) -> None:
    assert read.problems(HEAD) == ("plan.yaml:1: the plan: 'steps' is missing",)
    assert read.problems(f"{HEAD}steps: []") == (
        "plan.yaml:4: the plan: at least one step is needed",
    )


def test_everything_a_step_can_say_is_read(read: Reader) -> None:
    first, second = read.steps(
        """\
        - {id: a, run: x}
        - id: 1
          tool: file.write
          on: app
          with: {path: a, content: b}
          needs: a
          decision: {question: q, chosen: c, alternatives: [d], rationale: r, confidence: 1,
                     parent: a, influences: [a]}
          checkpoint: milestone
          timeout: 2h
          on_failure: stop
          retries: 0
        """
    ).steps
    assert (first.on, first.timeout, first.on_failure, first.retries) == ("app", None, None, None)
    assert (second.id, second.needs, second.checkpoint) == ("1", ("a",), "milestone")
    assert second.decision == DecisionSpec(
        question="q",
        chosen="c",
        alternatives=("d",),
        rationale="r",
        confidence=1,
        parent="a",
        influences=("a",),
    )
    assert (second.timeout, second.on_failure, second.retries) == (7200, OnFailure.STOP, 0)


def test_a_step_without_an_id_is_numbered(read: Reader) -> None:
    assert [step.id for step in read.steps("- {id: a, run: x}\n- {run: x}").steps] == [
        "a",
        "step-2",
    ]


@pytest.mark.parametrize("step_id", ["'a b'", "a/b", "ä", "'a\n\n  b'"])
def test_an_id_is_plain(read: Reader, step_id: str) -> None:
    (found,) = read.step_problems(f"- {{id: {step_id}, run: x}}")
    assert found.endswith("an id has only letters, digits, '_', '.' and '-'")


def test_an_id_is_a_word(read: Reader) -> None:
    assert read.step_problems("- {id: [a], run: x}") == (
        "plan.yaml:5: step 'step-1': 'id' has to be a name, not a list",
    )


def test_duplicate_ids_are_named_with_both_lines(read: Reader) -> None:
    assert read.step_problems("- {id: a, run: x}\n- {id: b, run: x}\n- {id: a, run: x}") == (
        "plan.yaml:7: step 'a': duplicate step id, first on line 5",
    )


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("{id: a}", "one of 'tool', 'run', 'subplan' is missing"),
        ("{id: a, tool: shell, run: x}", "only one of 'tool', 'run', 'subplan' may be given"),
        (
            "{id: a, run: x, subplan: {file: docs.yaml}}",
            "only one of 'tool', 'run', 'subplan' may be given",
        ),
    ],
)
def test_a_step_has_one_form(read: Reader, step: str, problem: str) -> None:
    assert read.step_problems(f"- {step}") == (f"plan.yaml:5: step 'a': {problem}",)


def test_a_step_is_a_mapping(read: Reader) -> None:
    assert read.step_problems("- make test") == (
        "plan.yaml:5: step 'step-1' has to be a mapping, not text",
    )


def test_the_short_form_is_a_shell_string_or_an_argv(read: Reader) -> None:
    shell, argv = read.steps("- run: echo $HOME\n- run: [sleep, 1, yes]").steps
    assert (shell.tool, shell.inputs) == ("shell", {"command": "echo $HOME"})
    assert (argv.tool, argv.inputs) == ("run", {"argv": ["sleep", "1", "yes"]})


def test_with_is_for_a_tool_only(read: Reader) -> None:
    assert read.step_problems("- {id: a, run: x, with: {b: c}}") == (
        "plan.yaml:5: step 'a': 'with' is for a 'tool' only",
    )
    assert read.step_problems("- {id: a, subplan: {file: docs.yaml}, with: {b: c}}") == (
        "plan.yaml:5: step 'a': 'with' is for a 'tool' only",
    )


def test_inputs_keep_their_types(read: Reader) -> None:
    text = f"{HEAD}tools: {{t: {{python: 'm:f'}}}}\nsteps: [{{tool: t, with: {{a: 1, b: [yes, ~], "
    plan = read(text + "c: {d: 0.5}, args: [007]}}]")
    assert plan.steps[0].inputs == {"a": 1, "b": [True, None], "c": {"d": 0.5}, "args": [7]}
    assert json.dumps(plan.steps[0].inputs)


def test_words_of_a_command_line_stay_as_written(read: Reader) -> None:
    text = f"{HEAD}tools: {{t: {{run: chmod}}}}\nsteps: [{{tool: t, with: {{args: [0755, yes]}}}}]"
    assert read(text).steps[0].inputs == {"args": ["0755", "yes"]}


def test_inputs_a_tool_does_not_know_are_named_with_their_line(read: Reader) -> None:
    found = read.step_problems(
        """\
        - id: a
          tool: file.write
          with:
            path: x
            contnet: y
        """
    )
    assert found == (
        "plan.yaml:7: step 'a': input 'content' of file.write is missing",
        "plan.yaml:9: step 'a': unknown input 'contnet' for file.write, did you mean 'content'?",
    )


def test_inputs_of_a_declared_tool_are_checked_too(read: Reader) -> None:
    (found,) = read.problems(
        f"{HEAD}tools: {{t: {{run: x}}}}\nsteps:\n  - {{id: a, tool: t, with: {{arg: [a]}}}}"
    )
    assert found.startswith("plan.yaml:6: step 'a': unknown input 'arg'")


def test_an_unknown_tool_is_named_with_the_nearest(read: Reader) -> None:
    text = f"{HEAD}tools: {{codemod: {{run: x}}}}\nsteps:\n  - {{id: a, tool: codmod}}"
    assert read.problems(text) == (
        "plan.yaml:6: step 'a': unknown tool 'codmod', did you mean 'codemod'?",
    )
    assert read.step_problems("- {id: a, tool: [x]}") == (
        "plan.yaml:5: step 'a': 'tool' has to be a name, not a list",
    )


def test_on_may_be_left_out_with_one_resource_only(read: Reader) -> None:
    assert read.steps("- {id: a, run: x}").steps[0].on == "app"
    assert read.step_problems("- {id: a, run: x}", TWO) == (
        "plan.yaml:6: step 'a': 'on' is missing, name one of: app, db",
    )
    assert read.steps("- {id: a, run: x, on: db}", TWO).steps[0].on == "db"
    assert read.steps("- {id: a, subplan: {file: docs.yaml}}", TWO).steps[0].on is None


def test_an_unknown_resource_is_named_with_the_nearest(read: Reader) -> None:
    assert read.step_problems("- {id: a, run: x, on: apps}", TWO) == (
        "plan.yaml:6: step 'a': unknown resource 'apps', did you mean 'app'?",
    )
    assert read.step_problems("- {id: a, subplan: {file: docs.yaml}, on: apps}", TWO) == (
        "plan.yaml:6: step 'a': unknown resource 'apps', did you mean 'app'?",
    )


def test_a_broken_resource_is_still_known_to_steps(read: Reader) -> None:
    text = "name: p\nresources: {a: {kind: sqlite, path: nope}}\nsteps: [{run: x, on: a}]"
    assert len(read.problems(text)) == 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("retries: -1", "'retries' has to be 0 or more, not -1"),
        ("on_failure: rolback_step", "unknown on_failure 'rolback_step', did you mean "),
        ("timeout: 0s", "'timeout' has to be more than 0"),
        ("checkpoint: true", "'checkpoint' has to be text, not true or false: put it in quotes"),
        ("needs: {a: b}", "'needs' has to be a list of names"),
        ("needs: [x]", "unknown step 'x' in 'needs', valid: a"),
        ("decision: x", "unknown step 'x' in 'decision', valid: a"),
        ("decision: a", "'decision' has to name an earlier step, 'a' does not run before this"),
    ],
)
def test_a_wrong_value_of_a_step_is_named(read: Reader, more: str, problem: str) -> None:
    (found,) = read.step_problems(f"- {{id: a, run: x, {more}}}")
    assert found.startswith(f"plan.yaml:5: step 'a': {problem}")


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        ("{chosen: c}", "'question' is missing"),
        ("{question: q}", "'chosen' is missing"),
        ("{question: q, chosen: c, confidence: 1.1}", "'confidence' has to be from 0 to 1"),
        ("{question: q, chosen: c, confidence: -0.1}", "'confidence' has to be from 0 to 1"),
        ("{question: q, chosen: c, confidence: high}", "'confidence' has to be a number from 0"),
        ("{question: q, chosen: c, confidence: true}", "'confidence' has to be a number from 0"),
        ("{question: q, chosen: c, parent: x}", "unknown step 'x' in 'parent'"),
        ("{question: q, chosen: c, parent: a}", "'parent' has to name an earlier step"),
        ("{question: q, chosen: c, influences: [b, x]}", "unknown step 'x' in 'influences'"),
    ],
)
def test_a_wrong_decision_is_named(read: Reader, decision: str, problem: str) -> None:
    (found,) = read.step_problems(f"- {{id: a, run: x, decision: {decision}}}\n- {{id: b, run: x}}")
    assert found.startswith(f"plan.yaml:5: the decision of step 'a': {problem}")


def test_a_decision_is_a_mapping_or_a_step(read: Reader) -> None:
    assert "plan.yaml:5: the decision of step 'a' has to be a mapping, not a list" in (
        read.step_problems("- {id: a, run: x, decision: [b]}")
    )
    steps = read.steps("- {id: a, run: x}\n- {id: b, run: x, decision: a}").steps
    assert steps[1].decision == "a"


def test_earlier_means_the_order_in_which_steps_run(read: Reader) -> None:
    plan = read.steps("- {id: a, run: x, decision: b, needs: b}\n- {id: b, run: x}")
    assert [step.id for step in plan.steps] == ["b", "a"]
    assert read.step_problems("- {id: a, run: x, needs: b}\n- {id: b, run: x, decision: a}") == (
        (
            "plan.yaml:6: step 'b': 'decision' has to name an earlier step, "
            "'a' does not run before this"
        ),
    )


def test_steps_move_only_where_needs_asks_for_it(read: Reader) -> None:
    plan = read.steps(
        """\
        - {id: a, run: x}
        - {id: b, run: x, needs: [e]}
        - {id: c, run: x}
        - {id: d, run: x, needs: [b]}
        - {id: e, run: x}
        - {id: f, run: x, needs: [a, a]}
        """
    )
    assert "".join(step.id for step in plan.steps) == "acebdf"
    assert plan.steps[5].needs == ("a",)


@given(
    order=st.permutations("abcdefgh"), edges=st.sets(st.tuples(*[st.sampled_from("abcdefgh")] * 2))
)
def test_every_need_runs_first_and_nothing_moves_without_needs(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], edges: set[tuple[str, str]]
) -> None:
    needs = {step: sorted(x for x, y in edges if y == step and x < y) for step in order}
    lines = "".join(f"- {{id: {s}, run: x, needs: [{', '.join(needs[s])}]}}\n" for s in order)
    reader = Reader(tmp_path_factory.getbasetemp())
    ran = [step.id for step in reader.steps(lines).steps]
    assert sorted(ran) == sorted(order)
    assert all(ran.index(need) < ran.index(step) for step in order for need in needs[step])
    if not any(needs.values()):
        assert ran == list(order)


def test_a_long_chain_of_needs_is_no_trouble(read: Reader) -> None:
    count = 3_000
    lines = [f"- {{id: s{n}, run: x, needs: s{n + 1}}}" for n in range(count)]
    plan = read.steps("\n".join([*lines, f"- {{id: s{count}, run: x}}"]))
    assert plan.steps[0].id == f"s{count}"
    found = read.step_problems("\n".join([*lines, f"- {{id: s{count}, run: x, needs: s0}}"]))
    assert found[0].startswith(
        "plan.yaml:5: step 's0': 'needs': steps need each other: s0 -> s1 -> s2 ->"
    )


def test_every_cycle_is_printed(read: Reader) -> None:
    found = read.step_problems(
        """\
        - {id: z, run: x, needs: [c, ok]}
        - {id: a, run: x, needs: b}
        - {id: b, run: x, needs: [ok, a]}
        - {id: c, run: x, needs: d}
        - {id: d, run: x, needs: e}
        - {id: e, run: x, needs: c}
        - {id: me, run: x, needs: me}
        - {id: ok, run: x}
        """
    )
    assert found == (
        "plan.yaml:6: step 'a': 'needs': steps need each other: a -> b -> a",
        "plan.yaml:8: step 'c': 'needs': steps need each other: c -> d -> e -> c",
        "plan.yaml:11: step 'me': 'needs': steps need each other: me -> me",
    )


# child plans


def test_an_inline_child_plan_has_steps_of_its_own(read: Reader) -> None:
    step = read.steps(
        """\
        - {id: a, run: x}
        - id: b
          subplan:
            group: g
            needs: [a]
            steps:
              - {id: a, run: x, needs: b}
              - {id: b, tool: file.read, with: {path: x}}
        """
    ).steps[1]
    assert step.tool == "subplan"
    assert step.needs == ("a",)
    assert step.subplan is not None
    assert (step.subplan.group, step.subplan.needs, step.subplan.file) == ("g", ("a",), None)
    assert [child.id for child in step.subplan.steps] == ["b", "a"]
    assert step.subplan.steps[0].on == "app"


def test_needs_of_a_child_plan_order_its_step(read: Reader) -> None:
    plan = read.steps("- {id: a, subplan: {file: docs.yaml, needs: b}}\n- {id: b, run: x}")
    assert [step.id for step in plan.steps] == ["b", "a"]
    assert read.step_problems("- {id: a, subplan: {file: docs.yaml, needs: b}}") == (
        "plan.yaml:5: step 'a': unknown step 'b' in 'needs', valid: a",
    )


def test_steps_of_a_child_plan_are_checked_like_any(read: Reader) -> None:
    found = read.step_problems(
        """\
        - id: a
          subplan:
            steps:
              - {id: x, tool: nope, needs: a}
              - {id: y, subplan: {steps: [{id: z, run: x, on: no}]}}
        """
    )
    assert len(found) == 3
    assert found[0].startswith("plan.yaml:8: step 'x': unknown tool 'nope'")
    assert found[1].startswith("plan.yaml:8: step 'x': unknown step 'a' in 'needs'")
    assert found[2].startswith("plan.yaml:9: step 'z': unknown resource 'no'")


@pytest.mark.parametrize(
    ("subplan", "problem"),
    [
        ("{}", "the subplan of step 'a': one of 'file', 'steps' is missing"),
        (
            "{file: docs.yaml, steps: [{run: x}]}",
            "the subplan of step 'a': only one of 'file', 'steps' may be given",
        ),
        ("{steps: []}", "the subplan of step 'a': 'steps' is empty"),
        ("{file: nope.yaml}", "the subplan of step 'a': no such file: nope.yaml"),
        ("{file: data}", "the subplan of step 'a': no such file: data"),
        (r'{file: "a\0"}', "the subplan of step 'a': no such file: a\0"),
        ("docs.yaml", "the subplan of step 'a' has to be a mapping, not text"),
    ],
)
def test_a_wrong_child_plan_is_named(read: Reader, subplan: str, problem: str) -> None:
    assert read.step_problems(f"- {{id: a, subplan: {subplan}}}") == (f"plan.yaml:5: {problem}",)


# policy


def test_everything_a_policy_can_say_is_read(read: Reader) -> None:
    policy = read(
        minimal(
            policy="{on_failure: rollback_plan, max_retries_per_step: 0, rollback_enabled: false, "
            "require_checkpoints: false, max_checkpoints_per_plan: 7, auto_create_on: [on_error], "
            "keep: {last: 3, within: 24h, bytes: 500MB}, max_parallel: 2, fail_fast: false, "
            "allow_unsafe: true, confine: off}"
        )
    ).policy
    assert policy.on_failure is OnFailure.ROLLBACK_PLAN
    assert (policy.max_retries_per_step, policy.max_checkpoints_per_plan) == (0, 7)
    assert (policy.rollback_enabled, policy.require_checkpoints) == (False, False)
    assert policy.auto_create_on == ("on_error",)
    assert policy.keep == KeepSpec(last=3, within="24h", bytes=500_000_000)
    assert (policy.max_parallel, policy.fail_fast, policy.allow_unsafe) == (2, False, True)
    assert policy.confine == "off"


def test_a_policy_left_out_is_the_default(read: Reader) -> None:
    policy = read(minimal(policy="{max_parallel: 1}")).policy
    assert (policy.on_failure, policy.require_checkpoints) == (OnFailure.ROLLBACK_STEP, True)
    assert (policy.rollback_enabled, policy.fail_fast, policy.allow_unsafe) == (True, True, False)
    assert policy.auto_create_on is None
    assert policy.confine is None


@pytest.mark.parametrize(
    ("value", "triggers"),
    [
        ("[]", ()),
        ("''", ()),
        ("[on_error, on_decision]", ("on_error", "on_decision")),
        ("'on_error, on_decision'", ("on_error", "on_decision")),
        ("on_tool_write", ("before_tool_execute",)),
        ("[on_tool_write, before_tool_execute]", ("before_tool_execute",)),
        ("[on_tool_write_complete]", ("after_tool_execute",)),
    ],
)
def test_triggers_are_a_list_or_a_comma_string(
    read: Reader, value: str, triggers: tuple[str, ...]
) -> None:
    assert read(minimal(policy=f"{{auto_create_on: {value}}}")).policy.auto_create_on == triggers


def test_every_unknown_trigger_is_named_and_the_valid_ones_listed(read: Reader) -> None:
    with pytest.raises(PlanFileError) as caught:
        read(minimal(policy="{auto_create_on: [on_eror, on_error, 'befor_step,zz']}"))
    assert caught.value.problems == (
        "plan.yaml:6: the policy: unknown trigger 'on_eror', did you mean 'on_error'?",
        "plan.yaml:6: the policy: unknown trigger 'befor_step', did you mean 'before_step'?",
        "plan.yaml:6: the policy: unknown trigger 'zz'",
    )
    assert caught.value.hint.startswith("valid triggers: before_step, after_step")
    assert caught.value.hint.count("valid triggers") == 1


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        ("{last: 0}", "'last' has to be 1 or more, not 0"),
        ("{within: soon}", "'within': 'soon' is not a duration: write it like"),
        ("{bytes: many}", "'bytes': 'many' is not a size: write it like"),
        ("{bytes: -1}", "'bytes': '-1' is not a size"),
        ("{bytes: [1]}", "'bytes' has to be a size such as '500MB', not a list"),
    ],
)
def test_a_wrong_keep_is_named(read: Reader, keep: str, problem: str) -> None:
    (found,) = read.problems(minimal(policy=f"{{keep: {keep}}}"))
    assert found.startswith(f"plan.yaml:6: 'keep' of the policy: {problem}")


def test_keep_takes_a_count_of_bytes(read: Reader) -> None:
    assert read(minimal(policy="{keep: {bytes: 1000}}")).policy.keep.bytes == 1000


# validations, apply, actor


def test_validations_are_read(read: Reader) -> None:
    (one, two) = read(minimal(validate="[{run: make test, timeout: 5m}, {run: [a, 1]}]")).validate
    assert (one.run, one.on, one.timeout) == ("make test", "app", 300)
    assert (two.run, two.on, two.timeout) == (("a", "1"), "app", None)


def test_a_validation_says_what_and_where(read: Reader) -> None:
    assert read.problems(minimal(validate="[{on: app}]")) == (
        "plan.yaml:6: a validation: 'run' is missing",
    )
    assert read.problems(minimal(validate="[{run: x, on: ap}]")) == (
        "plan.yaml:6: a validation: unknown resource 'ap', did you mean 'app'?",
    )
    text = f"{TWO}steps: [{{run: x, on: app}}]\nvalidate:\n  - {{run: x}}\n"
    assert read.problems(text) == (
        "plan.yaml:7: a validation: 'on' is missing, name one of: app, db",
    )


def test_apply_is_read(read: Reader) -> None:
    apply = read(minimal(apply="{as: branch, ignored: true}")).apply
    assert (apply.as_, apply.message, apply.ignored) == (ApplyAs.BRANCH, None, True)


@pytest.mark.parametrize(
    ("actor", "spec"),
    [
        ("{kind: steps}", ActorSpec()),
        ("{}", ActorSpec()),
        ("{kind: python, python: 'm:f'}", ActorSpec(kind="python", target="m:f")),
        ("{python: 'm:f'}", ActorSpec(kind="python", target="m:f")),
        ("{kind: command, command: [a, 1]}", ActorSpec(kind="command", command=("a", "1"))),
        ("{command: [a]}", ActorSpec(kind="command", command=("a",))),
    ],
)
def test_an_actor_is_read(read: Reader, actor: str, spec: ActorSpec) -> None:
    assert read(minimal(actor=actor)).actor == spec


@pytest.mark.parametrize("steps", ["", "steps: []\n", "steps:\n"])
def test_an_actor_of_its_own_needs_no_steps(read: Reader, steps: str) -> None:
    assert read(f"{HEAD}{steps}actor: {{python: 'm:f'}}\n").steps == ()


@pytest.mark.parametrize(
    ("actor", "problem"),
    [
        ("{kind: pyton, python: 'm:f'}", "unknown kind 'pyton', did you mean 'python'?"),
        ("{kind: python}", "'python' is missing"),
        ("{kind: command}", "'command' is missing"),
        ("{kind: steps, python: 'm:f'}", "'python' does not go with an actor of kind 'steps'"),
        (
            "{python: 'm:f', command: [a]}",
            "'command' does not go with an actor of kind 'python'",
        ),
        ("{command: a b}", "'command' has to be a list of words, not text"),
        ("{command: []}", "'command' is empty"),
        ("{python: f}", "'python' has to be 'module:callable', not 'f'"),
    ],
)
def test_a_wrong_actor_is_named(read: Reader, actor: str, problem: str) -> None:
    assert read.problems(minimal(actor=actor)) == (f"plan.yaml:6: the actor: {problem}",)


# hostile text


def only_a_plan_file_error(text: str, base_dir: Path) -> None:
    problems: tuple[str, ...] = ("plan.yaml:",)
    try:
        msgspec.json.encode(parse_plan(text, "plan.yaml", str(base_dir), environ={}))
    except PlanFileError as error:
        problems = error.problems
    assert problems
    assert all(each.startswith("plan.yaml:") for each in problems)


FRAGMENTS = st.sampled_from(
    [
        *("{", "}", "[", "]", ":", "- ", "&a ", "*a", "<<: *a", "!!int ", "? ", "| ", "> "),
        *("\n", "\n  ", "\n    ", "\t", "'", '"', "#", "---\n", "~", ".inf", "0x_", "1:2", "true"),
        *(
            "\\0",
            '"\\ud800"',
            "%",
            "@",
            "`",
            "2024-01-01",
            "null",
            "$X",
            "\x00",
            "\u2028",
            "\ufeff",
        ),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=MANY)
@given(data=st.data())
def test_a_mangled_plan_gives_nothing_but_a_plan_file_error(
    folder: Path, data: st.DataObject
) -> None:
    text = EXAMPLE
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 40)))
        text = text[:start] + data.draw(FRAGMENTS | st.text(max_size=5)) + text[end:]
    only_a_plan_file_error(text, folder)


NAMES = sorted(
    words(
        "name description resources tools policy steps validate apply actor id tool run subplan on "
        "with decision needs checkpoint timeout on_failure retries question chosen parent kind "
        "influences confidence path url strategy carry exclude keep last within bytes "
        "auto_create_on python sql command file as env app"
    )
)
SECTIONS = ("resources", "tools", "policy", "steps", "validate", "actor")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["app", "a", "shell", "sql", "file.write", "5m", "m:f", ".", "sqlite"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=MANY)
@given(value=VALUES, key=st.sampled_from(SECTIONS))
def test_any_data_gives_nothing_but_a_plan_file_error(folder: Path, value: Any, key: str) -> None:
    only_a_plan_file_error(yaml.safe_dump(value), folder)
    plan = yaml.safe_load(EXAMPLE) | {key: value}
    only_a_plan_file_error(yaml.safe_dump(plan), folder)
    only_a_plan_file_error(yaml.safe_dump(plan | {"steps": [value]}), folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_any_text_gives_nothing_but_a_plan_file_error(folder: Path, text: str) -> None:
    only_a_plan_file_error(text, folder)
