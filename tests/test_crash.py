"""The process dies at any moment: the next command finds old or new, never a mixture.

`CLEVERAGENTS_TEST_KILL_AT=n` makes a process kill itself at its n-th fault point. Here the command
runs in a fork of a process that has imported it; one test uses the installed command and the
variable. CLEVERAGENTS_TEST_FULL=1 tries every point; CLEVERAGENTS_TEST_STORE=postgres: the store is
on PostgreSQL.
"""

import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.errors import AgentsError
from cleveragents.model.settings import Settings
from cleveragents.testing import look, require_same
from cleveragents.workspace import open_workspace
from tests.databases import EVERYWHERE, Where, copy_shared, store_of
from tests.harness import PATIENCE, Agents, Outcome, ask_server, command
from tests.pgserver import PgServer
from tests.scratch import wait_until

FULL = os.environ.get("CLEVERAGENTS_TEST_FULL") == "1"
SAMPLE = 3 if EVERYWHERE else 6
"""Points tried per command if not all are."""
KILLED = -signal.SIGKILL

PLAN = """
name: small
resources:
  app: {kind: git-checkout, path: repo}
  docs: {kind: fs-directory, path: docs}
  db: {kind: sqlite, path: app.db}
steps:
  - {id: code, on: app, run: "echo new > a; mkdir n; echo c > n/c; rm gone/x; rmdir gone"}
  - {id: text, tool: file.write, on: docs, with: {path: sub/new, content: "text"}}
  - {id: rows, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (2)"}}
"""
CHECKED = (
    PLAN
    + """
validate:
  - {on: app, run: "echo dirt > dirt; grep new a"}
  - {on: docs, run: "rm -r sub"}
"""
)
FAILING = """
name: failing
resources:
  app: {kind: git-checkout, path: repo}
  db: {kind: sqlite, path: app.db}
steps:
  - {id: first, on: app, run: "echo once >> log"}
  - {id: second, on: app, run: "echo twice >> log; mkdir -p half; test -e $AGENTS_PLAN_DIR/flag"}
  - {id: third, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (3)"}}
"""


