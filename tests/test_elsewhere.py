"""A plan is continued by another machine: same metadata and bucket, and no path in common."""

import os
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from cleveragents.lease import host_name
from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace
from tests.databases import Where
from tests.in_process import Yard, cli, damage_store, die_while
from tests.pgserver import PASSWORD, Shop

PLAN = """\
name: shop
resources:
  app: {kind: fs-directory, path: app}
  code: {kind: git-checkout, path: code}
  db: {kind: sqlite, path: shop.db}
steps:
  - {id: files, on: app, run: "echo 1 > one.txt; chmod 750 one.txt; mkdir d; ln -s ../one.txt d/l"}
  - {id: code, on: code, run: "echo more >> kept.txt; git commit -qam more; echo new > new.txt"}
  - {id: rows, on: db, tool: sql, with: {script: "INSERT INTO items VALUES (2)"}}
  - {id: last, on: app, run: "test -e GO && echo last > last.txt"}
"""

ON_A_SERVER = """\
name: shop
resources:
  db: {kind: postgres, url: $DATABASE_URL, strategy: snapshot}
  app: {kind: fs-directory, path: app}
steps:
  - {id: one, on: db, tool: sql, with: {script: INSERT INTO users (name) VALUES ('one')}}
  - {id: wait, on: app, run: test -e GO}
  - {id: two, on: db, tool: sql, with: {script: INSERT INTO users (name) VALUES ('two')}}
"""


