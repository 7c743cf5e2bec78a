"""One call of one tool, with real processes: what it gets, what comes back, what is left."""

import datetime
import errno
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cleveragents.tools
from cleveragents.model.tool import CallState, ToolResult, ToolSpec
from cleveragents.tools import process, pycall, resolve_tool
from cleveragents.tools.leftovers import end_leftovers
from cleveragents.tools.limits import Capture, Deadline
from cleveragents.tools.process import before_exec, start
from cleveragents.tools.runner import CallContext, run_tool
from tests.scratch import is_gone

SOON = 200.0
SOURCE = str(Path(cleveragents.tools.__file__).parents[2])
OURS = str(Path(cleveragents.tools.__file__).parents[1])


class Bench:
    """A sandbox, and calls in it under ids that no other test run has."""

    def __init__(self, tmp_path: Path) -> None:
        self.cwd = tmp_path / "sandbox"
        self.temp = tmp_path / "temp"
        self.plan_dir = tmp_path / "plan"
        for each in (self.cwd, self.temp, self.plan_dir):
            each.mkdir()
        self.call = CallContext(
            plan_id=uuid.uuid4().hex,
            step_id="step",
            plan_dir=str(self.plan_dir),
            cwd=str(self.cwd),
            temp_parent=str(self.temp),
            output_limit=10_000,
            environ={"PATH": os.environ["PATH"]},
        )

    def run(
        self, tool: ToolSpec | str, timeout: float | None = None, /, **inputs: Any
    ) -> ToolResult:
        spec = resolve_tool(tool, {}) if isinstance(tool, str) else tool
        result = run_tool(spec, inputs, self.call, timeout)
        assert os.listdir(self.temp) == []
        assert result.ok == (result.error is None) == (result.state is CallState.OK)
        return result

    def sh(self, command: str, timeout: float | None = None, /, **inputs: Any) -> ToolResult:
        return self.run("shell", timeout, command=command, **inputs)

    def sh_until_timeout(self, command: str) -> ToolResult:
        """The limit that lets the command say something, however slow the machine is."""
        for limit in (2, 20, 200):
            result = self.sh(command, limit)
            assert result.error == f"timed out after {limit} s"
            if result.output:
                break
        return result

    def having(self, **changes: Any) -> None:
        self.call = msgspec.structs.replace(self.call, **changes)

    def pid(self, name: str = "pid") -> int:
        path = self.cwd / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def wait_until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)


# What comes back


def test_both_outputs_come_back_in_one_text(bench: Bench) -> None:
    result = bench.sh("echo one; echo two >&2; echo three")
    assert result == ToolResult(
        ok=True, state=CallState.OK, output="one\ntwo\nthree\n", output_bytes=14, exit_code=0
    )


@pytest.mark.parametrize(
    ("command", "error", "code"),
    [
        ("echo first; echo '  last  '; echo; exit 3", "exit code 3: last", 3),
        ("exit 4", "exit code 4", 4),
        ("kill -SEGV $$", "killed by SIGSEGV", -11),
        ("echo bye; kill -40 $$", "killed by signal 40: bye", -40),
        ("no-such-program", "exit code 127: ", 127),
    ],
)
def test_a_failure_is_told_in_one_line(bench: Bench, command: str, error: str, code: int) -> None:
    result = bench.sh(command)
    assert result.state is CallState.FAILED
    assert (result.error or "").startswith(error)
    assert result.exit_code == code


def test_a_very_long_last_line_is_cut_in_the_error(bench: Bench) -> None:
    result = bench.sh("head -c 5000 /dev/zero | tr '\\0' x; exit 1")
    assert len(result.error or "") == 300
    assert result.output_bytes == len(result.output) == 5000


def test_a_missing_command_is_named(bench: Bench) -> None:
    assert bench.run("run", argv=["no-such-program", "x"]).error == (
        "no such command: no-such-program"
    )


def test_a_file_that_cannot_be_executed_is_named(bench: Bench) -> None:
    (bench.cwd / "plain").write_text("#!/bin/sh\n")
    assert bench.run("run", argv=["./plain"]).error == "not executable: ./plain"


