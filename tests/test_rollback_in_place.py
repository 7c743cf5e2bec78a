"""A rollback in place undoes what the agent did and keeps what everybody else did."""

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.testing import look, require_same
from tests.harness import Agents, command
from tests.scratch import wait_until

NUMBERS = "".join(f"{n}\n" for n in range(1, 30))
FULL = os.environ.get("CLEVERAGENTS_TEST_FULL") == "1"
AS_AGENT = "git -c user.name=agent -c user.email=a@example.org"


class Place:
    """A repository with a database in it, and a plan that works on both in place."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.repo = agents.work / "repo"
        self.repo.mkdir()
        for name in ("first.txt", "both.txt", "same.txt"):
            (self.repo / name).write_text(NUMBERS)
        (self.repo / "gone.txt").write_text("gone\n")
        (self.repo / ".gitignore").write_text("app.db*\nbuild/\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")
        self.sql("CREATE TABLE t (x); INSERT INTO t VALUES ('first')")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=self.repo,
            env={**os.environ, **self.agents.env},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def sql(self, script: str) -> None:
        with closing(sqlite3.connect(self.repo / "app.db")) as db:
            db.executescript(script)

    def rows(self) -> list[str]:
        with closing(sqlite3.connect(self.repo / "app.db")) as db:
            return [row[0] for row in db.execute("SELECT x FROM t ORDER BY rowid")]

    def read(self, name: str) -> str | None:
        path = self.repo / name
        return path.read_text() if path.exists() else None

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.repo / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def plan(self, *steps: str, name: str = "p", database: bool = True, more: str = "") -> None:
        db = "  db: {kind: sqlite, path: repo/app.db, strategy: in_place}\n" if database else ""
        lines = "".join(f"  - {step}\n" for step in steps)
        (self.agents.work / f"{name}.yaml").write_text(
            f"name: {name}\nresources:\n"
            "  app: {kind: git-checkout, path: repo, strategy: in_place}\n"
            f"{db}{more}steps:\n{lines}"
        )

    def ran(self, *steps: str, name: str = "p", rc: int = 0, **given: Any) -> None:
        self.plan(*steps, name=name, **given)
        self.agents.run("plan", "run", f"{name}.yaml").expect(rc)

    def ok(self, *argv: str) -> dict[str, Any]:
        return self.agents.run("plan", *argv, "--json").expect(0).data

    def refused(self, *argv: str) -> dict[str, Any]:
        return self.agents.run("plan", *argv, "--json").expect(4).data

    def seen(self) -> dict[str, Any]:
        """Everything a person sees: files, HEAD, branches, what is staged, rows."""
        files = {
            p: s for p, s in look(self.repo, (b".git",)).items() if not p.startswith(b"app.db")
        }
        return {
            "files": files,
            "git": (self.git("log", "--format=%s"), self.git("ls-files", "--stage")),
            "rows": self.rows(),
        }

    def decision(self, step_id: str) -> str:
        """The decision in force that a step hangs on."""
        waiting = list(self.ok("tree", "p")["tree"])
        while waiting:
            node = waiting.pop()
            if node["state"] == "active" and step_id in node["steps"]:
                return node["decision_id"]
            waiting += node["children"]
        raise AssertionError(step_id)

    def owners(self, data: dict[str, Any]) -> dict[str, tuple[str, str]]:
        found = [item for item in data["in_place"] if not item["file"].startswith(".git/")]
        return {item["file"]: (item["owner"], item["action"]) for item in found}


def step(name: str, run: str) -> str:
    return f"{{id: {name}, on: app, run: {run!r}}}"


WORK = step(
    "work", "sed -i 's/^2$/agent/' first.txt both.txt same.txt; rm gone.txt; echo n > new.txt"
)
ROW = "{id: row, on: db, tool: sql, with: {script: \"INSERT INTO t VALUES ('agent')\"}}"
COMMIT = step("commit", f"git add -A; {AS_AGENT} commit -q -m agent")


@pytest.fixture
def place(agents: Agents) -> Place:
    return Place(agents)


def test_what_the_agent_did_is_rolled_back_and_comes_again_with_undo(place: Place) -> None:
    before = place.seen()
    place.ran(WORK, ROW, COMMIT)
    after = place.seen()
    assert before != after
    place.ok("rollback", "p", "first", "--yes")
    require_same(place.seen(), before)
    place.ok("undo", "p")
    require_same(place.seen(), after)
    place.ok("redo", "p")
    require_same(place.seen(), before)
    assert not [path for path in look(place.repo) if b".cleveragents-" in path]


def test_a_file_only_the_person_touched_stays_to_the_inode(place: Place) -> None:
    place.ran(WORK, ROW)
    (place.repo / "mine.txt").write_text("mine\n")
    about = (place.repo / "mine.txt").stat()
    data = place.ok("rollback", "p", "first", "--yes")
    now = (place.repo / "mine.txt").stat()
    assert (now.st_ino, now.st_mtime_ns) == (about.st_ino, about.st_mtime_ns)
    assert place.owners(data)["mine.txt"] == ("somebody else", "keep")
    assert place.read("first.txt") == NUMBERS


def test_another_line_of_the_same_file_is_merged_and_the_same_line_refused(place: Place) -> None:
    place.ran(WORK, ROW)
    place.edit("both.txt", "\n20\n", "\nperson\n")
    shown = place.ok("rollback", "p", "first", "--dry-run")
    assert place.owners(shown) == {
        "first.txt": ("agent", "restore"),
        "same.txt": ("agent", "restore"),
        "both.txt": ("both", "merge"),
        "gone.txt": ("agent", "restore"),
        "new.txt": ("agent", "restore"),
        "app.db": ("agent", "restore"),
    }
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    before, inodes = place.seen(), (place.repo / "first.txt").stat().st_ino
    groups = place.ok("checkpoints", "p")
    data = place.refused("rollback", "p", "first", "--yes")
    assert place.ok("checkpoints", "p") == groups, "nor is a group made of what was not done"
    assert data["error"]["type"] == "RollbackConflict"
    [conflict] = data["conflicts"]
    assert (conflict["path"], conflict["ours"], conflict["theirs"]) == ("same.txt", "2", "person")
    require_same(place.seen(), before)
    assert (place.repo / "first.txt").stat().st_ino == inodes
    place.ok("rollback", "p", "first", "--yes", "--keep-mine")
    assert place.read("both.txt") == NUMBERS.replace("\n20\n", "\nperson\n")
    assert place.read("same.txt") == NUMBERS.replace("\n2\n", "\nperson\n")
    assert place.read("first.txt") == NUMBERS
    assert place.rows() == ["first"]
    place.ok("undo", "p")
    require_same(place.seen(), before)


def test_keeping_what_is_there_does_not_push_the_checkpoint_out(place: Place) -> None:
    """Where as many groups are kept as may be, one more makes the oldest go."""
    place.agents.run("config", "set", "max_checkpoints_per_plan", "4").expect(0)
    place.ran(*(step(f"s{n}", f"echo {n} > n.txt") for n in range(6)))
    oldest = place.ok("checkpoints", "p")["groups"][1]
    (place.repo / "mine.txt").write_text("mine\n")
    place.ok("rollback", "p", oldest["group_id"], "--yes")
    assert place.read("n.txt") == "3\n"
    assert place.read("mine.txt") == "mine\n"


def test_the_ref_that_keeps_commits_is_made_again_if_somebody_removes_it(place: Place) -> None:
    place.ran(WORK, ROW)
    place.git("commit", "--allow-empty", "-qm", "by the person")
    place.ok("checkpoint", "create", "p")
    [ref] = place.git("for-each-ref", "--format=%(refname)", "refs/cleveragents").split()
    kept = place.git("rev-parse", "HEAD").strip()
    assert kept in place.git("rev-list", ref).split()
    place.git("update-ref", "-d", ref)
    (place.repo / "mine.txt").write_text("mine\n")
    place.ok("checkpoint", "create", "p")
    assert kept in place.git("rev-list", ref).split()


def test_conflicts_are_shown_with_both_sides_and_pasteable_choices(place: Place) -> None:
    place.ran(WORK, ROW)
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    told = place.agents.run("plan", "rollback", "p", "first", "--yes").expect(4).stderr
    assert "app: same.txt: changed by the agent and by somebody else" in told
    assert "checkpoint | 2" in told
    assert "now        | person" in told
    assert "--keep-mine leaves them" in told
    dry = place.agents.run("plan", "rollback", "p", "first", "--dry-run").expect(0).stdout
    assert "conflict  both" in dry
    assert "now        | person" in dry
    why = "1 path was changed by the agent and by somebody else, in ways that conflict"
    assert why in told
    assert f"it would be refused: {why}: app:same.txt" in dry
    assert "hint: agents plan rollback p first --keep-mine leaves them as they are now" in dry
    assert "would be reverted" not in dry
    assert "Post-Rollback State" not in dry
    unasked = place.agents.run("plan", "rollback", "p", "first").expect(4).stderr
    assert why in unasked


def test_a_preview_of_undo_says_that_conflicts_would_stop_it(place: Place) -> None:
    place.ran(WORK, ROW)
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    dry = place.agents.run("plan", "undo", "p", "--dry-run").expect(0).stdout
    assert "would not be undone: execute; 1 conflict" in dry
    assert "conflict  both" in dry
    assert "now        | person" in dry
    assert "it would be refused: 1 path was changed by the agent" in dry
    assert "--keep-mine leaves them" in dry
    place.agents.run("plan", "undo", "p").expect(4)


def test_each_conflict_can_be_decided_by_itself(place: Place) -> None:
    place.ran(WORK, ROW)
    for name in ("same.txt", "both.txt"):
        place.edit(name, "\nagent\n", "\nperson\n")
    data = place.refused("rollback", "p", "first", "--yes", "--keep-mine=both.txt")
    assert [conflict["path"] for conflict in data["conflicts"]] == ["same.txt"]
    options = ("--keep-mine=both.txt", "--take-checkpoint=app:same.txt")
    place.ok("rollback", "p", "first", "--yes", *options)
    assert place.read("same.txt") == NUMBERS
    assert "person" in (place.read("both.txt") or "")
    assert place.agents.run("plan", "rollback", "p", "first", "--keep-mine=nowhere").rc == 3
    same = ("--keep-mine", "--take-checkpoint")
    assert place.agents.run("plan", "rollback", "p", "first", *same).rc == 2


@pytest.mark.parametrize("given_up", ["--take-checkpoint", "--everything"])
def test_what_was_given_up_once_is_neither_asked_again_nor_brought_back(
    place: Place, given_up: str
) -> None:
    place.ran(WORK, ROW)
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    place.edit("both.txt", "\n20\n", "\nperson\n")
    there = place.seen()
    place.ok("rollback", "p", "first", "--yes", given_up)
    back = place.seen()
    data = place.ok("rollback", "p", "first", "--yes")
    assert "same.txt" not in place.owners(data)
    require_same(place.seen(), back)
    for _ in range(2):
        place.ok("undo", "p")
    require_same(place.seen(), there)
    assert [one["path"] for one in place.refused("rollback", "p", "first", "--yes")["conflicts"]]


def test_everything_is_byte_for_byte_and_can_be_undone(place: Place) -> None:
    before = place.seen()
    place.ran(WORK, ROW, COMMIT)
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    (place.repo / "mine.txt").write_text("mine\n")
    place.sql("INSERT INTO t VALUES ('person')")
    now = place.seen()
    place.ok("rollback", "p", "first", "--yes", "--everything")
    require_same(place.seen(), before)
    place.ok("undo", "p")
    require_same(place.seen(), now)


def test_rows_that_somebody_else_wrote_since_are_a_conflict(place: Place) -> None:
    place.ran(WORK, ROW)
    place.sql("INSERT INTO t VALUES ('person')")
    data = place.refused("rollback", "p", "first", "--yes")
    (conflict,) = data["conflicts"]
    assert conflict["path"] == "app.db"
    assert (conflict["ours"], conflict["theirs"]) == ("", "t: x='agent'\nt: x='person'")
    assert place.read("first.txt") != NUMBERS
    place.ok("rollback", "p", "first", "--yes", "--keep-mine=db")
    assert place.rows() == ["first", "agent", "person"]
    assert place.read("first.txt") == NUMBERS


def test_a_locked_database_leaves_the_files_alone_too(place: Place) -> None:
    place.ran(WORK, ROW)
    before = look(place.repo, (b".git",))
    with closing(sqlite3.connect(place.repo / "app.db", isolation_level=None)) as user:
        user.execute("BEGIN IMMEDIATE")
        place.agents.run("plan", "rollback", "p", "first", "--yes").expect(5)
    require_same(look(place.repo, (b".git",)), before)
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("first.txt") == NUMBERS
    assert place.rows() == ["first"]


def test_edits_before_between_and_after_the_agents_steps_are_all_kept(place: Place) -> None:
    place.plan(
        step("one", "sed -i 's/^5$/agent/' both.txt"),
        step("two", "test -e go && sed -i 's/^25$/agent/' both.txt"),
    )
    place.agents.run("plan", "run", "p.yaml").expect(5)
    place.edit("both.txt", "\n15\n", "\nbetween\n")
    (place.repo / "go").touch()
    place.agents.run("plan", "resume", "p").expect(0)
    place.edit("both.txt", "\n10\n", "\nafter\n")
    place.ok("rollback", "p", "first", "--yes")
    wanted = NUMBERS.replace("\n15\n", "\nbetween\n").replace("\n10\n", "\nafter\n")
    assert place.read("both.txt") == wanted
    assert place.read("go") == ""


def test_a_second_rollback_knows_what_the_first_one_wrote(place: Place) -> None:
    place.ran(
        step("one", "sed -i 's/^5$/agent/' both.txt"),
        step("two", "sed -i 's/^25$/agent/' both.txt; echo x > later.txt"),
    )
    points = place.ok("checkpoints", "p")["checkpoints"]
    middle = next(c["group_id"] for c in points if c["type"] == "after_tool_execute")
    place.edit("both.txt", "\n15\n", "\nmine\n")
    place.ok("rollback", "p", middle, "--yes")
    mine = NUMBERS.replace("\n15\n", "\nmine\n")
    assert place.read("both.txt") == mine.replace("\n5\n", "\nagent\n")
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("both.txt") == mine
    assert place.read("later.txt") is None


def test_head_and_index_are_left_if_somebody_else_moved_them_since(place: Place) -> None:
    place.ran(WORK, COMMIT)
    (place.repo / "mine.txt").write_text("mine\n")
    place.git("add", "mine.txt")
    place.git("commit", "-q", "-m", "mine")
    done = place.agents.run("plan", "rollback", "p", "first", "--yes", "--json").expect(0)
    assert place.git("log", "--format=%s").split() == ["mine", "agent", "first"]
    assert place.read("first.txt") == NUMBERS
    assert any("left as now: moved by somebody else" in m for m in done.json["messages"])


def test_looking_with_git_status_moves_nothing(place: Place) -> None:
    place.ran(WORK, COMMIT)
    os.utime(place.repo / "first.txt")
    place.git("status")
    done = place.agents.run("plan", "rollback", "p", "first", "--yes", "--json").expect(0)
    assert place.git("log", "--format=%s").split() == ["first"]
    assert place.git("status", "--short") == ""
    assert any("app: back to the checkpoint: " in m for m in done.json["messages"])


def test_commits_that_were_rolled_back_outlive_gc(place: Place) -> None:
    place.ran(WORK, COMMIT, step("stash", f"echo s > first.txt; {AS_AGENT} stash -q"))
    after = place.seen()
    place.ok("rollback", "p", "first", "--yes")
    place.git("reflog", "expire", "--expire=now", "--all")
    place.git("-c", "gc.packRefs=false", "gc", "-q", "--prune=now")
    place.ok("undo", "p", "--accept-loss")
    require_same(place.seen(), after)
    assert "s" in place.git("stash", "show", "-p")
    place.git("fsck", "--connectivity-only")


def test_two_sessions_never_undo_each_others_work(place: Place) -> None:
    place.ran(step("one", "sed -i 's/^5$/one/' both.txt; echo 1 > one.txt"), database=False)
    place.ran(
        step("two", "sed -i 's/^25$/two/' both.txt; echo 2 > two.txt"), name="q", database=False
    )
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("both.txt") == NUMBERS.replace("\n25\n", "\ntwo\n")
    assert (place.read("one.txt"), place.read("two.txt")) == (None, "2\n")
    place.ok("rollback", "q", "first", "--yes")
    assert place.read("both.txt") == NUMBERS
    assert place.read("two.txt") is None


def test_nothing_is_restored_after_a_failed_step_but_it_is_the_agents(place: Place) -> None:
    place.ran(step("fails", "sed -i 's/^2$/agent/' first.txt; exit 3"), rc=5)
    assert "agent" in (place.read("first.txt") or "")
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("first.txt") == NUMBERS


def test_of_a_failed_step_only_what_has_a_sandbox_goes_back_by_itself(place: Place) -> None:
    docs = place.agents.work / "docs"
    docs.mkdir()
    (docs / "d").write_text("old\n")
    run = "echo new > $AGENTS_SANDBOX_DOCS/d; echo new > first.txt; exit 3"
    more = "  docs: {kind: fs-directory, path: docs}\n"
    place.ran(step("fails", run), rc=5, database=False, more=more)
    paths = place.ok("status", "p")["sandboxes"]
    assert Path(paths["docs"], "d").read_text() == "old\n"
    assert place.read("first.txt") == "new\n"
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("first.txt") == NUMBERS
    place.ok("undo", "p")
    assert place.read("first.txt") == "new\n"
    assert Path(paths["docs"], "d").read_text() == "old\n"


def test_nothing_is_restored_after_a_step_that_died(place: Place) -> None:
    """What it left is the agent's, and is rolled back when somebody asks for it."""
    again = place.agents.work / "again"
    place.plan(step("dies", f"test -e {again} || {{ echo half > first.txt; sleep 600; }}"))
    env = {**os.environ, **place.agents.env}
    argv = [command(), "plan", "run", "p.yaml"]
    with subprocess.Popen(argv, cwd=place.agents.work, env=env, stderr=subprocess.DEVNULL) as run:
        wait_until(
            lambda: place.read("first.txt") == "half\n" or run.poll() is not None, "the step"
        )
        run.kill()
    assert place.read("first.txt") == "half\n"
    place.agents.run("plan", "status", "p").expect(0)
    assert place.read("first.txt") == "half\n"
    again.touch()
    place.agents.run("plan", "resume", "p").expect(0)
    assert place.read("first.txt") == "half\n"
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("first.txt") == NUMBERS