class Machines:
    """The first machine, with what the user has, and what is left when it is gone."""

    def __init__(self, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
        self.yard = yard
        self._monkeypatch = monkeypatch
        self.first = Path(os.environ["CLEVERAGENTS_HOME"])
        self.second = self.first.with_name("second")
        self.go = yard.top.with_name("go")
        monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{yard.top.with_name('bucket')}")
        code = yard.top / "code"
        code.mkdir()
        self.git(code, "init", "-q")
        self.git(code, "config", "user.name", "someone")
        self.git(code, "config", "user.email", "someone@example.org")
        for number in range(2):
            (code / "kept.txt").write_text(f"version {number}\n")
            (code / f"file{number}.txt").write_text(f"{number}\n")
            self.git(code, "add", "-A")
            self.git(code, "commit", "-qm", "base")
        with closing(sqlite3.connect(yard.top / "shop.db")) as db:
            db.executescript("CREATE TABLE items (id); INSERT INTO items VALUES (1)")
        (yard.top / "shop.db").chmod(0o640)

    @staticmethod
    def git(folder: Path, *argv: str) -> str:
        done = subprocess.run(["git", *argv], cwd=folder, capture_output=True, check=True)
        return done.stdout.decode()

    def plan(self, text: str = PLAN) -> str:
        return self.yard.plan(text.replace("GO", str(self.go)))

    def lose_the_first(self) -> None:
        """Its metadata is restored on another machine; its files and the user's are gone."""
        self.second.mkdir(mode=0o700)
        with (
            closing(sqlite3.connect(self.first / "store.db")) as old,
            closing(sqlite3.connect(self.second / "store.db")) as new,
        ):
            old.backup(new)
        (self.second / "store.db").chmod(0o600)
        shutil.rmtree(self.first)
        self._monkeypatch.chdir(self.second)
        shutil.rmtree(self.yard.top)
        self._monkeypatch.setenv("CLEVERAGENTS_HOME", str(self.second))
        cli("doctor", "--adopt")


@pytest.fixture
def machines(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(yard, monkeypatch)


def sandboxes() -> dict[str, Path]:
    found = cli("plan", "status", "shop", "--json").data["sandboxes"]
    return {name: Path(path) for name, path in found.items()}


def test_another_machine_continues_a_plan(machines: Machines) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    before = cli("plan", "checkpoints", "shop", "--json").data["checkpoints"]
    machines.lose_the_first()
    machines.go.touch()
    done = cli("plan", "resume", "shop", "--json")
    assert done.data["state"] == "complete"
    boxes = sandboxes()
    assert all(str(path).startswith(str(machines.second)) for path in boxes.values())
    app = boxes["app"]
    assert {path.name for path in app.iterdir()} == {"old.txt", "one.txt", "d", "last.txt"}
    assert stat.S_IMODE((app / "one.txt").stat().st_mode) == 0o750
    assert os.readlink(app / "d" / "l") == "../one.txt"
    with closing(sqlite3.connect(boxes["db"])) as db:
        assert db.execute("SELECT id FROM items ORDER BY id").fetchall() == [(1,), (2,)]
    assert stat.S_IMODE(boxes["db"].stat().st_mode) == 0o640
    after = cli("plan", "checkpoints", "shop", "--json").data["checkpoints"]
    assert after[: len(before)] == before


def test_git_works_in_a_sandbox_on_another_machine(machines: Machines) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    machines.lose_the_first()
    machines.go.touch()
    cli("plan", "resume", "shop")
    code = sandboxes()["code"]
    assert machines.git(code, "log", "--format=%s").split() == ["more", "base"]
    assert machines.git(code, "status", "--porcelain").split() == ["??", "new.txt"]
    assert machines.git(code, "show", "HEAD~1:file0.txt") == "0\n"
    assert (code / "kept.txt").read_text() == "version 1\nmore\n"
    cli("plan", "rollback", "shop", "first", "--yes")
    assert (code / "kept.txt").read_text() == "version 1\n"
    assert machines.git(code, "status", "--porcelain") == ""
    cli("plan", "resume", "shop")
    assert machines.git(code, "log", "--format=%s").split() == ["more", "base"]


def test_another_machine_may_look_without_taking_the_plan(machines: Machines) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    machines.lose_the_first()
    with closing(sqlite3.connect(machines.second / "store.db")) as db:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        db.execute("UPDATE sandboxes SET origin = replace(origin, ?, 'another boot')", (boot,))
        db.commit()
    files = cli("plan", "diff", "shop", "--json").data["files"]
    found = {(one["resource"], one["path"]) for one in files}
    assert found >= {("app", "one.txt"), ("code", "kept.txt"), ("code", "new.txt")}
    assert "code" in cli("plan", "status", "shop").stdout
    assert not (machines.second / "sandboxes").exists() or not any(
        (machines.second / "sandboxes").iterdir()
    )


def test_deleting_from_another_machine_asks_for_unapplied_work(machines: Machines) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    machines.lose_the_first()
    refused = cli("plan", "delete", "shop", "--json", expect=4)
    assert "never applied" in refused.data["error"]["message"]
    assert cli("check").rc == 0
    cli("plan", "delete", "shop", "--yes")
    assert cli("plan", "list", "--json").data["plans"] == []


def test_what_never_reached_the_bucket_is_not_given_up_silently(machines: Machines) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    box = sandboxes()["app"]
    (box / "by-hand.txt").write_text("only here\n")
    bucket = machines.yard.top.with_name("bucket")
    folder = next(path for path in bucket.glob("*/*") if path.is_dir())
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_text("in the way\n")  # so nothing can be written below it
    cli("plan", "checkpoint", "create", "shop", "--label", "lost")
    folder.unlink()
    away.rename(folder)
    machines.lose_the_first()
    machines.go.touch()
    refused = cli("plan", "resume", "shop", "--json", expect=4)
    assert refused.data["error"]["type"] == "NotInBucket"
    kept = refused.data["error"]["hint"].split()[-1]
    cli("plan", "rollback", "shop", kept, "--yes")
    cli("plan", "resume", "shop")
    assert not (sandboxes()["app"] / "by-hand.txt").exists()
    assert (sandboxes()["app"] / "last.txt").exists()


def test_a_plan_without_a_group_in_the_bucket_cannot_be_continued(machines: Machines) -> None:
    text = PLAN.replace("steps:", "policy: {rollback_enabled: false}\nsteps:")
    cli("plan", "run", machines.plan(text), expect=5)
    machines.lose_the_first()
    refused = cli("plan", "resume", "shop", "--json", expect=4)
    assert "no group of plan 'shop' is in the bucket" in refused.data["error"]["message"]


def test_apply_says_where_the_target_is(machines: Machines) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    machines.lose_the_first()
    machines.go.touch()
    cli("plan", "resume", "shop")
    refused = cli("plan", "apply", "shop", "--yes", "--json", expect=4)
    assert "is not on this machine" in refused.data["error"]["message"]


def test_steps_of_a_dead_machine_that_never_reached_the_bucket_run_again(
    machines: Machines,
) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    machines.go.touch()
    bucket = machines.yard.top.with_name("bucket")
    folder = next(path for path in bucket.glob("*/*") if path.is_dir())
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_text("in the way\n")
    cli("plan", "resume", "shop")
    assert cli("plan", "status", "shop", "--json").data["bucket"]["behind_groups"] > 0
    with open_workspace() as ws:
        die_while(ws, ws.find("shop"), state=State.PROCESSING)
    folder.unlink()
    away.rename(folder)
    machines.lose_the_first()
    resumed = cli("plan", "resume", "shop")
    assert "will be made again" in resumed.stderr
    assert cli("plan", "status", "shop", "--json").data["state"] == "complete"
    assert (sandboxes()["app"] / "last.txt").read_text() == "last\n"
    assert [row["state"] for row in cli("plan", "output", "shop", "--json").data["calls"]][-2:] == [
        "ok",
        "ok",
    ]


def test_a_child_plan_continues_with_its_parent(machines: Machines) -> None:
    text = (
        "name: shop\nresources: {app: {kind: fs-directory, path: app}}\nsteps:\n"
        '  - {id: one, run: "echo one > one.txt"}\n'
        "  - id: below\n    subplan:\n      steps:\n"
        '        - {id: x, run: "echo x > x.txt"}\n'
        f'        - {{id: y, run: "test -e {machines.go} && echo y > y.txt"}}\n'
    )
    cli("plan", "run", machines.plan(text), expect=5)
    machines.lose_the_first()
    machines.go.touch()
    cli("plan", "resume", "shop")
    assert {path.name for path in sandboxes()["app"].iterdir()} >= {"one.txt", "x.txt", "y.txt"}


@pytest.mark.usefixtures("on_postgres")
def test_homes_that_share_a_database_and_a_bucket_hand_a_plan_to_and_fro(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    was = sandboxes()
    machines.go.touch()
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    assert cli("plan", "resume", "shop", "--json").data["state"] == "complete"
    here = sandboxes()
    assert all(str(path).startswith(str(machines.second)) for path in here.values())
    assert (here["app"] / "last.txt").exists()
    assert not (was["app"] / "last.txt").exists()
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.first))
    cli("check")  # the repository's commit is the other home's to hold, and in the bucket
    seen = {one["path"] for one in cli("plan", "diff", "shop", "--json").data["files"]}
    assert "last.txt" in seen
    assert not (was["app"] / "last.txt").exists()
    cli("plan", "rollback", "shop", "last", "--yes")
    assert sandboxes() == was
    assert (was["app"] / "last.txt").read_text() == "last\n"
    cli("plan", "resume", "shop")
    applied = cli("plan", "apply", "shop", "--yes", "--json").data["applied"]
    assert {one["resource"] for one in applied} == {"app", "code", "db"}
    assert (machines.yard.app / "last.txt").exists()


@pytest.mark.usefixtures("on_postgres")
def test_another_home_counts_nothing_that_only_the_first_has(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content that is equal and lies in the first home's packs alone is stored and sent again."""
    (machines.yard.app / "same.txt").write_text("the same in both plans\n" * 100)
    bucket = machines.yard.top.with_name("bucket")
    bucket.write_text("in the way\n")
    cli("plan", "run", machines.plan(), expect=5)
    bucket.unlink()
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    machines.go.touch()
    cli("plan", "run", machines.plan(PLAN.replace("shop\n", "store\n", 1)))
    shutil.rmtree(machines.first)
    status = cli("plan", "status", "store", "--json").data
    assert status["bucket"]["behind_groups"] == 0
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second.with_name("third")))
    cli("plan", "rollback", "store", "first", "--yes")
    app = Path(cli("plan", "status", "store", "--json").data["sandboxes"]["app"])
    assert (app / "same.txt").read_text() == "the same in both plans\n" * 100


