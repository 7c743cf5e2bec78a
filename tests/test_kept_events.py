"""An event whose hook gave up waiting is written down, and noted by whoever comes next."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.integrations import client
from cleveragents.integrations.hook import observing
from cleveragents.integrations.sidecar import Sidecar, locked
from cleveragents.lease import hold
from cleveragents.model.tool import CallState
from cleveragents.workspace import open_workspace, settings_here
from tests.harness import Agents
from tests.scratch import wait_until
from tests.test_run_agent import install
from tests.test_sidecar import Session

IMPATIENT = """\
import sys, time
now = time.time_ns
time.time_ns = lambda: now() - {behind} * 10**9
sys.path.append({folder!r})
import client
client.GRACE = 0.0
client.run()
"""


class Impatient(Session):
    """A session whose hooks can be told not to wait for a sidecar that does not answer."""

    behind = 0
    """Seconds that the machine's clock was set back."""

    def impatient(self, *flags: str, **payload: Any) -> subprocess.CompletedProcess[bytes]:
        """A hook that soon goes on without an answer; a sidecar that it starts answers as soon."""
        body = {"session_id": self.name, "cwd": str(self.agents.work), **payload}
        folder = os.path.dirname(client.__file__)
        script = IMPATIENT.format(folder=folder, behind=self.behind)
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", script, self.folder, "claude-code", *flags],
            input=json.dumps(body).encode(),
            capture_output=True,
            env=self.agents.env | {"CLEVERAGENTS_SESSION_HOOK_BUDGET": "0.05s"},
            cwd=self.agents.work,
            check=False,
        )

    def given_up(self, budget: str = "0.05", **payload: Any) -> None:
        done = self.impatient(f"--budget={budget}", **payload)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def ask(self, text: str, **more: str) -> None:
        self.prompts += 1
        own = f"p{self.prompts}"
        self.given_up(hook_event_name="UserPromptSubmit", prompt=text, prompt_id=own, **more)

    def ended(self, text: str) -> None:
        """A session of one prompt that is over, and so is its sidecar."""
        self.prompt(text)
        self.over()
        wait_until(lambda: not list(self.folder.iterdir()), "the sidecar to end")

    def kept(self) -> list[Path]:
        return sorted(self.folder.glob("*.event"))

    def stopped(self) -> int:
        """The sidecar, which does not get on any more."""
        pid = self.sidecar()
        os.kill(pid, signal.SIGSTOP)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.wait_until_gone(pid)

    def asked(self) -> list[str]:
        """The prompts that are noted."""
        with open_workspace(str(self.home), recover=False) as ws:
            found = ws.ctx.store.plans.decisions(ws.find(self.name).plan_id)
        return [decision.question for decision in found[1:]]

    def states(self) -> list[CallState]:
        with open_workspace(str(self.home), recover=False) as ws:
            return [call.state for call in ws.find(self.name).tool_calls()]


@pytest.fixture
def session(agents: Agents) -> Iterator[Impatient]:
    made = Impatient(agents)
    yield made
    if made.socket.exists():
        made.over()


def test_what_was_written_down_is_noted_in_its_order_when_the_clock_is_set_back(
    session: Impatient,
) -> None:
    session.prompt("one")
    pid = session.stopped()
    for number, text in enumerate(("two", "three", "four")):
        session.behind = number * 86_400
        session.ask(text)
    session.kill(pid)
    session.agents.run("plan", "tree", session.name).expect(0)
    assert session.asked() == ["one", "two", "three", "four"]


def test_what_a_stopped_sidecar_was_told_outlives_it(session: Impatient) -> None:
    session.prompt("one")
    call = session.begin("Bash", command="make")
    session.path("b.txt").write_text("b\n")
    pid = session.stopped()
    session.given_up(hook_event_name="PostToolUse", tool_use_id=call, tool_response={})
    session.given_up(hook_event_name="Stop", last_assistant_message="made", background_tasks=[])
    session.ask("two")
    assert len(session.kept()) == 3
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in session.kept())
    session.agents.run("plan", "list").expect(0)
    assert len(session.kept()) == 3, "they are the sidecar's as long as it lives"
    session.kill(pid)
    shown = session.agents.run("plan", "tree", session.name).expect(0).stdout
    assert "two" in shown
    assert session.asked() == ["one", "two"]
    assert session.states() == [CallState.OK]
    assert list(session.folder.iterdir()) == []
    with open_workspace(str(session.home), recover=False) as ws:
        plan_id = ws.find(session.name).plan_id
        rows = ws.ctx.store.checkpoints.of_plan(plan_id)
        assert [write.path for write in ws.ctx.store.calls.writes(plan_id)] == [b"b.txt"]
    assert "late: " in rows[-1].metadata_json["reason"]


def test_a_sidecar_that_goes_on_notes_each_once_and_in_order(session: Impatient) -> None:
    session.prompt("one")
    pid = session.stopped()
    for number in range(5):
        session.ask(f"then {number}")
        own = {"tool_use_id": f"k{number}"}
        session.given_up(hook_event_name="PreToolUse", tool_name="Bash", tool_input={}, **own)
        session.path(f"{number}.txt").write_text("x")
        session.given_up(hook_event_name="PostToolUse", tool_response={}, **own)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not session.kept(), "the events to be noted")
    session.prompt("last")
    assert session.sidecar() == pid
    assert session.asked() == ["one", *(f"then {number}" for number in range(5)), "last"]
    assert session.states() == [CallState.OK] * 5


def test_what_a_busy_sidecar_has_in_its_memory_outlives_it(session: Impatient) -> None:
    session.ask("one", budget="60")
    wait_until(lambda: not session.kept(), "the first to be noted")
    with open_workspace(str(session.home), recover=False) as ws, ws.ctx.store.transaction():
        pid = session.sidecar()
        session.ask("two", budget="60")
        session.kill(pid)
    session.agents.run("plan", "list").expect(0)
    assert session.asked() == ["one", "two"]
    assert session.kept() == []