def test_other_reasons_not_to_start_are_told(bench: Bench) -> None:
    script = bench.cwd / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert bench.run("run", argv=["./script"]).error == (
        "the interpreter that ./script names is missing"
    )
    script.write_bytes(b"\x7fELF nonsense")
    assert bench.run("run", argv=["./script"]).error == "cannot run ./script: exec format error"
    assert bench.run("run", argv=["echo", "a\0b"]).error == "cannot run echo: embedded null byte"
    too_long = bench.run("run", argv=["echo", "x" * 3_000_000]).error
    assert too_long == "cannot run echo: argument list too long"


def test_a_missing_sandbox_is_named(bench: Bench) -> None:
    bench.having(cwd=str(bench.cwd / "gone"))
    assert bench.sh("true").error == f"the sandbox {bench.cwd}/gone is missing"


def test_wrong_inputs_run_nothing(bench: Bench) -> None:
    result = bench.run("shell", comand="touch x", command="touch x")
    assert result.error == "unknown input 'comand' for shell, did you mean 'command'?"
    assert os.listdir(bench.cwd) == []


def test_bytes_that_are_not_utf_8_are_shown(bench: Bench) -> None:
    assert bench.sh(r"printf '\377ok'").output == "\\xffok"


def test_fifty_megabytes_of_output_are_bounded_in_memory_and_text(bench: Bench) -> None:
    tracemalloc.start()
    result = bench.sh("echo begin; yes abcdefghijklmno | head -c 50000000; echo end")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.ok
    assert result.output_bytes == 50_000_010
    assert len(result.output) < 10_100
    assert result.output.startswith("begin\nabc")
    assert result.output.endswith("\nend\n")
    assert f"\n[... {50_000_010 - 10_000} bytes left out ...]\n" in result.output
    assert peak < 5_000_000


def test_the_rest_in_the_pipe_is_read_after_the_end(bench: Bench) -> None:
    result = bench.sh("head -c 65000 /dev/zero")
    assert result.output_bytes == 65000


# What it gets


def test_a_shell_string_gets_its_arguments(bench: Bench) -> None:
    tool = ToolSpec(name="greet", run='echo "$0: $1, $2"')
    assert bench.run(tool, args=["a b", 2]).output == "greet: a b, 2\n"
    assert bench.sh('echo "$0 $@"', args=["x", 1.5]).output == "shell x 1.5\n"


def test_an_argv_tool_gets_its_arguments_as_they_are(bench: Bench) -> None:
    tool = ToolSpec(name="show", run=("printf", "<%s>"))
    assert bench.run(tool, args=["$HOME", "a b", "\udcff"]).output == "<$HOME><a b><\\xff>"
    assert bench.run("run", argv=["printf", "%s", 7]).output == "7"


def test_it_starts_in_the_sandbox_in_a_session_of_its_own(bench: Bench) -> None:
    result = bench.sh("pwd; cut -d' ' -f6 /proc/$$/stat; echo $$")
    cwd, session, pid = result.output.split()
    assert cwd == str(bench.cwd)
    assert session == pid


def test_stdin_is_what_the_step_gives_or_nothing(bench: Bench) -> None:
    assert bench.sh("cat").output == ""
    assert bench.sh("cat", stdin="hé\udcff").output == "hé\\xff"
    big = "0123456789" * 100_000
    assert bench.sh("wc -c", stdin=big).output.strip() == "1000000"


def test_a_tool_that_does_not_read_its_stdin_is_fine(bench: Bench) -> None:
    assert bench.sh("echo done", stdin="x" * 1_000_000).output == "done\n"
    assert bench.sh("exec <&-; sleep 0.2; echo done", stdin="x" * 1_000_000).output == "done\n"


