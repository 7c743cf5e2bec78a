"""Hooks as agents run them: the client, the sidecar it starts, and what happens without one."""

import errno
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.errors import StoreError
from cleveragents.integrations import client
from cleveragents.integrations.hook import Hooked, hook_command, observing
from cleveragents.integrations.sidecar import Sidecar, handle_alone, locked
from cleveragents.model.tool import CallState
from cleveragents.workspace import open_workspace, settings_here
from tests.harness import PATIENCE, Agents
from tests.scratch import wait_until


class Session:
    """An agent's session: this process stands for the agent, every event is a real hook."""

    def __init__(self, agents: Agents, name: str = "sess-1") -> None:
        self.agents = agents
        self.name = name
        self.calls = self.prompts = 0
        (agents.work / "a.txt").write_text("a\n")
        self.home = Path(agents.env["CLEVERAGENTS_HOME"])

    @property
    def folder(self) -> Path:
        return self.home / "sidecars"

    @property
    def socket(self) -> Path:
        return self.folder / client.socket_name(self.name.encode())

    def hook(self, *flags: str, **payload: Any) -> subprocess.CompletedProcess[bytes]:
        body = {"session_id": self.name, "cwd": str(self.agents.work), **payload}
        return self.raw(json.dumps(body).encode(), *flags)

    def raw(self, data: bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
        argv = [*hook_command(settings_here(str(self.home)), "claude-code"), *flags]
        if not any(word.startswith("--budget") for word in flags):
            argv.append("--budget=60")
        return subprocess.run(
            argv,
            input=data,
            capture_output=True,
            env=self.agents.env | {"CLEVERAGENTS_SESSION_HOOK_BUDGET": "60s"},
            cwd=self.agents.work,
            timeout=PATIENCE,
            check=False,
        )

    def start(self) -> subprocess.CompletedProcess[bytes]:
        return self.hook(hook_event_name="SessionStart", source="startup")

    def prompt(self, text: str) -> subprocess.CompletedProcess[bytes]:
        self.prompts += 1
        return self.hook(
            hook_event_name="UserPromptSubmit", prompt=text, prompt_id=f"p{self.prompts}"
        )

    def begin(self, tool: str = "Write", **inputs: str) -> str:
        self.calls += 1
        call = f"c{self.calls}"
        done = self.hook(
            hook_event_name="PreToolUse", tool_name=tool, tool_input=inputs, tool_use_id=call
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        return call

    def end(self, call: str) -> None:
        self.hook(hook_event_name="PostToolUse", tool_use_id=call, tool_response={"ok": True})

    def write(self, name: str, text: str) -> None:
        call = self.begin("Write", file_path=name)
        self.path(name).write_text(text)
        self.end(call)

    def stop(self) -> None:
        self.hook(hook_event_name="Stop", last_assistant_message="done", background_tasks=[])

    def over(self) -> None:
        self.hook(hook_event_name="SessionEnd", reason="exit")

    def path(self, name: str) -> Path:
        return self.root / name

    @property
    def root(self) -> Path:
        with open_workspace(str(self.home), recover=False) as ws:
            return Path(ws.find(self.name).sandboxes["work"])

    def files(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in sorted(self.root.iterdir()) if p.is_file()}

    def sidecar(self) -> int:
        """The process that holds the socket's lock."""
        lock = os.stat(f"{self.socket}.lock")
        for row in Path("/proc/locks").read_text().splitlines():
            fields = row.split()
            if fields[5].endswith(f":{lock.st_ino}"):
                return int(fields[4])
        raise AssertionError("no sidecar has the lock")

    def wait_until_gone(self, pid: int) -> None:
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the sidecar to end")


@pytest.fixture
def session(agents: Agents) -> Iterator[Session]:
    made = Session(agents)
    yield made
    if made.socket.exists():
        made.over()


def test_the_first_hook_starts_a_sidecar_that_ends_with_the_session(session: Session) -> None:
    session.start()
    pid = session.sidecar()
    assert oct(session.socket.stat().st_mode & 0o777) == "0o600"
    assert oct(session.folder.stat().st_mode & 0o777) == "0o700"
    session.prompt("add b")
    session.write("b.txt", "b\n")
    session.stop()
    assert session.sidecar() == pid, "one process for the whole session"
    session.over()
    session.wait_until_gone(pid)
    assert list(session.folder.iterdir()) == []
    run = session.agents.run
    assert "add b" in run("plan", "tree", session.name).expect(0).stdout
    run("plan", "undo", session.name).expect(0)
    assert session.files() == {"a.txt": "a\n"}


def test_a_rollback_beside_a_live_sidecar_is_noticed_by_it(session: Session) -> None:
    session.prompt("one")
    session.write("b.txt", "b\n")
    session.stop()
    session.agents.run("plan", "rollback", session.name, "first", "--yes").expect(0)
    answer = json.loads(session.prompt("two").stdout)
    assert "read them again" in answer["hookSpecificOutput"]["additionalContext"]
    session.write("c.txt", "c\n")
    session.stop()
    session.agents.run("plan", "undo", session.name).expect(0)
    assert session.files() == {"a.txt": "a\n"}


def test_a_sidecar_killed_between_begin_and_end_loses_nothing(session: Session) -> None:
    session.prompt("one")
    call = session.begin("Bash", command="make")
    session.path("b.txt").write_text("b\n")
    pid = session.sidecar()
    os.kill(pid, signal.SIGKILL)
    session.wait_until_gone(pid)
    session.agents.run("plan", "list").expect(0)
    assert session.files() == {"a.txt": "a\n", "b.txt": "b\n"}
    session.end(call)
    assert session.sidecar() != pid
    with open_workspace(str(session.home), recover=False) as ws:
        (found,) = ws.find(session.name).tool_calls()
        assert found.state is CallState.OK
        assert [w.path for w in ws.ctx.store.calls.writes(found.plan_id)] == [b"b.txt"]


def test_when_agent_and_sidecar_are_killed_the_next_command_leaves_nothing_over(
    session: Session,
) -> None:
    session.prompt("one")
    session.begin("Bash", command="make")
    pid = session.sidecar()
    os.kill(pid, signal.SIGKILL)
    session.wait_until_gone(pid)
    assert session.socket.exists()
    session.agents.run("plan", "list").expect(0)
    assert list(session.folder.iterdir()) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_sidecar_killed_at_any_moment_loses_nothing(session: Session, seed: int) -> None:
    chance = random.Random(seed)
    session.prompt("one")
    for number in range(4):
        call = session.begin("Write")
        session.path(f"f{number}.txt").write_text(f"{number}\n")
        pid = session.sidecar()
        if chance.random() < 0.5:
            os.kill(pid, signal.SIGKILL)
            session.end(call)
        else:
            ending = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"import os,time;time.sleep({chance.random() * 0.1});os.kill({pid}, 9)",
                ]
            )
            session.end(call)
            ending.wait()
        session.wait_until_gone(pid)
    session.stop()
    session.over()
    expected = {"a.txt": "a\n", **{f"f{n}.txt": f"{n}\n" for n in range(4)}}
    assert session.files() == expected
    run = session.agents.run
    run("check").expect(0)
    run("plan", "undo", session.name).expect(0)
    assert session.files() == {"a.txt": "a\n"}
    run("plan", "redo", session.name).expect(0)
    assert session.files() == expected
    wait_until(lambda: not list(session.folder.iterdir()), "no socket is left over")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b'{"session_id": "sess-1"}',
        b'{"session_id": "sess-1", "hook_event_name": "NobodyKnows"}',
        b'{"session_id": "sess-1", "hook_event_name": "PreToolUse"}',
        b'{"session_id": 7, "hook_event_name": ["PreToolUse"], "tool_input": "x"}',
        b'{"hook_event_name": "UserPromptSubmit", "prompt": "without a session"}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
    ids=str,
)
def test_nothing_an_agent_sends_makes_a_hook_fail(session: Session, data: bytes) -> None:
    session.start()
    done = session.raw(data)
    assert (done.returncode, done.stdout) == (0, b"")
    session.prompt("still there")
    session.over()


