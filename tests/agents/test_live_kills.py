"""The real Claude Code, its sidecar, and both: `kill -9` at random moments of a session.

`nox -s agents` runs this, elsewhere it is skipped; `CLEVERAGENTS_TEST_KILLS` says how many moments
of each kind are tried, `CLEVERAGENTS_TEST_SEED` which. A moment is some time after the model was
asked for the n-th time: in a hook, in a tool, or between them.
"""

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agents.live import AGENTS, FOLDER, START, TWO, Boxed, Live, World, needs_agents
from tests.agents.programs import PROGRAMS, lab_for
from tests.agents.scripted_model import ScriptedModel
from tests.killed import left_over, sidecars
from tests.scratch import wait_until

pytestmark = needs_agents
MOMENTS = int(os.environ.get("CLEVERAGENTS_TEST_KILLS", "1"))
SEED = int(os.environ.get("CLEVERAGENTS_TEST_SEED", "7"))
LONGEST = 0.5
"""Seconds between two requests to the model, as long as a call and its hooks may take."""


class Killed:
    """One prompt with six calls, to be killed on the way."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.session = str(uuid.uuid4())
        self.home = Path(live.lab.env["CLEVERAGENTS_HOME"])
        one, two = (live.model.scripts[name][:-1] for name in ("one", "two"))
        live.model.scripts["all"] = [*one, *two, *live.model.scripts["look"]]
        self.requests = len(live.model.scripts["all"])
        program = live.program
        argv = [program.command, "--session-id", self.session, *program.flags]
        argv += program.ask("SCRIPT:all go")
        self.process = subprocess.Popen(
            [*self.before_it, *argv],
            cwd=live.lab.project,
            env=live.lab.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def before_it(self) -> list[str]:
        return [str(AGENTS), "run", "--json", "--"] if isinstance(self.live, Boxed) else []

    def until(self, request: int) -> None:
        def asked() -> bool:
            return len(self.live.model.with_tools()) >= request or self.process.poll() is not None

        wait_until(asked, f"the model to be asked {request} times")

    def kill_agent(self) -> None:
        """That process alone: what it started goes on, as it would."""
        for pid in self.agents():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def agents(self) -> list[int]:
        return [pid for pid in self.processes() if program_of(pid) == self.live.program.command]

    def kill_sidecar(self) -> None:
        """In a sandbox that is `agents run` itself, and the agent ends with it."""
        boxed = isinstance(self.live, Boxed)
        for pid in [self.process.pid] if boxed else sidecars(self.home):
            os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """All that the session started, however far from it by now."""
        mark = f"HOME={self.live.lab.home}".encode()
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def ended(self) -> None:
        self.process.wait(180)
        wait_until(lambda: not self.processes(), "the processes of the session to end")


def program_of(pid: int) -> str:
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode())
    except OSError:
        return ""


@pytest.fixture(params=[Live, Boxed], ids=["in place", "in a sandbox"])
def killed(request, tmp_path) -> Iterator[Killed]:
    program = PROGRAMS["claude-code"]
    with ScriptedModel() as model:
        lab = lab_for(program, Path(FOLDER), tmp_path / "lab", model.url)
        live = request.param(program, lab, model)
        live.prepare()
        made = Killed(live)
        yield made
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()


@pytest.mark.parametrize("number", range(MOMENTS))
@pytest.mark.parametrize("victim", ["agent", "sidecar", "both"])
def test_whoever_is_killed_nothing_is_lost_or_left_over(
    killed: Killed, victim: str, number: int
) -> None:
    chance = random.Random(f"{SEED} {victim} {number}")
    request, pause = chance.randrange(1, killed.requests + 1), chance.random() * LONGEST
    killed.until(request)
    time.sleep(pause)
    if victim != "agent":
        killed.kill_sidecar()
    if victim != "sidecar":
        killed.kill_agent()
    killed.ended()
    right_afterwards(killed, did_all=victim == "sidecar" and not isinstance(killed.live, Boxed))


def right_afterwards(killed: Killed, did_all: bool) -> None:
    live = killed.live
    status = live.agents("plan", "status", killed.session)
    plan, before = status["plan_id"], live.world(status["plan_id"])
    assert not did_all or before == TWO, "the agent did all of its work"
    calls = [item["status"] for item in status["progress"]]
    assert len(calls) >= changes_in(before), "each change is some call's"
    assert calls.count("complete") >= len(calls) - 1, "all but the one that was open"
    live.agents("check")
    assert live.world(plan) == before, "looking changes nothing"
    gone(killed)
    if not list(live.lab.home.glob(f".claude/projects/*/{killed.session}.jsonl")):
        # Killed before it kept a word of its own: there is no conversation to go back in.
        live.agents("plan", "rollback", plan, "first", "--yes", "--files-only")
        assert live.world(plan) == START
        live.agents("plan", "undo", plan, "--files-only")
        assert live.world(plan) == before
        return

    back = live.agents("plan", "rollback", plan, "first", "--yes")
    assert live.world(plan) == START
    assert "SCRIPT:all" not in live.resume(back["conversation"], "SCRIPT:look please").said
    live.agents("plan", "undo", plan)
    again = live.agents("plan", "undo", plan)
    assert live.world(plan) == before
    assert again["conversation"]["session_id"] == killed.session
    assert "SCRIPT:all" in live.resume(again["conversation"], "SCRIPT:look please").said
    assert live.newest == plan
    gone(killed)


def gone(killed: Killed) -> None:
    """No socket and no process; a sidecar that ends by itself may need a moment."""
    wait_until(lambda: not left_over(killed.home), "what is left over to go")


def changes_in(world: World) -> int:
    """How many calls the script needs for what is there."""
    files, rows = world
    steps = ("one.txt" in files, "old.txt" not in files, 1 in rows)
    return sum((*steps, "two.txt" in files, "made-two.txt" in files, 2 in rows))