def test_only_the_listed_environment_is_passed_on(bench: Bench) -> None:
    bench.having(
        environ={
            "PATH": os.environ["PATH"],
            "HOME": "/home/me",
            "LC_ALL": "C.UTF-8",
            "CI": "1",
            "GIT_DIR": "/evil",
            "AWS_SECRET_ACCESS_KEY": "s",
            "HTTP_PROXY": "p",
            "PYTHONPATH": "/x",
            "XDG_RUNTIME_DIR": "/run",
            "PATHOLOGICAL": "x",
            "AGENTS_PLAN_ID": "of another plan",
            "TMPDIR": "/elsewhere",
        },
        sandboxes={"app": "/s/app", "my-db.1": "/s/db"},
        guidance="be careful\nplease",
    )
    tool = ToolSpec(
        name="env", run=("env", "-0"), env={"EXTRA": "1", "CI": "2", "AGENTS_STEP_ID": "forged"}
    )
    found = dict(pair.split("=", 1) for pair in bench.run(tool).output.split("\0") if pair)
    temp = found.pop("TMPDIR")
    assert Path(temp).parent == bench.temp
    assert found == {
        "PATH": os.environ["PATH"],
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "CI": "2",
        "EXTRA": "1",
        "AGENTS_PLAN_ID": bench.call.plan_id,
        "AGENTS_STEP_ID": "step",
        "AGENTS_PLAN_DIR": str(bench.plan_dir),
        "AGENTS_SANDBOX_APP": "/s/app",
        "AGENTS_SANDBOX_MY_DB_1": "/s/db",
        "AGENTS_GUIDANCE": "be careful\nplease",
    }


def test_its_temporary_directory_is_private_and_goes_away_whatever_is_in_it(bench: Bench) -> None:
    command = (
        'stat -c %a "$TMPDIR"; cd "$TMPDIR"; mkdir -p a/b; touch a/b/f; ln -s / l; chmod 0 a/b a'
    )
    if os.geteuid() == 0:
        assert bench.sh(command).output == "700\n"
    else:
        assert bench.sh(command).ok


