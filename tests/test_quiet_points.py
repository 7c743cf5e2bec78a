"""`agents run -- CMD`: a point to go back to whenever the command's writes fall quiet.

The commands wait for a line of input, which they get when the point is there.
"""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from cleveragents.context import Talk
from cleveragents.execution.steps import quiet
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace
from tests.harness import Agents, command
from tests.in_process import Arm, Yard
from tests.scratch import make_repository, wait_until
from tests.web.visitor import Visitor, classes, rows

MANY = 50
SPILLED = """\
import sqlite3, sys
db = sqlite3.connect("app.db", isolation_level=None)
db.execute("PRAGMA cache_size=2")
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES (?)", [("new" * 500,) for _ in range(200)])
sys.stdin.readline()
db.execute("COMMIT")
"""


@pytest.fixture
def repo(agents: Agents) -> Path:
    repo = agents.work / "repo"
    repo.mkdir(parents=True)
    (repo / "a").write_text("0\n")
    make_repository(agents, repo)
    return repo


class Running:
    """`agents run` with a command that waits for what the test says."""

    def __init__(self, agents: Agents, repo: Path, *argv: str, settings: tuple[str, ...] = ()):
        flags = [word for item in settings for word in ("--set", item)]
        self.agents = agents
        self.process = subprocess.Popen(
            [command(), "run", "--name", "job", *flags, "--", *argv],
            cwd=repo,
            env=agents.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_point(self, number: int) -> str:
        """The id of the n-th point."""
        wait_until(lambda: len(points(self.agents)) >= number, f"point {number}")
        return points(self.agents)[number - 1]["group_id"]

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Let it run to its end; what `agents run` said about it."""
        _, said = self.process.communicate(timeout=600)
        return said


def groups(agents: Agents) -> list[dict[str, Any]]:
    found = agents.run("plan", "checkpoints", "job", "--json")
    return found.data["groups"] if found.rc == 0 else []


def points(agents: Agents) -> list[dict[str, Any]]:
    return [group for group in groups(agents) if group["type"] == "on_quiet"]


def sandbox(agents: Agents) -> Path:
    return Path(agents.run("plan", "status", "job", "--json").expect(0).data["sandboxes"]["work"])


def back_to(agents: Agents, group: str) -> dict[str, Any]:
    return agents.run("plan", "rollback", "job", group, "--yes", "--json").expect(0).data


def changed(agents: Agents, *flags: str) -> dict[str, str]:
    found = agents.run("plan", "diff", "job", *flags, "--json").expect(0).data["files"]
    return {file["path"]: file["status"] for file in found}


def test_each_pause_is_a_point_to_go_back_to(agents: Agents, repo: Path) -> None:
    script = "echo 1 > a; read x; echo 2 > a; echo n > new; read x; rm a"
    job = Running(agents, repo, "sh", "-c", script)
    first = job.wait_for_point(1)
    job.say()
    second = job.wait_for_point(2)
    job.say()
    said = job.end()
    assert job.process.returncode == 0, said
    assert "2 points to roll back to from while it ran: agents plan checkpoints job" in said
    assert [group["step"] for group in points(agents)] == ["run", "run"]
    assert all(c["owner"] == "agent" for group in groups(agents) for c in group["changes"])
    assert changed(agents) == {"a": "removed", "new": "added"}
    assert changed(agents, "--from", first, "--to", second) == {"a": "changed", "new": "added"}

    rolled = back_to(agents, first)
    assert [effect["tool"] for effect in rolled["effects"]["unknown"]] == ["run"]
    assert (sandbox(agents) / "a").read_text() == "1\n"
    assert not (sandbox(agents) / "new").exists()
    agents.run("plan", "undo", "job").expect(0)
    assert changed(agents) == {"a": "removed", "new": "added"}
    back_to(agents, second)
    assert (sandbox(agents) / "a").read_text() == "2\n"
    assert (sandbox(agents) / "new").read_text() == "n\n"
    agents.run("plan", "apply", "job", "--yes").expect(0)
    assert ((repo / "a").read_text(), (repo / "new").read_text()) == ("2\n", "n\n")


def test_what_the_command_wrote_is_its_own_once(agents: Agents, repo: Path) -> None:
    job = Running(agents, repo, "sh", "-c", "echo 1 > a; echo b > b; read x; echo 2 > a; rm b")
    job.wait_for_point(1)
    job.say()
    job.end()
    [decision] = [group["decision_id"] for group in points(agents)]
    found = agents.run("plan", "explain", decision, "--json").expect(0).data
    assert [write["path"] for write in found["wrote"]] == ["a"]


def test_half_a_file_is_kept_as_half_a_file(agents: Agents, repo: Path) -> None:
    script = "exec 3> big; printf half >&3; read x; printf ' and half' >&3"
    job = Running(agents, repo, "sh", "-c", script)
    point = job.wait_for_point(1)
    job.say()
    job.end()
    assert (sandbox(agents) / "big").read_text() == "half and half"
    back_to(agents, point)
    assert (sandbox(agents) / "big").read_text() == "half"
    agents.run("plan", "undo", "job").expect(0)
    assert (sandbox(agents) / "big").read_text() == "half and half"


def test_in_the_middle_of_a_transaction_the_point_has_the_last_commit(
    agents: Agents, repo: Path
) -> None:
    with closing(sqlite3.connect(repo / "app.db")) as db, db:
        db.execute("CREATE TABLE t (x)")
        db.execute("INSERT INTO t VALUES ('old')")
    job = Running(agents, repo, sys.executable, "-c", SPILLED)
    point = job.wait_for_point(1)
    # Pages of the transaction are in the file already: without its journal it would be broken.
    assert set(changed(agents, "--to", point)) == {"app.db", "app.db-journal"}
    job.say()
    job.end()
    back_to(agents, point)
    with closing(sqlite3.connect(sandbox(agents) / "app.db")) as db:
        assert db.execute("SELECT x FROM t").fetchall() == [("old",)]
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_command_that_dies_is_resumed_from_where_it_began(agents: Agents, repo: Path) -> None:
    """Although groups hold part of its work, and only two are kept in all."""
    script = "for n in 1 2 3; do echo $n >> log; read x || true; done"

    def lines(agents: Agents) -> int:
        """How many the newest point has."""
        if not (found := points(agents)):
            return 0
        shown = agents.run("plan", "diff", "job", "--to", found[-1]["group_id"])
        return shown.stdout.count("\n+") - shown.stdout.count("\n+++")

    few = ("sandbox.checkpoint.max-checkpoints-per-plan=2",)
    job = Running(agents, repo, "sh", "-c", script, settings=few)
    for number in (1, 2, 3):
        wait_until(lambda n=number: lines(agents) == n, f"point {number}")
        if number < 3:
            job.say()
    assert len(points(agents)) < 3, "the oldest points give way to new ones"
    job.process.send_signal(signal.SIGKILL)
    job.process.communicate()
    would = agents.run("plan", "resume", "job", "--dry-run", "--json").expect(0).data
    assert (would["settled"], would["next_step"]) == ("residue", "run")
    agents.run("plan", "resume", "job").expect(0)
    assert (sandbox(agents) / "log").read_text() == "1\n2\n3\n"


def test_resumed_at_a_point_the_command_runs_again_from_there(agents: Agents, repo: Path) -> None:
    job = Running(agents, repo, "sh", "-c", "echo x >> log; read x; echo y >> log")
    point = job.wait_for_point(1)
    job.say()
    job.end()
    back_to(agents, point)
    agents.run("plan", "resume", "job").expect(0)
    assert (sandbox(agents) / "log").read_text() == "x\nx\ny\n"


def test_a_failed_command_leaves_its_points(agents: Agents, repo: Path) -> None:
    job = Running(agents, repo, "sh", "-c", "echo good > a; read x; echo bad > a; exit 3")
    point = job.wait_for_point(1)
    job.say()
    job.end()
    assert job.process.returncode == 3
    back_to(agents, point)
    agents.run("plan", "apply", "job", "--yes").expect(0)
    assert (repo / "a").read_text() == "good\n"


class Here:
    """The command in this process; it ends when the plan was looked at often enough."""

    def __init__(self, yard: Yard) -> None:
        self.go = yard.top / "go"
        self.written = yard.top / "written"
        self.reached: list[Path] = []
        self.looks = 0
        os.mkfifo(self.go)
        self.app = yard.app

    def idle(self) -> None:
        self.looks += self.written.exists()
        if self.looks > MANY:
            with suppress(OSError):  # nobody reads there yet, or any more
                os.close(os.open(self.go, os.O_WRONLY | os.O_NONBLOCK))

    def run(self, script: str) -> list[set[str]]:
        """What each point had changed since the beginning."""
        whole = f"{script}; touch {self.written}; read x < {self.go}; true"
        with open_workspace(talk=Talk(idle=self.idle)) as ws:
            plan = ws.run_command(["sh", "-c", whole], str(self.app))
            assert plan.plan.state is State.COMPLETE
            service, groups = ws.ctx.checkpoints, ws.ctx.store.checkpoints.groups(plan.plan_id)
            began = service.states(groups[0])
            return [
                {c.shown for c in service.diff(plan.plan_id, began, service.states(group))}
                for group in groups
                if group.checkpoint_type is CheckpointType.ON_QUIET
            ]

    def in_capture(self, do: Callable[[Path], None]) -> Callable[[str], None]:
        """For `arm`: called once with the sandbox, when the file `one` is being captured."""

        def reached(_name: str) -> None:
            for found in Path(os.environ["CLEVERAGENTS_HOME"]).glob("sandboxes/*/app/one"):
                if not self.reached:
                    self.reached.append(found)
                    do(found.parent)

        return reached


@pytest.fixture
def here(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr(quiet, "QUIET", 0.0)
    monkeypatch.setattr(quiet, "SHARE", 0)
    return Here(yard)


def test_a_point_is_made_as_soon_as_nothing_is_written(here: Here) -> None:
    assert here.run("echo 1 > one")[-1] == {"one"}


@pytest.mark.parametrize("script", ["cat old.txt", "touch old.txt", "echo x > t; rm t"])
def test_without_a_change_there_is_no_point(here: Here, script: str) -> None:
    assert [found for found in here.run(script) if not found] == []


def test_a_trigger_that_is_off_makes_none(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEVERAGENTS_CHECKPOINT_AUTO_CREATE_ON", "on_decision,before_tool_execute")
    assert here.run("echo 1 > one") == []


def test_what_was_written_during_the_capture_is_no_moment(here: Here, arm: Arm) -> None:
    """The point waits until what it holds was all there at once."""

    def write(sandbox: Path) -> None:
        (sandbox / "two").write_text("2")

    arm(here.in_capture(write))
    found = here.run("echo 1 > one")
    assert here.reached
    assert found
    assert all(point == {"one", "two"} for point in found)


def test_a_disk_that_is_full_does_not_end_the_command(here: Here, arm: Arm) -> None:
    def full(_sandbox: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    arm(here.in_capture(full))
    here.run("echo 1 > one")
    assert here.reached


def test_the_page_has_the_points_above_the_command(here: Here, yard: Yard) -> None:
    found = here.run("echo 1 > one")
    page = Visitor().get("/plans/sh")
    assert [row for row in rows(page) if "Its writes fell quiet" in row and "one is new" in row]
    began, *points, run, _apply = rows(page)
    assert "Began" in began
    assert len(points) == len(found)
    assert "one is new" in run
    assert "here" in classes(page)[1 + len(points)]
