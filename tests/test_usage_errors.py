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