def test_a_session_whose_name_is_none_is_refused_and_nothing_is_stored(session: Session) -> None:
    settings = settings_here(str(session.home))
    for name in ("x" * 201, "../../up", "a/b", "--help", ".", "a\x1b[31m", "a\n"):
        body = {"session_id": name, "cwd": str(session.agents.work), "prompt": "one"}
        hooked = Hooked("claude-code", "UserPromptSubmit", body)
        with observing(settings) as observer:
            _, error = handle_alone(observer, hooked, 0)
        assert error == f"a hook named a session that is not a valid id: {name[:40]!r}"
    with open_workspace(str(session.home), recover=False) as ws:
        assert ws.plans() == []


def test_half_of_a_pair_and_nul_are_stored_as_they_can_be(session: Session) -> None:
    body = rb'{"session_id": "sess-1", "cwd": %s, "hook_event_name": "UserPromptSubmit",'
    body %= json.dumps(str(session.agents.work)).encode()
    assert session.raw(body + rb'"prompt": "a\ud83db\u0000c"}').returncode == 0
    with open_workspace(str(session.home), recover=False) as ws:
        decisions = ws.ctx.store.plans.decisions(ws.find(session.name).plan_id)
    assert decisions[-1].question == "a?b\0c"


def test_the_error_that_an_agent_tells_is_shown_with_the_output(session: Session) -> None:
    session.prompt("one")
    call = session.begin("Bash", command="make")
    error = "Exit code 2\nmake: *** No targets."
    session.hook(hook_event_name="PostToolUseFailure", tool_use_id=call, error=error)
    lines = session.agents.run("plan", "output", session.name).expect(0).stdout.splitlines()
    assert lines[0].startswith("s1 (Bash): failed, ")
    assert lines[1:] == ["error: Exit code 2", "make: *** No targets."]


