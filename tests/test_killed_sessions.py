"""`kill -9` of an agent, of its sidecar, of both, at random moments of a session in place.

The agent is a script that runs the hooks as Claude Code does and writes files between them;
`CLEVERAGENTS_TEST_KILLS` says how many moments of each kind are tried, `CLEVERAGENTS_TEST_SEED`
which. The real one is killed by `nox -s agents`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleveragents.integrations.hook import hook_command
from cleveragents.workspace import settings_here
from tests.harness import Agents
from tests.killed import left_over, sidecars
from tests.scratch import wait_until

MOMENTS = int(os.environ.get("CLEVERAGENTS_TEST_KILLS", "1"))
SEED = int(os.environ.get("CLEVERAGENTS_TEST_SEED", "7"))
PROMPTS, CALLS = 2, 3
EVENTS = 1 + PROMPTS * (2 + 2 * CALLS)

AGENT = f"""
import json, os, subprocess, sys

argv = json.loads(sys.argv[1])
number = 0


def hook(event, **payload):
    global number
    body = dict(payload, session_id="kill-1", cwd=os.getcwd(), hook_event_name=event)
    print(number, flush=True)
    number += 1
    subprocess.run(argv, input=json.dumps(body).encode(), check=True)


hook("SessionStart", source="startup")
for prompt in range({PROMPTS}):
    hook("UserPromptSubmit", prompt=f"prompt {{prompt}}", prompt_id=f"p{{prompt}}")
    for call in range({CALLS}):
        own = f"c{{prompt}}-{{call}}"
        hook("PreToolUse", tool_name="Bash", tool_input={{"command": own}}, tool_use_id=own)
        open(f"{{own}}.txt", "w").write(own)
        with open("a.txt", "a") as file:
            file.write(own + "\\n")
        hook("PostToolUse", tool_use_id=own, tool_response={{}})
    hook("Stop", last_assistant_message="done", prompt_id=f"p{{prompt}}", background_tasks=[])
print("end", flush=True)
sys.stdin.read()
"""


class Killed:
    """A session of the agent, to be killed when it has come to some event."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.home = Path(agents.env["CLEVERAGENTS_HOME"])
        (agents.work / "a.txt").write_text("a\n")
        hook = (*hook_command(settings_here(str(self.home)), "claude-code"), "--budget=60")
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, json.dumps(hook)],
            cwd=agents.work,
            env=agents.env | {"CLEVERAGENTS_SESSION_HOOK_BUDGET": "60s"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def until(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.decode().strip() == word:
                return
        raise AssertionError(f"the agent ended before {word}")

    def kill(self) -> None:
        """The agent and the hook that it runs, as `kill -9` of its process group does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_sidecar(self) -> None:
        """And wait: one that is dying has its lock, and the next command leaves its socket."""
        for pid in sidecars(self.home):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{pid} to die")

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.agents.work.iterdir())}


@pytest.mark.parametrize("number", range(MOMENTS))
@pytest.mark.parametrize("victim", ["agent", "sidecar", "both"])
def test_whoever_is_killed_nothing_is_lost_or_left_over(
    agents: Agents, victim: str, number: int
) -> None:
    chance = random.Random(f"{SEED} {victim} {number}")
    # The first event makes the plan; before it there is nothing that could be lost.
    event, pause = chance.randrange(1, EVENTS), chance.random() * 0.05
    killed = Killed(agents)
    try:
        killed.until(str(event))
        time.sleep(pause)
        if victim != "agent":
            killed.kill_sidecar()
        if victim == "sidecar":
            killed.until("end")
            expected = 1 + PROMPTS * CALLS
            assert len(killed.files()) == expected, "the agent did all of its work"
        killed.kill()
        _right_afterwards(killed)
    finally:
        killed.close()


def _right_afterwards(killed: Killed) -> None:
    run, before = killed.agents.run, killed.files()
    status = run("plan", "status", "kill-1", "--json").expect(0).data
    assert killed.files() == before, "looking changes nothing"
    wait_until(lambda: left_over(killed.home) == [], "what is left over to go")
    calls = [item["status"] for item in status["progress"]]
    assert len(calls) >= len(before) - 1, "each file is some call's"
    assert calls.count("complete") >= len(calls) - 1, "all but the one that was open"
    run("check").expect(0)
    run("plan", "rollback", "kill-1", "first", "--yes", "--files-only").expect(0)
    assert killed.files() == {"a.txt": "a\n"}
    run("plan", "undo", "kill-1", "--files-only").expect(0)
    assert killed.files() == before
    assert left_over(killed.home) == []
