"""The `agents` command in a home of its own; pytest, Behave and Robot all use it.

Robot starts the installed command. The others let `command_server` do it, once per process of
tests, unless the environment has something that an interpreter reads when it starts.
"""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "CLEVERAGENTS_STORE_URL")
PATIENCE = 600.0
"""Seconds after which a command hangs, on a machine that has much else to do."""
READ_AT_THE_START = ("LANG", "LC_", "LD_", "PYTHON", "TZ", "FAKETIME")
IDENTITY = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.invalid",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.invalid",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


STOPPING = """
name: small
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: one, run: 'echo 1 > one'}
  - {id: two, run: 'test -e "$AGENTS_PLAN_DIR/ok" && echo 2 > two'}
"""
"""A plan whose second step fails until there is a file `ok` beside it."""


def private_environment(root: Path) -> dict[str, str]:
    """What a process needs and nothing of the developer's: own home, store and git identity."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith("COVERAGE_")}
    home = root / "home"
    return (
        kept
        | IDENTITY
        | {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local" / "share"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "CLEVERAGENTS_HOME": str(root / "store"),
            "NO_COLOR": "1",
        }
    )


@dataclass(frozen=True)
class Outcome:
    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The envelope that `--json` prints; as its schema says."""
        try:
            envelope = json.loads(self.stdout)
        except ValueError:
            raise AssertionError(f"not JSON: {self}") from None
        from tests.schemas import wrong_with

        assert not (wrong := wrong_with(envelope)), f"{wrong}: {self}"
        return envelope

    @property
    def data(self) -> dict[str, Any]:
        return self.json["data"]

    def expect(self, rc: int) -> "Outcome":
        assert self.rc == rc, f"exit code {self.rc}, expected {rc}: {self}"
        return self

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Agents:
    """Everything it writes is below `root`; commands start in `root/work` unless told otherwise."""

    def __init__(self, root: Path, *, installed: bool = False) -> None:
        self.installed = installed
        self.work = root / "work"
        self.env = private_environment(root)
        for folder in (self.work, Path(self.env["XDG_CONFIG_HOME"])):
            folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        *argv: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Outcome:
        whole = self.env | dict(env or {})
        start = start_installed if self.installed or started_anew(whole) else ask_server
        done = start([command(), *argv], cwd or self.work, whole, timeout)
        return Outcome(("agents", *argv), *done)


def started_anew(env: Mapping[str, str]) -> bool:
    """Whether a variable differs that counts only when an interpreter starts."""
    return any(
        name.startswith(READ_AT_THE_START) and os.environ.get(name) != value
        for name, value in env.items()
    )


def start_installed(
    argv: list[str], cwd: Path, env: Mapping[str, str], timeout: float
) -> tuple[int, str, str]:
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def ask_server(
    argv: list[str],
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    points: str = "",
    kill_at: int = 0,
) -> tuple[int, str, str]:
    """`points`: a file that gets the number of fault points it reached; it dies at `kill_at`."""
    ours, theirs = socket.socketpair()
    request = os.memfd_create("request")
    streams = [os.open(os.devnull, os.O_RDONLY), os.memfd_create("out"), os.memfd_create("err")]
    try:
        asked = {"argv": argv, "cwd": os.fspath(cwd), "env": dict(env)}
        asked |= {"points": points, "kill_at": kill_at}
        os.pwrite(request, json.dumps(asked).encode(), 0)
        with theirs:
            socket.send_fds(
                Server.of_this_process().requests, [b"."], [request, *streams, theirs.fileno()]
            )
        with ours, ours.makefile() as answer:
            pid = int(answer.readline())
            ours.settimeout(timeout)
            try:
                code = int(answer.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
        return code, *(written(fd) for fd in streams[1:])
    finally:
        for fd in (request, *streams):
            os.close(fd)


def written(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, closefd=False, encoding="utf-8") as text:
        return text.read()


class Server:
    """The process that runs commands; it ends when nobody holds our end any more."""

    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("command_server.py")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, os.fspath(script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    @staticmethod
    @functools.cache
    def of_this_process() -> "Server":
        return Server()


def command() -> str:
    """The command installed beside this Python, never another one on the PATH."""
    found = shutil.which("agents", path=sysconfig.get_path("scripts"))
    assert found, "agents is not installed here: pip install -e ."
    return found
