"""The power is cut: what was acknowledged is there afterwards, and damage is nobody's work.

Real ext4 file systems lose what was not synced (tests/power.py). `CLEVERAGENTS_TEST_POWER=n` has n
machines live through cuts at chance moments (seed: CLEVERAGENTS_TEST_SEED); a few always do.
"""

import json
import os
import random
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests import power
from tests.power import Machine, PoweredAgents

missing = power.needed()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")
TRIES = int(os.environ.get("CLEVERAGENTS_TEST_POWER", "3"))
SEED = int(os.environ.get("CLEVERAGENTS_TEST_SEED", "11"))

PLAN = """
name: cut
resources:
  app: {kind: git-checkout, path: repo, carry: all}
  docs: {kind: fs-directory, path: docs}
  db: {kind: sqlite, path: app.db}
steps:
  - {id: code, on: app, run: "echo new > a; mkdir n; echo c > n/c; rm gone/x; rmdir gone"}
  - {id: text, tool: file.write, on: docs, with: {path: sub/new, content: "text"}}
  - {id: rows, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (2)"}}
"""
DOCS = """
name: docs
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: one, run: "echo one > mine; echo new > sub/made"}
"""


class World(PoweredAgents):
    """A repository, a directory and a database on one disk; the store there or on another."""

    def __init__(self, machine: Machine, store: str, work: str, plan: str) -> None:
        super().__init__(machine, store, work)
        self.sh(
            "git init -q -b main repo; cd repo; mkdir gone; echo old > a; echo x > gone/x;"
            " echo kept > kept; echo '*.log' > .gitignore; git add -A; git commit -q -m start;"
            " echo ignored > x.log; echo mine > untracked; cd ..;"
            " mkdir -p docs/sub; echo theirs > docs/mine; echo kept > docs/sub/kept"
        )
        self.sql("app.db", "CREATE TABLE t (x)", "INSERT INTO t VALUES (1)")
        (self.here / "plan.yaml").write_text(plan)
        for disk in machine.disks:
            machine.sync(disk)

    def files(self, folder: Path) -> dict[str, str]:
        return {
            os.fspath(path.relative_to(folder)): path.read_text()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".git" not in path.parts and ".db" not in path.name
        }

    def targets(self) -> tuple[dict[str, str], list[int], str, str]:
        """Every file, every row, what is committed and what git thinks of it."""
        found = self.files(self.here)
        rows = self.sql("app.db", "SELECT x FROM t ORDER BY x")
        tree = self.sh("cd repo; git fsck --strict >&2; git ls-tree -r HEAD")
        return found, [row[0] for row in rows], tree, self.status()

    def sql(self, file: str, *statements: str) -> list[list[Any]]:
        """The rows of the last statement; SQLite cannot open files of the machine from outside."""
        answer = self.machine.folder / "rows"

        def ask() -> None:
            with sqlite3.connect(file) as db:
                for statement in statements:
                    rows = db.execute(statement).fetchall()
            print(json.dumps(rows))

        errors = self.machine.folder / "errors"
        assert self.machine.forked(ask, self.work, [answer, errors]) == 0, errors.read_text()
        return json.loads(answer.read_text())

    def status(self) -> str:
        return self.sh("cd repo; git status --porcelain --untracked-files=all")


Built = Callable[..., World]


@pytest.fixture(params=["same", "different"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Built]:
    """Makes the world with store and targets on the same disk, or each on its own."""
    names = ("one",) if request.param == "same" else ("one", "two")
    with power.machine(tmp_path, names) as machine:
        yield lambda plan=PLAN: World(machine, "one", names[-1], plan)


def test_apply_after_a_cut_writes_what_the_plan_did_and_no_damage(build: Built) -> None:
    world = build()
    before = world.targets()
    world.run("plan", "run", "plan.yaml").expect(0)
    world.machine.cut_power()
    assert world.targets() == before
    applied = world.run("plan", "apply", "cut", "--yes").expect(0)
    assert "restarted" in applied.stderr
    files, rows, *_ = world.targets()
    assert files == {
        **{path: text for path, text in before[0].items() if path != "repo/gone/x"},
        "repo/a": "new\n",
        "repo/n/c": "c\n",
        "docs/sub/new": "text",
    }
    assert rows == [1, 2]


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "resume", "docs"),
        ("plan", "checkpoint", "create", "docs", "--label", "mine"),
        ("plan", "undo", "docs"),
        ("plan", "rollback", "docs", "last", "--yes"),
        ("plan", "apply", "docs", "--dry-run"),
    ],
    ids=" ".join,
)
def test_no_command_takes_damage_for_an_edit(tmp_path: Path, command: tuple[str, ...]) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        world.run("plan", "run", "plan.yaml").expect(0)
        machine.cut_power()
        world.run(*command).expect(0)
        if "undo" in command:
            world.run("plan", "redo", "docs").expect(0)
        elif "rollback" in command:
            world.run("plan", "resume", "docs").expect(0)
        world.run("plan", "apply", "docs", "--yes").expect(0)
        assert world.files(world.here / "docs") == {
            "mine": "one\n",
            "sub/kept": "kept\n",
            "sub/made": "new\n",
        }


