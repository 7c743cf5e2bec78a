"""The hook client, which an agent runs at every event: asks the sidecar and prints its answer.

Imports nothing of ours and next to nothing else: it is started twice per tool call, as
`python -I -S client_start.py FOLDER AGENT [EVENT] [--budget=SECONDS] [--fail-closed] [--no-start]`.
Where compiled, `client_quick` asks first, and runs this for every answer but "ok", with
`--own=NAME` of the event, and `--late` if the sidecar has not answered in time.
Whatever goes wrong, the tool runs: the exit code is 0, unless the person chose to fail closed. In
a sandbox it cannot start a sidecar, and uses the one with the run's fixed name.

When it ends, the event is in the store or in a file (`keep`), even if anything is killed after
that. If it is killed before, with its agent, the agent did not get past its event.
"""

import _socket  # what `socket` is made of: that one imports for longer than all of this takes
import os
import sys
import time

LARGEST = 64 << 20
PAUSE = 0.02
GRACE = 1.0
"""Seconds beyond the budget after which a sidecar that does not answer is given up."""
NAMES = (b'"session_id"', b'"sessionID"', b'"sessionId"', b'"conversation_id"')
ONLY = "agent.sock"
"""The socket of a sidecar that was started with its agent."""
BEGINS = ("PreToolUse", "BeforeTool", "preToolUse", "tool.execute.before")
"""What agents call the beginning of a tool: all that can be refused. A turn that is not let end
would begin again, and again."""
INSIDE = "AGENTS_PLAN_ID"
"""Set for the tools of a plan: that one follows what happens, and its store cannot be seen here.

Also for an agent's program that copies a session during a rollback."""
START = ("-m", "cleveragents", "hook", "sidecar")
LATE = b"late"
CLOSED = "--fail-closed"
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ash"})
ADOPTS = frozenset({"systemd", "init"})
"""Who becomes the parent of a hook whose agent was killed."""


def command() -> tuple[str, ...]:
    """The program that agents run, without its arguments."""
    here = os.path.dirname(os.path.abspath(__file__))
    python = (sys.executable, "-I", "-S", f"{here}/client_start.py")
    quick = f"{here}/client_quick"
    return (quick, *python) if os.access(quick, os.X_OK) else python


def main(words: list[str]) -> int:
    flags = [word for word in words if word.startswith("--")]
    given = [word for word in words if not word.startswith("--")]
    event, payload = given[2] if len(given) > 2 else "", b""
    try:
        payload = sys.stdin.buffer.read(LARGEST + 1)
        said = ask_or_start(given[0], given[1], event, payload, flags)
    except Exception as error:  # noqa: BLE001 - a hook that fails must not stop the agent
        said = f"failed {type(error).__name__}: {error}".encode()
    word, _, text = said.partition(b"\n")
    sys.stdout.buffer.write(text)
    sys.stdout.flush()
    if CLOSED in flags and word != b"ok" and begins(event, payload):
        sys.stderr.write(f"no checkpoint could be made: {word.decode('utf-8', 'replace')}\n")
        return 2
    return 0


def value_of(flags: list[str], name: str, otherwise: str) -> str:
    return next((flag[len(name) :] for flag in flags if flag.startswith(name)), otherwise)


def begins(event: str, payload: bytes) -> bool:
    """Whether a tool is about to run, found without reading the rest."""
    return event in BEGINS or any(f'"{name}"'.encode() in payload for name in BEGINS)


def ask_or_start(folder: str, agent: str, event: str, payload: bytes, flags: list[str]) -> bytes:
    """The sidecar's answer; starts a sidecar if there is none."""
    start = "--no-start" not in flags
    if start and INSIDE in os.environ:
        return b"ok"
    if len(payload) > LARGEST:
        return b"failed the input is too large"
    name = socket_name(session_of(payload)) if start else ONLY
    # By the monotonic clock: events in files are recorded in this order.
    own = value_of(flags, "--own=", f"{time.monotonic_ns():020}-{os.getpid()}")
    message = f"{agent}\t{event}\t{own}\n".encode() + payload
    budget = float(value_of(flags, "--budget=", "2"))
    said = LATE if "--late" in flags else answer(folder, name, message, budget, start)
    if not said:
        return b"failed nobody listens"
    refused = CLOSED in flags and begins(event, payload)
    if said.startswith(LATE) and not refused:
        # In a sandbox the pid is a different one, and the sidecar does not need it.
        pid = agent_process(os.getpid()) if start else 0
        head = f"{agent}\t{event}\t{pid}\t{start_time(pid)}\n".encode()
        keep(f"{folder}/{name.removesuffix('.sock')}.{own}.event", head + payload)
    return said