def test_a_temporary_directory_nobody_may_enter_is_removed_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may enter everywhere, so the first try is made to fail for anybody."""
    real, tries = shutil.rmtree, list[str]()

    def failing_once(path: str, ignore_errors: bool) -> None:
        tries.append(path)
        if len(tries) > 1:
            real(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", failing_once)
    assert bench.sh('mkdir -p "$TMPDIR/a/b"; ln -s / "$TMPDIR/l"; chmod 0 "$TMPDIR/a"').ok
    assert len(tries) == 2


# How it ends


def test_a_tool_that_takes_too_long_is_ended(bench: Bench) -> None:
    result = bench.sh_until_timeout("echo $$ >pid; echo begun; exec sleep 300")
    assert result.state is CallState.TIMEOUT
    assert result.output == "begun\n"
    assert result.exit_code is None
    assert is_gone(bench.pid())


def test_the_tools_own_time_limit_counts_when_the_step_has_none(bench: Bench) -> None:
    tool = ToolSpec(name="slow", run=("sleep", "300"), timeout=0.2)
    assert bench.run(tool).error == "timed out after 0.2 s"
    assert bench.run(msgspec.structs.replace(tool, run=("true",)), 60).ok


def test_a_tool_may_say_goodbye_before_it_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", SOON)
    loop = "while :; do sleep 0.05; done"
    result = bench.sh_until_timeout(f"trap 'echo bye; exit 0' TERM; echo hi; {loop}")
    assert result.state is CallState.TIMEOUT
    assert result.output.startswith("hi\n")
    assert result.output.endswith("bye\n")


def test_a_tool_that_will_not_go_is_killed(bench: Bench) -> None:
    bench.sh_until_timeout("trap '' TERM; echo $$ >pid; echo hi; while :; do sleep 1; done")
    assert is_gone(bench.pid())


def test_a_child_left_in_the_background_does_not_hold_us_up(bench: Bench) -> None:
    started = time.monotonic()
    result = bench.sh("sleep 300 & echo $! >pid; echo done")
    assert result.output == "done\n"
    assert time.monotonic() - started < SOON
    assert is_gone(bench.pid())


def test_a_child_that_hides_in_the_group_is_killed_with_it(bench: Bench) -> None:
    hidden = "env -i PATH=\"$PATH\" sh -c 'echo $$ >pid; exec sleep 600'"
    assert bench.sh(f"{hidden} & while ! [ -s pid ]; do :; done").ok
    wait_until(lambda: is_gone(bench.pid()))


def test_a_daemon_that_fled_by_setsid_is_killed(bench: Bench) -> None:
    daemon = "setsid sh -c 'trap \"\" HUP TERM; echo $$ >pid; while :; do sleep 1; done'"
    result = bench.sh(f"{daemon} </dev/null >/dev/null 2>&1 & while ! [ -s pid ]; do :; done")
    assert result.ok
    assert is_gone(bench.pid())


def test_a_daemon_that_holds_the_pipe_and_hides_does_not_hold_us_up(bench: Bench) -> None:
    """Without our mark in its environment it is not found: it lives on, but we do not wait."""
    hidden = "env -i PATH=\"$PATH\" setsid sh -c 'echo $$ >pid; exec yes'"
    result = bench.sh(f"{hidden} & while ! [ -s pid ]; do :; done; exit 5")
    assert result.exit_code == 5
    wait_until(lambda: is_gone(bench.pid()))


def test_ctrl_c_ends_the_tool_and_is_passed_on(bench: Bench) -> None:
    def interrupt() -> None:
        bench.pid()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        bench.sh("setsid sleep 601 & sleep 602 & echo $$ >pid; sleep 603")
    thread.join()
    assert is_gone(bench.pid())
    assert end_leftovers(bench.call.plan_id) == 0
    assert os.listdir(bench.temp) == []


at_fork: list[Callable[[], None]] = []


def _at_fork() -> None:
    for call in at_fork:
        call()


os.register_at_fork(after_in_parent=_at_fork)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("by", ["child", "hook"])
def test_ctrl_c_that_comes_while_a_process_is_being_started_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, number: signal.Signals
) -> None:
    """Wherever we are then: in what Python does after a fork it would be lost."""
    parent, pid_file = os.getpid(), tmp_path / "pid"

    def interrupt() -> None:
        os.kill(parent, number)

    def in_child() -> None:
        pid_file.write_text(str(os.getpid()))
        if by == "child":
            interrupt()

    if by == "hook":
        monkeypatch.setattr(sys.modules[__name__], "at_fork", [interrupt])
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start(["sleep", "600"], start_new_session=True, preexec_fn=in_child)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert is_gone(int(pid_file.read_text()))


def test_what_watches_lines_is_not_asked_in_a_child_before_exec(tmp_path: Path) -> None:
    """A thread that is not in the child may have held its locks: coverage waited for ever there."""
    parent, seen = os.getpid(), tmp_path / "seen"

    def watch(frame: FrameType, event: str, _arg: object) -> object:
        if os.getpid() != parent and OURS in frame.f_code.co_filename:
            with open(seen, "a", encoding="utf-8") as file:
                file.write(f"{event} {frame.f_code.co_name}\n")
        return watch

    def in_child() -> None:
        resolve_tool("shell", {})  # code of ours, unlike this test

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        process = start(["true"], preexec_fn=before_exec(in_child))
    finally:
        sys.settrace(before)
    assert process.wait() == 0
    assert not seen.exists()


def test_a_killed_executor_takes_its_tool_with_it(bench: Bench) -> None:
    program = textwrap.dedent("""
        import sys, msgspec
        from cleveragents.tools import resolve_tool
        from cleveragents.tools.runner import CallContext, run_tool
        call = msgspec.json.decode(sys.argv[1], type=CallContext)
        run_tool(resolve_tool("shell", {}), {"command": "echo $$ >pid; exec sleep 300"}, call)
    """)
    argv = [sys.executable, "-c", program, msgspec.json.encode(bench.call).decode()]
    executor = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": SOURCE})
    tool = bench.pid()
    assert not is_gone(tool)
    executor.kill()
    executor.wait()
    wait_until(lambda: is_gone(tool))


def test_leftovers_of_a_dead_executor_are_ended_by_plan_and_step(bench: Bench) -> None:
    def start(step: str, plan: str = bench.call.plan_id) -> "subprocess.Popen[bytes]":
        env = {"PATH": os.environ["PATH"], "AGENTS_PLAN_ID": plan, "AGENTS_STEP_ID": step}
        return subprocess.Popen(["sleep", "300"], env=env, start_new_session=True)

    one, two, other = start("one"), start("two"), start("one", uuid.uuid4().hex)
    try:
        assert end_leftovers(bench.call.plan_id, "one") == 1
        assert one.wait(SOON) == -signal.SIGKILL
        assert two.poll() is None
        assert end_leftovers(bench.call.plan_id) == 1
        assert two.wait(SOON) == -signal.SIGKILL
        assert end_leftovers(bench.call.plan_id) == 0
        assert other.poll() is None
    finally:
        for each in (one, two, other):
            each.kill()
            each.wait()


def test_ending_leftovers_spares_the_caller_and_those_above_it(bench: Bench) -> None:
    """As when an agent calls us from inside a step of the same plan."""
    program = "from cleveragents.tools.leftovers import end_leftovers as e; print(e('{}'))"
    own = f'{sys.executable} -c "{program.format(bench.call.plan_id)}"'
    tool = ToolSpec(name="t", run=f"sleep 300 & {own}; echo alive", env={"PYTHONPATH": SOURCE})
    assert bench.run(tool).output == "1\nalive\n"


def test_without_proc_nothing_is_found_and_nothing_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(path: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, "no /proc", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", nowhere)
        assert end_leftovers(bench.call.plan_id) == 0


def test_without_process_descriptors_the_end_is_still_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert bench.sh("sleep 600 & setsid sleep 601 & echo done").output == "done\n"
    assert bench.sh("sleep 300", 0.3).error == "timed out after 0.3 s"
    monkeypatch.setattr(Capture, "feed", _stop)
    with pytest.raises(AssertionError, match="stop"):
        bench.sh("echo x; sleep 300")
    assert end_leftovers(bench.call.plan_id) == 0


def _stop(*_: object) -> None:
    raise AssertionError("stop")


def test_calls_in_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    results: dict[int, ToolResult] = {}

    def call(index: int) -> None:
        (tmp_path / str(index)).mkdir()
        results[index] = Bench(tmp_path / str(index)).sh(f"sleep 0.1; echo {index}; exit {index}")

    threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [results[index].exit_code for index in range(8)] == list(range(8))


# Tools in Python


@pytest.fixture
def module(bench: Bench) -> Callable[[str], None]:
    def write(text: str) -> None:
        (bench.plan_dir / "mytools.py").write_text(textwrap.dedent(text))

    return write


def test_a_python_tool_gets_its_inputs_and_returns_data(
    bench: Bench, module: Callable[[str], None]
) -> None:
    module("""
        import os
        class Group:
            @staticmethod
            def work(a, b=2):
                print("working in", os.getcwd())
                open("made", "w").close()
                return {"sum": a + b, "text": "hé"}
    """)
    result = bench.run(ToolSpec(name="p", python="mytools:Group.work"), a=40)
    first, second = result.output.splitlines()
    assert result.ok
    assert first == f"working in {bench.cwd}"
    assert json.loads(second) == {"sum": 42, "text": "hé"}
    assert os.listdir(bench.cwd) == ["made"]
    assert os.listdir(bench.plan_dir) == ["mytools.py"]


def test_a_python_tool_that_returns_nothing_prints_nothing(
    bench: Bench, module: Callable[[str], None]
) -> None:
    module("def f(**inputs): assert inputs == {'when': '2024-01-01', 'n': None}")
    result = bench.run(
        ToolSpec(name="p", python="mytools:f"), when=datetime.date(2024, 1, 1), n=None
    )
    assert (result.error, result.output) == (None, "")


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("mytools:fails", "exit code 1: ValueError: boom"),
        ("mytools:leaves", "exit code 7: leaving"),
        ("mytools:odd", "exit code 1: TypeError: Object of type object is not JSON serializable"),
        ("mytools:none", "exit code 1: AttributeError: module 'mytools' has no attribute 'none'"),
        ("nowhere:f", "exit code 1: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_python_tool_that_raises_fails(
    bench: Bench, module: Callable[[str], None], target: str, error: str
) -> None:
    module("""
        import sys
        def fails():
            print("before")
            raise ValueError("boom")
        def leaves():
            print("leaving")
            sys.exit(7)
        def odd():
            return object()
    """)
    result = bench.run(ToolSpec(name="p", python=target))
    assert result.error == error
    if "boom" in error:
        assert result.output.startswith("before\nTraceback")


def test_a_python_tool_sees_the_sandbox_but_is_not_disturbed_by_it(bench: Bench) -> None:
    (bench.cwd / "inside.py").write_text("def f(): import sql; return sql.X")
    (bench.cwd / "json.py").write_text("raise RuntimeError('not the real one')")
    (bench.cwd / "cleveragents").mkdir()
    (bench.cwd / "sql.py").write_text("X = 'the sandbox'")
    assert bench.run(ToolSpec(name="p", python="inside:f")).output == '"the sandbox"\n'


def test_pycall_imports_nothing_of_ours(bench: Bench, module: Callable[[str], None]) -> None:
    module("import sys\ndef f(): return sorted(sys.modules)")
    loaded = json.loads(bench.run(ToolSpec(name="p", python="mytools:f")).output)
    assert not {"msgspec", "cleveragents"} & set(loaded)


def test_pycall_reads_json_calls_and_writes_json(
    bench: Bench,
    module: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, where what it does can be measured."""
    module("def double(n): return n * 2")
    monkeypatch.setenv("AGENTS_PLAN_DIR", str(bench.plan_dir))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"n": 21}'))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        pycall.main("mytools:double")
    finally:
        sys.modules.pop("mytools", None)
    assert capsys.readouterr().out == "42\n"
    assert sys.path[:2] == [str(bench.plan_dir), os.getcwd()]


