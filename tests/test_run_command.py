"""`agents run -- CMD` behaves as the command itself would, in a sandbox of where one stands."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.databases import store_of
from tests.harness import PATIENCE, Agents, command
from tests.scratch import make_repository

CONFINE = "sandbox.confine"


@pytest.fixture
def repo(agents: Agents) -> Path:
    repo = agents.work / "repo"
    (repo / "sub" / "deep").mkdir(parents=True)
    (repo / "top.txt").write_text("top\n")
    (repo / "sub" / "own.txt").write_text("own\n")
    (repo / "sub" / "deep" / "x").write_text("")
    make_repository(agents, repo)
    return repo


def run(
    agents: Agents, where: Path, *argv: str, given: str | bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [command(), "run", *argv],
        cwd=where,
        env=agents.env,
        input=given.encode() if isinstance(given, str) else given,
        capture_output=True,
        timeout=600,
        check=False,
    )


def changed(agents: Agents) -> set[str]:
    return {f["path"] for f in agents.run("plan", "diff", "last", "--json").expect(0).data["files"]}


def test_in_a_subfolder_it_runs_in_that_subfolder_of_the_sandbox(
    agents: Agents, repo: Path
) -> None:
    done = run(agents, repo / "sub", "-q", "--", "sh", "-c", "ls; rm own.txt; echo 1 > new; pwd")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[:2] == ["deep", "own.txt"]
    assert changed(agents) == {"sub/own.txt", "sub/new"}
    assert (repo / "sub" / "own.txt").exists()


def test_on_a_folder_around_it_still_runs_in_the_current_directory(agents: Agents) -> None:
    tree = agents.work / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    assert run(agents, tree / "a" / "b", "--on", "../..", "--", "touch", "here").returncode == 0
    assert changed(agents) == {"a/b/here"}
    assert run(agents, tree, "--on", "a", "--", "touch", "there").returncode == 0
    assert changed(agents) == {"there"}


def test_a_plan_cannot_have_a_name_without_end(agents: Agents, repo: Path) -> None:
    done = run(agents, repo, "--name", "x" * 201, "--", "true")
    assert b"the plan's name has 201 characters, at most 200 are allowed" in done.stderr
    assert b"--name" in done.stderr
    assert agents.run("plan", "list", "--json").expect(0).data["plans"] == []
    assert run(agents, repo, "--name", "x" * 200, "--", "touch", "new").returncode == 0
    agents.run("plan", "apply", "last", "--yes").expect(0)
    agents.run("plan", "revert-applied", "last").expect(0)
    [reverting, _] = agents.run("plan", "list", "--json").expect(0).data["plans"]
    assert reverting["name"] == "revert-" + "x" * 193


def test_a_resumed_command_runs_in_the_same_subfolder(agents: Agents, repo: Path) -> None:
    script = "test -e ../go && touch here"
    assert run(agents, repo / "sub", "--name", "again", "--", "sh", "-c", script).returncode == 1
    sandbox = agents.run("plan", "status", "again", "--json").data["sandboxes"]["work"]
    Path(sandbox, "go").write_text("")
    agents.run("plan", "resume", "again").expect(0)
    assert changed(agents) == {"go", "sub/here"}


def test_standard_input_reaches_the_command(agents: Agents, repo: Path) -> None:
    large = bytes(range(256)) * 4096
    done = run(agents, repo, "-q", "--", "sh", "-c", "cat > copy; cat copy", given=large)
    assert done.stdout == large
    assert run(agents, repo, "-q", "--", "cat").stdout == b""


def test_output_and_errors_stay_apart_and_are_both_kept(agents: Agents, repo: Path) -> None:
    done = run(agents, repo, "-q", "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    kept = agents.run("plan", "status", "last", "--json").data["plan_id"]
    asked = "SELECT output FROM tool_calls WHERE plan_id = ?"
    [(output,)] = store_of(agents.env).query(asked, (kept,))
    assert set(output.split()) == {"out", "err"}


def test_what_we_have_to_say_is_not_in_the_output(agents: Agents, repo: Path) -> None:
    done = run(agents, repo, "--", "echo", "hi")
    assert done.stdout == b"hi\n"
    assert b"agents plan apply echo" in done.stderr
    assert b"> run" not in done.stderr


def test_output_comes_while_the_command_runs(agents: Agents, repo: Path) -> None:
    script = "echo first; read answer; echo $answer"
    process = subprocess.Popen(
        [command(), "run", "-q", "--", "sh", "-c", script],
        cwd=repo,
        env=agents.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"first\n"
        process.stdin.write(b"second\n")
        process.stdin.close()
        assert process.stdout.read() == b"second\n"
    assert process.returncode == 0


def test_order_is_kept_where_both_outputs_go_to_one_place(agents: Agents, repo: Path) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9; do echo $n; echo $n >&2; done"
    done = subprocess.run(
        [command(), "run", "-q", "--", "sh", "-c", script],
        cwd=repo,
        env=agents.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    assert done.stdout.split() == [b"%d" % n for n in range(1, 10) for _ in range(2)]


@pytest.mark.parametrize("confine", ["auto", "off"])
def test_exit_codes_are_those_of_the_command(agents: Agents, repo: Path, confine: str) -> None:
    (repo / "plain").write_text("x")
    flags = ("-q", "--set", f"{CONFINE}={confine}", "--")
    assert run(agents, repo, *flags, "sh", "-c", "exit 3").returncode == 3
    assert run(agents, repo, *flags, "sh", "-c", "exit 125").returncode == 125
    assert run(agents, repo, *flags, "sh", "-c", "kill -TERM $$").returncode == 143
    missing = run(agents, repo, *flags, "no-such-command")
    assert (missing.returncode, b"no such command" in missing.stderr) == (127, True)
    assert b"bwrap" not in missing.stderr
    refused = run(agents, repo, *flags, "./plain")
    assert (refused.returncode, b"not executable" in refused.stderr) == (126, True)


def test_our_own_failures_are_125(agents: Agents, repo: Path) -> None:
    assert run(agents, repo, "--on", "nowhere", "--", "true").returncode == 125
    assert run(agents, repo).returncode == 125
    assert run(agents, repo, "--format", "nonsense", "--", "true").returncode == 125
    limit = ("--set", "sandbox.carry-limit-files=0")
    (repo / "more").write_text("")
    assert run(agents, repo, *limit, "--", "true").returncode == 125
    Path(agents.env["CLEVERAGENTS_HOME"], "store.db").write_bytes(b"damaged" * 1000)
    assert run(agents, repo, "--", "true").returncode == 125


def test_options_behind_the_command_are_its_own(agents: Agents, repo: Path) -> None:
    done = run(agents, repo, "-q", "echo", "--json", "-q", "--on", "x")
    assert done.stdout == b"--json -q --on x\n"


def test_a_reader_that_goes_away_ends_the_command(agents: Agents, repo: Path) -> None:
    process = subprocess.Popen(
        [command(), "run", "-q", "--", "yes"],
        cwd=repo,
        env=agents.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(600) == 141


def test_json_has_the_output_inside_and_the_exit_code_of_the_command(
    agents: Agents, repo: Path
) -> None:
    done = agents.run("run", "--json", "--", "sh", "-c", "echo hi; exit 3", cwd=repo).expect(3)
    assert done.json["exit_code"] == done.data["exit_code"] == 3
    assert done.data["output"] == "hi\n"
    given = run(agents, repo, "--json", "--", "cat", given="text")
    assert b'"output": "text"' in given.stdout


class Terminal:
    """`agents run` with a terminal at all three of its streams."""

    def __init__(self, agents: Agents, where: Path, *argv: str) -> None:
        self.seen = b""
        words = [command(), "run", "-q", *argv]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(where)
            os.execve(words[0], words, agents.env | {"TERM": "xterm"})

    def until(self, text: bytes) -> None:
        """Read until it appears; whatever else is there, too."""
        stop = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < stop, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                self.seen += os.read(self.fd, 65536)

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def end(self) -> int:
        try:
            while data := os.read(self.fd, 65536):
                self.seen += data
        except OSError:
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("confine", ["auto", "landlock", "off"])
def test_at_a_terminal_the_command_has_one(agents: Agents, repo: Path, confine: str) -> None:
    script = (
        "import os, sys; print(*[os.isatty(n) for n in (0, 1, 2)]);"
        "open('/dev/tty', 'w').write('mine\\n'); print(os.get_terminal_size());"
        "print('got', input('? ')); sys.exit(7)"
    )
    flags = ("--set", f"{CONFINE}={confine}", "--", sys.executable, "-c", script)
    terminal = Terminal(agents, repo, *flags)
    terminal.until(b"? ")
    terminal.type(b"typed\r")
    terminal.until(b"got typed")
    assert terminal.end() == 7
    assert b"True True True" in terminal.seen
    assert b"mine" in terminal.seen
    assert b"bwrap" not in terminal.seen
    told = agents.run("plan", "errors", "last").stdout
    assert "exit code 7" in told


def test_ctrl_c_at_a_terminal_reaches_the_command(agents: Agents, repo: Path) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    terminal = Terminal(agents, repo, "--", "sh", "-c", script)
    terminal.until(b"ready")
    terminal.type(b"\x03")
    assert terminal.end() == 9
    assert b"caught" in terminal.seen


def test_at_a_terminal_a_command_that_is_missing_is_127(agents: Agents, repo: Path) -> None:
    terminal = Terminal(agents, repo, "--", "no-such-command")
    assert terminal.end() == 127
    assert b"no such command: no-such-command" in terminal.seen
    assert b"bwrap" not in terminal.seen