@pytest.mark.usefixtures("on_postgres")
def test_what_died_before_anything_was_in_the_bucket_is_started_over(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = machines.yard.top.with_name("way")
    way.write_text("not a folder\n")
    address = os.environ["CLEVERAGENTS_CONTENT_URL"]
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", f"file://{way}/bucket")
    cli("plan", "run", machines.plan(), expect=5)
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    refused = cli("plan", "resume", "shop", "--json", expect=4)
    assert "no group of plan 'shop' is in the bucket" in refused.data["error"]["message"]
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.first))
    with open_workspace() as ws:
        die_while(ws, ws.find("shop"), state=State.PROCESSING)
    damage_store("UPDATE leases SET heard_at = heard_at - 60")  # nobody was heard of since
    monkeypatch.setenv("CLEVERAGENTS_CONTENT_URL", address)
    shutil.rmtree(machines.first)
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    machines.go.touch()
    resumed = cli("plan", "resume", "shop")
    assert "started over here" in resumed.stderr
    status = cli("plan", "status", "shop", "--json").data
    assert (status["state"], status["bucket"]["behind_groups"]) == ("complete", 0)
    assert {path.name for path in sandboxes()["app"].iterdir()} == {
        "old.txt",
        "one.txt",
        "d",
        "last.txt",
    }


