"""What is typed wrongly is said in the form that was asked for, with what is missing or near."""

from pathlib import Path

import pytest
import yaml

from tests.harness import Agents


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    return Agents(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        "plan explain --json",
        "plan explain --format=json",
        "plan explain --format json",
        "plan list extra --format json",
        "--format=json plan nosuch",
        "plan explain --format yaml --json",
    ],
)
def test_wrong_use_is_told_as_json_if_that_was_asked_for(agents: Agents, words: str) -> None:
    told = agents.run(*words.split()).expect(2)
    assert told.data["error"]["type"] == "UsageError"
    assert told.stderr == ""


@pytest.mark.parametrize("words", ["plan explain --format yaml", "plan list extra --format=yaml"])
def test_wrong_use_is_told_as_yaml_if_that_was_asked_for(agents: Agents, words: str) -> None:
    told = agents.run(*words.split()).expect(2)
    assert yaml.safe_load(told.stdout)["data"]["error"]["type"] == "UsageError"
    assert told.stderr == ""


@pytest.mark.parametrize(
    "words", ["plan explain json extra", "plan list extra -- --json", "plan list --format jso"]
)
def test_wrong_use_is_told_in_words_if_nothing_else_was_asked_for(
    agents: Agents, words: str
) -> None:
    told = agents.run(*words.split()).expect(2)
    assert told.stdout == ""
    assert told.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ("--json", "missing command", "agents --help"),
        ("plan --json", "missing command", "agents plan --help"),
        ("--format", "option '--format' requires an argument", "agents --help"),
        ("--json plan nosuch", "no such command: nosuch", "agents plan --help"),
        ("--jsn", "no such option '--jsn', did you mean '--json'?", "agents --help"),
    ],
)
def test_an_option_of_every_command_is_known_before_there_is_a_command(
    agents: Agents, words: str, problem: str, hint: str
) -> None:
    told = agents.run(*words.split()).expect(2)
    if "--json" not in words:
        assert told.stderr == f"error: {problem}\nhint: {hint}\n"
    else:
        assert told.data["error"] == {"type": "UsageError", "message": problem, "hint": hint}


@pytest.mark.parametrize("group", ["", "plan", "plan checkpoint"])
def test_help_of_a_group_is_shown_beside_other_options(agents: Agents, group: str) -> None:
    words = group.split()
    plain = agents.run(*words, "--help").expect(0).stdout
    assert plain.startswith(" ".join(("Usage: agents", *words)))
    for typed in (("--json", *words, "--help"), (*words, "--help", "--json")):
        assert agents.run(*typed).expect(0).stdout == plain


def test_the_version_is_shown_beside_other_options(agents: Agents) -> None:
    told = agents.run("--version", "--json").expect(0)
    assert told.stdout == agents.run("--version").stdout


def test_a_missing_argument_of_an_option_points_to_the_help_of_the_command(agents: Agents) -> None:
    told = agents.run("--quiet", "plan", "report", "--html").expect(2)
    problem = "option '--html' requires an argument"
    assert told.stderr == f"error: {problem}\nhint: agents plan report --help\n"
    told = agents.run("--json", "plan", "report", "--html").expect(2)
    assert told.json["command"] == "agents plan report"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--onn . touch q", "no such option '--onn', did you mean '--on'?"),
        ("--nme x -- touch q", "no such option '--nme', did you mean '--name'?"),
        ("-x touch q", "no such option '-x'"),
        ("--name", "option '--name' requires an argument"),
    ],
)
def test_a_misspelt_option_of_run_is_no_command(agents: Agents, words: str, problem: str) -> None:
    told = agents.run("run", *words.split()).expect(125)
    assert told.stderr == f"error: {problem}\nhint: agents run --help\n"
    assert not (agents.work / "q").exists()
    assert agents.run("plan", "list", "--json").data["plans"] == []


def test_what_follows_two_dashes_is_the_command_of_run(agents: Agents) -> None:
    (agents.work / "--onn").write_text('#!/bin/sh\necho "$@"\n')
    (agents.work / "--onn").chmod(0o755)
    told = agents.run("run", "--", "./--onn", "--json", "--on").expect(0)
    assert told.stdout == "--json --on\n"
    told = agents.run("run", "--", "--onn", ".").expect(127)
    assert "--onn" in told.stderr
    agents.run("run", "echo", "--onn").expect(0)
