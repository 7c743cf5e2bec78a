"""A copy of a store does nothing to what its original made; a moved one can be adopted."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import Agents, Outcome
from tests.pgserver import Shop
from tests.scratch import git, make_repository, query
from tests.test_hostile_store import die_in_apply, with_database
from tests.test_postgres import Project

PLAN = """name: job
resources: {app: {kind: git-checkout, path: .}}
steps:
  - {id: one, tool: file.write, with: {path: one.txt, content: "one\\n"}}
  - {id: two, tool: file.write, with: {path: two.txt, content: "two\\n"}}
"""


class Original:
    """A plan that has run, its store, and what the world holds of it."""

    def __init__(self, agents: Agents, elsewhere: bool) -> None:
        self.agents = agents
        self.app = agents.work / "app"
        self.app.mkdir()
        (self.app / "plan.yaml").write_text(PLAN)
        make_repository(agents, self.app)
        self.store = Path(agents.env["CLEVERAGENTS_HOME"])
        if elsewhere:
            agents.env["CLEVERAGENTS_SANDBOX_DIR"] = str(agents.work / "boxes")
        made = self.run("plan", "run", "plan.yaml", "--json").expect(0).data
        self.plan = made["plan_id"]
        self.sandbox = Path(made["sandboxes"]["app"])

    def run(self, *argv: str, home: Path | None = None, **more: str) -> Outcome:
        env = {"CLEVERAGENTS_HOME": str(home or self.store), **more}
        return self.agents.run(*argv, cwd=self.app, env=env)

    def die_in_rollback(self) -> None:
        """Leave an intent behind: half of the files are switched."""
        for number in range(1, 60):
            done = self.run(
                "plan", "rollback", "job", "first", "--yes", CLEVERAGENTS_TEST_KILL_AT=str(number)
            )
            assert done.rc == -9, "it never left an intent"
            with closing(sqlite3.connect(self.store / "store.db")) as db:
                if db.execute("SELECT count(*) FROM intents").fetchone() != (0,):
                    return

    def copy(self, name: str = "copy") -> Path:
        to = self.store.with_name(name)
        subprocess.run(["cp", "-a", str(self.store), str(to)], check=True)
        return to

    def world(self) -> dict[str, object]:
        """Everything outside the store's database that a command might change."""
        found: dict[str, object] = {
            str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for root in (self.sandbox.parent, self.app)
            for path in sorted(root.rglob("*"))
        }
        return found | {"refs": git(self.agents, self.app, "for-each-ref")}


@pytest.fixture(params=["inside", "sandbox.dir"])
def original(request: pytest.FixtureRequest, agents: Agents) -> Original:
    return Original(agents, elsewhere=request.param == "sandbox.dir")


WRITING = [
    ("plan", "delete", "job", "--yes"),
    ("plan", "rollback", "job", "first", "--yes"),
    ("plan", "apply", "job", "--yes"),
    ("plan", "resume", "job"),
    ("plan", "checkpoint", "create", "job"),
    ("plan", "undo", "job"),
    ("plan", "cancel", "job"),
    ("plan", "prune", "job"),
    ("plan", "run", "plan.yaml"),
    ("gc", "--grace", "0s"),
    ("doctor", "--fix"),
    ("doctor", "--adopt"),
]
READING = [
    ("plan", "list"),
    ("plan", "status", "job"),
    ("plan", "diff", "job"),
    ("plan", "log", "job"),
    ("plan", "checkpoints", "job"),
    ("plan", "tree", "job"),
    ("du",),
    ("doctor",),
]


def test_a_copy_is_read_and_does_nothing_to_what_the_original_made(original: Original) -> None:
    copy, before = original.copy(), original.world()
    for argv in READING:
        done = original.run(*argv, "--json", home=copy).expect(0)
        assert f"made at {original.store}" in " ".join(done.json["messages"]), argv
    files = original.run("plan", "diff", "job", "--json", home=copy).data["files"]
    assert [one["path"] for one in files] == ["one.txt", "two.txt"]
    for argv in WRITING:
        error = original.run(*argv, "--json", home=copy).expect(4).data["error"]
        assert error["hint"], argv
        assert original.world() == before, argv
    found = original.run("check", "--json", home=copy).expect(6).data["problems"]
    assert "doctor --adopt" in found[0]
    original.run("plan", "apply", "job", "--yes").expect(0)


def test_a_copy_does_not_finish_what_the_original_had_begun(original: Original) -> None:
    original.die_in_rollback()
    copy, before = original.copy(), original.world()
    original.run("plan", "list", home=copy).expect(0)
    original.run("plan", "delete", "job", "--yes", home=copy).expect(4)
    assert original.world() == before
    original.run("plan", "list").expect(0)
    assert not (original.sandbox / "one.txt").exists(), "the original finishes it"