def test_a_payload_of_fifty_megabytes_is_cut(session: Session) -> None:
    session.prompt("one")
    call = session.begin("Write", content="x" * 50_000_000)
    session.end(call)
    with open_workspace(str(session.home), recover=False) as ws:
        (found,) = ws.find(session.name).tool_calls()
    assert len(json.dumps(found.inputs)) < 20_000
    assert "50000000 characters" in found.inputs["content"]


def test_what_is_larger_still_is_not_even_sent(session: Session) -> None:
    session.prompt("one")
    large = b'{"session_id": "sess-1", "hook_event_name": "%s", "x": "' + b"x" * (64 << 20) + b'"}'
    assert session.raw(large % b"PreToolUse").returncode == 0
    assert session.raw(large % b"PreToolUse", "--fail-closed").returncode == 2
    assert session.raw(large % b"Stop", "--fail-closed").returncode == 0


def test_closed_means_that_no_tool_runs_without_a_checkpoint_and_nothing_else_is_refused(
    session: Session,
) -> None:
    tool = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "c1", "cwd": "/"}
    done = session.hook("--fail-closed", **tool)
    assert done.returncode == 2
    assert b"no checkpoint could be made: failed / is too wide" in done.stderr
    assert session.hook(**tool).returncode == 0
    refused = session.hook("--fail-closed", hook_event_name="UserPromptSubmit", prompt="x", cwd="/")
    assert refused.returncode == 0
    assert b"too wide" in refused.stdout


