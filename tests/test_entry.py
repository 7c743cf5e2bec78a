"""How every command begins and ends: what it imports, its streams, its exit code."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.scratch import wait_until

PLAN = """
name: begun
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, run: "echo one > made"}]
"""

UNWRITTEN = (
    "error: the answer cannot be written: No space left on device\n"
    "hint: write it somewhere else; what the command changed stays changed: agents plan log\n"
)


@pytest.fixture
def planned(tmp_path: Path) -> Agents:
    agents = Agents(tmp_path)
    (agents.work / "work").mkdir()
    (agents.work / "work" / "file").write_text("as it was\n")
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    return agents


def sandbox(agents: Agents) -> Path:
    (found,) = Path(agents.env["CLEVERAGENTS_HOME"], "sandboxes").glob("*/work")
    return found


UNUSED = {"rich", "yaml", "json", "hashlib", "importlib.metadata"} | {
    f"cleveragents.{name}"
    for name in ("execution.executor", "content.copy.copying", "cli.plan.run", "cli.plan.read")
}


def test_a_checkpoint_imports_nothing_that_only_other_commands_need(planned: Agents) -> None:
    # Measuring coverage would import modules of its own.
    bare = {name: text for name, text in planned.env.items() if not name.startswith("COVERAGE")}
    words = ["plan", "checkpoint", "create", "last", "--json"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cleveragents", *words],
        cwd=planned.work, env=bare, check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "cleveragents.cli.data" in names
    assert not names & UNUSED


SPARED = """
import sys
from cleveragents.cli import entry
entry.import_msgspec()
assert "msgspec" in sys.modules
assert "typing_extensions" not in sys.modules
import typing_extensions, msgspec
Told = msgspec.defstruct("Told", [("name", typing_extensions.Annotated[str, "x"])])
assert msgspec.json.decode(b'{"name": "a"}', type=Told).name == "a"
entry.import_msgspec()
assert sys.modules["typing_extensions"] is typing_extensions
"""


def test_what_msgspec_was_spared_is_there_for_others() -> None:
    # Measuring coverage would import them.
    bare = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}
    subprocess.run([sys.executable, "-c", SPARED], env=bare, check=True)


ENDING = """
import atexit, sys, threading, time
from cleveragents.cli.entry import program
atexit.register(sys.stderr.write, "at the end\\n")
if sys.argv.pop() == "thread":
    threading.Thread(target=lambda: (time.sleep(0.5), sys.stderr.write("thread\\n"))).start()