def answer(folder: str, name: str, message: bytes, budget: float, start: bool) -> bytes:
    """The answer, or word that it takes too long; "" if no sidecar runs or may be started."""
    until, started = time.monotonic() + budget, False
    while True:
        line = open_socket(folder, name)
        # A sidecar that is ending gives no answer; the next one does.
        if line is not None and (said := ask(line, message, budget)):
            return said
        if not start:
            return b""
        late = time.monotonic() > until
        # Try once more: the first may have met the lock of an ending sidecar.
        if late or not started or line is not None:
            start_detached((*START, name), folder)
            started = True
        if late:
            return LATE
        time.sleep(PAUSE)


def ask(line: "_socket.socket", message: bytes, budget: float) -> bytes:
    parts: list[bytes] = []
    try:
        line.settimeout(budget + GRACE)
        line.sendall(message)
        line.shutdown(_socket.SHUT_WR)
        while part := line.recv(1 << 16):
            parts.append(part)
    except TimeoutError:
        return LATE
    except OSError:
        return b""
    finally:
        line.close()
    return b"".join(parts)


def keep(path: str, message: bytes) -> None:
    """Write an unrecorded event to a file, for the session's sidecar or the next command.

    A sidecar that has the event in memory may be killed as soon as the agent continues. Not
    synced: the file survives every process, but not a power cut.
    """
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    part = path.removesuffix("event") + "part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(message)
    os.rename(part, path)


def agent_process(pid: int) -> int:
    """The process that started a hook, directly or through a shell; 0 if it is gone."""
    while (pid := parent(pid)) > 1:
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                name = file.read().strip()
        except OSError:
            continue
        if name not in SHELLS:
            return 0 if name in ADOPTS else pid
    return 0


def parent(pid: int) -> int:
    return int(stat_of(pid)[1])


def start_time(pid: int) -> str:
    """When a process started, in the kernel's own ticks."""
    return stat_of(pid)[19].decode()


def stat_of(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name; zeros if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return [b"0"] * 20


def session_of(payload: bytes) -> bytes:
    """The session's id, found without reading the rest."""
    for name in NAMES:
        _, _, rest = payload.partition(name)
        value = rest.lstrip(b" \t\r\n:")[:200] if rest[:400].strip()[:1] == b":" else b""
        if value[:1] == b'"':
            return value[1:].partition(b'"')[0]
    return b""


def socket_name(session: bytes) -> str:
    """A short name for any id. Ids with the same name share a sidecar, which tells them apart."""
    value = 0xCBF29CE484222325
    for byte in session:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF  # FNV-1a: no import
    return f"{value:016x}.sock"


def open_socket(folder: str, name: str) -> "_socket.socket | None":
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # The folder's path may be too long for a socket address.
            line.connect(f"/proc/self/fd/{at}/{name}")
        finally:
            os.close(at)
        peer = line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) == os.getuid():
            return line
    except OSError:
        pass
    line.close()
    return None


def start_detached(words: tuple[str, ...], folder: str) -> None:
    """Start ourselves in full, in a session of its own, on the same store."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.closerange(3, 256)
        environ = {**os.environ, "CLEVERAGENTS_HOME": os.path.dirname(os.path.abspath(folder))}
        os.execve(sys.executable, (sys.executable, *words), environ)
    finally:
        os._exit(1)


def run() -> None:
    """Run, and exit without interpreter shutdown, which is a tenth of a hook's time."""
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":  # hooks of an older installation
    run()