@pytest.mark.parametrize("by", ["mv", "cp and rm"])
def test_a_moved_store_is_adopted_and_continues(original: Original, by: str) -> None:
    moved = original.store.with_name("moved")
    if by == "mv":
        original.store.rename(moved)
    else:
        original.copy("moved")
        shutil.rmtree(original.store)
    refused = original.run("plan", "resume", "job", home=moved).expect(4)
    assert refused.stderr.count("is now at") == 1
    original.run("doctor", "--adopt", home=moved).expect(0)
    assert "made at" not in original.run("plan", "list", home=moved).expect(0).stderr
    original.run("check", home=moved).expect(0)
    status = original.run("plan", "status", "job", "--json", home=moved).expect(0).data
    sandbox = Path(status["sandboxes"]["app"])
    original.run("plan", "rollback", "job", "first", "--yes", home=moved).expect(0)
    assert not (sandbox / "one.txt").exists()
    original.run("plan", "undo", "job", home=moved).expect(0)
    original.run("plan", "apply", "job", "--yes", home=moved).expect(0)
    assert (original.app / "two.txt").read_text() == "two\n"


@pytest.mark.parametrize("by", ["path", "link"])
def test_an_apply_that_died_is_finished_where_the_store_lies_now(agents: Agents, by: str) -> None:
    store = with_database(agents)
    if by == "link":
        (agents.work / "link").symlink_to(store)
        agents.env["CLEVERAGENTS_HOME"] = str(agents.work / "link")
    die_in_apply(agents)
    moved = store.with_name("moved")
    store.rename(moved)
    agents.env["CLEVERAGENTS_HOME"] = str(moved)
    agents.run("doctor", "--adopt").expect(0)
    assert agents.run("plan", "status", "last", "--json").expect(0).data["state"] == "applied"
    assert (agents.work / "app" / "own").read_text() == "more\n"
    assert query(agents.work / "live.db", "SELECT * FROM t") == [(1,)]
    assert not list((moved / "staging").iterdir())


def test_a_backup_put_back_in_its_place_is_the_store_again(original: Original) -> None:
    backup = original.copy("backup")
    original.run("plan", "rollback", "job", "first", "--yes").expect(0)
    shutil.rmtree(original.store)
    backup.rename(original.store)
    listed = original.run("plan", "list", "--json").expect(0)
    assert not listed.json["messages"]
    original.run("plan", "delete", "job", "--yes").expect(0)


def test_a_backup_that_was_copied_back_is_adopted_and_continues(original: Original) -> None:
    """Its sandboxes are other directories than the plan made, at their own place and marked."""
    for place in {original.store, original.sandbox.parent}:
        # the old ones are there until the end: their inodes cannot be given to the copies
        backup = place.with_name("backup")
        place.rename(backup)
        subprocess.run(["cp", "-a", str(backup), str(place)], check=True)
    refused = original.run("plan", "rollback", "job", "first", "--yes").expect(5)
    assert "if the store was put back from a backup: agents doctor --adopt" in refused.stderr
    assert "agents doctor --adopt" in original.run("check").expect(6).stdout
    assert "1 sandbox put back" in original.run("doctor", "--adopt").expect(0).stdout
    assert "nothing to adopt" in original.run("doctor", "--adopt").expect(0).stdout
    original.run("check").expect(0)
    original.run("plan", "rollback", "job", "first", "--yes").expect(0)
    assert not (original.sandbox / "one.txt").exists()
    original.run("plan", "undo", "job").expect(0)
    original.run("plan", "apply", "job", "--yes").expect(0)
    assert (original.app / "two.txt").read_text() == "two\n"


def test_a_copy_of_hard_links_is_only_adopted_when_the_original_is_gone(agents: Agents) -> None:
    original = Original(agents, elsewhere=False)
    linked, away = original.store.with_name("linked"), original.store.with_name("away")
    subprocess.run(["cp", "-al", str(original.store), str(linked)], check=True)
    original.run("plan", "list", home=linked).expect(0)
    original.run("plan", "delete", "job", "--yes", home=linked).expect(4)
    original.store.rename(away)  # as a disk that is not mounted
    refused = original.run("doctor", "--adopt", home=linked).expect(4)
    assert "hard links" in refused.stderr
    shutil.rmtree(away)
    original.run("doctor", "--adopt", home=linked).expect(0)
    original.run("plan", "rollback", "job", "first", "--yes", home=linked).expect(0)
    original.run("check", home=linked).expect(0)


