"""The compiled client of hooks: what a sidecar answers with "ok" it prints, all else is Python's.

In place of Python stands a script that prints what it was run with.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleveragents.integrations import client

QUICK = client.command()[0]
pytestmark = pytest.mark.skipif(
    not QUICK.endswith("client_quick"), reason="the compiled client was not built"
)
PAYLOAD = b'{"session_id": "s-1", "hook_event_name": "PreToolUse"}'


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Says with which words and input it was run."""
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "PYTHON $@"\ncat\n')
    script.chmod(0o755)
    return str(script)


@contextmanager
def answering(folder: Path, name: str, answer: bytes | None) -> Iterator[list[bytes]]:
    """A sidecar that gives one answer; None: it hangs up without one."""
    heard: list[bytes] = []
    line = socket.socket(socket.AF_UNIX)
    line.bind(str(folder / name))
    line.listen(1)

    def serve() -> None:
        while True:
            try:
                found, _ = line.accept()
            except OSError:
                return
            with found:
                with found.makefile("rb") as file:
                    heard.append(file.read())
                if answer is not None:
                    found.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        line.shutdown(socket.SHUT_RDWR)
        thread.join()
        line.close()
        (folder / name).unlink()


def run(
    python: str, folder: Path, *words: str, data: bytes = PAYLOAD, **more: str
) -> subprocess.CompletedProcess[bytes]:
    argv = [QUICK, python, "-I", "-S", "client_start.py", str(folder), "claude-code", *words]
    env = {k: v for k, v in os.environ.items() if k != client.INSIDE} | more
    return subprocess.run(argv, input=data, capture_output=True, env=env, check=False, timeout=600)


def test_what_a_sidecar_answers_is_printed(tmp_path: Path, python: str) -> None:
    with answering(tmp_path, client.socket_name(b"s-1"), b'ok\n{"said": "\xc3\xa9"}') as heard:
        done = run(python, tmp_path, "PreToolUse")
    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"said": "\xc3\xa9"}', b"")
    head, _, payload = heard[0].partition(b"\n")
    agent, event, own = head.decode().split("\t")
    assert (agent, event, payload) == ("claude-code", "PreToolUse", PAYLOAD)
    clock, _, pid = own.partition("-")
    assert (len(clock), clock.isdigit(), pid.isdigit()) == (20, True, True)


def test_where_it_is_confined_the_socket_has_one_name(tmp_path: Path, python: str) -> None:
    with answering(tmp_path, client.ONLY, b"ok\n"):
        assert run(python, tmp_path, "--no-start", **{client.INSIDE: "x"}).stdout == b""


@pytest.mark.parametrize(
    ("answer", "late"),
    [(b"late\n", True), (b"failed the disk is full\n", False), (b"", False), (None, False)],
)
def test_every_other_answer_is_left_to_python(
    tmp_path: Path, python: str, answer: bytes | None, late: bool
) -> None:
    with answering(tmp_path, client.socket_name(b"s-1"), answer) as heard:
        done = run(python, tmp_path, "Stop", "--budget=9")
    own = heard[0].partition(b"\n")[0].split(b"\t")[2]
    words = b"PYTHON -I -S client_start.py %s claude-code Stop --budget=9 --own=%s%s\n"
    said = words % (os.fsencode(tmp_path), own, b" --late" if late else b"")
    assert (done.returncode, done.stdout) == (0, said + PAYLOAD)


@pytest.mark.parametrize("more", [{}, {client.INSIDE: "plan"}], ids=["no sidecar", "inside a plan"])
def test_without_a_sidecar_python_is_run(tmp_path: Path, python: str, more: dict[str, str]) -> None:
    done = run(python, tmp_path, **more)
    assert b"--own=" in done.stdout.splitlines()[0]
    assert done.stdout.endswith(b"\n" + PAYLOAD)


def test_what_is_too_large_is_refused_by_python(tmp_path: Path, python: str) -> None:
    large = PAYLOAD + b"x" * client.LARGEST
    done = run(python, tmp_path, data=large)
    assert done.stdout.partition(b"\n")[2] == large[: client.LARGEST + 1]


def test_a_python_that_is_gone_stops_no_agent(tmp_path: Path) -> None:
    assert run(str(tmp_path / "nothing"), tmp_path).returncode == 0


def test_the_same_event_told_twice_is_the_same_to_the_sidecar(tmp_path: Path) -> None:
    """The real Python after a sidecar that hung up: it asks again under the same name."""
    script = client.command()[-1]
    with answering(tmp_path, client.socket_name(b"s-1"), b"failed once more\n") as heard:
        argv = [QUICK, sys.executable, "-I", "-S", script, str(tmp_path), "codex", "--fail-closed"]
        done = subprocess.run(argv, input=PAYLOAD, capture_output=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (2, b"no checkpoint could be made: failed once more\n")
    assert len(heard) == 2
    assert heard[0] == heard[1]


KEYS = st.sampled_from([b'"session_id"', b'"sessionID"', b'"sessionId"', b'"x"', b'"', b"\\"])
PIECES = KEYS | st.sampled_from([b":", b" ", b"\v", b"\n", b'"abc"', b"null", b"{", b"," * 300])


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_both_find_the_same_session(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes
) -> None:
    folder = tmp_path_factory.mktemp("sockets")
    with answering(folder, client.socket_name(client.session_of(payload)), b"ok\n") as heard:
        assert run("/bin/false", folder, data=payload).returncode == 0
    assert heard[0].endswith(payload)


def test_both_give_a_sidecar_that_hangs_up_after_the_same_time() -> None:
    """The event is in a file then; much longer, and each call of the agent would be felt."""
    source = Path(__file__).parents[1] / "src/cleveragents/integrations/client_quick.c"
    text = source.read_text()
    assert f"#define GRACE {client.GRACE}\n" in text
    assert client.GRACE <= 1.0