def test_a_call_that_its_person_interrupted_is_over_though_no_hook_tells(
    session: Session, tmp_path: Path
) -> None:
    """Claude Code calls none then; the session file has the call's result, as an error."""
    kept = tmp_path / "s.jsonl"
    part = {"type": "tool_result", "tool_use_id": "c1", "content": "interrupted"}
    rows = [{"type": "user", "message": {"role": "user", "content": [part]}}]
    kept.write_text("")
    session.prompt("one")
    inputs = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "c1"}
    session.hook(hook_event_name="PreToolUse", transcript_path=str(kept), **inputs)
    session.path("b.txt").write_text("b\n")
    session.agents.run("plan", "rollback", session.name, "first", "--files-only", "--yes").expect(4)
    kept.write_text('{"half": \n' + "".join(json.dumps(row) + "\n" for row in rows))
    seen = kept.stat().st_mtime_ns
    session.agents.run("plan", "rollback", session.name, "first", "--files-only", "--yes").expect(4)
    part["is_error"] = True
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(kept, ns=(seen, seen + 10**9))
    wait_until(lambda: call_of(session) is CallState.FAILED, "the end of the call")
    session.agents.run("plan", "rollback", session.name, "first", "--files-only", "--yes").expect(0)
    assert session.files() == {"a.txt": "a\n"}


def test_what_goes_wrong_in_a_sidecar_is_told_and_ends_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_name: str) -> None:
        raise OSError(errno.ENOSPC, "no\nroom")

    with open_workspace(str(session.home)):
        pass  # the store is there; what fails is the first group
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    told = Told(session, os.getpid())
    fsio.arm(no_room)
    try:
        told.serve()
    finally:
        fsio.arm(None)
    assert told.answer == b"failed OSError: [Errno 28] no room\n"
    assert list(session.folder.iterdir()) == []


def test_a_folder_for_sockets_that_was_open_to_others_is_closed(session: Session) -> None:
    session.folder.mkdir(parents=True)
    session.folder.chmod(0o777)
    elsewhere = session.home.parent / "made"
    Path(f"{session.socket}.lock").symlink_to(elsewhere)
    session.start()
    assert oct(session.folder.stat().st_mode & 0o777) == "0o700"
    assert not elsewhere.exists()
    assert session.sidecar()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make what is another user's")
def test_a_folder_for_sockets_of_another_user_is_not_used(session: Session) -> None:
    session.folder.mkdir(parents=True)
    os.chown(session.folder, 65534, 65534)
    made = Sidecar(str(session.folder), "x.sock", lambda: observing(settings_here()), 60)
    with pytest.raises(StoreError, match="belongs to nobody, not to you"):
        made.listen()


def test_a_store_that_is_locked_does_not_keep_the_agent_waiting(session: Session) -> None:
    session.prompt("one")
    session.over()

    def has_both() -> bool:
        with open_workspace(str(session.home), recover=False) as ws:
            found = ws.ctx.store.plans.decisions(ws.find(session.name).plan_id)
        return [d.question for d in found[1:]] == ["one", "two"]

    with open_workspace(str(session.home), recover=False) as ws, ws.ctx.store.transaction():
        if ws.ctx.store.is_shared:  # there a transaction keeps nobody else from writing
            ws.ctx.store.connection.execute("LOCK TABLE leases IN EXCLUSIVE MODE")
            ws.ctx.store.connection.execute("SELECT 1").fetchone()
        body = {"session_id": "sess-1", "cwd": str(session.agents.work), "prompt": "two"}
        done = session.raw(
            json.dumps({**body, "hook_event_name": "UserPromptSubmit"}).encode(), "--budget=0.5"
        )
        # It came back while the store is still locked, and the event is not in it.
        assert done.returncode == 0
        assert not has_both()

    wait_until(has_both, "the second event")


def test_two_sessions_on_one_tree_have_a_sidecar_each(session: Session) -> None:
    other = Session(session.agents, "sess-2")
    session.prompt("one")
    other.prompt("uno")
    assert session.sidecar() != other.sidecar()
    session.write("b.txt", "b\n")
    other.write("c.txt", "c\n")
    for one in (session, other):
        one.stop()
        one.over()
    with open_workspace(str(session.home), recover=False) as ws:
        plans = [ws.find(one.name).plan_id for one in (session, other)]
        writes = [{w.path for w in ws.ctx.store.calls.writes(plan)} for plan in plans]
    assert writes == [{b"b.txt"}, {b"c.txt"}]


