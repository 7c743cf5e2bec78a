"""What a tool can touch, with real processes: under bwrap, under Landlock, and under neither."""

import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cleveragents import open_workspace
from cleveragents.context import Talk
from cleveragents.errors import NotAllowed
from cleveragents.model.settings import confine_in_force
from cleveragents.model.tool import ToolResult, ToolSpec
from cleveragents.tools import process, resolve_tool
from cleveragents.tools.confinement import bwrap, landlock
from cleveragents.tools.confinement.confine import Bounds, mechanism
from cleveragents.tools.confinement.denied import denied_writes
from cleveragents.tools.confinement.mounts import Mount, Seen
from cleveragents.tools.runner import CallContext, run_tool
from cleveragents.workspace import settings_here
from tests.databases import store_of
from tests.harness import PATIENCE, Agents
from tests.scratch import make_repository, wait_until

needs_bwrap = pytest.mark.skipif(
    not bwrap.probe().works, reason=f"bwrap cannot be used here: {bwrap.probe().reason}"
)
needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="the kernel has no Landlock")
BWRAP = pytest.param("bwrap", marks=needs_bwrap)
LANDLOCK = pytest.param("landlock", marks=needs_landlock)
confined = pytest.mark.parametrize("how", [BWRAP, LANDLOCK])
everyhow = pytest.mark.parametrize("how", [BWRAP, LANDLOCK, "off"])


