"""What the machine refuses is named with its place and its own exit code, and costs no more."""

import _thread
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.harness import Agents, Outcome, command
from tests.in_process import Yard, cli
from tests.needed import needs
from tests.scratch import git, make_repository
from tests.small_disk import SmallDisk, small_disk

PLAN = """
name: notes
resources: {app: {kind: git-checkout, path: app}}
steps:
  - {id: note, tool: file.write, on: app, with: {path: NOTES, content: "noted"}}
  - {id: edit, tool: file.write, on: app, with: {path: old, content: "new"}}
"""
READING = (
    ("plan", "list"),
    ("plan", "status", "last"),
    ("plan", "checkpoints", "last"),
    ("plan", "diff", "last"),
    ("plan", "log", "last"),
    ("plan", "tree", "last"),
    ("check", "--read-data"),
    ("du",),
)


def prepared(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "old").write_text("old")
    make_repository(agents, app)
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    return app


@pytest.fixture
def disk(agents: Agents, tmp_path: Path) -> Generator[SmallDisk]:
    with small_disk(agents, tmp_path, 128) as made:
        app = made.inside(made.work / "app")
        app.mkdir()
        (app / "old").write_text("old")
        for argv in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "start")):
            made.run_any("git", "-C", "app", *argv).expect(0)
        made.inside(made.work / "plan.yaml").write_text(PLAN)
        made.run("plan", "run", "plan.yaml").expect(0)
        yield made


def named(done: Outcome, kind: str, rc: int) -> str:
    """The error's message; it is of that kind, and no bug."""
    assert done.rc == rc, done
    error = done.data["error"]
    assert error["type"] == kind, done
    assert error["hint"], done
    return error["message"]


@pytest.mark.parametrize("logged", [False, True], ids=["closed", "with a log left behind"])
def test_reading_works_on_a_read_only_mount(disk: SmallDisk, logged: bool) -> None:
    store = disk.world / "store"
    if logged:  # as a process that was killed leaves it
        subprocess.run(
            disk.argv(
                "python3",
                "-c",
                "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
                "db.execute('PRAGMA wal_autocheckpoint=0');"
                "db.execute(\"UPDATE plans SET name = 'renamed'\"); db.commit(); os._exit(0)",
                str(disk.store / "store.db"),
            ),
            check=True,
        )
        (store / "store.db-shm").unlink()
        assert (store / "store.db-wal").stat().st_size
    sandbox = next((store / "sandboxes").glob("*/app"))
    (sandbox / "large").write_bytes(os.urandom(6 << 20))
    disk.remount("ro")
    for argv in READING:
        disk.run(*argv).expect(0)
    shown = disk.run("plan", "status", "last", "--json").expect(0).data
    assert shown["name"] == ("renamed" if logged else "notes")
    diff = disk.run("plan", "diff", "last", "--json").expect(0).data
    assert {item["path"] for item in diff["files"]} == {"NOTES", "old", "large"}
    for verb in (
        ("plan", "rollback", "last", "first", "--yes"),
        ("plan", "apply", "last", "--yes"),
        ("plan", "delete", "last", "--yes"),
        ("plan", "run", "plan.yaml"),
        ("plan", "checkpoint", "create", "last"),
        ("gc",),
    ):
        text = named(disk.run(*verb, "--json"), "ReadOnlyStore", 6)
        assert str(disk.store) in text, (verb, text)