def test_without_a_sidecar_the_command_does_it_alone(session: Session) -> None:
    def alone(**payload: Any) -> subprocess.CompletedProcess[str]:
        body = {"session_id": "sess-1", "cwd": str(session.agents.work), **payload}
        return subprocess.run(
            [sys.executable, "-m", "cleveragents", "hook", "event", "claude-code"],
            input=json.dumps(body),
            capture_output=True,
            text=True,
            env=session.agents.env,
            check=False,
        )

    alone(hook_event_name="UserPromptSubmit", prompt="one", prompt_id="p1")
    alone(hook_event_name="PreToolUse", tool_name="Write", tool_input={}, tool_use_id="c1")
    session.path("b.txt").write_text("b\n")
    alone(hook_event_name="PostToolUse", tool_use_id="c1", tool_response={})
    done = alone(hook_event_name="Stop")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not session.folder.exists()
    session.agents.run("plan", "undo", "sess-1").expect(0)
    assert session.files() == {"a.txt": "a\n"}
    done = alone(hook_event_name="UserPromptSubmit", prompt=None, prompt_id=7)
    assert done.returncode == 0
    wide = alone(hook_event_name="SessionStart", session_id="another", cwd="/")
    assert wide.stdout.count("too wide") == 1


def test_a_folder_that_is_too_wide_is_refused_aloud_and_the_agent_works_on(
    session: Session,
) -> None:
    done = session.hook(hook_event_name="SessionStart", cwd="/")
    assert done.returncode == 0
    assert "/ is too wide" in json.loads(done.stdout)["systemMessage"]


def test_only_its_own_user_may_speak_to_a_sidecar(session: Session) -> None:
    """The mode of the socket keeps others out; a peer of another uid would get no answer."""
    session.start()
    line = socket.socket(socket.AF_UNIX)
    here = os.open(session.folder, os.O_RDONLY)
    line.connect(f"/proc/self/fd/{here}/{session.socket.name}")
    line.sendall(b"claude-code\t\n{}")
    line.shutdown(socket.SHUT_WR)
    assert line.recv(100) == b"ok\n"
    line.close()
    os.close(here)