def test_what_no_sidecar_could_be_started_for_comes_before_what_follows(
    session: Impatient,
) -> None:
    session.folder.mkdir(parents=True)
    lock = locked(f"{session.socket}.lock")
    assert lock is not None
    session.ask("one")
    session.ask("two")
    assert len(session.kept()) == 2
    os.unlink(f"{session.socket}.lock")
    os.close(lock)
    session.prompt("three")
    wait_until(lambda: not session.kept(), "all to be noted")
    assert session.asked() == ["one", "two", "three"]


def test_a_store_that_does_not_exist_yet_keeps_it_too(session: Impatient) -> None:
    assert not session.home.exists()
    session.ask("one", budget="0")
    wait_until(lambda: session.folder.exists() and not session.kept(), "the event to be noted")
    assert session.asked() == ["one"]


def test_a_tool_that_is_refused_is_not_noted_later(session: Impatient) -> None:
    session.prompt("one")
    pid = session.stopped()
    begins = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "c1"}
    done = session.impatient("--budget=0.05", "--fail-closed", **begins)
    assert (done.returncode, done.stderr) == (2, b"no checkpoint could be made: late\n")
    assert session.kept() == []
    session.kill(pid)


def written(session: Impatient, text: str, own: str = "1-1") -> Path:
    """An event as a hook leaves it that gave up."""
    name = client.socket_name(session.name.encode()).removesuffix(".sock")
    path = session.folder / f"{name}.{own}.event"
    body = {"session_id": session.name, "cwd": str(session.agents.work), "prompt": text}
    event = json.dumps(body | {"hook_event_name": "UserPromptSubmit"}).encode()
    client.keep(str(path), b"claude-code\t\t0\t0\n" + event)
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"claude-code\n{}",
        b"claude-code\t\t0\t0\n[",
        b"claude-code\t\tx\t0\n{}",
        b'nobody\t\t0\t0\n{"session_id": "sess-1"}',
        b'claude-code\t\t0\t0\n{"session_id": "sess-1", "hook_event_name": "NobodyKnows"}',
        b"\xff\t\xfe\t0\t0\n{}",
    ],
    ids=str,
)
def test_a_file_that_holds_no_event_goes_and_disturbs_nobody(
    session: Impatient, data: bytes
) -> None:
    session.ended("one")
    written(session, "two", "2-1")
    client.keep(str(session.folder / written(session, "x").name.replace("1-1", "0-1")), data)
    session.agents.run("plan", "list").expect(0)
    assert session.asked() == ["one", "x", "two"]
    assert session.kept() == []


def test_a_link_is_not_followed_and_a_half_written_file_goes_in_the_end(
    session: Impatient,
) -> None:
    session.ended("one")
    event = written(session, "two")
    elsewhere = session.home.parent / "elsewhere"
    os.rename(event, elsewhere)
    event.symlink_to(elsewhere)
    parts = [session.folder / "a.1-1.part", session.folder / "a.2-1.part"]
    for part in parts:
        part.write_bytes(b"claude")
    os.utime(parts[0], (0, 0))
    session.agents.run("plan", "list").expect(0)
    assert session.asked() == ["one"]
    assert elsewhere.exists()
    assert list(session.folder.iterdir()) == [parts[1]], "somebody may still be writing it"


def test_while_the_plan_is_busy_an_event_stays_and_those_after_it_wait(
    session: Impatient,
) -> None:
    session.ended("one")
    written(session, "two")
    written(session, "three", "2-1")
    with open_workspace(str(session.home), recover=False) as ws:
        plan_id = ws.find(session.name).plan_id
        with hold(ws.ctx.store, plan_id, "a long verb", ws.ctx.now):
            session.agents.run("plan", "list").expect(0)
            assert len(session.kept()) == 2
    session.agents.run("plan", "list").expect(0)
    assert session.asked() == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("number", "left"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.ELOOP, 0)]
)
def test_a_full_disk_passes_and_what_would_always_fail_is_not_tried_for_ever(
    session: Impatient, number: int, left: int
) -> None:
    def fails(_name: str) -> None:
        raise OSError(number, "no")

    session.folder.mkdir(parents=True)
    settings = settings_here(str(session.home))
    with open_workspace(str(session.home)):
        pass  # the store is there; what fails is the first group
    written(session, "one")
    made = Sidecar(str(session.folder), session.socket.name, partial(observing, settings), 60)
    fsio.arm(fails)
    try:
        with pytest.raises(OSError, match="no"):
            made.record_left_events()
    finally:
        fsio.arm(None)
    assert len(session.kept()) == left


def test_what_a_killed_run_was_told_is_noted_and_its_folder_goes(
    agents: Agents, tmp_path: Path
) -> None:
    data = agents.run("run", "--json", "--", "claude", env=install(agents)).expect(0).data
    folder = tmp_path / "agents-run-killed"
    body = {"session_id": "run-1", "cwd": str(agents.work), "prompt": "the last words"}
    event = json.dumps(body | {"hook_event_name": "UserPromptSubmit"}).encode()
    client.keep(str(folder / "agent.1-1.event"), b"claude-code\t\t0\t0\n" + event)
    home = Path(agents.env["CLEVERAGENTS_HOME"])
    note = home / "sidecars" / f"{folder.name}.lock"
    note.write_text(f"{folder}\n{data['plan_id']}")
    assert "the last words" in agents.run("plan", "tree", data["plan_id"]).expect(0).stdout
    assert not folder.exists()
    assert list(note.parent.iterdir()) == []
