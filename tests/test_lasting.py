"""A committed rollback outlives the machine going down before its files are on disk.

Also: the compiled ways to read and write one file do what their twins in Python do.
"""

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleveragents.checkpoints.manager import CheckpointManager
from cleveragents.content import files, fsio
from cleveragents.content.background import Background
from cleveragents.errors import StoreError
from cleveragents.workspace import Workspace, open_workspace
from tests.harness import Agents

PLAN = """
name: lasting
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: one, run: "echo one > a; mkdir d; echo deep > d/x"}
  - {id: two, run: "echo two > a; rm -r d; echo new > b"}
"""


class Machine:
    """A plan whose rollback to its first step was committed by a process that then died."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.home = agents.env["CLEVERAGENTS_HOME"]
        (agents.work / "docs").mkdir()
        (agents.work / "docs/a").write_text("zero\n")
        (agents.work / "plan.yaml").write_text(PLAN)
        ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0)
        self.sandbox = Path(ran.data["sandboxes"]["docs"])
        found = agents.run("plan", "checkpoints", "lasting", "--json").data["checkpoints"]
        self.first = next(row["group_id"] for row in found if row["step_index"] == 1)
        self.die_after_the_commit()

    def die_after_the_commit(self) -> None:
        child = os.fork()
        if child == 0:
            os.environ.update(self.agents.env)
            CheckpointManager.making_last = lambda *_: os._exit(9)  # type: ignore[method-assign]
            try:
                with open_workspace(self.home) as workspace:
                    workspace.find("lasting").rollback(self.first)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert self.intents() == ["committed"]

    def intents(self) -> list[str]:
        with self.database() as db:
            return [row[0] for row in db.execute("SELECT state FROM intents")]

    def database(self) -> Any:
        return closing(sqlite3.connect(f"{self.home}/store.db"))

    def go_down(self) -> None:
        """The next boot is another one, and what was not synced is gone."""
        with self.database() as db, db:
            db.execute("UPDATE intents SET body = json_set(body, '$.boot_id', 'the one before')")
        (self.sandbox / "a").write_bytes(b"")
        (self.sandbox / "d/x").unlink()
        (self.sandbox / "b").write_text("back from the dead\n")

    def content(self) -> dict[str, str]:
        return {
            os.fspath(path.relative_to(self.sandbox)): path.read_text()
            for path in sorted(self.sandbox.rglob("*"))
            if path.is_file()
        }


THEN = {"a": "one\n", "d/x": "deep\n"}


@pytest.fixture
def machine(agents: Agents) -> Machine:
    return Machine(agents)


def test_after_a_kill_the_files_are_there_and_nothing_is_done_again(machine: Machine) -> None:
    seen = machine.agents.run("plan", "list").expect(0)
    assert "done again" not in seen.stderr + seen.stdout
    assert machine.content() == THEN
    assert machine.intents() == []
    assert not list(machine.sandbox.parent.glob(".staging-*"))
    machine.agents.run("plan", "resume", "lasting").expect(0)
    assert machine.content() == {"a": "two\n", "b": "new\n"}


def test_after_the_machine_went_down_the_rollback_is_done_again(machine: Machine) -> None:
    machine.go_down()
    seen = machine.agents.run("plan", "list").expect(0)
    assert "a rollback was repeated" in seen.stderr + seen.stdout
    assert machine.content() == THEN
    assert machine.intents() == []
    machine.agents.run("plan", "undo", "lasting").expect(0)
    assert machine.content() == {"a": "two\n", "b": "new\n"}


def test_a_plan_that_has_gone_on_is_left_where_it_stands(machine: Machine) -> None:
    with machine.database() as db, db:
        db.execute("UPDATE intents SET body = json_set(body, '$.version', 1)")
    machine.go_down()
    damaged = machine.content()
    seen = machine.agents.run("plan", "list").expect(0)
    assert "done again" not in seen.stderr + seen.stdout
    assert machine.content() == damaged
    assert machine.intents() == []


def fail_to_sync(machine: Machine, workspace: Workspace, patch: pytest.MonkeyPatch) -> None:
    """Roll back while the disk takes nothing; the pages that were not written are then lost."""
    making_last = CheckpointManager.making_last

    def broken(*given: Any) -> Callable[[], None]:
        def work() -> None:
            with pytest.MonkeyPatch.context() as disk:
                disk.setattr(os, "fsync", fail)
                making_last(*given)()

        return work

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with patch.context() as broke:
        broke.setattr(CheckpointManager, "making_last", broken)
        with pytest.raises(StoreError):
            workspace.find("lasting").rollback(machine.first)
    assert machine.intents() == ["committed"]
    file = machine.sandbox / "a"
    stamp = file.stat()
    file.write_text("two\n")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_a_sync_that_succeeds_after_one_failed_proves_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.agents.run("plan", "undo", "lasting").expect(0)
    with open_workspace(machine.home) as workspace:
        fail_to_sync(machine, workspace, monkeypatch)
    seen = machine.agents.run("plan", "list").expect(0)
    assert "a rollback was repeated" in seen.stderr + seen.stdout
    assert machine.content() == THEN
    assert machine.intents() == []


def test_the_same_process_does_not_go_on_with_what_was_not_synced(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.agents.run("plan", "undo", "lasting").expect(0)
    with open_workspace(machine.home) as workspace:
        fail_to_sync(machine, workspace, monkeypatch)
        workspace.find("lasting").checkpoint()
        assert machine.content() == THEN
    assert machine.intents() == []


def test_a_rollback_in_a_running_process_leaves_nothing_behind_when_it_ends(
    agents: Agents,
) -> None:
    machine = Machine(agents)
    agents.run("plan", "undo", "lasting").expect(0)
    with open_workspace(machine.home) as workspace:
        workspace.find("lasting").rollback(machine.first)
        assert machine.intents() == []
    assert not list(machine.sandbox.parent.glob(".staging-*"))


def test_what_fails_beside_is_raised_where_it_is_waited_for() -> None:
    def broken() -> None:
        raise OSError("the disk did not take it")

    work = Background(broken)
    for _ in range(2):
        with pytest.raises(OSError, match="did not take it"):
            work.wait()


LOOKS = (files.look, files.python_look)
PUTS = (fsio.put, fsio.python_put)


def both_look(folder: Path, name: bytes, limit: int) -> files.Seen | None:
    with fsio.directory(os.fspath(folder)) as fd:
        one, other = (look(fd, name, limit) for look in LOOKS)
    assert one == other
    return one


def test_looking_at_names_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "empty").touch()
    (tmp_path / "closed").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    os.link(tmp_path / "file", os.fsencode(tmp_path) + b"/\xff\n")
    seen = both_look(tmp_path, b"file", 7)
    assert seen is not None
    assert seen[:5] == files.stamp((tmp_path / "file").lstat())
    assert (seen[5], seen[7]) == (2, b"content")
    for name, limit, data in (
        (b"file", 6, None),
        (b"\xff\n", 100, b"content"),
        (b"empty", 0, b""),
        (b"empty", -1, None),
        (b"dir", 10**9, None),
        (b"link", 100, None),
        (b"fifo", 100, None),
    ):
        found = both_look(tmp_path, name, limit)
        assert found is not None
        assert found[7] == data
    assert both_look(tmp_path, b"nothing", 100) is None


def test_a_name_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for look in LOOKS:
        with fsio.directory(os.fspath(tmp_path)) as fd, pytest.raises(NotADirectoryError):
            look(fd, b"file/below", 10)


def test_a_file_that_grows_while_it_is_read_is_not_taken_for_one_version() -> None:
    """Files of /proc have no size: the content is not what stat promised."""
    with fsio.directory(f"/proc/{os.getpid()}") as fd:
        for look in LOOKS:
            found = look(fd, b"status", 1000)
            assert found is not None
            assert found[7] is None


@settings(max_examples=50, deadline=None)
@given(
    data=st.binary(max_size=3000),
    mode=st.sampled_from([0o600, 0o644, 0o755, 0o400]),
    mtime=st.one_of(st.just(fsio.NO_TIME), st.integers(-(10**15), 2 * 10**18)),
)
def test_a_new_file_is_the_same_either_way(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, mode: int, mtime: int
) -> None:
    folder = tmp_path_factory.mktemp("put")
    with fsio.directory(os.fspath(folder)) as fd:
        for number, put in enumerate(PUTS):
            name = b"n%d" % number
            made = put(fd, name, data, mode, mtime)
            found = os.stat(name, dir_fd=fd)
            assert made == fsio.inode_of(found)
            assert found.st_mode & 0o7777 == mode
            assert (folder / name.decode()).read_bytes() == data
            if mtime != fsio.NO_TIME:
                assert found.st_mtime_ns == mtime


@pytest.mark.parametrize("put", PUTS)
def test_an_existing_name_is_never_written_to(put: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to("elsewhere")
    with fsio.directory(os.fspath(tmp_path)) as fd:
        for name in (b"there", b"link"):
            with pytest.raises(FileExistsError):
                put(fd, name, b"theirs", 0o600, 0)
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
