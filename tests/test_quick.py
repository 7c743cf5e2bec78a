"""`plan checkpoint create` without click: the same answers, and only the plainest forms of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cleveragents.cli import quick
from cleveragents.cli.quick import Create
from tests.harness import Agents

PLAN = """
name: quick
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, run: "echo one > made"}]
"""


@pytest.fixture
def planned(tmp_path: Path) -> Agents:
    agents = Agents(tmp_path)
    (agents.work / "work").mkdir()
    (agents.work / "work" / "file").write_text("as it was\n")
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    return agents


def sandbox(agents: Agents) -> Path:
    (found,) = Path(agents.env["CLEVERAGENTS_HOME"], "sandboxes").glob("*/work")
    return found


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (["last"], Create("last")),
        (["last", "--json"], Create("last", as_json=True)),
        (["--json", "last", "-q"], Create("last", as_json=True, quiet=True)),
        (["last", "--label", "here"], Create("last", label="here")),
        (["last", "--format", "yaml"], Create("last", form="yaml")),
        ([], None),
        (["one", "two"], None),
        ([""], None),
        (["last", "--help"], None),
        (["last", "--label"], None),
        (["last", "--label", "--json"], None),
        (["last", "--label=here"], None),
        (["last", "--format", "xml"], None),
        (["last", "--format"], None),
        (["last", "--debug"], None),
        (["last", "--set", "a=b"], None),
        (["--", "last"], None),
    ],
)
def test_what_is_recognised(words: list[str], meaning: Create | None) -> None:
    assert quick.parsed(["plan", "checkpoint", "create", *words]) == meaning


def test_other_commands_and_completion_are_for_click(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quick.parsed(["plan", "checkpoint", "show", "last"]) is None
    monkeypatch.setenv("_AGENTS_COMPLETE", "bash_complete")
    assert quick.parsed(["plan", "checkpoint", "create", "last"]) is None


def shape(value: Any) -> Any:
    """Names and types, without what differs from one checkpoint to the next."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("options", [(), ("--json",), ("--format", "yaml"), ("--quiet",)])
def test_click_and_the_quick_way_answer_alike(planned: Agents, options: tuple[str, ...]) -> None:
    # `--set` is nothing the quick way knows; this one says what is so anyway.
    slow = ("--set", "sandbox.cleanup=on_apply")
    answers = [
        planned.run("plan", "checkpoint", "create", "last", *options, *extra)
        for extra in ((), slow)
    ]
    assert [answer.rc for answer in answers] == [0, 0]
    if "--json" in options:
        assert shape(answers[0].json) == shape(answers[1].json)
    else:
        lines = [[line.split()[:1] for line in answer.stdout.splitlines()] for answer in answers]
        assert lines[0] == lines[1]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_both_fail_alike(planned: Agents, options: tuple[str, ...]) -> None:
    slow = ("--set", "sandbox.cleanup=on_apply")
    one, other = (
        planned.run("plan", "checkpoint", "create", "nobody", *options, *extra)
        for extra in ((), slow)
    )
    assert one.rc == other.rc == 3
    assert one.stderr == other.stderr
    if options:
        assert one.data == other.data


def test_click_is_not_imported(planned: Agents) -> None:
    # Measuring coverage would import modules of its own.
    bare = {name: text for name, text in planned.env.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cleveragents", *quick.CREATE, "last", "--json"],
        cwd=planned.work, env=bare, check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "cleveragents.cli.quick" in names
    unused = {"click", "rich", "yaml", "inspect", "cleveragents.executor", "json"}
    assert names.isdisjoint(unused)


def test_a_checkpoint_of_edits_can_be_undone_and_one_of_nothing_is_no_edit(planned: Agents) -> None:
    (sandbox(planned) / "file").write_text("edited\n")
    made = planned.run("plan", "checkpoint", "create", "last", "--json").data
    assert made["checkpoints"][0]["metadata"]["reason"] == "edited by hand"
    again = planned.run("plan", "checkpoint", "create", "last", "--json").data
    assert again["checkpoints"][0]["metadata"]["reason"] == "asked for"
    assert again["checkpoints"][0]["state_hash"] == made["checkpoints"][0]["state_hash"]
    entries = planned.run("plan", "log", "last", "--json").data["entries"]
    assert [entry["operation"] for entry in entries][-2:] == ["external_edit", "checkpoint"]
    assert {entry["state"] for entry in entries} == {"done"}
    planned.run("plan", "undo", "last").expect(0)
    assert (sandbox(planned) / "file").read_text() == "as it was\n"


def test_whoever_reads_us_may_go_away(planned: Agents) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cleveragents", "plan", "checkpoint", "create", "last"],
        cwd=planned.work, env={**planned.env, "PYTHONUNBUFFERED": "1"}, stdout=write, check=False,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""