# Tools in this process


def test_file_tools_come_back_as_results(bench: Bench) -> None:
    assert bench.run("file.write", path="a", content="x").output == "wrote a (1 bytes)\n"
    result = bench.run("file.read", path="../x")
    assert result.state is CallState.FAILED
    assert result.error == "../x leads outside the sandbox"
    assert bench.run("file.read", path="b\nc").error == "no such file: b\\nc"
    assert bench.run("file.read", 0.0, path="a").error == "timed out after 0 s"


def test_file_tools_follow_the_links_of_the_call(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    bench.having(links={"lib": str(tmp_path / "inner")})
    assert bench.run("file.write", path="lib/f", content="x").ok
    assert (tmp_path / "inner/f").read_text() == "x"


def test_sql_tools_come_back_as_results(bench: Bench) -> None:
    path = bench.cwd / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
    assert bench.run("sql", script="SELECT 1").error == "sql needs a database"
    bench.having(database=str(path))
    assert bench.run("sql", script="INSERT INTO t VALUES (?)", params=[7]).ok
    declared = ToolSpec(name="count", sql="SELECT a FROM t WHERE a = :a", read_only=True)
    assert bench.run(declared, params={"a": 7}).output == "a\n7\n"
    wrong = msgspec.structs.replace(declared, sql="DELETE FROM t")
    assert "readonly database" in (bench.run(wrong).error or "")
    assert bench.run("sql", 0.2, script=f"{ENDLESS}").state is CallState.TIMEOUT


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(*) FROM c"


# Bounds


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_kept_output_is_whole_when_it_fits_and_small_when_not(
    chunks: list[bytes], limit: int
) -> None:
    capture, data = Capture(limit), b"".join(chunks)
    for chunk in chunks:
        capture.feed(chunk)
    assert capture.total == len(data)
    if len(data) <= limit:
        assert capture.text() == data.decode("utf-8", "backslashreplace")
    else:
        assert "bytes left out ...]\n" in capture.text()
        assert len(capture.text()) <= 4 * limit + 50


@given(st.text(st.characters(codec="utf-8"), min_size=10, max_size=60), st.integers(0, 9))
def test_a_character_is_never_cut_in_two(text: str, limit: int) -> None:
    capture = Capture(limit)
    for byte in text.encode():
        capture.feed(bytes([byte]))
    head, _, rest = capture.text().partition("[... ")
    number, _, tail = rest.partition(" bytes left out ...]\n")
    assert text.startswith((head, head.removesuffix("\n")))
    assert text.endswith(tail)
    kept = len(head.encode()) + len(tail.encode())
    assert int(number) in (len(text.encode()) - kept, len(text.encode()) - kept + 1)


def test_no_time_limit_never_passes() -> None:
    deadline = Deadline(None)
    deadline.check()
    assert deadline.left() is None