class Yard:
    """A store with the sandbox of one resource in it, and things outside."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.own = top / "user" / "app"
        self.store = top / "store"
        self.plan = self.store / "sandboxes" / "PLAN"
        self.sandbox = self.plan / "app"
        self.outside = top / "user" / "outside"
        self.cache = top / "cache" / "tools"
        for each in (self.own, self.sandbox, self.outside):
            each.mkdir(parents=True)
        (self.own / "code").write_text("original")
        (self.sandbox / "code").write_text("sandbox")
        (self.store / "secret").write_text("secret")
        self.stand_ins = [self.stand_in("app", self.own, self.sandbox)]
        self.writable: tuple[str, ...] = ()
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(top / "user")}

    def stand_in(self, name: str, own: Path, sandbox: Path, **links: str) -> Mount:
        return Mount(name=name, own=str(own), root=str(sandbox), path=str(sandbox), links=links)

    def call(self, how: str) -> CallContext:
        return CallContext(
            plan_id=uuid.uuid4().hex,
            step_id="step",
            plan_dir=str(self.own),
            cwd=str(self.sandbox),
            sandboxes={one.name: one.path for one in self.stand_ins},
            temp_parent=str(self.plan),
            output_limit=100_000,
            environ=self.environ,
            bounds=Bounds(
                confine=how,
                hidden=(str(self.store), str(self.store / "sandboxes")),
                writable=self.writable,
                cache=str(self.cache),
                stand_ins=tuple(self.stand_ins),
            ),
        )

    def run(self, how: str, tool: ToolSpec | str, timeout: float | None = None, **inputs: Any):
        spec = resolve_tool(tool, {}) if isinstance(tool, str) else tool
        result = run_tool(spec, inputs, self.call(how), timeout)
        assert not [name for name in os.listdir(self.plan) if name.startswith("agents-")]
        return result

    def sh(self, how: str, command: str, timeout: float | None = None) -> ToolResult:
        return self.run(how, "shell", timeout, command=command)

    def python(self, how: str, program: str, **spec: Any) -> ToolResult:
        return self.run(how, ToolSpec(name="py", run=(sys.executable, "-c", program), **spec))


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


# What may be written


@everyhow
def test_sandbox_temporary_directory_cache_and_dev_null_can_be_written(
    yard: Yard, how: str
) -> None:
    caches = 'for d in "$XDG_CACHE_HOME" "$PIP_CACHE_DIR"; do mkdir -p "$d"; touch "$d/x"; done; '
    result = yard.sh(
        how,
        "set -e; "
        + (caches if how != "off" else "")
        + 'echo x >made; mkdir d; mv made d; ln d/made d/again; echo t >"$TMPDIR/t"; '
        'rm "$TMPDIR/t"; echo gone >/dev/null; chmod 700 d; echo "$XDG_CACHE_HOME"',
    )
    assert result.error is None
    assert (yard.sandbox / "d" / "again").read_text() == "x\n"
    assert not (yard.own / "d").exists()
    if how != "off":
        assert result.output == f"{yard.cache}\n"
        assert (yard.cache / "pip" / "x").exists()
    else:
        assert result.output == "\n"


@confined
def test_a_write_outside_is_denied_and_named_with_the_line_to_add(yard: Yard, how: str) -> None:
    target = yard.outside / "file"
    result = yard.sh(how, f"echo x >{target}")
    assert not target.exists()
    expected = f'; writing {target} was denied: add "{yard.outside}" to sandbox.writable'
    assert (result.error or "").endswith(expected)


@confined
def test_a_python_traceback_is_understood(yard: Yard, how: str) -> None:
    result = yard.python(how, f"open({str(yard.outside / 'a b')!r}, 'w')")
    assert f'writing {yard.outside}/a b was denied: add "{yard.outside}"' in (result.error or "")


@confined
def test_removing_truncating_and_renaming_outside_are_denied(yard: Yard, how: str) -> None:
    victim = yard.outside / "victim"
    victim.write_text("precious")
    for command in (
        f"rm -f {victim}",
        f"mv {victim} mine",
        f": >{victim}",
        f"ln {victim} mine",
        f"{sys.executable} -c 'import os; os.truncate(\"{victim}\", 0)'",
        f"mkdir {yard.outside}/new",
    ):
        assert not yard.sh(how, command).ok, command
    assert victim.read_text() == "precious"
    assert os.listdir(yard.outside) == ["victim"]


@confined
def test_what_sandbox_writable_lists_can_be_written(yard: Yard, how: str) -> None:
    yard.writable = (str(yard.outside), str(yard.top / "not there"))
    assert yard.sh(how, f"echo x >{yard.outside}/file").ok
    assert (yard.outside / "file").read_text() == "x\n"


def test_without_confinement_nothing_is_denied(yard: Yard) -> None:
    assert yard.sh("off", f"echo x >{yard.outside}/file").ok
    result = yard.sh("off", "echo /x/y: Read-only file system; exit 1")
    assert result.error == "exit code 1: /x/y: Read-only file system"


@needs_landlock
def test_the_original_of_a_resource_is_never_offered_as_writable(yard: Yard) -> None:
    result = yard.sh("landlock", f"echo x >{yard.own}/code")
    assert (yard.own / "code").read_text() == "original"
    assert (result.error or "").endswith(
        f"writing {yard.own}/code was denied: it is the original of 'app',"
        f" whose sandbox is {yard.sandbox}"
    )


@needs_bwrap
def test_chmod_outside_is_denied_by_bwrap(yard: Yard) -> None:
    """Landlock does not see it; `agents doctor` says so."""
    assert not yard.sh("bwrap", f"chmod 777 {yard.outside}").ok


@needs_bwrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root could mount")
def test_root_cannot_take_the_confinement_off(yard: Yard) -> None:
    result = yard.sh("bwrap", f"mount -o remount,rw / ; touch {yard.outside}/x")
    assert not result.ok
    assert not os.listdir(yard.outside)
    assert yard.sh("bwrap", "touch f && chown 65534:65534 f").ok


@confined
def test_a_resource_without_a_sandbox_is_written_itself(yard: Yard, how: str) -> None:
    yard.stand_ins = [yard.stand_in("app", yard.own, yard.own)]
    call = msgspec.structs.replace(yard.call(how), cwd=str(yard.own))
    assert run_tool(resolve_tool("shell", {}), {"command": "echo new >code"}, call).ok
    assert (yard.own / "code").read_text() == "new\n"


# What may be read


@everyhow
def test_home_can_be_read(yard: Yard, how: str) -> None:
    (yard.outside / "notes").write_text("hello")
    assert yard.sh(how, f"cat {yard.outside}/notes; cat ~/outside/notes").output == "hellohello"


@needs_bwrap
def test_the_store_cannot_be_seen_but_for_the_plans_own_sandboxes(yard: Yard) -> None:
    other = yard.store / "sandboxes" / "OTHER"
    other.mkdir()
    (other / "work").write_text("not yours")
    assert not yard.sh("bwrap", f"cat {yard.store}/secret").ok
    assert not yard.sh("bwrap", f"cat {other}/work").ok
    assert "secret" not in yard.sh("bwrap", f"find {yard.store}").output
    assert yard.sh("bwrap", f"cat {yard.sandbox}/code").output == "sandbox"
    result = yard.sh("bwrap", f"touch {yard.store}/x")
    assert "the store is closed to tools" in (result.error or "")
    assert sorted(os.listdir(yard.store)) == ["sandboxes", "secret"]


@needs_bwrap
def test_a_store_inside_a_writable_folder_stays_closed(yard: Yard) -> None:
    yard.writable = (str(yard.top),)
    assert not yard.sh("bwrap", f"cat {yard.store}/secret").ok
    assert not yard.sh("bwrap", f"rm {yard.store}/secret").ok
    assert yard.sh("bwrap", f"touch {yard.outside}/x; echo new >{yard.own}/code").ok
    assert (yard.outside / "x").exists()
    assert (yard.own / "code").read_text() == "original"


# The network


@contextmanager
def listening() -> Generator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


CONNECT = "import socket; socket.create_connection(('127.0.0.1', {}), 5); print('through')"


@everyhow
def test_the_network_is_there_unless_the_tool_says_otherwise(yard: Yard, how: str) -> None:
    with listening() as port:
        assert yard.python(how, CONNECT.format(port)).output == "through\n"


@pytest.mark.parametrize(
    "how",
    [
        BWRAP,
        pytest.param(
            "landlock",
            marks=pytest.mark.skipif(
                not landlock.limits_network(landlock.abi()), reason="needs Landlock ABI 4"
            ),
        ),
    ],
)
def test_network_false_cuts_it_off(yard: Yard, how: str) -> None:
    with listening() as port:
        result = yard.python(how, CONNECT.format(port), network=False)
    assert not result.ok
    assert "Error" in (result.error or "")


# Where the tool is


@needs_bwrap
def test_under_bwrap_the_sandbox_is_at_the_resources_own_path(yard: Yard) -> None:
    result = yard.sh("bwrap", f"pwd; echo $AGENTS_SANDBOX_APP; cat {yard.own}/code; echo; ls")
    assert result.output.splitlines() == [str(yard.own), str(yard.own), "sandbox", "code"]
    assert yard.sh("bwrap", f"echo new >{yard.own}/code").ok
    assert (yard.own / "code").read_text() == "original"
    assert (yard.sandbox / "code").read_text() == "new\n"


@needs_bwrap
def test_the_plans_folder_is_the_users_own_and_read_only_where_the_sandbox_covers_it(
    yard: Yard,
) -> None:
    (yard.own / "tool.py").write_text("def f(): return open('code').read()")
    result = yard.run("bwrap", ToolSpec(name="p", python="tool:f"))
    assert result.output == '"sandbox"\n'
    assert yard.sh("bwrap", 'cat "$AGENTS_PLAN_DIR/code"').output == "original"
    assert not yard.sh("bwrap", 'touch "$AGENTS_PLAN_DIR/x"').ok


@pytest.mark.parametrize("how", [LANDLOCK, "off"])
def test_without_bwrap_path_and_virtual_env_are_moved_to_the_sandbox(yard: Yard, how: str) -> None:
    yard.environ |= {
        "PATH": f"{yard.own}/.venv/bin:/usr/bin:{yard.own}x:/bin",
        "VIRTUAL_ENV": f"{yard.own}/.venv",
    }
    result = yard.sh(how, 'pwd; echo "$PATH"; echo "$VIRTUAL_ENV"')
    assert result.output.splitlines() == [
        str(yard.sandbox),
        f"{yard.sandbox}/.venv/bin:/usr/bin:{yard.own}x:/bin",
        f"{yard.sandbox}/.venv",
    ]


def nested(yard: Yard, link: str) -> None:
    """`lib` inside the resource is one of its own; its sandbox is linked in."""
    inner, place = yard.plan / "lib", yard.own / "vendor" / "lib"
    inner.mkdir()
    place.mkdir(parents=True)
    (place / "code").write_text("original lib")
    (inner / "code").write_text("inner sandbox")
    (yard.sandbox / "vendor").mkdir()
    (yard.sandbox / "vendor" / "lib").symlink_to(link.format(inner))
    outer = yard.stand_in("app", yard.own, yard.sandbox)
    outer = msgspec.structs.replace(outer, links={"vendor/lib": str(inner)})
    yard.stand_ins = [yard.stand_in("lib", place, inner), outer]


@needs_bwrap
def test_an_inner_sandbox_is_reached_by_its_link_at_the_own_paths(yard: Yard) -> None:
    nested(yard, "{}")
    look = f"pwd; cat vendor/lib/code {yard.own}/vendor/lib/code; echo"
    write = 'echo "$AGENTS_SANDBOX_LIB"; echo new >vendor/lib/code'
    result = yard.sh("bwrap", f"{look}; {write}")
    assert result.output.splitlines() == [
        str(yard.own),
        "inner sandboxinner sandbox",
        f"{yard.own}/vendor/lib",
    ]
    assert (yard.plan / "lib" / "code").read_text() == "new\n"
    assert (yard.own / "vendor" / "lib" / "code").read_text() == "original lib"


@needs_bwrap
def test_with_a_relative_link_the_outer_sandbox_stays_where_the_link_holds(yard: Yard) -> None:
    nested(yard, "../../lib")
    yard.environ["PATH"] = f"{yard.own}/bin:{os.environ['PATH']}"
    result = yard.sh(
        "bwrap", f'pwd; cat vendor/lib/code; echo; echo "$PATH"; cat {yard.own}/vendor/lib/code'
    )
    assert result.output.splitlines() == [
        str(yard.sandbox),
        "inner sandbox",
        f"{yard.sandbox}/bin:{os.environ['PATH']}",
        "inner sandbox",
    ]


@needs_bwrap
def test_a_database_inside_a_mounted_sandbox_is_found_at_its_own_path(yard: Yard) -> None:
    database, own = yard.plan / "db" / "app.db", yard.own / "data" / "app.db"
    database.parent.mkdir()
    own.parent.mkdir()
    own.write_text("the user's")
    (yard.sandbox / "data").mkdir()
    (yard.sandbox / "data" / "app.db").symlink_to(database)
    outer = yard.stand_in("app", yard.own, yard.sandbox)
    outer = msgspec.structs.replace(outer, links={"data/app.db": str(database)})
    inner = Mount(name="db", own=str(own), root=str(database.parent), path=str(database))
    yard.stand_ins = [inner, outer]
    program = (
        "import os, sqlite3; at = os.environ['AGENTS_SANDBOX_DB']; print(os.getcwd(), at);"
        "db = sqlite3.connect('data/app.db'); db.execute('PRAGMA journal_mode=wal');"
        "db.execute('CREATE TABLE t (a)'); db.commit(); print(*sorted(os.listdir('data')))"
    )
    result = yard.python("bwrap", program)
    assert result.output.splitlines() == [f"{yard.own} {own}", "app.db"]
    assert database.read_bytes().startswith(b"SQLite format 3")
    assert own.read_text() == "the user's"


@needs_bwrap
def test_a_database_stays_in_its_folder_where_its_side_files_are(yard: Yard) -> None:
    database = yard.plan / "db" / "app.db"
    database.parent.mkdir()
    own = yard.top / "user" / "app.db"
    own.write_text("the user's")
    yard.stand_ins.append(
        Mount(name="db", own=str(own), root=str(database.parent), path=str(database))
    )
    program = (
        "import os, sqlite3; db = sqlite3.connect(os.environ['AGENTS_SANDBOX_DB']);"
        "db.execute('PRAGMA journal_mode=wal'); db.execute('CREATE TABLE t (a)'); db.commit()"
    )
    assert yard.python("bwrap", program).error is None
    assert database.read_bytes().startswith(b"SQLite format 3")
    assert own.read_text() == "the user's"


# How it ends


def is_running(mark: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@needs_bwrap
def test_under_bwrap_everything_ends_with_the_tool_even_what_hides(yard: Yard) -> None:
    mark = f"3{uuid.uuid4().int % 10**8:08}"
    hidden = f'env -i PATH="$PATH" setsid sh -c \'trap "" HUP TERM; touch up; exec sleep {mark}\''
    assert yard.sh("bwrap", f"{hidden} & while ! [ -e up ]; do :; done").ok
    assert not is_running(mark)


@confined
def test_a_killed_executor_takes_its_tool_with_it(yard: Yard, how: str) -> None:
    mark = f"3{uuid.uuid4().int % 10**8:08}"
    program = textwrap.dedent("""
        import sys, msgspec
        from cleveragents.tools import resolve_tool
        from cleveragents.tools.runner import CallContext, run_tool
        call = msgspec.json.decode(sys.argv[1], type=CallContext)
        run_tool(resolve_tool("shell", {}), {"command": sys.argv[2]}, call)
    """)
    call = msgspec.json.encode(yard.call(how)).decode()
    argv = [sys.executable, "-c", program, call, f"touch up; exec sleep {mark}"]
    executor = subprocess.Popen(argv)
    wait_until((yard.sandbox / "up").exists, "the tool")
    executor.kill()
    executor.wait()
    wait_until(lambda: not is_running(mark), "its end")


@confined
def test_a_child_in_the_background_ends_with_the_tool(yard: Yard, how: str) -> None:
    mark = f"3{uuid.uuid4().int % 10**8:08}"
    assert yard.sh(how, f"sleep {mark} & setsid sleep {mark} & echo done").output == "done\n"
    assert not is_running(mark)


@confined
def test_a_tool_may_say_goodbye_when_its_time_is_up(
    yard: Yard, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", PATIENCE)
    command = "trap 'echo bye; exit 0' TERM; echo hi; while :; do sleep 0.05; done"
    for limit in (2, 20, 200):  # the first that lets it begin, however slow the machine is
        result = yard.sh(how, command, limit)
        assert result.error == f"timed out after {limit} s"
        if result.output:
            break
    assert result.output.startswith("hi\n")
    assert result.output.endswith("bye\n")


@confined
def test_a_tool_that_will_not_go_is_killed(yard: Yard, how: str) -> None:
    mark = f"3{uuid.uuid4().int % 10**8:08}"
    result = yard.sh(how, f"trap '' TERM; while :; do sleep {mark}; done", 0.5)
    assert result.error == "timed out after 0.5 s"
    assert not is_running(mark)


@confined
def test_input_output_and_exit_code_pass_through(yard: Yard, how: str) -> None:
    big = "0123456789" * 100_000
    result = yard.run(how, "shell", command="wc -c; echo err >&2; exit 7", stdin=big)
    assert result.output.split() == ["1000000", "err"]
    assert (result.exit_code, result.error) == (7, "exit code 7: err")


def test_a_death_by_signal_is_told(yard: Yard) -> None:
    assert yard.sh("off", "kill -SEGV $$").error == "killed by SIGSEGV"
    if bwrap.probe().works:
        assert yard.sh("bwrap", "kill -SEGV $$").error == "exit code 139 (SIGSEGV)"


@everyhow
def test_what_cannot_be_started_is_named_alike(yard: Yard, how: str) -> None:
    (yard.sandbox / "plain").write_text("#!/bin/sh\n")
    script = yard.sandbox / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert yard.run(how, "run", argv=["no-such"]).error == "no such command: no-such"
    assert yard.run(how, "run", argv=["./plain"]).error == "not executable: ./plain"
    missing = "the interpreter that ./script names is missing"
    assert yard.run(how, "run", argv=["./script"]).error == missing
    if how == "bwrap":
        absolute = yard.run(how, "run", argv=[f"{yard.own}/script"]).error
        assert absolute == f"the interpreter that {yard.own}/script names is missing"
    gone = msgspec.structs.replace(yard.call(how), cwd=str(yard.plan / "gone"))
    result = run_tool(resolve_tool("shell", {}), {"command": "true"}, gone)
    assert result.error == f"the sandbox {yard.plan}/gone is missing"


@needs_bwrap
def test_what_bwrap_itself_cannot_do_is_an_error_of_the_step(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap, "_base", lambda: ["--ro-bind", "/no/such", "/"])
    result = yard.sh("bwrap", "touch ran")
    assert (result.error or "").startswith("cannot run /bin/sh under bwrap: Can't find source")
    assert not (yard.sandbox / "ran").exists()


@needs_landlock
def test_rules_that_cannot_be_made_or_taken_on_stop_the_tool(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(landlock, "_RESTRICT", -1)
        assert "under landlock" in (yard.sh("landlock", "touch ran").error or "")
    with monkeypatch.context() as patch:
        patch.setattr(landlock, "_CREATE", -1)
        assert "Landlock: function not implemented" in (yard.sh("landlock", ":").error or "")
    assert not (yard.sandbox / "ran").exists()


# Reading what was denied


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("/bin/sh: 1: cannot create {}/x: Read-only file system", "x"),
        ("bash: line 3: {}/x: Read-only file system", "x"),
        ("/usr/bin/script.sh: line 3: {}/x: Read-only file system", "x"),
        ("touch: cannot touch '{}/x': Read-only file system", "x"),
        ("mkdir: cannot create directory \u2018{}/x\u2019: Read-only file system", "x"),
        ("mv: cannot move 'a' to '{}/x': Read-only file system", "x"),
        ("OSError: [Errno 30] Read-only file system: '{}/a b'", "a b"),
        ("OSError: [Errno 30] Read-only file system: 'a' -> '{}/x'", "x"),
        ("npm ERR! EROFS: read-only file system, open '{}/x'", "x"),
        ("open {}/x: read-only file system", "x"),
        ("error: could not lock config file {}/x: Read-only file system", "x"),
        ("java.io.FileNotFoundException: {}/x (Read-only file system)", "x"),
        ("touch: cannot touch '../outside/x': Read-only file system", "x"),
    ],
)
def test_the_texts_of_many_programs_are_understood(yard: Yard, line: str, path: str) -> None:
    found = said_about(yard, line.format(yard.outside))
    assert found == [
        f'writing {yard.outside}/{path} was denied: add "{yard.outside}" to sandbox.writable'
    ]


def said_about(yard: Yard, output: str, how: str = "bwrap", code: int = 1) -> list[str]:
    return denied_writes(
        output,
        mechanism=how,
        exit_code=code,
        cwd=str(yard.own),
        seen=Seen(mounted=tuple(yard.stand_ins)),
        writable=[str(yard.sandbox)],
        hidden=[str(yard.store)],
    )


def test_what_is_not_a_denied_write_is_not_called_one(yard: Yard) -> None:
    for line in (
        "rm: cannot remove 'code': Read-only file system",
        f"touch: cannot touch '{yard.own}/x': Read-only file system",
        f"touch: cannot touch '{yard.sandbox}/x': Read-only file system",
        "write error: Read-only file system",
        f"{yard.outside}/x: Permission denied",
        "touch: cannot touch '/proc/x': Read-only file system",
    ):
        assert said_about(yard, line) == [], line
    denied = f"sh: 1: {yard.outside}/x: Permission denied"
    assert said_about(yard, denied, "landlock")
    assert said_about(yard, denied, "landlock", 126) == []
    assert said_about(yard, denied, "off") == []


def test_a_folder_that_is_missing_is_to_be_made_and_home_is_never_listed_whole(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(yard.top / "user"))
    [deep] = said_about(yard, f"open {yard.top}/user/.new/a/b: read-only file system")
    assert deep.endswith(
        f'mkdir -p {yard.top}/user/.new, then add "{yard.top}/user/.new" to sandbox.writable'
    )
    (yard.top / "user" / ".rc").touch()
    [rc] = said_about(yard, f"open {yard.top}/user/.rc: read-only file system")
    assert rc.endswith(f'add "{yard.top}/user/.rc" to sandbox.writable')
    many = "\n".join(f"open {yard.outside}/{n}: read-only file system" for n in range(9))
    assert len(said_about(yard, many)) == 3


# Which mechanism


def nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without either."""
    monkeypatch.setattr(bwrap, "probe", lambda: bwrap.Found(reason="bwrap is not installed"))
    monkeypatch.setattr(landlock, "abi", lambda: 0)