def test_whoever_applies_is_told_that_it_only_ends_the_plan(place: Place) -> None:
    place.ran(WORK, ROW)
    ends = "work is in place already; once the plan is ended, nothing of it can be rolled back"
    unasked = place.agents.run("plan", "apply", "p").expect(4).stderr
    assert f"error: not done without a yes: end the plan? Its {ends}\n" in unasked
    foreseen = place.agents.run("plan", "apply", "p", "--dry-run").expect(0).stdout
    assert foreseen.startswith("app: its ")
    assert {line.partition(": ")[2] for line in foreseen.splitlines()} == {f"its {ends}"}


def test_whoever_cancels_a_plan_in_place_is_told_that_it_ends_all_rollback(place: Place) -> None:
    place.ran(WORK, ROW)
    ends = "Its work is in place already; once the plan is ended, nothing of it can be rolled back"
    before = place.seen()
    unasked = place.agents.run("plan", "cancel", "p").expect(4).stderr
    assert f"error: not done without a yes: end the plan? {ends}\n" in unasked
    assert "agents plan cancel p --yes" in unasked
    assert place.ok("status", "p")["state"] == "complete"
    assert place.ok("cancel", "p", "--yes")["state"] == "cancelled"
    place.agents.run("plan", "cancel", "p").expect(4)
    require_same(place.seen(), before)