program()
"""


@pytest.mark.parametrize("words", [("plan", "checkpoint", "create", "last"), ("plan", "list")])
def test_the_end_is_short_and_still_an_end(planned: Agents, words: tuple[str, ...]) -> None:
    """What others asked to be done at the end is done, and a thread is waited for."""
    for thread, said in (("", "at the end\n"), ("thread", "thread\nat the end\n")):
        done = subprocess.run(
            [sys.executable, "-c", ENDING, *words, thread],
            cwd=planned.work, env=planned.env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stderr == said
        assert "begun" in done.stdout or "checkpoint" in done.stdout


def test_a_checkpoint_of_edits_can_be_undone_and_one_of_nothing_is_no_edit(planned: Agents) -> None:
    (sandbox(planned) / "file").write_text("edited\n")
    made = planned.run("plan", "checkpoint", "create", "last", "--json").data
    assert made["checkpoints"][0]["metadata"]["reason"] == "manual edit"
    again = planned.run("plan", "checkpoint", "create", "last", "--json").data
    assert again["checkpoints"][0]["metadata"]["reason"] == "asked for"
    assert again["checkpoints"][0]["state_hash"] == made["checkpoints"][0]["state_hash"]
    entries = planned.run("plan", "log", "last", "--json").data["entries"]
    assert [entry["operation"] for entry in entries][-2:] == ["external_edit", "checkpoint"]
    assert {entry["state"] for entry in entries} == {"done"}
    planned.run("plan", "undo", "last").expect(0)
    assert (sandbox(planned) / "file").read_text() == "as it was\n"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_an_error_and_the_work_is_done(
    planned: Agents, options: tuple[str, ...]
) -> None:
    before = len(planned.run("plan", "checkpoints", "last", "--json").data["checkpoints"])
    command = [sys.executable, "-m", "cleveragents", "plan", "checkpoint", "create", "last"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, *options], cwd=planned.work, env=planned.env, stdout=full, check=False,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 6
    assert done.stderr == UNWRITTEN
    after = planned.run("plan", "checkpoints", "last", "--json").data["checkpoints"]
    assert len(after) == before + 1


@pytest.mark.parametrize(
    "words",
    ["plan list", "plan diff last", "plan export last --patch", "check", "--help", "--version"],
)
def test_an_answer_that_cannot_be_written_is_the_same_error_of_every_command(
    planned: Agents, words: str
) -> None:
    (sandbox(planned) / "file").write_text("edited\n")
    planned.run("plan", "checkpoint", "create", "last").expect(0)
    command = [sys.executable, "-m", "cleveragents", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=planned.work, env=planned.env, stdout=full, check=False,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.stderr == UNWRITTEN
    assert done.returncode == 6


def test_a_command_whose_output_cannot_be_passed_on_says_so(planned: Agents) -> None:
    command = [sys.executable, "-m", "cleveragents", "run", "--", "echo", "hello"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=planned.work, env=planned.env, stdout=full, check=False,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert "the answer cannot be written: No space left on device" in done.stderr
    assert done.returncode == 125


@pytest.mark.parametrize(
    ("words", "code"), [("plan list", 0), ("plan run plan.yaml", 0), ("plan status nothing", 3)]
)
def test_remarks_that_cannot_be_written_stop_nothing(
    planned: Agents, words: str, code: int
) -> None:
    command = [sys.executable, "-m", "cleveragents", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=planned.work, env=planned.env, stderr=full, check=False,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)
    states = [row["state"] for row in planned.run("plan", "list", "--json").data["plans"]]
    assert set(states) == {"complete"}


def test_an_answer_waits_where_its_pipe_is_full_and_not_blocking(planned: Agents) -> None:
    (sandbox(planned) / "file").write_text("edited\n" * 20_000)
    planned.run("plan", "checkpoint", "create", "last").expect(0)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    command = [sys.executable, "-m", "cleveragents", "plan", "diff", "last", "--json"]
    with subprocess.Popen(command, cwd=planned.work, env=planned.env, stdout=writer) as process:
        os.close(writer)
        wait_until(lambda: waiting(reader) == size or process.poll() is not None, "a full pipe")
        with os.fdopen(reader) as answer:
            assert json.load(answer)["status"] == "ok"
    assert process.returncode == 0


def waiting(reader: int) -> int:
    """Bytes that nobody has read."""
    (count,) = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))
    return count


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_are_not_needed(planned: Agents, closed: str) -> None:
    """Nothing of the store gets the number of a stream."""
    for words in ("plan checkpoint create last", "plan list", "plan run plan.yaml"):
        command = f"exec {sys.executable} -m cleveragents {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], cwd=planned.work, env=planned.env, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert planned.run("check", "--read-data", "--json").expect(0).data["problems"] == []


@pytest.mark.parametrize("buffered", [{"PYTHONUNBUFFERED": "1"}, {}])
def test_whoever_reads_us_may_go_away(planned: Agents, buffered: dict[str, str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cleveragents", "plan", "checkpoint", "create", "last"],
        cwd=planned.work, env={**planned.env, **buffered}, stdout=write, check=False,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_tool_that_fails_has_failed_where_children_are_not_waited_for(planned: Agents) -> None:
    """With SIGCHLD ignored, as some programs start others, nobody would learn its exit code."""
    (planned.work / "plan.yaml").write_text(PLAN.replace("echo one > made", "exit 7"))
    command = f"trap '' CHLD; exec {sys.executable} -m cleveragents plan run plan.yaml"
    done = subprocess.run(
        ["bash", "-c", command], cwd=planned.work, env=planned.env, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5, done.stdout
    assert "exit code 7" in done.stderr


INTERRUPTED = """
import os, signal, sys
number, module = getattr(signal, sys.argv.pop()), sys.argv.pop()

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == module:
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Finder)
from cleveragents.cli.entry import program
program()
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["msgspec", "click", "cleveragents.cli.plan.read"])
def test_a_command_that_is_interrupted_while_it_starts_says_so_in_one_line(
    planned: Agents, module: str, number: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "plan", "list", "--json", module, number],
        cwd=planned.work, env=planned.env, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == "error: interrupted; nothing is lost\n"
    assert (done.returncode, done.stdout) == (130, "")


def test_an_answer_that_nobody_takes_can_be_interrupted(planned: Agents) -> None:
    (sandbox(planned) / "file").write_text("edited\n" * 20_000)
    planned.run("plan", "checkpoint", "create", "last").expect(0)
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(
        [sys.executable, "-m", "cleveragents", "plan", "diff", "last", "--json"],
        cwd=planned.work, env=planned.env, stdout=writer, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        os.close(writer)
        wait_until(lambda: waiting(reader) == size or process.poll() is not None, "a full pipe")
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == "error: interrupted; nothing is lost\n"
        assert process.returncode == 130
    os.close(reader)
