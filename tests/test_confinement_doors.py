"""What a confined tool can reach of the machine, tried from inside and compared with lists of ours:
under bwrap and under Landlock, as root and as somebody else."""

import atexit
import ctypes
import functools
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cleveragents.model.tool import ToolSpec
from cleveragents.tools.confinement import bwrap, denied, landlock, syscalls
from cleveragents.tools.confinement.capabilities import UNDER_BWRAP, UNDER_LANDLOCK
from cleveragents.tools.confinement.confine import MARKS, Cell
from cleveragents.tools.runner import run_tool
from tests.test_confinement import Yard, confined, needs_bwrap, needs_landlock, yard

ROOT = os.geteuid() == 0
NOBODY = "nobody"
PROBES = Path(__file__).with_name("probes.py")
LOADED = denied, yard  # now: somebody else may not be able to read our packages
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")
WHO = ["root", NOBODY] if ROOT else ["myself"]

DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
OWN_TERMINALS = {"/dev/pts/ptmx", "/dev/ptmx"}
# Of the namespaces that the tool has for itself; the last are where one asks to be told of load.
OF_NAMESPACES = {
    *(f"/proc/sys/fs/mqueue/{name}" for name in (
        "msg_default", "msg_max", "msgsize_default", "msgsize_max", "queues_max",
    )),
    *(f"/proc/sys/kernel/{name}" for name in (
        "auto_msgmni", "msgmax", "msgmnb", "msgmni", "ns_last_pid", "pid_max", "sem", "shm_next_id",
        "msg_next_id", "sem_next_id", "shm_rmid_forced", "shmall", "shmmax", "shmmni",
    )),
    *(f"/proc/pressure/{name}" for name in ("cpu", "io", "irq", "memory")),
}  # fmt: skip
# What Landlock does not stop; `agents doctor` and docs/reference/confinement.md say so.
NOT_BY_LANDLOCK = {
    "its limits", "its priority", "shared memory", "a socket of an agent",
    "a socket of a multiplexer", "a mode outside", "a time outside", "an attribute outside",
    "shared memory files",
}  # fmt: skip


def expected_doors(how: str, who: str) -> set[str]:
    through = set[str]()
    if how == "landlock":
        through |= NOT_BY_LANDLOCK
        # Root's other processes have rights that the tool lacks.
        through -= {"its priority"} if who == "root" else set()
        through |= set() if ROOT else {"somebody's mode outside"}  # there is nobody else
    else:
        # The first are its own; a read-only mount does not cover the second.
        through |= {"shared memory files", "a named pipe"}
        through |= {"another root"} if who == "root" else set()
    if who != "root":
        through |= {"another user namespace"}
    if landlock.abi() < landlock.SCOPED:
        through |= {"an abstract socket"}
        through |= {"signal another process"} if how == "landlock" else set()
    if not syscalls.available():
        through |= {"the keyring"}
    return through


@functools.cache
def folder_of_a_multiplexer() -> Path:
    """Stays until the tests end: who starts bwrap beside us covers it, and has to find it there."""
    made = Path(f"/tmp/tmux-{time.time_ns()}")
    made.mkdir()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@contextmanager
def neighbourhood(yard: Yard, owner: int) -> Generator[dict[str, Any]]:
    """What a tool might reach: a process, sockets, shared memory, files."""
    name = f"agents-{uuid.uuid4().hex}"
    multiplexer = folder_of_a_multiplexer() / name
    libc = ctypes.CDLL(None)
    with ExitStack() as stack:
        (yard.outside / "file").touch()
        (yard.outside / "theirs").touch()
        os.chown(yard.outside / "file", owner, -1)
        os.chown(yard.outside / "theirs", 54321 if ROOT else -1, -1)
        os.mkfifo(yard.outside / "pipe")
        os.chown(yard.outside / "pipe", owner, -1)
        stack.callback(os.close, os.open(yard.outside / "pipe", os.O_RDWR))
        stack.callback(lambda: multiplexer.unlink(missing_ok=True))
        stack.callback(lambda: Path("/dev/shm", name).unlink(missing_ok=True))
        agent = yard.outside / "agent.sock"
        for address in (f"\0{name}", str(agent), str(multiplexer)):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
            if not address.startswith("\0"):
                os.chmod(address, 0o777)
        os.environ["SSH_AUTH_SOCK"] = str(agent)
        stack.callback(os.environ.pop, "SSH_AUTH_SOCK")
        victim = subprocess.Popen(
            ["sleep", "600"], stdin=subprocess.DEVNULL,
            user=owner if ROOT else None, group=owner if ROOT else None,
        )  # fmt: skip
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        shm = libc.shmget(0, 4096, 0o1666)
        stack.callback(libc.shmctl, shm, 0, None)
        yield {
            "pid": victim.pid, "address": mapped(victim.pid), "outside": str(yard.outside),
            "shm": shm, "abstract": name, "agent": str(agent),
            "multiplexer": str(multiplexer), "name": name,
            "host": socket.gethostname(),
        }  # fmt: skip