def test_the_resource_outlives_its_plan(place: Place) -> None:
    place.ran(WORK, ROW)
    before = place.seen()
    done = place.agents.run("plan", "apply", "p", "--yes", "--json").expect(0)
    assert {item["mode"] for item in done.data["applied"]} == {"in_place"}
    assert any("nothing to apply" in message for message in done.json["messages"])
    assert "worked in place" in place.refused("revert-applied", "p")["error"]["message"]
    late = place.refused("rollback", "p", "first", "--yes")["error"]
    assert late["message"] == "plan 'p' worked in place and was ended: it cannot be rolled back"
    hint = late["hint"].partition(" writes")[0].replace("CHECKPOINT", "first").split()
    place.agents.run(*hint[1:], "./seen").expect(0)
    require_same(place.seen(), before)
    place.agents.run("plan", "delete", "p", "--yes").expect(0)
    place.agents.run("gc").expect(0)
    place.agents.run("doctor", "--fix").expect(0)
    require_same(place.seen(), before)
    assert "refs/cleveragents" not in place.git("for-each-ref")


def test_large_ignored_files_are_named_and_left_alone(place: Place) -> None:
    (place.repo / "build").mkdir()
    (place.repo / "build/large").write_bytes(b"x" * 300_000)
    place.agents.run("config", "set", "session.cover-limit", "100KB").expect(0)
    place.ran(step("one", "echo y > build/large; echo 1 > one.txt"))
    told = place.agents.run("plan", "status", "p").expect(0).stdout
    assert "build (300" in told
    assert "agents config set session.cover-limit" in told
    done = place.agents.run("plan", "rollback", "p", "first", "--yes", "--json").expect(0)
    assert place.read("build/large") == "y\n"
    assert place.read("one.txt") is None
    assert any("not covered" in message for message in done.json["messages"])