def test_the_best_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_there(monkeypatch)
    assert mechanism("auto") == mechanism("off") == "off"
    for asked in ("required", "bwrap", "landlock"):
        with pytest.raises(NotAllowed, match=f"sandbox.confine is '{asked}'") as refused:
            mechanism(asked)
        assert "apt install bubblewrap" in refused.value.hint
    monkeypatch.setattr(landlock, "abi", lambda: 4)
    assert mechanism("auto") == mechanism("required") == mechanism("landlock") == "landlock"
    with pytest.raises(NotAllowed, match=r"bwrap is not installed$"):
        mechanism("bwrap")
    monkeypatch.setattr(bwrap, "probe", lambda: bwrap.Found(works=True))
    assert mechanism("auto") == mechanism("required") == mechanism("bwrap") == "bwrap"
    assert mechanism("landlock") == "landlock"


@pytest.mark.parametrize(
    ("setting", "policy", "result"),
    [
        ("auto", None, "auto"),
        ("auto", "off", "off"),
        ("off", "required", "required"),
        ("required", "off", "required"),
        ("required", "auto", "required"),
        ("required", "landlock", "required"),
        ("required", "bwrap", "bwrap"),
        ("bwrap", "off", "bwrap"),
        ("bwrap", "required", "bwrap"),
        ("landlock", "auto", "landlock"),
        ("landlock", "off", "landlock"),
        ("auto", "landlock", "landlock"),
    ],
)
def test_a_plan_chooses_but_cannot_weaken_what_the_user_requires(
    setting: str, policy: str | None, result: str
) -> None:
    assert confine_in_force(setting, policy) == result