class World(Agents):
    """A repository, a directory and a database, and commands that may be made to die."""

    def __init__(
        self, root: Path, plan: str = PLAN, after_death: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(root)
        self.root = root
        self._after_death = after_death
        self.repo, self.docs, self.db = (self.work / n for n in ("repo", "docs", "app.db"))
        (self.repo / "gone").mkdir(parents=True)
        (self.repo / "a").write_text("old\n")
        (self.repo / "gone/x").write_text("x\n")
        self.git("init", "-q", "-b", "main")
        self.env["GIT_OPTIONAL_LOCKS"] = "0"
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "start")
        self.docs.mkdir()
        (self.docs / "d").write_text("d")
        with closing(sqlite3.connect(self.db)) as db:
            db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        (self.work / "plan.yaml").write_text(plan)
        self.points = 0
        self.old = self.targets()

    def git(self, *argv: str) -> str:
        done = subprocess.run(
            ["git", *argv], cwd=self.repo, env=self.env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def run(
        self,
        *argv: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
        kill_at: int = 0,
    ) -> Outcome:
        """The command, killed at that fault point; counts those that it reached."""
        points = self.root / "points"
        points.write_bytes(b"")
        whole = self.env | dict(env or {})
        argv = (command(), *argv)
        done = ask_server([*argv], cwd or self.work, whole, timeout, str(points), kill_at)
        if kill_at:
            self._after_death()
        self.points = int(points.read_text() or 0)
        return Outcome(argv, *done)

    def die(self, number: int, *argv: str) -> Outcome:
        """The command, killed at that fault point.

        What goes on in the background may take a point or two less than it did the time before;
        then the last ones are not reached.
        """
        died = self.run(*argv, kill_at=number)
        assert died.rc == KILLED or self.points < number, died
        return died

    def ok(self, *argv: str) -> dict[str, Any]:
        return self.run(*argv, "--json").expect(0).data

    def status(self) -> dict[str, Any]:
        return self.ok("plan", "status", "last")

    def targets(self) -> dict[str, Any]:
        """What the user has: files, rows, and where the branch stands."""
        return {
            "repo": look(self.repo, (b".git",)),
            "docs": look(self.docs),
            "db": rows(self.db),
            "commits": self.git("rev-list", "--count", "HEAD"),
            "index": self.git("status", "--porcelain"),
        }

    def sandboxes(self) -> dict[str, Any]:
        """What the plan has, in the same terms."""
        [plan] = (self.root / "store/sandboxes").iterdir()
        return {
            "repo": look(plan / "repo", (b".git",)),
            "docs": look(plan / "docs") if (plan / "docs").exists() else None,
            "db": rows(plan / "db/app.db"),
        }

    def require_tidy(self) -> None:
        """Nothing of ours lies in the user's folders; none of the store's after a `gc`."""
        inside = [p for p in self.work.rglob("*") if p.name.startswith(".cleveragents-")]
        assert not inside, f"left in the user's folder: {inside}"
        self.run("gc", "--grace", "0s").expect(0)
        store = self.root / "store"
        left = [*store.glob("staging/*"), *store.glob("sandboxes/*/.staging-*")]
        assert not left, f"left in the store: {left}"

    def require_whole(self) -> None:
        """The next command works, and nothing in the store is damaged."""
        self.run("plan", "list").expect(0)
        self.run("check", "--read-data").expect(0)


def rows(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute("SELECT x FROM t ORDER BY x").fetchall()


def is_new(seen: dict[str, Any]) -> bool:
    """All three resources have what the plan makes; False if none has. Anything else is wrong."""
    new = (
        seen["repo"].get(b"a", ("", 0, b""))[2] == b"new\n",
        b"n/c" in seen["repo"] and b"gone" not in seen["repo"],
        b"sub/new" in seen["docs"],
        seen["db"] == [(1,), (2,)],
    )
    old = (
        seen["repo"].get(b"a", ("", 0, b""))[2] == b"old\n",
        b"n" not in seen["repo"] and b"gone/x" in seen["repo"],
        b"sub" not in seen["docs"],
        seen["db"] == [(1,)],
    )
    assert all(new) or all(old), f"a mixture: new {new}, old {old}"
    return all(new)


Check = Callable[[World, Outcome], None]


class SharedImages:
    """The part of a world that is on PostgreSQL: its state at the start, and that again."""

    def __init__(self, pg: PgServer, url: str) -> None:
        self._pg, self._name = pg, url.rpartition("/")[2]
        self._image = f"{self._name}_image"

    def keep(self) -> None:
        self.wait_until_unused()
        copy_shared(self._pg, self._name, self._image)

    def bring_back(self) -> None:
        self.wait_until_unused()
        copy_shared(self._pg, self._image, self._name)

    def drop(self) -> None:
        self._pg.sql("postgres", f"DROP DATABASE IF EXISTS {self._image}")

    def wait_until_unused(self) -> None:
        """Until what somebody sent who was killed then is over, this way or that."""
        users = (
            "SELECT 1 FROM pg_stat_activity"
            f" WHERE datname = '{self._name}' AND backend_type = 'client backend'"
        )
        wait_until(lambda: not self._pg.sql("postgres", users), f"nobody uses {self._name}")


class Crashes:
    """Does a command again and again from the same start, each time dying at another point."""

    def __init__(
        self, folder: Path, subtests: pytest.Subtests, shared: SharedImages | None
    ) -> None:
        self._folder = folder
        self._subtests = subtests
        self._shared = shared

    def start(self, prepare: Callable[[World], None], plan: str = PLAN) -> Callable[[], World]:
        """Prepares once; what is returned brings that state back, as from a backup."""
        root, image, shared = self._folder / "world", self._folder / "image", self._shared
        root.mkdir()
        world = World(root, plan, shared.wait_until_unused if shared else nothing_more)
        prepare(world)
        (root / "store/reserve").unlink(missing_ok=True)  # 32 MiB of nothing, made again
        subprocess.run(["cp", "-a", root, image], check=True)
        if shared:
            shared.keep()

        def again() -> World:
            shutil.rmtree(root)
            subprocess.run(["cp", "-a", image, root], check=True)
            if shared:
                shared.bring_back()
            recognise_sandboxes(store_of(world.env))
            return world

        return again

    def everywhere(
        self,
        *argv: str,
        prepare: Callable[[World], None],
        check: Check,
        plan: str = PLAN,
        more: int = 0,
    ) -> None:
        again = self.start(prepare, plan)
        world = again()
        first = world.run(*argv)
        total = world.points
        assert total > 0, f"no fault point was reached: {first}"
        check(world, first)
        for number in numbers(total, total if FULL else SAMPLE + more):
            with self._subtests.test(f"{' '.join(argv)} killed at {number} of {total}"):
                again()
                died = world.die(number, *argv)
                try:
                    check(world, died)
                except AssertionError as error:
                    where = died.stderr.strip().rpartition("\n")[2]
                    raise AssertionError(f"{where}: {error}") from error


def recognise_sandboxes(store: Where) -> None:
    """A sandbox is known by its inode, and a copy has another."""
    if not store.url and not os.path.exists(f"{store.home}/store.db"):
        return
    for sandbox, root in store.query("SELECT sandbox_id, root FROM sandboxes"):
        if os.path.isdir(root):
            known = (fsio.identity(root), sandbox)
            store.query("UPDATE sandboxes SET identity = ? WHERE sandbox_id = ?", known)


def numbers(total: int, sample: int) -> list[int]:
    """From 1 to the total, evenly spread."""
    if total <= sample:
        return list(range(1, total + 1))
    return sorted({1 + round(n * (total - 1) / (sample - 1)) for n in range(sample)})


@pytest.fixture
def crashes(
    tmp_path: Path, subtests: pytest.Subtests, request: pytest.FixtureRequest
) -> Generator[Crashes]:
    if not EVERYWHERE:
        yield Crashes(tmp_path, subtests, None)
        return
    shared = SharedImages(request.getfixturevalue("pg"), request.getfixturevalue("on_postgres"))
    yield Crashes(tmp_path, subtests, shared)
    shared.drop()


def nothing(_world: World) -> None: ...


def nothing_more() -> None: ...


def executed(world: World) -> None:
    world.run("plan", "run", "plan.yaml").expect(0)
    assert is_new(world.sandboxes())


def rolled_back(world: World) -> None:
    executed(world)
    world.run("plan", "rollback", "last", "first", "--yes").expect(0)
    assert not is_new(world.sandboxes())


def require_matching(world: World) -> bool:
    """The plan says of itself what its sandboxes are; whether they are new."""
    new = is_new(world.sandboxes())
    status = world.status()
    steps = {item["status"] for item in status["progress"]}
    wanted = ("complete", {"complete"}) if new else ("queued", {"queued"})
    assert (status["state"], steps) == wanted
    require_same(world.targets(), world.old, "the user's own")
    return new


def require_applied_once(world: World) -> None:
    """Apply, twice: the second time gives the first result and changes nothing."""
    first = world.ok("plan", "apply", "last", "--yes")
    after = world.targets()
    again = world.ok("plan", "apply", "last", "--yes")
    assert first == again
    assert is_new(after)
    require_same(world.targets(), after)
    assert after["commits"] == "2"
    assert after["index"] == ""
    assert first["applied"][0]["commit"] == world.git("rev-parse", "HEAD")
    ref = world.git("for-each-ref", "--format=%(refname)", "refs/cleveragents")
    assert ref == f"refs/cleveragents/{first['plan_id']}"
    world.require_tidy()
    assert list((world.root / "store/sandboxes").iterdir()) == []


def test_a_run_that_died_is_resumed_to_the_same_end(crashes: Crashes) -> None:
    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        require_same(world.targets(), world.old, "the user's own")
        plans = world.ok("plan", "list")["plans"]
        assert [p["state"] for p in plans if p["state"] == "processing"] == []
        if not plans:
            world.run("plan", "run", "plan.yaml").expect(0)
        world.run("plan", "resume", "last").expect(0)
        assert require_matching(world)
        tree = world.ok("plan", "tree", "last")["tree"]
        [root] = tree if isinstance(tree, list) else [tree]
        in_force = [child for child in root["children"] if child["state"] == "active"]
        assert [child["steps"] for child in in_force] == [["code"], ["text"], ["rows"]]
        world.require_tidy()
        world.run("plan", "undo", "last").expect(0)
        assert world.status()["state"] != "complete"
        world.run("plan", "redo", "last").expect(0)
        assert require_matching(world)
        require_applied_once(world)

    crashes.everywhere("plan", "run", "plan.yaml", prepare=nothing, check=check, more=4)


def test_a_step_that_failed_leaves_nothing_however_the_process_ended(crashes: Crashes) -> None:
    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        (world.work / "flag").touch()
        if not world.ok("plan", "list")["plans"]:
            world.run("plan", "run", "plan.yaml").expect(0)
        world.run("plan", "resume", "last").expect(0)
        seen = world.sandboxes()
        assert seen["repo"][b"log"][2] == b"once\ntwice\n"
        assert seen["db"] == [(1,), (3,)]
        assert world.status()["state"] == "complete"
        world.require_tidy()

    crashes.everywhere("plan", "run", "plan.yaml", prepare=nothing, check=check, plan=FAILING)


def test_a_rollback_that_died_happened_or_not(crashes: Crashes) -> None:
    argv = ("plan", "rollback", "last", "first", "--yes")
    crashes.everywhere(*argv, prepare=executed, check=check_rolled_back)


def check_rolled_back(world: World, _died: Outcome) -> None:
    world.require_whole()
    new = require_matching(world)
    world.run("plan", "undo", "last").expect(0)
    assert is_new(world.sandboxes()) != new, "undo takes back the last operation as a whole"
    world.run("plan", "rollback", "last", "first", "--yes").expect(0)
    assert not require_matching(world)
    world.run("plan", "resume", "last").expect(0)
    assert require_matching(world)
    world.require_tidy()


def test_manual_edits_outlive_a_rollback_that_died(crashes: Crashes) -> None:
    def edited(world: World) -> None:
        executed(world)
        [plan] = (world.root / "store/sandboxes").iterdir()
        (plan / "docs/sub/new").write_text("by hand")
        (plan / "repo/mine").write_text("mine")

    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        seen = world.sandboxes()
        if b"mine" not in seen["repo"]:
            assert not require_matching(world)
            world.run("plan", "undo", "last").expect(0)
            seen = world.sandboxes()
        assert seen["repo"][b"mine"][2] == b"mine"
        assert seen["docs"][b"sub/new"][2] == b"by hand"
        assert seen["db"] == [(1,), (2,)]

    argv = ("plan", "rollback", "last", "first", "--yes")
    crashes.everywhere(*argv, prepare=edited, check=check)


def test_a_resume_that_died_is_resumed(crashes: Crashes) -> None:
    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        world.run("plan", "resume", "last").expect(0)
        assert require_matching(world)
        world.run("plan", "rollback", "last", "first", "--yes").expect(0)
        assert not require_matching(world)
        world.require_tidy()

    crashes.everywhere("plan", "resume", "last", prepare=rolled_back, check=check)


def test_manual_edits_stay_an_operation_of_their_own_however_the_resume_ended(
    crashes: Crashes,
) -> None:
    def edited(world: World) -> None:
        rolled_back(world)
        [plan] = (world.root / "store/sandboxes").iterdir()
        (plan / "docs/mine").write_text("mine")

    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        world.run("plan", "resume", "last").expect(0)
        assert is_new(world.sandboxes())
        for _ in range(3):
            assert world.sandboxes()["docs"][b"mine"][2] == b"mine"
            world.run("plan", "undo", "last").expect(0)
            if b"mine" not in world.sandboxes()["docs"]:
                break
        assert not is_new(world.sandboxes()), "only the edit was taken back, not what was before it"

    crashes.everywhere("plan", "resume", "last", prepare=edited, check=check)


def test_an_undo_that_died_happened_or_not(crashes: Crashes) -> None:
    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        new = is_new(world.sandboxes())
        require_same(world.targets(), world.old, "the user's own")
        world.run("plan", "undo" if new else "redo", "last").expect(0)
        assert is_new(world.sandboxes()) != new
        world.run("plan", "resume", "last").expect(0)
        assert require_matching(world)
        world.require_tidy()

    crashes.everywhere("plan", "undo", "last", prepare=executed, check=check)


def test_an_apply_that_died_happened_as_a_whole_or_not_at_all_and_once(crashes: Crashes) -> None:
    crashes.everywhere(
        "plan", "apply", "last", "--yes", prepare=executed, check=check_applied, more=4
    )


def check_applied(world: World, _died: Outcome) -> None:
    world.require_whole()
    targets, state = world.targets(), world.status()["state"]
    assert is_new(targets) == (state == "applied")
    if state != "applied":
        require_same(targets, world.old, "the user's own")
        assert is_new(world.sandboxes()), "the work is still there"
    require_applied_once(world)


def test_an_apply_with_validations_leaves_nothing_of_them_however_it_ended(
    crashes: Crashes,
) -> None:
    def check(world: World, died: Outcome) -> None:
        check_applied(world, died)
        assert not (world.repo / "dirt").exists()

    argv = ("plan", "apply", "last", "--yes")
    crashes.everywhere(*argv, prepare=executed, check=check, plan=CHECKED)


def test_an_apply_as_changes_beside_the_users_own_edits_is_all_or_nothing(
    crashes: Crashes,
) -> None:
    def prepare(world: World) -> None:
        executed(world)
        (world.repo / "own").write_text("own")
        (world.docs / "d").write_text("edited")
        world.old = world.targets()

    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        applied = is_new(world.targets())
        assert applied == (world.status()["state"] == "applied")
        if not applied:
            require_same(world.targets(), world.old)
        world.run("plan", "apply", "last", "--yes", "--as", "changes").expect(0)
        now = world.targets()
        assert is_new(now)
        assert now["repo"][b"own"][2] == b"own"
        assert now["docs"][b"d"][2] == b"edited"
        assert now["commits"] == "1"
        world.require_tidy()

    argv = ("plan", "apply", "last", "--yes", "--as", "changes")
    crashes.everywhere(*argv, prepare=prepare, check=check)


def test_an_apply_that_could_not_be_undone_at_once_is_undone_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second target is locked; by then somebody has locked the first one too."""
    connect = sqlite3.connect
    monkeypatch.setattr("cleveragents.sandbox.sqlite.live.BUSY_SECONDS", 0.5)
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0.5}))
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    for path in (one, two):
        with closing(sqlite3.connect(path)) as db:
            db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    (tmp_path / "plan.yaml").write_text(
        "name: two\nresources:\n  one: {kind: sqlite, path: one.db}\n"
        "  two: {kind: sqlite, path: two.db}\n"
        "steps:\n  - {id: a, tool: sql, on: one, with: {script: INSERT INTO t VALUES (2)}}\n"
        "  - {id: b, tool: sql, on: two, with: {script: INSERT INTO t VALUES (2)}}\n"
    )
    settings = Settings(home=str(tmp_path / "store"))
    done = threading.Event()

    def lock_the_first_once_it_is_switched() -> None:
        with closing(connect(one, isolation_level=None, timeout=30)) as user:
            while user.execute("SELECT count(*) FROM t").fetchone() == (1,) and not done.wait(0.01):
                pass
            user.execute("BEGIN IMMEDIATE")
            done.wait(600)

    with open_workspace(settings=settings) as ws:
        plan = ws.run(str(tmp_path / "plan.yaml"))
        with closing(sqlite3.connect(two, isolation_level=None)) as user:
            user.execute("BEGIN IMMEDIATE")
            thread = threading.Thread(target=lock_the_first_once_it_is_switched)
            thread.start()
            with pytest.raises(AgentsError):
                plan.apply()
            done.set()
            thread.join()
    with open_workspace(settings=settings) as ws:
        assert (rows(one), rows(two)) == ([(1,)], [(1,)]), f"a mixture; {ws.recovered}"
        ws.find("last").apply()
    assert (rows(one), rows(two)) == ([(1,), (2,)], [(1,), (2,)])


def test_a_recovery_that_died_is_recovered(crashes: Crashes, subtests: pytest.Subtests) -> None:
    """Killed while switching, and again while the next command finishes that."""
    cases: list[tuple[tuple[str, ...], Check]] = [
        (("plan", "rollback", "last", "first", "--yes"), check_rolled_back),
        (("plan", "apply", "last", "--yes"), check_applied),
    ]
    again = crashes.start(executed)
    for argv, check in cases:
        world = again()
        world.run(*argv).expect(0)
        total = world.points
        # The switch lies in the second half: there is something left to recover.
        pairs = list(zip(numbers(total, 4)[1:], (2, 7, 13), strict=True))
        if FULL:
            pairs = list(itertools.product(numbers(total, 12)[1:], range(1, 30, 3)))
        for number, later in pairs:
            with subtests.test(f"{argv[1]} killed at {number} of {total}, recovery at {later}"):
                again()
                world.run(*argv, kill_at=number)
                died = world.run("plan", "list", kill_at=later)
                check(world, died)


def test_a_delete_that_died_can_be_repeated(crashes: Crashes) -> None:
    def check(world: World, _died: Outcome) -> None:
        if world.ok("plan", "list")["plans"]:
            world.run("plan", "delete", "last", "--yes").expect(0)
        world.require_whole()
        assert world.ok("plan", "list")["plans"] == []
        assert list((world.root / "store/sandboxes").iterdir()) == []
        assert world.git("for-each-ref", "refs/cleveragents") == ""
        require_same(world.targets(), world.old)

    crashes.everywhere("plan", "delete", "last", "--yes", prepare=executed, check=check)


def test_a_collection_that_died_loses_nothing(crashes: Crashes) -> None:
    def prepare(world: World) -> None:
        executed(world)
        for number in range(3):
            (world.docs / f"large{number}").write_bytes(os.urandom(30_000))
        world.run("plan", "run", "plan.yaml").expect(0)
        gone = world.ok("plan", "list")["plans"][0]["plan_id"]
        world.run("plan", "delete", gone, "--yes").expect(0)

    def check(world: World, _died: Outcome) -> None:
        world.require_whole()
        world.run("plan", "rollback", "last", "first", "--yes").expect(0)
        world.run("plan", "resume", "last").expect(0)
        assert is_new(world.sandboxes())
        world.run("gc", "--grace", "0s").expect(0)
        assert sum(p.stat().st_size for p in (world.root / "store/content").iterdir()) < 60_000
        world.require_whole()

    crashes.everywhere("gc", "--grace", "0s", prepare=prepare, check=check)


def test_the_installed_command_dies_where_it_is_told_to(agents: Agents) -> None:
    """The variable works on the real command; and what it left is found by the real command."""
    world = World(agents.work.parent / "world")
    died = Agents.run(world, "plan", "run", "plan.yaml", env={"CLEVERAGENTS_TEST_KILL_AT": "20"})
    assert died.rc == KILLED
    assert "killed at point 20" in died.stderr
    done = Agents.run(world, "plan", "resume", "last", "--json").expect(0)
    assert json.loads(done.stdout)["data"]["state"] == "complete"
    assert is_new(world.sandboxes())


def test_a_process_killed_while_a_tool_works_leaves_a_plan_that_continues(agents: Agents) -> None:
    plan = FAILING.replace(
        "test -e $AGENTS_PLAN_DIR/flag", "test -e $AGENTS_PLAN_DIR/flag || sleep 600"
    )
    world = World(agents.work.parent / "world", plan)
    running = subprocess.Popen(
        [command(), "plan", "run", "plan.yaml"],
        cwd=world.work,
        env=world.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    half = "sandboxes/*/repo/half"
    wait_until(lambda: list((world.root / "store").glob(half)), "the second step")
    running.kill()
    running.wait()
    (world.work / "flag").touch()
    world.run("plan", "resume", "last").expect(0)
    seen = world.sandboxes()
    assert seen["repo"][b"log"][2] == b"once\ntwice\n"
    assert seen["db"] == [(1,), (3,)]
    world.require_whole()