def test_another_directory_without_the_mark_is_not_adopted(original: Original) -> None:
    shutil.rmtree(original.sandbox.parent)
    original.sandbox.mkdir(parents=True)
    assert "nothing to adopt" in original.run("doctor", "--adopt").expect(0).stdout
    original.run("plan", "rollback", "job", "first", "--yes").expect(5)


def test_a_store_reached_by_another_path_is_the_same_store(original: Original) -> None:
    other = original.store.with_name("other")
    other.symlink_to(original.store)
    original.run("plan", "rollback", "job", "first", "--yes", home=other).expect(0)


@pytest.mark.parametrize("column", ["root", "path"])
def test_a_row_that_points_elsewhere_is_left_alone(agents: Agents, column: str) -> None:
    one = Original(agents, elsewhere=False)
    mine = agents.work / "mine"
    mine.mkdir()
    (mine / "kept.txt").write_text("kept\n")
    inode = mine.stat()
    with closing(sqlite3.connect(one.store / "store.db")) as db, db:
        db.execute(f"UPDATE sandboxes SET {column} = ?", (str(mine),))
        if column == "root":
            db.execute("UPDATE sandboxes SET identity = ?", (f"{inode.st_dev}:{inode.st_ino}",))
    [problem] = one.run("check", "--json").expect(6).data["problems"]
    assert "is not marked as that sandbox" in problem
    for argv in (
        ("plan", "rollback", "job", "first", "--yes"),
        ("plan", "resume", "job"),
        ("plan", "undo", "job"),
        ("plan", "apply", "job", "--yes"),
    ):
        error = one.run(*argv, "--json").expect(5).data["error"]
        assert error["type"] == "SandboxNotOurs", argv
        assert os.listdir(mine) == ["kept.txt"]
    said = one.run("plan", "delete", "job", "--yes").expect(0)
    assert "left alone" in said.stdout + said.stderr
    assert (mine / "kept.txt").read_text() == "kept\n"


def test_a_copy_drops_no_database_of_its_original(agents: Agents, shop: Shop) -> None:
    project = Project(agents, shop)
    project.plan('id: a, tool: sql, with: {script: "CREATE TABLE made (x int)"}')
    project.run("plan", "run", "plan.yaml")
    copy = project.store.with_name("copy")
    subprocess.run(["cp", "-a", str(project.store), str(copy)], check=True)
    before, held = project.ours(), shop.pg.dump(project.work())
    for argv in (
        ("plan", "delete", "p", "--yes"),
        ("plan", "rollback", "p", "first", "--yes"),
        ("plan", "apply", "p", "--yes"),
        ("gc", "--grace", "0s", "--databases"),
        ("doctor", "--fix"),
    ):
        project.run(*argv, rc=4, CLEVERAGENTS_HOME=str(copy))
    assert project.ours() == before
    assert shop.pg.dump(project.work()) == held
    project.run("plan", "delete", "p", "--yes")
    assert project.ours() == []