def test_a_bwrap_that_does_not_work_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = bwrap.probe.__wrapped__()
    assert (found.path, found.works) == (str(fake), False)
    assert found.reason == "bwrap: No permissions to create new namespace"
    monkeypatch.setenv("PATH", "/nowhere")
    assert bwrap.probe.__wrapped__().reason == "bwrap is not installed"


# From the command line


def plan(agents: Agents, steps: str, more: str = "", kind: str = "fs-directory") -> None:
    (agents.work / "app").mkdir(exist_ok=True)
    text = f"name: t\nresources:\n  app: {{kind: {kind}, path: app}}\n{more}steps:\n{steps}"
    (agents.work / "plan.yaml").write_text(text)


@confined
def test_a_denied_write_is_named_in_the_steps_error(agents: Agents, how: str) -> None:
    plan(agents, '  - {id: leak, run: "echo x >$HOME/.rc"}\n', f"policy: {{confine: {how}}}\n")
    done = agents.run("plan", "run", "plan.yaml", "--json").expect(5)
    home = agents.env["HOME"]
    assert f"writing {home}/.rc was denied: mkdir" in done.data["steps"][0]["error"]
    assert not Path(home, ".rc").exists()


def test_required_is_refused_where_there_is_nothing(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_there(monkeypatch)
    monkeypatch.chdir(agents.work)
    plan(agents, '  - {id: a, run: "true"}\n')
    settings = settings_here(overrides={"sandbox.confine": "required"})
    with open_workspace(settings=settings) as workspace:
        with pytest.raises(NotAllowed, match="tools cannot be confined here") as refused:
            workspace.use("plan.yaml")
        assert refused.value.exit_code == 4
        assert workspace.plans() == []
        # A tool of our own needs no confinement.
        plan(agents, "  - {id: a, tool: file.write, with: {path: x, content: y}}\n")
        assert workspace.run("plan.yaml").plan.error is None


def told(agents: Agents, *runs: Callable[[Any], Any], **overrides: str) -> list[str]:
    said: list[str] = []

    def tell(event: str, data: dict[str, Any]) -> None:
        if event == "warning":
            said.append(data["message"])

    settings = settings_here(overrides=overrides)
    with open_workspace(settings=settings, talk=Talk(tell=tell)) as workspace:
        for run in runs:
            run(workspace)
    return said


def test_without_either_one_warning_per_run_unless_off(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_there(monkeypatch)
    monkeypatch.chdir(agents.work)
    offline = 'tools:\n  quiet: {run: "true", network: false}\n'
    plan(agents, '  - {id: a, run: "true"}\n  - {id: b, tool: quiet}\n', offline)
    first, second = told(agents, lambda ws: ws.run("plan.yaml"))
    assert first.startswith("tools are not confined and can write wherever you can: bwrap is not")
    assert second == "network: false cannot be enforced here, it is only noted: quiet"
    assert told(agents, lambda ws: ws.run("plan.yaml"), **{"sandbox.confine": "off"}) == []
    plan(agents, "  - {id: a, tool: file.list}\n")
    assert told(agents, lambda ws: ws.run("plan.yaml")) == []


@needs_bwrap
def test_git_in_the_sandbox_reads_what_it_borrows_from_the_covered_repository(
    agents: Agents,
) -> None:
    app = agents.work / "app"
    app.mkdir()
    (app / "f").write_text("one")
    make_repository(agents, app)
    look = "git log --format=%s; git show HEAD:f; git status --short; git fsck --no-dangling"
    commit = "touch g; git add g; git -c user.name=n -c user.email=e commit -qm two"
    plan(
        agents,
        f'  - {{id: look, run: "set -e; {look}; {commit}; git log --format=%s"}}\n',
        "policy: {confine: bwrap}\n",
        "git-checkout",
    )
    (agents.work / "plan.yaml").rename(app / "plan.yaml")
    (app / "plan.yaml").write_text((app / "plan.yaml").read_text().replace("path: app", "path: ."))
    agents.run("plan", "run", "plan.yaml", "--json", cwd=app).expect(0)
    [output] = tool_outputs(agents, "look")
    assert output.splitlines() == ["start", "one?? plan.yaml", "two", "start"]
    agents.run("plan", "apply", "last", "--yes", "--as", "changes").expect(0)
    assert (app / "g").exists()


def make_environment(app: Path) -> None:
    """As `pip install -e .` leaves it: a path file that names where the code was."""
    (app / "src").mkdir(parents=True)
    (app / "src" / "shop.py").write_text("WHOSE = 'the original'\n")
    import venv

    venv.create(app / ".venv", symlinks=True, with_pip=False)
    [packages] = (app / ".venv" / "lib").glob("python*/site-packages")
    (packages / "__editable__.shop-1.pth").write_text(f"{app}/src\n")


EDIT_AND_IMPORT = """
  - {id: edit, tool: file.write, with: {path: src/shop.py, content: "WHOSE = 'the sandbox'"}}
  - {id: test, run: "python -c 'import shop; print(shop.WHOSE)'"}
"""


@everyhow
def test_an_editable_install_imports_the_sandbox_under_bwrap_and_else_there_is_a_warning(
    agents: Agents, how: str
) -> None:
    app = agents.work / "app"
    make_environment(app)
    plan(agents, EDIT_AND_IMPORT, f"policy: {{confine: {how}}}\n")
    env = {"PATH": f"{app}/.venv/bin:{os.environ['PATH']}", "VIRTUAL_ENV": f"{app}/.venv"}
    done = agents.run("plan", "run", "plan.yaml", "--json", env=env).expect(0)
    [output] = tool_outputs(agents, "test")
    warned = [text for text in done.json["messages"] if "names" in text]
    if how == "bwrap":
        assert (output, warned) == ("the sandbox\n", [])
    else:
        # Python itself was found in the sandbox, by PATH; what it imports was not.
        assert output == "the original\n"
        [text] = warned
        assert re.search(r"'app': \.venv/lib/.*/__editable__\.shop-1\.pth names", text)


def tool_outputs(agents: Agents, step: str) -> list[str]:
    sql = "SELECT output FROM tool_calls WHERE step_id = ?"
    return [row[0] for row in store_of(agents.env).query(sql, (step,))]


def test_the_warning_is_only_for_what_is_carried_and_names_the_original(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_there(monkeypatch)
    monkeypatch.chdir(agents.work)
    app = agents.work / "app"
    make_environment(app)
    plan(agents, '  - {id: a, run: "true"}\n')

    def warnings() -> list[str]:
        return [text for text in told(agents, lambda ws: ws.use("plan.yaml")) if "names" in text]

    [packages] = (app / ".venv" / "lib").glob("python*/site-packages")
    assert ".pth names" in warnings()[0]
    (packages / "__editable__.shop-1.pth").write_text("import __editable___shop_finder\n")
    (packages / "__editable___shop_finder.py").write_text(f"MAPPING = {{'shop': '{app}/src'}}\n")
    assert "__editable___shop_finder.py names" in warnings()[0]
    (packages / "__editable___shop_finder.py").unlink()
    (app / ".venv" / "bin" / "tool").write_text(f"#!{app}/.venv/bin/python\n")
    assert ".venv/bin/tool names" in warnings()[0]
    (app / ".venv" / "bin" / "tool").write_text("#!/usr/bin/env python\n")
    (app / ".venv" / "pyvenv.cfg").write_text(f"command = python -m venv {app}/.venv\n")
    assert "pyvenv.cfg names" in warnings()[0]
    (app / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for script in (app / ".venv" / "bin").iterdir():
        script.unlink()
    assert warnings() == []


def test_validations_are_confined_too(agents: Agents) -> None:
    how = mechanism("auto")
    if how == "off":
        pytest.skip("neither bwrap nor Landlock is here")
    target = Path(agents.env["HOME"]) / "leak"
    more = f'validate:\n  - {{on: app, run: "echo x >{target}"}}\n'
    plan(agents, "  - {id: a, tool: file.write, with: {path: x, content: y}}\n", more)
    agents.run("plan", "run", "plan.yaml", "--json").expect(0)
    done = agents.run("plan", "apply", "last", "--json", "--yes").expect(4)
    assert f"writing {target} was denied" in done.data["error"]["message"]
    assert not target.exists()


def test_status_names_what_is_writable_and_not_rolled_back(agents: Agents) -> None:
    plan(agents, "  - {id: a, tool: file.list}\n")
    folder = agents.work / "shared"
    agents.run("config", "set", "sandbox.writable", str(folder)).expect(0)
    agents.run("plan", "run", "plan.yaml").expect(0)
    assert agents.run("plan", "status", "--json").expect(0).data["writable"] == [str(folder)]
    shown = agents.run("plan", "status", "--format", "plain").expect(0).stdout
    assert f"{folder}: not rolled back" in shown


def test_calls_in_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    how = mechanism("auto")
    codes: dict[int, int | None] = {}

    def call(index: int) -> None:
        (tmp_path / str(index)).mkdir()
        codes[index] = Yard(tmp_path / str(index)).sh(how, f"sleep 0.1; exit {index}").exit_code

    threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert codes == {index: index for index in range(8)}