def test_what_a_linked_work_tree_has_elsewhere_is_named(place: Place) -> None:
    place.git("worktree", "add", "-q", "-b", "side", "../side")
    place.repo = place.agents.work / "side"
    place.agents.env["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
    (place.agents.work / "p.yaml").write_text(
        "name: p\nresources: {app: {kind: git-checkout, path: side, strategy: in_place}}\nsteps:\n"
        f"""  - {step("one", f"echo 1 > one.txt; git add .; {AS_AGENT} commit -q -m one")}\n"""
    )
    place.agents.run("plan", "run", "p.yaml").expect(0)
    for rest in (("--dry-run",), ("--yes",)):
        done = place.agents.run("plan", "rollback", "p", "first", *rest, "--json").expect(0)
        told = "not covered, and so left as now: HEAD, branch and index of this linked work tree"
        assert any(told in message for message in done.json["messages"])
    assert place.read("one.txt") is None
    assert place.git("log", "-1", "--format=%s") == "one\n"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_a_repository_has_elsewhere_is_named(place: Place, kind: str) -> None:
    elsewhere = place.agents.work / "elsewhere"
    (place.repo / ".git").rename(elsewhere)
    if kind == "file":
        (place.repo / ".git").write_text(f"gitdir: {elsewhere}\n")
    else:
        (place.repo / ".git").symlink_to(elsewhere)
    place.agents.env["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
    place.ran(step("one", f"echo 1 > one.txt; git add .; {AS_AGENT} commit -q -m one"))
    done = place.agents.run("plan", "rollback", "p", "first", "--yes", "--json").expect(0)
    told = f"not covered, and so left as now: HEAD, branch and index, which are in {elsewhere}"
    assert any(told in message for message in done.json["messages"])
    assert place.read("one.txt") is None


def test_covered_ignored_files_are_rolled_back(place: Place) -> None:
    (place.repo / "build").mkdir()
    (place.repo / "build/small").write_text("x")
    place.ran(step("one", "echo y > build/small"))
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("build/small") == "x"


@pytest.mark.parametrize("where", ["/", "home"])
def test_a_place_that_holds_everything_is_refused(place: Place, where: str) -> None:
    path = place.agents.env["HOME"] if where == "home" else "/"
    (place.agents.work / "w.yaml").write_text(
        f"name: w\nresources: {{app: {{kind: fs-directory, path: {path}, strategy: in_place}}}}\n"
        "steps: [{id: a, run: 'true'}]\n"
    )
    place.agents.run("config", "set", "sandbox.allow-wide", path).expect(0)
    done = place.agents.run("plan", "run", "w.yaml").expect(2)
    assert "holds" in done.stderr


def test_what_needs_a_copy_is_refused(place: Place) -> None:
    place.plan("{id: below, subplan: {steps: [{id: x, on: app, run: 'true'}]}}", database=False)
    assert "a child plan needs a copy" in place.agents.run("plan", "run", "p.yaml").expect(2).stderr
    place.plan(step("x", "true"), database=False, more="  db: {kind: sqlite, path: repo/app.db}\n")
    told = place.agents.run("plan", "run", "p.yaml").expect(2).stderr
    assert "either both are worked on in place or neither" in told


def test_git_at_work_is_waited_for(place: Place) -> None:
    place.ran(WORK, COMMIT)
    lock = place.repo / ".git/index.lock"
    lock.touch()
    place.refused("rollback", "p", "first", "--yes")
    lock.unlink()
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("first.txt") == NUMBERS


def test_a_folder_of_the_agents_stays_if_somebody_put_something_into_it(place: Place) -> None:
    place.ran(step("one", "mkdir -p made/deep; echo 1 > made/deep/f"))
    (place.repo / "made/mine").write_text("mine")
    place.ok("rollback", "p", "first", "--yes")
    assert place.read("made/mine") == "mine"
    assert not (place.repo / "made/deep").exists()


def test_what_is_no_text_on_both_sides_is_shown_in_words(place: Place) -> None:
    place.ran(step("one", "echo agent > first.txt; echo agent > same.txt"))
    (place.repo / "first.txt").unlink()
    (place.repo / "first.txt").symlink_to("same.txt")
    (place.repo / "same.txt").write_bytes(b"\0by a person")
    found = {c["path"]: c for c in place.refused("rollback", "p", "first", "--yes")["conflicts"]}
    assert found["first.txt"]["theirs"] == "a symlink to same.txt"
    assert found["same.txt"]["theirs"].startswith("a file of 12 B, mode 644 (")
    assert found["same.txt"]["ours"] != found["same.txt"]["theirs"]


def test_a_folder_with_work_in_it_does_not_become_a_file(place: Place) -> None:
    place.ran(step("one", "rm gone.txt; mkdir gone.txt; echo 1 > gone.txt/f"))
    (place.repo / "gone.txt/mine").write_text("mine")
    data = place.refused("rollback", "p", "first", "--yes")
    assert [conflict["path"] for conflict in data["conflicts"]] == ["gone.txt"]
    (conflict,) = data["conflicts"]
    assert re.fullmatch(r"a file of \d+ B, mode 644 \([0-9a-f]{8}\)", conflict["ours"])
    assert conflict["theirs"] == "a directory"
    assert place.read("gone.txt/mine") == "mine"


def test_restart_of_the_machine_restores_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ran(WORK, ROW)
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    before = place.seen()
    store = Path(place.agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE sandboxes SET origin = json_set(origin, '$.boot_id', 'another')")
    place.ok("status", "p")
    place.ok("diff", "p")
    place.agents.run("plan", "resume", "p").expect(0)
    require_same(place.seen(), before)


def test_a_correction_keeps_what_the_person_changed_in_the_same_file(place: Place) -> None:
    run = "cat both.txt > seen.txt; sed -i 's/^5$/agent/' both.txt"
    place.ran(step("one", run), step("two", "echo 2 > two.txt"), database=False)
    place.edit("both.txt", "\n25\n", "\nperson\n")
    one = place.decision("one")
    place.ok("correct", one, "--mode", "revert", "--guidance", "again", "--yes")
    mine = NUMBERS.replace("\n25\n", "\nperson\n")
    assert place.read("seen.txt") == mine
    assert place.read("both.txt") == mine.replace("\n5\n", "\nagent\n")
    assert place.read("two.txt") == "2\n"
    place.edit("both.txt", "\nagent\n", "\nmine\n")
    again = place.decision("one")
    before = place.seen()
    words = ("--mode", "revert", "--guidance", "again", "--yes")
    hint = place.refused("correct", again, *words)["error"]["hint"]
    assert hint.endswith("; that undoes everything since, and the guidance is not told to anybody")
    require_same(place.seen(), before)


def killed_everywhere(
    place: Place,
    argv: tuple[str, ...],
    back: tuple[str, ...],
    old: Any,
    new: Any,
    stride: int,
    meanwhile: Callable[[], object] = lambda: None,
) -> int:
    """Die at each fault point; the next command finds all of the old or all of the new state."""
    number = 1
    while True:
        died = place.agents.run("plan", *argv, env={"CLEVERAGENTS_TEST_KILL_AT": str(number)})
        meanwhile()
        place.agents.run("plan", "status", "p").expect(0)
        seen = place.seen()
        require_same(seen, old if seen == old else new, f"killed at point {number}")
        assert not [path for path in look(place.repo) if b".cleveragents-" in path]
        if seen == new:
            place.ok(*back)
            require_same(place.seen(), old, f"back after point {number}")
        if died.rc == 0:
            return number
        number += stride


def test_a_rollback_killed_anywhere_is_finished_or_never_happened(place: Place) -> None:
    before = place.seen()
    place.ran(WORK, ROW, COMMIT)
    (place.repo / "mine.txt").write_text("mine\n")
    place.edit("both.txt", "\n20\n", "\nperson\n")
    old = place.seen()
    place.ok("rollback", "p", "first", "--yes")
    new = place.seen()
    assert new != before
    assert new["rows"] == ["first"]
    place.ok("undo", "p")
    require_same(place.seen(), old)
    argv, back = ("rollback", "p", "first", "--yes"), ("undo", "p")
    points = killed_everywhere(place, argv, back, old, new, 1 if FULL else 7)
    assert points > 20


def test_looking_with_git_status_before_the_next_command_changes_nothing_of_that(
    place: Place,
) -> None:
    calm = place.repo / "calm.txt"
    calm.touch()
    place.git("add", "calm.txt")
    place.git("commit", "-q", "-m", "calm")
    new = place.seen()
    place.ran(WORK, COMMIT, database=False)
    old = place.seen()

    def look() -> None:
        calm.chmod(calm.stat().st_mode)  # a new ctime: git notes it in the index
        place.git("status")

    argv, back = ("rollback", "p", "first", "--yes"), ("undo", "p")
    assert killed_everywhere(place, argv, back, old, new, 1 if FULL else 5, look) > 20


def test_folders_of_a_rollback_killed_anywhere_have_their_modes(place: Place) -> None:
    (place.repo / "d/e").mkdir(parents=True)
    (place.repo / "d/e/f").write_text("f\n")
    new = place.seen()
    place.ran(step("one", "rm -r d"))
    old = place.seen()
    argv, back = ("rollback", "p", "first", "--yes"), ("undo", "p")
    assert killed_everywhere(place, argv, back, old, new, 1) > 5


def test_a_folder_that_became_a_file_is_one_of_both_wherever_a_rollback_is_killed(
    place: Place,
) -> None:
    (place.repo / "d").mkdir()
    (place.repo / "d/f").write_text("f\n")
    (place.repo / "g").write_text("g\n")
    new = place.seen()
    place.ran(step("one", "rm -r d g; echo file > d; mkdir g; echo x > g/x"))
    old = place.seen()
    argv, back = ("rollback", "p", "first", "--yes"), ("undo", "p")
    assert killed_everywhere(place, argv, back, old, new, 1) > 5
    place.ok(*argv)
    assert killed_everywhere(place, back, argv, new, old, 1) > 5


def test_what_is_edited_between_a_crash_and_the_next_command_stays(place: Place) -> None:
    place.ran(WORK, ROW)
    number = 0
    while True:
        number += 1
        env = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        place.agents.run("plan", "rollback", "p", "first", "--yes", env=env).expect(-9)
        half = place.read("new.txt") is None and "agent" in (place.read("same.txt") or "")
        if half:
            break
        place.agents.run("plan", "status", "p").expect(0)
        if place.read("new.txt") is None:
            place.ok("undo", "p")
    (place.repo / "mine.txt").write_text("mine\n")
    place.edit("same.txt", "\nagent\n", "\nperson\n")
    place.agents.run("plan", "status", "p").expect(0)
    assert place.read("mine.txt") == "mine\n"
    assert place.read("same.txt") == NUMBERS.replace("\n2\n", "\nperson\n")
    assert (place.read("first.txt"), place.read("both.txt")) == (NUMBERS, NUMBERS)
    assert place.read("gone.txt") == "gone\n"
    assert place.rows() == ["first"]


def test_a_store_on_another_file_system_stages_beside_the_files(
    place: Place,
) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == place.repo.stat().st_dev:
        pytest.skip("there is no other file system to put the store on")
    with tempfile.TemporaryDirectory(dir=shared) as home:
        place.agents.env["CLEVERAGENTS_HOME"] = home
        before = place.seen()
        place.ran(WORK, ROW, COMMIT)
        place.ok("rollback", "p", "first", "--yes")
        require_same(place.seen(), before)
        place.ok("undo", "p")
        place.agents.run(
            "plan", "rollback", "p", "first", "--yes", env={"CLEVERAGENTS_TEST_KILL_AT": "25"}
        ).expect(-9)
        place.agents.run("plan", "status", "p").expect(0)
        assert not [path for path in look(place.repo) if b".cleveragents-" in path]


def test_a_directory_that_is_no_repository_is_rolled_back_by_owners_too(agents: Agents) -> None:
    docs = agents.work / "docs"
    docs.mkdir()
    (docs / "a").write_text(NUMBERS)
    (agents.work / "d.yaml").write_text(
        "name: d\nresources: {docs: {kind: fs-directory, path: docs, strategy: in_place}}\n"
        "steps: [{id: a, run: \"sed -i 's/^5$/agent/' a; chmod 600 a\"}]\n"
    )
    ran = agents.run("plan", "run", "d.yaml").expect(0)
    assert "next: agents plan diff d, agents plan undo d\n" in ran.stdout  # nothing to apply
    (docs / "a").write_text((docs / "a").read_text().replace("\n25\n", "\nmine\n"))
    agents.run("plan", "rollback", "d", "first", "--yes").expect(0)
    assert (docs / "a").read_text() == NUMBERS.replace("\n25\n", "\nmine\n")
    assert (docs / "a").stat().st_mode & 0o777 == 0o644


def directory_in_place(agents: Agents, run: str) -> Path:
    """A directory that is no repository, and a plan that did one thing in it."""
    docs = agents.work / "docs"
    docs.mkdir()
    (docs / "a").write_text(NUMBERS)
    (agents.work / "d.yaml").write_text(
        "name: d\nresources: {docs: {kind: fs-directory, path: docs, strategy: in_place}}\n"
        f"steps: [{{id: a, run: {run!r}}}]\n"
    )
    agents.run("plan", "run", "d.yaml").expect(0)
    return docs


INIT = f"rm a; echo b > b; git init -q .; git add -A; {AS_AGENT} commit -q -m agent"


def test_a_repository_that_the_agent_made_goes_and_comes_again(agents: Agents) -> None:
    docs = directory_in_place(agents, INIT)
    after = look(docs)
    agents.run("plan", "rollback", "d", "first", "--yes").expect(0)
    assert sorted(look(docs)) == [b"a"]
    agents.run("plan", "undo", "d", "--accept-loss").expect(0)
    require_same(look(docs), after)


def test_a_repository_of_the_agents_stays_whole_if_somebody_commits_to_it(agents: Agents) -> None:
    docs = directory_in_place(agents, INIT)
    (docs / "mine").write_text("mine\n")
    git = [*AS_AGENT.split(), "-C", str(docs)]
    subprocess.run([*git, "add", "mine"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "mine"], check=True)
    agents.run("plan", "rollback", "d", "first", "--yes").expect(0)
    shown = subprocess.run([*git, "log", "--format=%s"], check=True, capture_output=True)
    assert shown.stdout.split() == [b"mine", b"agent"]
    subprocess.run([*git, "fsck", "--strict"], check=True)
    assert (docs / "a").read_text() == NUMBERS
    assert sorted(path.name for path in docs.iterdir()) == [".git", "a", "mine"]


def library(place: Place) -> str:
    """A repository to be had as a submodule, and how."""
    library = place.agents.work / "library"
    library.mkdir()
    for words in (
        ["init", "-q", "-b", "main"],
        ["commit", "-q", "--allow-empty", "-m", "empty"],
    ):
        env = {**os.environ, **place.agents.env}
        subprocess.run(["git", *words], cwd=library, env=env, check=True)
    return f"-c protocol.file.allow=always submodule add -q {library} library"


def test_a_submodule_that_the_agent_added_goes_and_comes_again(place: Place) -> None:
    add = library(place)
    before = look(place.repo, (b".git",))
    place.ran(step("add", f"git {add}"))
    place.ok("rollback", "p", "first", "--yes")
    require_same(look(place.repo, (b".git",)), before)
    assert not (place.repo / ".git/modules").exists()
    place.ok("undo", "p", "--accept-loss")
    assert "library (heads/main)" in place.git("submodule", "status")
    place.git("-C", "library", "fsck", "--strict")


def test_looking_with_git_status_moves_nothing_in_a_submodule_either(place: Place) -> None:
    place.git(*library(place).split())
    (place.repo / "library/f").write_text("1\n")
    place.git("-C", "library", "add", "f")
    place.git("-C", "library", "commit", "-q", "-m", "f")
    place.git("add", "library")
    place.git("commit", "-q", "-m", "library")
    place.ran(step("work", f"cd library; echo 2 > f; {AS_AGENT} commit -q -a -m agent"))
    os.utime(place.repo / "library/f", (1_000_000_000, 1_000_000_000))
    place.git("-C", "library", "status")
    place.ok("rollback", "p", "first", "--yes")
    assert place.git("status", "--short") == ""


def test_a_folder_of_the_agents_stays_if_it_holds_what_is_excluded(agents: Agents) -> None:
    docs = agents.work / "docs"
    docs.mkdir()
    (agents.work / "d.yaml").write_text(
        "name: d\nresources:\n"
        "  docs: {kind: fs-directory, path: docs, strategy: in_place, exclude: ['*.log']}\n"
        "steps: [{id: a, run: 'mkdir made; echo 1 > made/f; echo 2 > made/x.log'}]\n"
    )
    agents.run("plan", "run", "d.yaml").expect(0)
    agents.run("plan", "rollback", "d", "first", "--yes").expect(0)
    assert sorted(look(docs)) == [b"made", b"made/x.log"]


def test_a_plan_can_be_deleted_when_its_place_is_gone(place: Place) -> None:
    (place.agents.work / "docs").mkdir()
    place.ran(WORK, ROW, more="  docs: {kind: fs-directory, path: docs}\n")
    shutil.rmtree(place.repo)
    for words in (("status", "p"), ("list",), ("log", "p"), ("delete", "p", "--yes")):
        place.ok(*words)
    assert place.ok("list")["plans"] == []
    assert place.agents.run("check").expect(0)


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
@pytest.mark.parametrize(
    "loss",
    [
        "rm -rf .git",
        "rm -rf .git *",
        "rm -rf .git/objects",
        f"rm -rf .git; git init -q; git add -A; {AS_AGENT} commit -q -m anew",
    ],
)
def test_a_repository_that_the_agent_removed_comes_back(
    place: Place, loss: str, packed: bool
) -> None:
    place.git("commit", "-q", "--allow-empty", "-m", "second")
    if packed:
        place.git("gc", "-q", "--prune=now")
    before = place.seen()
    place.ran(WORK, COMMIT, step("lose", loss))
    place.ok("diff", "p")
    place.agents.run("check", "--read-data").expect(0)
    place.ok("rollback", "p", "commit", "--yes")
    assert place.git("log", "--format=%s").split() == ["agent", "second", "first"]
    place.ok("rollback", "p", "first", "--yes")
    require_same(place.seen(), before)
    place.git("fsck", "--strict")
    assert place.git("status", "--short") == ""
    assert place.agents.run("check", "--read-data").expect(0)


def test_a_repository_whose_folder_is_gone_is_there_again_once_there_is_one(place: Place) -> None:
    before = place.seen()
    place.ran(WORK, COMMIT, database=False)
    shutil.rmtree(place.repo)
    said = place.agents.run("plan", "rollback", "p", "first", "--everything", "--yes").expect(5)
    assert f"mkdir {place.repo}" in said.stderr
    place.repo.mkdir()
    place.ok("rollback", "p", "first", "--everything", "--yes")
    place.git("fsck", "--strict")
    require_same(place.seen()["files"], before["files"])
    assert place.git("log", "--format=%s").split() == ["first"]


def test_kept_objects_cost_nothing_and_go_with_the_plan(place: Place) -> None:
    large = 1_000_000
    (place.repo / "large").write_bytes(os.urandom(large))
    place.ran(WORK, COMMIT)
    kept = list((place.agents.work.parent / "store").rglob("kept.git/objects/??/*"))
    assert kept
    assert all(path.stat().st_nlink == 2 for path in kept)
    (used,) = place.agents.run("du", "--json").expect(0).data["plans"]
    assert used["sandbox"] < large
    place.git("fsck", "--strict")
    place.ok("delete", "p", "--yes")
    assert not any(path.exists() for path in kept)
    place.git("fsck", "--strict")


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_is_not_exchanged_under_somebody_who_has_it_open(
    place: Place, mode: str
) -> None:
    """As one of the files; a resource of its own is written back through SQLite."""
    with closing(sqlite3.connect(place.repo / "app.db", isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        (place.agents.work / "add.py").write_text(
            "import sqlite3\nwith sqlite3.connect('app.db') as db:\n"
            "    db.execute('INSERT INTO t VALUES (2)')\n"
        )
        add = 'python3 "$AGENTS_PLAN_DIR/add.py"'
        place.ran(step("row", f"echo n > new.txt; {add}"), database=False)
        assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)
        said = place.refused("rollback", "p", "first", "--yes")["error"]
        assert f"app.db is open in process {os.getpid()}" in said["message"]
        assert place.read("new.txt") == "n\n"
        db.execute("INSERT INTO t VALUES (3)")
        assert place.rows() == ["first", 2, 3]
    place.ok("rollback", "p", "first", "--take-checkpoint", "--yes")
    assert place.rows() == ["first"]
    assert place.read("new.txt") is None


def test_of_a_conflict_what_is_there_now_is_shown(place: Place) -> None:
    """Not what somebody had written and the agent wrote over."""
    place.ran(
        step("one", "echo agent > same.txt"),
        step("two", "test ! -e go && exit 1; seq 100 140 >> same.txt"),
        rc=5,
    )
    (place.repo / "same.txt").write_text("somebody\n")
    (place.repo / "go").touch()
    place.ok("resume", "p")
    there = place.read("same.txt")
    assert there is not None
    assert there.startswith("somebody\n100\n")
    found = place.agents.run("plan", "rollback", "p", "first", "--dry-run", "--json").expect(0).data
    (conflict,) = (one for one in found["conflicts"] if one["path"] == "same.txt")
    assert conflict["theirs"].startswith("somebody\n100\n")