def test_what_a_person_edited_before_the_cut_is_kept_and_not_applied(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        ran = world.run("plan", "run", "plan.yaml", "--json").expect(0)
        sandbox = machine.inside(ran.data["sandboxes"]["docs"])
        (sandbox / "mine").write_text("by hand\n")
        machine.sync("one")
        machine.cut_power()
        seen = world.run("plan", "diff", "docs", "--json").expect(0)
        assert [file["path"] for file in seen.data["files"]] == ["mine", "sub/made"]
        assert "by hand" not in seen.data["patch"]
        rows = world.run("plan", "checkpoints", "docs", "--json").data["checkpoints"]
        (kept,) = [row for row in rows if (row["label"] or "").startswith("after-restart-")]
        assert any(kept["label"] in message for message in seen.json["messages"])
        shown = world.run("plan", "diff", "docs", "--to", kept["label"], "--json").expect(0)
        assert "by hand" in shown.data["patch"]
        # Whoever wants the edit takes it, path by path.
        world.run("plan", "rollback", "docs", kept["label"], "--only", "mine", "--yes").expect(0)
        world.run("plan", "apply", "docs", "--yes").expect(0)
        assert (world.here / "docs/mine").read_text() == "by hand\n"
        assert (world.here / "docs/sub/made").read_text() == "new\n"


def test_an_edit_of_this_boot_is_still_adopted(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        ran = world.run("plan", "run", "plan.yaml", "--json").expect(0)
        machine.cut_power()
        world.run("plan", "diff", "docs").expect(0)
        (machine.inside(ran.data["sandboxes"]["docs"]) / "mine").write_text("by hand\n")
        world.run("plan", "apply", "docs", "--yes").expect(0)
        assert (world.here / "docs/mine").read_text() == "by hand\n"


def test_a_restart_without_damage_changes_nothing(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        world.run("plan", "run", "plan.yaml").expect(0)
        before = world.run("plan", "checkpoints", "docs", "--json").data["checkpoints"]
        machine.sync("one")
        machine.cut_power()
        seen = world.run("plan", "diff", "docs", "--json").expect(0)
        assert seen.json["messages"] == []
        assert world.run("plan", "checkpoints", "docs", "--json").data["checkpoints"] == before


def test_a_file_overwritten_in_place_is_read_and_not_believed(tmp_path: Path) -> None:
    """Size and times reached the disk, the bytes did not: no stat tells that."""
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        ran = world.run("plan", "run", "plan.yaml", "--json").expect(0)
        machine.sync("one")
        world.run("plan", "diff", "docs").expect(0)
        file = machine.inside(ran.data["sandboxes"]["docs"]) / "sub/kept"
        blocks = world.sh(f"debugfs -R 'blocks {inner(machine, file)}' {disk(machine)} 2>/dev/null")
        machine.sync("one")
        machine.cut_power_and(lambda: scribble(machine, int(blocks.split()[0])))
        assert file.read_text() != "kept\n"
        world.run("plan", "apply", "docs", "--yes").expect(0)
        world.run("plan", "diff", "docs").expect(0)
        assert (world.here / "docs/sub/kept").read_text() == "kept\n"


def disk(machine: Machine) -> str:
    return machine.disks["one"].device


def inner(machine: Machine, file: Path) -> str:
    """The path inside the file system."""
    shown = os.fspath(file).removeprefix(os.fspath(machine.inside("")))
    return "/" + os.path.relpath(f"/{shown.lstrip('/')}", machine.disks["one"].point)


def scribble(machine: Machine, block: int) -> None:
    with open(disk(machine), "r+b") as device:
        device.seek(block * 1024)
        device.write(b"trash")
        os.fsync(device.fileno())


CHILDREN = """
name: family
resources: {docs: {kind: fs-directory, path: docs}}
steps:
  - {id: one, run: "echo one > mine"}
  - id: below
    subplan:
      steps:
        - {id: two, run: "echo two > sub/made"}
        - {id: three, run: "test -e $AGENTS_PLAN_DIR/flag && echo three > sub/more"}
"""


def test_a_child_plan_continues_with_what_its_groups_say(build: Built) -> None:
    world = build(CHILDREN)
    world.run("plan", "run", "plan.yaml").expect(5)
    world.machine.cut_power()
    (world.here / "flag").touch()
    world.run("plan", "resume", "family").expect(0)
    world.run("plan", "apply", "family", "--yes").expect(0)
    assert world.files(world.here / "docs") == {
        "mine": "one\n",
        "sub/kept": "kept\n",
        "sub/made": "two\n",
        "sub/more": "three\n",
    }


def test_a_sandbox_without_a_group_is_made_anew(tmp_path: Path) -> None:
    plan = DOCS + '  - {id: two, run: "cat sub/kept > copied"}\n'
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", plan)
        world.run("plan", "list").expect(0)
        die_with_a_sandbox_and_no_group(world)
        machine.cut_power()
        world.run("plan", "execute", "last").expect(0)
        world.run("plan", "apply", "last", "--yes").expect(0)
        assert (world.here / "docs/copied").read_text() == "kept\n"


def die_with_a_sandbox_and_no_group(world: World) -> None:
    """The later a run dies, the more there is: the moment is looked for from both sides."""
    early, late = 0, 64
    while late - early > 1:
        middle = (early + late) // 2
        world.run("plan", "run", "plan.yaml", kill_at=middle)
        found = world.sql(
            f"{world.env['CLEVERAGENTS_HOME']}/store.db",
            "SELECT s.state, p.head_group_id FROM plans p LEFT JOIN sandboxes s USING (plan_id)"
            " ORDER BY p.rowid DESC LIMIT 1",
        )
        state, group = found[0] if found else (None, None)
        if state == "ready" and group is None:
            return
        early, late = (early, middle) if group else (middle, late)
        world.run("plan", "list").expect(0)  # recovery has moments of its own
    pytest.fail("no run died between the sandbox and its first group")


def test_without_groups_what_steps_did_is_on_disk(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS + "policy: {rollback_enabled: false}\n")
        world.run("plan", "run", "plan.yaml").expect(0)
        machine.cut_power()
        world.run("plan", "apply", "docs", "--yes").expect(0)
        assert world.files(world.here / "docs") == {
            "mine": "one\n",
            "sub/kept": "kept\n",
            "sub/made": "new\n",
        }


def test_steps_that_no_group_holds_run_again(tmp_path: Path) -> None:
    plan = """
name: few
resources: {docs: {kind: fs-directory, path: docs}}
policy: {auto_create_on: [], on_failure: stop}
steps:
  - {id: one, run: "echo one >> mine"}
  - {id: two, run: "test -e $AGENTS_PLAN_DIR/flag && echo two >> mine"}
"""
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", plan)
        world.run("plan", "run", "plan.yaml").expect(5)
        machine.cut_power()
        (world.here / "flag").touch()
        world.run("plan", "resume", "few").expect(0)
        world.run("plan", "apply", "few", "--yes").expect(0)
        assert (world.here / "docs/mine").read_text() == "theirs\none\ntwo\n"


def test_an_acknowledged_apply_outlives_a_cut(build: Built) -> None:
    world = build()
    world.run("plan", "run", "plan.yaml").expect(0)
    world.run("plan", "apply", "cut", "--yes").expect(0)
    applied = world.targets()
    assert applied[1] == [1, 2]
    world.machine.cut_power()
    assert world.targets() == applied
    world.run("plan", "list").expect(0)
    world.run("plan", "apply", "cut", "--yes").expect(0)
    assert world.targets() == applied


def test_staging_that_came_back_is_in_nobodys_way(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        ran = world.run("plan", "run", "plan.yaml", "--json").expect(0)
        left = f"docs/.cleveragents-{ran.data['plan_id']}"
        world.sh(f"mkdir {left}; echo half > {left}/n0")
        world.run("plan", "apply", "docs", "--yes").expect(0)
        machine.cut_power()
        assert sorted(world.files(world.here / "docs")) == ["mine", "sub/kept", "sub/made"]


def test_a_second_apply_tells_what_the_targets_lack(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", PLAN)
        world.run("plan", "run", "plan.yaml").expect(0)
        first = world.run("plan", "apply", "cut", "--yes", "--json").expect(0)
        again = world.run("plan", "apply", "cut", "--yes", "--json").expect(0)
        assert (again.data, again.json["messages"]) == (first.data, [])
        world.sh("git -C repo reset -q --hard HEAD~1; rm docs/sub/new")
        world.sql("app.db", "DELETE FROM t WHERE x = 2")
        again = world.run("plan", "apply", "cut", "--yes", "--json").expect(0)
        assert again.data == first.data
        (told,) = again.json["messages"]
        commit = next(item["commit"] for item in first.data["applied"] if item["commit"])
        assert all(part in told for part in (commit, "docs: sub/new", "db: app.db"))


def test_check_names_a_damaged_sandbox_and_the_way_out(tmp_path: Path) -> None:
    with power.machine(tmp_path, ("one",)) as machine:
        world = World(machine, "one", "one", DOCS)
        world.run("plan", "run", "plan.yaml").expect(0)
        world.run("check").expect(0)
        machine.cut_power()
        found = world.run("check", "--json").expect(6)
        (problem,) = found.data["problems"]
        assert "restarted" in problem
        world.run(*problem.partition("agents ")[2].split()[:3]).expect(0)
        world.run("check").expect(0)


COMMANDS = (("plan", "run", "plan.yaml"), ("plan", "rollback", "cut", "first", "--yes"),
            ("plan", "apply", "cut", "--yes"), ("plan", "resume", "cut"))  # fmt: skip


def test_at_any_moment_nothing_acknowledged_is_lost_and_nothing_mixed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Cut at chance moments of chance commands, with some disks synced by chance just before."""
    cuts = 0
    for number in range(TRIES):
        chance = random.Random(f"{SEED}-{number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        names = ("one",) if chance.random() < 0.4 else ("one", "two")
        with power.machine(folder, names) as machine:
            cuts += _live_through(machine, names, chance, number)
    record_property("power cuts", cuts)
    print(f"power cuts: {cuts}, seed {SEED}")


def _live_through(machine: Machine, names: tuple[str, ...], chance: random.Random, n: int) -> int:
    world = World(machine, names[0], names[-1], PLAN)
    old, done, cuts, said = world.targets(), False, 0, [f"try {n} on {names}"]
    for _ in range(chance.randint(1, 3)):
        argv = ("plan", "run", "plan.yaml") if not plans(world) else chance.choice(COMMANDS[1:])
        kill_at = chance.choice((0, chance.randint(1, 120)))
        ended = world.run(*argv, kill_at=kill_at)
        said.append(f"{argv} killed at {kill_at}: {ended.rc} {ended.stderr[-300:]}")
        done = done or (argv[1] == "apply" and ended.rc == 0)
        if chance.random() < 0.3:
            machine.sync(chance.choice(names))
        machine.cut_power()
        cuts += 1
        world.run("plan", "list").expect(0)
        check(world, old, done, said)
    if plans(world) and not done:
        ended = world.run("plan", "resume", "cut")
        ended = world.run("plan", "apply", "cut", "--yes")
        said.append(f"at the end: {ended}")
        check(world, old, ended.rc == 0, said)
        assert ended.rc == 0, "\n".join(said)
    return cuts


def plans(world: World) -> list[str]:
    return [row["name"] for row in world.run("plan", "list", "--json").expect(0).data["plans"]]


NEW = {"repo/a": "new\n", "repo/n/c": "c\n", "docs/sub/new": "text"}


def check(
    world: World, old: tuple[dict[str, str], list[int], str, str], done: bool, said: list[str]
) -> None:
    """Every target is as it was, or every one has the plan's work; the latter if told so."""
    story = "\n".join(said)
    found = world.targets()
    new = {path: text for path, text in old[0].items() if path != "repo/gone/x"} | NEW
    if done or found[1] == [1, 2]:
        assert (found[0], found[1]) == (new, [1, 2]), story
        assert "\tn/c" in found[2], story
        assert found[3] == old[3], story
    else:
        assert found == old, story
