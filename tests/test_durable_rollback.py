"""A committed rollback outlives the machine going down before its files are on disk."""

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import fsio
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
            fsio.arm(self.die_if_committed)
            try:
                with open_workspace(self.home) as workspace:
                    workspace.find("lasting").rollback(self.first)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert self.intents() == ["committed"]

    def die_if_committed(self, _point: str) -> None:
        if self.intents() == ["committed"]:
            os._exit(9)

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


def test_a_plan_that_has_continued_is_left_as_it_is(machine: Machine) -> None:
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
    sync = os.fsync

    def fail(fd: int) -> None:
        if machine.intents() == ["committed"]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    with patch.context() as broke:
        broke.setattr(os, "fsync", fail)
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


def test_the_same_process_does_not_continue_with_what_was_not_synced(
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