def test_a_machine_that_is_lost_with_the_end_of_a_complete_plan_leaves_it_to_another(
    machines: Machines, on_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the commit that says complete and the moment when the bucket had all."""
    cli("plan", "run", machines.plan(), expect=5)
    machines.go.touch()
    bucket = machines.yard.top.with_name("bucket")
    bucket.rename(bucket.with_name("away"))
    bucket.write_text("in the way\n")
    cli("plan", "resume", "shop")
    monkeypatch.setattr("cleveragents.lease.host_name", lambda: "gone")
    with open_workspace() as ws:
        die_while(ws, ws.find("shop"))
    monkeypatch.setattr("cleveragents.lease.host_name", host_name)
    Where("", on_postgres).query("UPDATE leases SET heard_at = heard_at - 60")
    bucket.unlink()
    bucket.with_name("away").rename(bucket)
    shutil.rmtree(machines.first)
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    refused = cli("plan", "apply", "shop", "--yes", "--json", expect=4)
    assert "errored" in refused.data["error"]["message"]
    assert "gone was lost before all of it was in the bucket" in cli("plan", "status").stdout
    resumed = cli("plan", "resume", "shop")
    assert "4/4 last" in resumed.stderr, "and no other step"
    status = cli("plan", "status", "shop", "--json").data
    assert (status["state"], status["bucket"]["behind_groups"]) == ("complete", 0)
    assert (sandboxes()["app"] / "last.txt").read_text() == "last\n"


@pytest.mark.usefixtures("on_postgres")
def test_a_process_that_lives_long_sees_that_another_machine_had_the_plan(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("plan", "run", machines.plan(), expect=5)
    with open_workspace() as ws:
        plan = ws.find("shop")
        was = plan.sandboxes
        machines.go.touch()
        monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
        cli("plan", "resume", "shop")
        plan.rollback("last")
        assert plan.sandboxes == was
        assert (Path(was["app"]) / "last.txt").exists()


@pytest.mark.usefixtures("on_postgres")
def test_a_folder_of_somebody_else_in_the_sandboxs_place_is_left_alone(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("plan", "run", machines.plan(), "--json", expect=5)
    stranger = machines.second / "sandboxes" / done.data["plan_id"] / "app"
    stranger.mkdir(parents=True, mode=0o700)
    (stranger / "theirs.txt").write_text("not ours\n")
    machines.second.chmod(0o700)
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    refused = cli("plan", "resume", "shop", "--json", expect=5)
    assert refused.data["error"]["type"] == "SandboxNotOurs"
    assert (stranger / "theirs.txt").read_text() == "not ours\n"


@pytest.mark.usefixtures("on_postgres")
def test_a_resource_without_a_sandbox_stays_where_it_is(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PLAN.replace("path: shop.db}", "path: shop.db, strategy: none, require_sandbox: false}")
    cli("plan", "run", machines.plan(text), expect=5)
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    refused = cli("plan", "resume", "shop", "--json", expect=5)
    assert "'db' cannot be worked on from another machine" in refused.data["error"]["message"]


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize("strategy", ["snapshot", "transaction_rollback"])
def test_a_database_on_a_server_is_worked_on_from_anywhere(
    machines: Machines, shop: Shop, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte of it moves: the clones of its states, or the database itself, are on the server."""
    monkeypatch.setenv("DATABASE_URL", shop.full_url)
    cli("plan", "run", machines.plan(ON_A_SERVER.replace("snapshot", strategy)), expect=5)
    if strategy == "snapshot":  # what a step had done that died before its group
        shop.sql("DELETE FROM users", str(sandboxes()["db"]).rpartition("/")[2])
    shutil.rmtree(machines.first)
    machines.go.touch()
    monkeypatch.setenv("CLEVERAGENTS_HOME", str(machines.second))
    monkeypatch.setenv("DATABASE_URL", shop.url)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert cli("plan", "resume", "shop", "--json").data["state"] == "complete"
    assert len(shop.sql("SELECT * FROM users")) == 2
    cli("plan", "rollback", "shop", "one", "--yes")
    cli("plan", "resume", "shop")
    cli("plan", "apply", "shop", "--yes")
    names = shop.sql("SELECT name FROM users ORDER BY id")
    assert names == [("ada",), ("bob",), ("one",), ("two",)]


def test_child_plans_of_a_dead_machine_are_rolled_back_with_their_parent(
    machines: Machines,
) -> None:
    text = (
        "name: shop\nresources: {app: {kind: fs-directory, path: app}}\nsteps:\n"
        '  - {id: one, run: "echo one > one.txt"}\n'
        "  - id: below\n    subplan:\n      steps:\n"
        '        - {id: x, run: "echo x >> x.txt"}\n'
        f'        - {{id: y, run: "test -e {machines.go} && echo y >> x.txt"}}\n'
        '  - {id: after, run: "echo after > after.txt"}\n'
    )
    cli("plan", "run", machines.plan(text), expect=5)
    machines.go.touch()
    bucket = machines.yard.top.with_name("bucket")
    folder = next(path for path in bucket.glob("*/*") if path.is_dir())
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_text("in the way\n")
    cli("plan", "resume", "shop")
    with open_workspace() as ws:
        die_while(ws, ws.find("shop"), state=State.PROCESSING)
    folder.unlink()
    away.rename(folder)
    machines.lose_the_first()
    cli("plan", "resume", "shop")
    app = sandboxes()["app"]
    assert (app / "x.txt").read_text() == "x\ny\n"
    assert (app / "after.txt").exists()