class Nested:
    """A plan over a folder and a database in it, stopped at a step that waits for `go`."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.app = agents.work / "app"
        self.app.mkdir()
        query(self.app / "app.db", "CREATE TABLE t (x)")
        (self.app / "plan.yaml").write_text(
            "name: job\nresources:\n  app: {kind: fs-directory, path: .}\n"
            "  db: {kind: sqlite, path: app.db}\n"
            "steps: [{id: one, on: app, run: 'test -s app.db && test -e go'}]\n"
        )
        made = agents.run("plan", "run", "plan.yaml", "--json", cwd=self.app).expect(5).data
        self.box = Path(made["sandboxes"]["app"])

    def resume(self) -> None:
        (self.box / "go").write_text("")
        self.agents.run("plan", "resume", "job", cwd=self.app).expect(0)


def test_in_a_moved_store_links_lead_to_where_inner_sandboxes_are_now(agents: Agents) -> None:
    nested = Nested(agents)
    store = Path(agents.env["CLEVERAGENTS_HOME"])
    there = store.with_name("there")
    store.rename(there)
    agents.env["CLEVERAGENTS_HOME"] = str(there)
    agents.run("doctor", "--adopt", cwd=nested.app).expect(0)
    nested.box = there / nested.box.relative_to(store)
    assert os.readlink(nested.box / "app.db") == str(nested.box.with_name("db") / "app.db")
    nested.resume()


def test_a_sandbox_of_a_version_with_relative_links_continues(agents: Agents) -> None:
    nested = Nested(agents)
    (nested.box / "app.db").unlink()
    (nested.box / "app.db").symlink_to("../db/app.db")
    nested.resume()


def test_an_original_that_comes_back_after_its_copy_was_adopted_is_no_twin(
    original: Original,
) -> None:
    copy, away = original.copy(), original.store.with_name("away")
    original.store.rename(away)  # a disk that is not mounted looks the same
    original.run("doctor", "--adopt", home=copy).expect(0)
    away.rename(original.store)
    inside = original.sandbox.is_relative_to(original.store)
    if not inside:
        assert "is not marked" in original.run("plan", "diff", "job").expect(5).stderr
        assert "is not marked" in original.run("check").expect(6).stdout
    original.run("plan", "delete", "job", "--yes")
    own = copy / original.sandbox.relative_to(original.store) if inside else original.sandbox
    assert (own / "two.txt").exists()
    original.run("plan", "apply", "job", "--yes", home=copy).expect(0)
    assert (original.app / "two.txt").exists()


class PutBack:
    """A store of which an older state is put back beside newer sandboxes."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.store = Path(agents.env["CLEVERAGENTS_HOME"])
        for name in ("old", "new"):
            (agents.work / name).mkdir()
            (agents.work / name / "x").write_text("0\n")

    def run(self, *argv: str) -> Outcome:
        return self.agents.run("plan", *argv)

    def plan(self, name: str, *steps: str) -> Path:
        """Run a plan over the folder of its name; returns the sandbox."""
        lines = "".join(f'  - {{id: s{n}, run: "{text}"}}\n' for n, text in enumerate(steps))
        (self.agents.work / f"{name}.yaml").write_text(
            f"name: {name}\nresources: {{a: {{kind: fs-directory, path: {name}}}}}\nsteps:\n{lines}"
        )
        return Path(self.run("run", f"{name}.yaml", "--json").data["sandboxes"]["a"])

    def save(self) -> None:
        left_out = shutil.ignore_patterns("sandboxes", "reserve*")
        shutil.copytree(self.store, self.store.with_name("backup"), ignore=left_out)

    def put_back(self) -> None:
        """The rows alone: content that came later may stay."""
        for path in self.store.glob("store.db*"):
            path.unlink()
        for path in self.store.with_name("backup").glob("store.db*"):
            shutil.copy2(path, self.store)


@pytest.fixture
def put_back(agents: Agents) -> PutBack:
    return PutBack(agents)


def test_work_of_plans_that_an_older_store_does_not_know_is_left_alone(put_back: PutBack) -> None:
    put_back.plan("old", "echo 1 >> x")
    put_back.save()
    newer = put_back.plan("new", "echo precious > work")
    put_back.put_back()
    [one] = put_back.agents.run("doctor", "--fix", "--json").expect(0).data["leftovers"]
    assert one["kept_because"].startswith("this store never had its plan; if nobody needs it: rm")
    assert (newer / "work").read_text() == "precious\n"


def test_a_step_of_which_an_older_store_does_not_know_is_not_done_on_its_own_work(
    put_back: PutBack,
) -> None:
    sandbox = put_back.plan("old", "echo 1 >> x", "echo 2 >> x", "test -e go && echo 3 >> x")
    put_back.save()
    (sandbox / "go").touch()
    put_back.run("resume", "old").expect(0)
    assert (sandbox / "x").read_text() == "0\n1\n2\n3\n"
    put_back.put_back()
    (found,) = put_back.agents.run("check", "--json").expect(6).data["problems"]
    assert "its sandbox is newer than this store, which was put back" in found
    told = put_back.run("resume", "old")
    assert "after a backup of the store was put back, " in told.stderr
    assert (sandbox / "x").read_text() == "0\n1\n2\n"
    assert not (sandbox / "go").exists()  # as far as this store knows, nobody made it
    (label,) = {
        row["label"]
        for row in put_back.run("checkpoints", "old", "--json").expect(0).data["checkpoints"]
        if (row["label"] or "").startswith("after-put-back-")
    }
    kept = put_back.run("diff", "old", "--from", "first", "--to", label, "--json").expect(0).data
    assert "+3" in kept["patch"]
    (sandbox / "go").touch()
    assert "put back" not in put_back.run("resume", "old").expect(0).stderr
    assert (sandbox / "x").read_text() == "0\n1\n2\n3\n"
    assert put_back.agents.run("check", "--json").expect(0).data["problems"] == []


def test_what_an_older_store_calls_done_is_what_is_applied(put_back: PutBack) -> None:
    put_back.plan("old", "echo 1 >> x")
    put_back.save()
    put_back.run("rollback", "old", "first", "--yes").expect(0)
    put_back.put_back()
    assert put_back.run("diff", "old", "--json").expect(0).data["files_changed"] == 1
    put_back.run("apply", "old", "--yes").expect(0)
    assert (put_back.agents.work / "old" / "x").read_text() == "0\n1\n"