@pytest.fixture
def open_place() -> Generator[Path]:
    """A folder that everybody can reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="cleveragents-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_reading_works_for_somebody_who_may_not_write(agents: Agents, open_place: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming somebody else needs root and setpriv")
    home = open_place / "store"
    agents.env["CLEVERAGENTS_HOME"] = str(home)
    prepared(agents)
    for path in (home, *home.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    home.chmod(0o555)
    (home / "store.db").chmod(0o400)
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", command())
    if subprocess.run([*as_nobody[:-1], "test", "-r", command()], check=False).returncode:
        pytest.skip(f"others cannot read {command()}")
    env = {**agents.env, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}
    git_ok = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory"}
    env |= git_ok | {"GIT_CONFIG_VALUE_0": "*"}

    def run(*argv: str) -> Outcome:
        done = subprocess.run(
            [*as_nobody, *argv], cwd="/", env=env, capture_output=True, text=True, check=False
        )
        return Outcome(argv, done.returncode, done.stdout, done.stderr)

    for argv in READING:
        if argv[1:2] != ("diff",):
            run(*argv).expect(0)
    named(run("plan", "delete", "last", "--yes", "--json"), "ReadOnlyStore", 6)
    home.chmod(0o000)
    assert str(home) in named(run("plan", "list", "--json"), "MachineError", 6)


def test_a_cache_that_cannot_be_written_fails_nothing(agents: Agents) -> None:
    prepared(agents)
    cache = Path(agents.env["CLEVERAGENTS_HOME"]) / "cache"
    shutil.rmtree(cache)
    cache.write_text("in the way")
    agents.run("plan", "checkpoint", "create", "last").expect(0)
    agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
    agents.run("plan", "resume", "last").expect(0)
    agents.run("plan", "apply", "last", "--yes").expect(0)


def test_a_working_directory_that_was_deleted_stops_nothing(agents: Agents) -> None:
    """A rollback failed in one after its point of no return, and waited for ever."""
    app = prepared(agents)
    gone = agents.work / "gone"
    script = f'cd "{gone}" && rmdir "{gone}" && exec "$0" plan "$@"'
    for words in (
        ["run", str(agents.work / "plan.yaml")],
        ["diff", "last"],
        ["rollback", "last", "first", "--yes"],
        ["resume", "last"],
        ["status", "last"],
        ["apply", "last", "--yes"],
    ):
        gone.mkdir()
        done = subprocess.run(
            ["sh", "-c", script, command(), *words],
            env=agents.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done)
    assert (app / "old").read_text() == "new"
    assert git(agents, app, "rev-list", "--count", "HEAD") == "2"
    assert not agents.run("plan", "list", "--json").expect(0).json["messages"]


def test_what_needs_the_working_directory_says_that_it_was_deleted(agents: Agents) -> None:
    gone = agents.work / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "$0" run -- true'
    argv = ["sh", "-c", script, command()]
    done = subprocess.run(argv, env=agents.env, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert done.stderr.splitlines() == [
        "error: the current directory was removed",
        "hint: cd to one that exists, then run it again",
    ]


def test_a_store_whose_path_is_no_utf8_is_refused_by_name(agents: Agents) -> None:
    home = os.fsencode(agents.work) + b"/st\xffore"
    env = {os.fsencode(key): os.fsencode(value) for key, value in agents.env.items()}
    done = subprocess.run(
        [command(), "plan", "list", "--json"],
        cwd=agents.work,
        env=env | {b"CLEVERAGENTS_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    text = named(Outcome(("plan list",), done.returncode, done.stdout, ""), "ConfigError", 2)
    assert "st\\xffore" in text, text
    assert not os.path.exists(home)


def test_a_store_where_nothing_can_be_made_is_named(agents: Agents) -> None:
    refused = agents.run("plan", "list", "--json", env={"CLEVERAGENTS_HOME": "/proc/none/store"})
    assert "/proc/none" in named(refused, "MachineError", 6)


@pytest.mark.parametrize("kind", ["folder", "link to itself", "not UTF-8"])
def test_a_settings_file_that_cannot_be_read_is_named(agents: Agents, kind: str) -> None:
    file = Path(agents.env["XDG_CONFIG_HOME"], "cleveragents/config.toml")
    file.parent.mkdir(parents=True)
    if kind == "folder":
        file.mkdir()
    elif kind == "link to itself":
        file.symlink_to(file.name)
    else:
        file.write_bytes(b"\xff\xfe")
    text = named(agents.run("plan", "list", "--json"), "ConfigError", 2)
    assert text.startswith(f"cannot read {file}: ")
    assert not any(noise in text for noise in ("Errno", "codec", ": 3"))


def test_whatever_needs_git_says_that_it_is_not_there(agents: Agents) -> None:
    prepared(agents)
    without = {"PATH": str(agents.work / "nothing")}
    for argv in (
        ("plan", "diff", "last"),
        ("plan", "export", "last", "--branch", "topic"),
        ("plan", "export", "last", "--patch"),
        ("plan", "apply", "last", "--yes"),
        ("plan", "delete", "last", "--yes"),
    ):
        done = agents.run(*argv, "--json", env=without)
        error = done.data["error"]
        assert "git is not installed" in error["message"] + error["hint"], done
        assert done.rc in (5, 6), done


def test_a_sandbox_that_cannot_be_made_or_removed_is_named(agents: Agents) -> None:
    app = prepared(agents)
    home = Path(agents.env["CLEVERAGENTS_HOME"])
    sandbox = next((home / "sandboxes").glob("*/app"))
    needs("chattr")
    frozen = subprocess.run(["chattr", "+a", str(sandbox.parent)], capture_output=True, check=False)
    if frozen.returncode:
        pytest.skip(f"a file that cannot be removed needs root and chattr: {frozen.stderr!r}")
    try:
        refused = agents.run("plan", "delete", "last", "--yes", "--json")
    finally:
        subprocess.run(["chattr", "-a", str(sandbox.parent)], check=True)
    assert str(sandbox) in named(refused, "SandboxError", 5)
    agents.run("plan", "delete", "last", "--yes").expect(0)
    shutil.rmtree(home / "sandboxes")
    (home / "sandboxes").write_text("in the way")
    refused = agents.run("plan", "run", "plan.yaml", "--json")
    assert refused.rc in (5, 6), refused
    assert "sandboxes" in refused.data["error"]["message"], refused
    assert (app / "old").read_text() == "old"


def test_no_more_threads_is_the_machines_fault_and_stops_nothing_that_can_do_without(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise RuntimeError("can't start new thread")

    yard.plan()
    with monkeypatch.context() as here:
        here.setattr(threading, "_start_new_thread", refuse)
        refused = cli("plan", "run", "plan.yaml", expect=6)
    assert "starts no more threads" in refused.stderr
    cli("plan", "run", "plan.yaml")
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert "reverted" in cli("plan", "rollback", "shop", "first", "--yes").stdout