def test_a_sidecar_ends_when_its_agent_is_gone(session: Session) -> None:
    """And what the agent left open is ended, with what it wrote."""
    argv = hook_command(settings_here(str(session.home)), "claude-code")
    body = {"session_id": "sess-1", "cwd": str(session.agents.work)}
    told = [
        {**body, "hook_event_name": "UserPromptSubmit", "prompt": "x"},
        {**body, "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "c1"},
    ]
    script = f"""
import json, subprocess
for one in {told!r}:
    subprocess.run([*{argv!r}, "--budget=60"], input=json.dumps(one).encode(), check=True)
"""
    subprocess.run([sys.executable, "-c", script], env=session.agents.env, check=True)
    wait_until(lambda: not session.socket.exists(), "the sidecar to end")
    wait_until(lambda: call_of(session) is CallState.INTERRUPTED, "the call to end")


@pytest.mark.parametrize(
    ("payload", "session"),
    [
        (b'{"session_id": "abc"}', b"abc"),
        (b'{"x": 1, "sessionID" : "d-e"}', b"d-e"),
        (b'{"session_id": null, "sessionId":"f"}', b"f"),
        (b"nothing", b""),
    ],
)
def test_the_session_is_found_without_reading_all(payload: bytes, session: bytes) -> None:
    assert client.session_of(payload) == session


LINES = "".join(f"{n}\n" for n in range(1, 30))


def test_what_the_person_edits_while_the_agent_works_is_kept_merged_or_refused(
    session: Session,
) -> None:
    """Another file, another line of the same file, and the same line; in between its calls."""
    work, run = session.agents.work, session.agents.run
    for name in ("both.txt", "same.txt", "mine.txt"):
        (work / name).write_text(LINES)
    session.prompt("change the second line")
    for name in ("both.txt", "same.txt"):
        session.write(name, LINES.replace("\n2\n", "\nagent\n"))
    (work / "mine.txt").write_text("mine\n")
    (work / "both.txt").write_text((work / "both.txt").read_text().replace("\n20\n", "\nperson\n"))
    session.write("c.txt", "c\n")
    session.stop()
    mine = (work / "mine.txt").stat()
    argv = ("plan", "rollback", session.name, "first", "--yes", "--files-only", "--json")

    agents = (work / "same.txt").read_text()
    (work / "same.txt").write_text(agents.replace("\nagent\n", "\nperson\n"))
    before = session.files()
    refused = run(*argv).expect(4).data
    assert refused["error"]["type"] == "RollbackConflict"
    [conflict] = refused["conflicts"]
    assert (conflict["path"], conflict["ours"], conflict["theirs"]) == ("same.txt", "2", "person")
    assert session.files() == before

    (work / "same.txt").write_text(agents)
    run(*argv).expect(0)
    assert session.files() == {
        "a.txt": "a\n",
        "both.txt": LINES.replace("\n20\n", "\nperson\n"),
        "mine.txt": "mine\n",
        "same.txt": LINES,
    }
    after = (work / "mine.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (mine.st_ino, mine.st_mtime_ns)


def test_a_lock_whose_name_was_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends removes the name between another's open and its lock."""
    path = tmp_path / "s.lock"
    lock, removed = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not removed:
            removed.append(True)
            path.unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    mine = locked(str(path))
    assert mine is not None
    assert os.path.samestat(os.fstat(mine), path.stat())
    assert locked(str(path)) is None
    os.close(mine)


def test_one_that_hears_nothing_of_use_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.integrations.sidecar.UNHEARD", 0.0)
    settings = settings_here(str(tmp_path / "store"))
    made = Sidecar(str(tmp_path / "s"), "x.sock", lambda: observing(settings), 60)
    assert made.listen()
    made.serve()
    assert list((tmp_path / "s").iterdir()) == []


class Told:
    """A sidecar in this process that is told one call's beginning, by a hook of some process."""

    def __init__(self, session: Session, pid: int) -> None:
        settings = settings_here(str(session.home))
        self.sidecar = Sidecar(str(session.folder), "x.sock", lambda: observing(settings), 60)
        body = {"session_id": session.name, "cwd": str(session.agents.work)}
        begins = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "c1"}
        given = ("claude-code", "", json.dumps(body | begins).encode(), pid)
        self.answer = b""
        self.thread = threading.Thread(target=self._tell, args=given)

    def _tell(self, *given: Any) -> None:
        self.answer = self.sidecar.told(*given)

    def serve(self) -> None:
        """Until it ends by itself."""
        assert self.sidecar.listen()
        self.thread.start()
        wait_until(lambda: self.sidecar.heard, "the event to come")
        self.sidecar.serve()
        self.thread.join()


def call_of(session: Session) -> CallState:
    with open_workspace(str(session.home), recover=False) as ws:
        (call,) = ws.find(session.name).tool_calls()
    return call.state


def test_one_that_is_told_by_an_agent_that_was_killed_ends_with_that_event(
    session: Session,
) -> None:
    """Its hook goes on without it and finds no sidecar; who the agent was, the store knows."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as agent:
        body = {"session_id": session.name, "cwd": str(session.agents.work), "prompt": "x"}
        with observing(settings_here(str(session.home))) as observer:
            handle_alone(observer, Hooked("claude-code", "UserPromptSubmit", body), agent.pid)
        agent.kill()
    Told(session, 0).serve()
    assert call_of(session) is CallState.INTERRUPTED
    assert list(session.folder.iterdir()) == []


def test_one_that_never_knew_the_agent_ends_soon_and_leaves_its_calls_open(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.integrations.sidecar.UNHEARD", 0.0)
    Told(session, 0).serve()
    assert call_of(session) is CallState.RUNNING
    session.agents.run("plan", "status", session.name).expect(0)


def test_a_call_of_hours_is_still_open_when_its_sidecar_has_ended(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleveragents.integrations.sidecar.IDLE", 0.0)
    Told(session, os.getpid()).serve()
    assert call_of(session) is CallState.RUNNING
    session.end("c1")
    assert call_of(session) is CallState.OK
