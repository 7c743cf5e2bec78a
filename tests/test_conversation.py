"""The conversation of an agent's session at each of its groups; files go with it, or do not.

The agent is the stand-in of the documentation; what real ones make of it, `nox -s agents` tries.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agents import stand_in
from tests.harness import Agents
from tests.killed import left_over
from tests.scratch import wait_until

SCRIPT = """\
prompt add b
Write echo b > b.txt
prompt add c
Write echo c > c.txt
"""


class Talk:
    """A session in place, which has ended, of two prompts unless told otherwise."""

    def __init__(self, agents: Agents, script: str = SCRIPT) -> None:
        self.agents = agents
        env = agents.env | {"CLEVERAGENTS_SESSION_HOOK_BUDGET": "60s"}
        program = [sys.executable, stand_in.__file__]
        subprocess.run([*program, "install"], input=script, text=True, env=env, check=True)
        agents.run("hook", "install", "claude-code", "--set", "session.hook-budget=60s").expect(0)
        (agents.work / "a.txt").write_text("a\n")
        self.code = subprocess.run(program, cwd=agents.work, env=env, check=False).returncode
        home = Path(agents.env["CLEVERAGENTS_HOME"])
        wait_until(lambda: not left_over(home), "its sidecar to be gone")
        self.plan: str = self.data("plan", "list")["plans"][0]["plan_id"]
        self.first: dict[str, Any] = self.now()

    def data(self, *argv: str) -> dict[str, Any]:
        return self.agents.run(*argv, "--json").expect(0).data

    def now(self) -> dict[str, Any]:
        """The conversation that goes with the plan."""
        return self.data("plan", "status", self.plan)["conversation"]

    def back(self, *words: str) -> dict[str, Any]:
        return self.data("plan", "rollback", self.plan, *words, "--yes")["conversation"]

    def groups(self) -> list[dict[str, Any]]:
        return self.data("plan", "checkpoints", self.plan)["groups"]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.agents.work.iterdir())

    def hook(self, event: str, session: str, **more: str) -> str:
        """What the agent is told at an event of a session."""
        home = Path(self.agents.env["HOME"])
        settings = json.loads((home / ".claude/settings.json").read_text())
        (entry,) = settings["hooks"][event]
        where = {"cwd": str(self.agents.work), "transcript_path": str(home / "none.jsonl")}
        said = {"hook_event_name": event, "session_id": session, **where, **more}
        return subprocess.run(
            ["sh", "-c", entry["hooks"][0]["command"]],
            input=json.dumps(said),
            cwd=self.agents.work,
            env=self.agents.env | {"CLEVERAGENTS_SESSION_HOOK_BUDGET": "60s"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def sessions(self) -> list[Path]:
        return sorted(Path(self.agents.env["HOME"], ".claude/projects/here").iterdir())


@pytest.fixture
def talk(agents: Agents) -> Talk:
    return Talk(agents)


def test_before_the_first_prompt_there_is_a_new_conversation(talk: Talk) -> None:
    made = talk.back("first")
    assert talk.files() == ["a.txt"]
    assert made["continue"] == ["claude", "--session-id", made["session_id"]]
    assert made["forked_from"] == talk.first["session_id"]
    assert talk.now() == made
    assert len(talk.sessions()) == 1, "nothing was said in the new one yet"
    undone = talk.data("plan", "undo", talk.plan)["conversation"]
    assert undone == talk.now() == talk.first
    assert talk.files() == ["a.txt", "b.txt", "c.txt"]


def test_files_alone_are_rolled_back_to_the_beginning_and_the_conversation_goes_on(
    talk: Talk,
) -> None:
    assert talk.back("first", "--files-only") == talk.first
    assert talk.files() == ["a.txt"]
    assert talk.now() == talk.first


def test_the_conversation_alone_is_rolled_back_to_the_beginning(talk: Talk) -> None:
    made = talk.data("plan", "rollback", talk.plan, "first", "--conversation-only")["conversation"]
    assert made["continue"] == ["claude", "--session-id", made["session_id"]]
    assert talk.files() == ["a.txt", "b.txt", "c.txt"]


def test_inside_a_prompt_the_copy_ends_with_that_call(talk: Talk) -> None:
    made = talk.back("s1")
    assert talk.files() == ["a.txt", "b.txt"]
    assert made["continue"] == ["claude", "--resume", made["session_id"]]
    text = next(one for one in talk.sessions() if made["session_id"] in one.name).read_text()
    assert "echo b" in text
    assert "add c" not in text


def test_undo_returns_to_a_prompt_in_whose_midst_the_agent_was_killed(agents: Agents) -> None:
    """Nobody heard how far it came: the plan stands before it, the conversation inside."""
    talk = Talk(agents, "prompt add b\nBash kill -9 $PPID\n")
    assert talk.code == -signal.SIGKILL
    (prompt,) = (g["group_id"] for g in talk.groups() if g["type"] == "on_decision")
    made = talk.back(prompt)
    assert made["continue"] == ["claude", "--session-id", made["session_id"]]
    assert talk.data("plan", "undo", talk.plan)["conversation"] == talk.now() == talk.first


def test_a_corrected_prompt_is_undone_and_the_agent_told_what_to_do_instead(talk: Talk) -> None:
    (talk.agents.work / "mine.txt").write_text("mine\n")
    (root,) = talk.data("plan", "tree", talk.plan)["tree"]
    prompt = next(one for one in root["children"] if one["question"] == "add b")
    words = ("plan", "correct", prompt["decision_id"], "--guidance", "call it d.txt")
    assert talk.data(*words, "--dry-run")["steps_again"] == []
    told = talk.agents.run(*words, "--yes").expect(0).stdout
    assert "plan execute" not in told, "its steps are the agent's"
    assert "continue the conversation: claude --session-id " in told
    talk.data("plan", "undo", talk.plan)
    done = talk.data(*words, "--yes")
    assert (done["state"], done["steps_again"]) == ("queued", [])
    assert talk.files() == ["a.txt", "c.txt", "mine.txt"]
    made = done["conversation"]
    assert made == talk.now()
    assert made["forked_from"] == talk.first["session_id"]
    assert made["continue"] == ["claude", "--session-id", made["session_id"]]
    assert "call it d.txt" in talk.hook("SessionStart", made["session_id"], source="resume")
    (root,) = talk.data("plan", "tree", talk.plan)["tree"]
    assert [one["question"] for one in root["children"]] == ["add c", "correct: add b"]
    undone = talk.data("plan", "undo", talk.plan)["conversation"]
    assert undone == talk.now() == talk.first
    assert talk.files() == ["a.txt", "b.txt", "c.txt", "mine.txt"]


@pytest.mark.parametrize("words", [("rollback", "first"), ("undo",)])
def test_a_dry_run_names_no_session_to_continue(agents: Agents, words: tuple[str, ...]) -> None:
    """The one that there is would not be it any more."""
    talk = Talk(agents)
    verb, *rest = words
    argv = ("plan", verb, talk.plan, *rest, "--dry-run")
    said = agents.run(*argv).expect(0).stdout
    assert f"the conversation would change too: {talk.first['session_id']}\n" in said
    assert "continue the conversation" not in said
    assert "the conversation" not in agents.run(*argv, "--files-only").expect(0).stdout
    assert talk.now() == talk.first
