"""The installed command answers at all."""

import cleveragents
from tests.harness import Agents


def test_version_is_that_of_the_package(agents: Agents) -> None:
    assert cleveragents.__version__ in agents.run("--version").expect(0).stdout


def test_an_unknown_plan_is_an_error_with_a_hint(agents: Agents) -> None:
    error = agents.run("plan", "status", "no-such-plan", "--json").expect(3).data["error"]
    assert "no-such-plan" in error["message"]
    assert error["hint"]


def test_wrong_use_exits_with_2_and_without_a_traceback(agents: Agents) -> None:
    assert "Traceback" not in agents.run("no-such-command").expect(2).stderr