def mapped(pid: int) -> int:
    """An address that the process has."""
    for _ in range(3000):
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except PermissionError:  # in a container; then its memory is closed to everybody
            return 4096
        if any("sleep" in line for line in lines):
            return int(lines[0].split("-")[0], 16)
        time.sleep(0.01)
    raise AssertionError("no memory was seen")


def python_for(uid: int) -> str:
    """A Python that the user can start."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        with suppress(OSError, subprocess.CalledProcessError):
            user = uid if ROOT else None
            subprocess.run([path, "-c", ""], user=user, check=True, capture_output=True, cwd="/")
            return path
    pytest.skip(f"no Python that user {uid} can start")


def as_user(uid: int, work: Callable[[], Any]) -> Any:
    """What a process of that user gets from it."""
    if uid == os.geteuid():
        return work()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            bwrap.probe.cache_clear()
            answer = {"result": work()}
        except BaseException as error:  # noqa: BLE001 - told to the parent
            answer = {"error": repr(error)}
        with open(writer, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        answer = json.load(file)
    os.waitpid(pid, 0)
    assert "error" not in answer, answer
    return answer["result"]


@pytest.fixture(params=WHO)
def place(request: pytest.FixtureRequest) -> Generator[tuple[Yard, int, str]]:
    """A yard of that user, where that user can get to."""
    who: str = request.param
    uid = pwd.getpwnam(NOBODY).pw_uid if who == NOBODY else os.geteuid()
    top = Path(tempfile.mkdtemp(prefix="agents-doors-", dir="/tmp"))
    try:
        yard = Yard(top)
        shutil.copy(PROBES, yard.outside / "probes.py")
        (yard.outside / "probes.py").chmod(0o644)
        for folder, _, names in os.walk(top):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                os.chown(path, uid, -1)
        yield yard, uid, who
    finally:
        shutil.rmtree(top)


def probed(place: tuple[Yard, int, str], how: str) -> dict[str, Any]:
    yard, uid, _ = place
    python = python_for(uid)
    with neighbourhood(yard, uid) as given:
        argv = (python, "-I", str(yard.outside / "probes.py"), json.dumps(given))
        tool = ToolSpec(name="probe", run=argv)

        def work() -> tuple[str | None, str]:
            if how == "bwrap" and not bwrap.probe().works:
                return "skip", bwrap.probe().reason
            result = run_tool(tool, {}, yard.call(how), 60)
            return result.error, result.output

        error, output = as_user(uid, work)
    if error == "skip":
        pytest.skip(f"user {uid} cannot use bwrap here: {output}")
    assert error is None, error
    return json.loads(output)


@confined
def test_only_doors_on_our_list_are_open(place: tuple[Yard, int, str], how: str) -> None:
    found = probed(place, how)
    assert set(found["through"]) - expected_doors(how, place[2]) == set()
    assert found["no_new_privileges"] == "1"
    assert list(found["descriptors"]) == ["0", "1", "2"], found["descriptors"]
    writable = set(found["writable"])
    allowed = DEVICES | OWN_TERMINALS
    if how == "landlock":
        # A terminal that somebody has open cannot be told from one that the tool opens.
        writable = {p for p in writable if not p.startswith("/dev/pts/")}
        allowed |= {"/dev/tty"}
    elif place[2] != "root":
        allowed |= OF_NAMESPACES
    assert writable - allowed == set()
    assert writable >= DEVICES
    kept = {"root": {"bwrap": UNDER_BWRAP, "landlock": UNDER_LANDLOCK}[how]}.get(place[2], ())
    effective, permitted, bounding, ambient = (int(text, 16) for text in found["capabilities"])
    mask = sum(1 << number for number in map(capability, kept))
    assert (effective & ~mask, permitted & ~mask, ambient & ~mask) == (0, 0, 0)
    if place[2] == "root" and how == "landlock":
        assert bounding & ~mask == 0


def capability(name: str) -> int:
    numbers = (
        "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP"
        " LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER"
        " SYS_MODULE SYS_RAWIO SYS_CHROOT"
    )
    return numbers.split().index(name)


# The environment of a tool is the tool's, not that of what confines it


TRACE = {"LD_DEBUG": "files", "LD_PRELOAD": "/nowhere/evil.so"}


@confined
def test_what_the_loader_does_for_a_tools_environment_is_confined(
    place: tuple[Yard, int, str], how: str
) -> None:
    yard, uid, _ = place
    traced = {**TRACE, "LD_DEBUG_OUTPUT": f"{yard.outside}/trace"}
    inside = {**TRACE, "LD_DEBUG_OUTPUT": f"{yard.sandbox}/trace"}

    def work() -> list[str]:
        for env in (traced, inside):
            run_tool(ToolSpec(name="t", run=("/bin/true",), env=env), {}, yard.call(how))
        return [path.read_text() for path in yard.sandbox.glob("trace.*")]

    before = sorted(os.listdir(yard.outside))
    traces = as_user(uid, work)
    assert sorted(os.listdir(yard.outside)) == before
    assert [text.count("initialize program: /bin/true") for text in traces] == [1]


@needs_bwrap
def test_bwrap_has_nothing_of_the_environment_and_nobody_can_read_it_from_its_words(
    yard: Yard, tmp_path: Path
) -> None:
    env = dict.fromkeys(MARKS, "id") | {"TOKEN": "s3cret", "LD_PRELOAD": "x"}
    call = yard.call("bwrap")
    with Cell(call.bounds, str(tmp_path), "/").launch(["env"], str(yard.sandbox), True, env) as it:
        assert not [word for word in it.argv if "s3cret" in word or "PRELOAD" in word]
        assert it.env == dict.fromkeys(MARKS, "id")


@confined
def test_the_tool_has_the_environment_it_is_to_have(yard: Yard, how: str) -> None:
    odd = {"ODD": " a\nb 'c' --bind / / \udcff", "EMPTY": "", "ODD NAME": "x", "--": "y"}
    env = {**odd, "LD_LIBRARY_PATH": "/nowhere"}
    result = yard.python(
        how,
        "import json, os; print(json.dumps(dict(os.environ)))",
        env=env,
    )
    found = json.loads(result.output)
    assert {name: found[name] for name in env} == env
    assert set(found) - set(env) - {"PWD", "LC_CTYPE"} >= {"PATH", "HOME", "TMPDIR", *MARKS}


@confined
@pytest.mark.parametrize("env", [{"A": "x\0--bind\0/\0/"}, {"A=B": "x"}, {"A\0B": "x"}])
def test_an_environment_that_no_process_can_have_starts_nothing(
    yard: Yard, how: str, env: dict[str, str]
) -> None:
    tool = ToolSpec(name="t", run=("/bin/sh", "-c", "touch ran"), env=env)
    result = yard.run(how, tool)
    assert not result.ok
    assert not (yard.sandbox / "ran").exists()


# Mounts


LATE = """
import sys, threading, time, subprocess
from pathlib import Path
from tests.test_confinement import Yard, confined, needs_bwrap, needs_landlock, yard
yard = Yard(Path(sys.argv[1]))
def mount():
    while not (yard.sandbox / "started").exists():
        time.sleep(0.01)
    subprocess.run(["mount", "-t", "tmpfs", "late", str(yard.outside)], check=True)
    (yard.sandbox / "mounted").touch()
thread = threading.Thread(target=mount)
thread.start()
result = yard.sh("bwrap", f"touch started; while ! [ -e mounted ]; do sleep 0.01; done;"
    f" touch {yard.outside}/reached")
thread.join()
print(result.error, list(yard.outside.iterdir()))
"""


@needs_bwrap
@needs_root
def test_a_file_system_that_is_mounted_meanwhile_does_not_appear_inside(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "shared", sys.executable, "-c", LATE, str(tmp_path)],
        cwd=PROBES.parent.parent, env={**os.environ, "PYTHONPATH": "."},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Read-only file system" in done.stdout
    assert done.stdout.endswith(" []\n")


# Root under Landlock


@needs_root
@needs_landlock
def test_root_under_landlock_still_works_on_files_of_others_in_the_sandbox(yard: Yard) -> None:
    (yard.sandbox / "code").chmod(0o400)
    os.chown(yard.sandbox / "code", 12345, 12345)
    assert yard.sh("landlock", "echo new >code").ok
    assert (yard.sandbox / "code").read_text() == "new\n"


# What is covered, and what is not


@needs_bwrap
def test_a_socket_that_sandbox_writable_names_stays_open(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = yard.outside / "agent.sock"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect({str(agent)!r})"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(agent))
        server.listen()
        assert not yard.python("bwrap", connect).ok
        yard.writable = (str(agent),)
        assert yard.python("bwrap", connect).ok


@needs_bwrap
@pytest.mark.parametrize("kind", ["folder", "socket"])
def test_what_is_to_be_hidden_may_vanish_while_bwrap_starts(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As if somebody ended a terminal multiplexer just then: it goes when bwrap is started."""
    name = f"tmux-{time.time_ns()}" if kind == "folder" else f"vscode-{uuid.uuid4().hex}.sock"
    hidden = Path("/tmp", name)
    real = bwrap.probe().path
    starter = yard.top / "bwrap"
    starter.write_text(f'#!/bin/sh\nrm -rf {hidden}\nexec {real} "$@"\n')
    starter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{yard.top}:{os.environ['PATH']}")
    bwrap.probe.cache_clear()
    try:
        assert bwrap.probe() == bwrap.Found(path=str(starter), works=True)
        if kind == "folder":
            hidden.mkdir()
        else:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(hidden))
        result = yard.sh("bwrap", "echo ran; cat")
        assert (result.ok, result.error, result.output) == (True, None, "ran\n")
    finally:
        bwrap.probe.cache_clear()
        if hidden.is_dir():
            hidden.rmdir()
        hidden.unlink(missing_ok=True)
