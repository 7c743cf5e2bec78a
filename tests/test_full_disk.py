"""A full disk locks nobody out: it is said as such, and every way out of it works.

The file systems are real and small, mounted where only the commands under test see them.
"""

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.harness import Agents
from tests.small_disk import SmallDisk, small_disk

HEAVY = bool(os.environ.get("CLEVERAGENTS_HEAVY"))
FILLS = """
name: filling
resources: {app: {kind: KIND, path: app}}
steps:
  - {id: note, tool: file.write, on: app, with: {path: NOTES, content: "noted"}}
  - {id: fill, on: app, run: "cat /dev/urandom > big; EXIT"}
policy: {on_failure: POLICY}
"""
NOTES = """
name: notes
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: note, tool: file.write, on: app, with: {path: NOTES, content: "noted"}}
  - {id: more, tool: file.write, on: app, with: {path: old, content: "new"}}
"""

MANY = """
name: many
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: note, tool: file.write, on: app, with: {path: old, content: "new"}}
  - {id: many, on: app, run: "mkdir many; for i in $(seq 1000); do : > many/$i || exit 1; done"}
policy: {on_failure: stop}
"""


@pytest.fixture
def disk(agents: Agents, tmp_path: Path) -> Generator[SmallDisk]:
    with small_disk(agents, tmp_path, 128) as made:
        (made.world / "work/app").mkdir()
        (made.world / "work/app/old").write_text("old")
        yield made


def filling(disk: SmallDisk, *, kind: str = "fs-directory", policy: str, end: str) -> None:
    text = FILLS.replace("KIND", kind).replace("POLICY", policy).replace("EXIT", end)
    (disk.world / "work/plan.yaml").write_text(text)


def sandbox(disk: SmallDisk) -> Path:
    return next((disk.world / "store/sandboxes").glob("*/app"))


@pytest.mark.parametrize("end", ["exit 1", "true"])
def test_a_step_that_fills_the_disk_fails_and_is_rolled_back(disk: SmallDisk, end: str) -> None:
    filling(disk, policy="rollback_step", end=end)
    done = disk.run("plan", "run", "plan.yaml", "--json").expect(5)
    assert not (sandbox(disk) / "big").exists()
    assert disk.free > 16 << 20
    packs = (disk.world / "store/content").iterdir()
    assert sum(pack.stat().st_size for pack in packs) < 1 << 20  # nothing of what did not fit
    assert any("could not be kept" in text for text in done.json["messages"]), done
    status = disk.run("plan", "status", "last", "--json").expect(0).data
    assert [step["status"] for step in status["progress"]] == ["complete", "errored"]
    assert (sandbox(disk) / "NOTES").read_text() == "noted"


def test_every_way_out_works_with_zero_bytes_free(disk: SmallDisk) -> None:
    filling(disk, policy="stop", end="exit 1")
    disk.run("plan", "run", "plan.yaml").expect(5)
    disk.fill()
    assert disk.free < 1 << 16
    for argv in (
        ("plan", "list"),
        ("plan", "status", "last"),
        ("plan", "checkpoints", "last"),
        ("plan", "log", "last"),
        ("check",),
        ("du",),
    ):
        disk.run(*argv).expect(0)
    disk.run("gc", "--grace", "0s").expect(0)
    disk.run("plan", "rollback", "last", "first", "--yes").expect(0)
    assert not (sandbox(disk) / "big").exists()
    disk.run("plan", "delete", "last", "--yes").expect(0)
    assert not list((disk.world / "store/sandboxes").glob("*/app"))


def test_every_way_out_works_when_no_more_files_can_be_made(agents: Agents, tmp_path: Path) -> None:
    """Room for bytes is there, but no inode: what a step that unpacks a million files leaves."""
    with small_disk(agents, tmp_path, 128, files=500) as disk:
        (disk.world / "work/app").mkdir()
        (disk.world / "work/app/old").write_text("old")
        (disk.world / "work/plan.yaml").write_text(MANY)
        disk.run("plan", "run", "plan.yaml").expect(5)
        disk.use_up_files()
        for argv in (
            ("plan", "list"),
            ("plan", "status", "last"),
            ("plan", "checkpoints", "last"),
            ("check",),
            ("gc", "--grace", "0s"),
            ("plan", "rollback", "last", "first", "--yes"),
        ):
            disk.run(*argv).expect(0)
            disk.use_up_files()
            if argv == ("check",):  # one file for each that differs is more than is kept
                refused = disk.run("plan", "diff", "last").expect(6)
                assert f"the disk is full: {disk.store}/staging/" in refused.stderr
        box = sandbox(disk)
        assert [path.name for path in box.iterdir()] == ["old"]
        refused = disk.run("run", "--on", "app", "--", "true")
        assert "the disk is full" in refused.expect(125).stderr
        disk.run("plan", "delete", "many", "--yes").expect(0)
        assert not box.exists()
        shutil.rmtree(disk.world / "files")
        disk.run("plan", "list").expect(0)
        kept = len(list((disk.world / "store/reserve.files").iterdir()))
        disk.use_up_files()
        disk.run("plan", "list").expect(0)
        assert len(list((disk.world / "store/reserve.files").iterdir())) == kept


def test_the_reserve_is_renewed_when_there_is_room_again(disk: SmallDisk) -> None:
    (disk.world / "work/plan.yaml").write_text(NOTES)
    disk.run("plan", "run", "plan.yaml").expect(0)
    reserve = disk.world / "store/reserve"
    assert reserve.stat().st_blocks * 512 >= 32 << 20
    disk.fill()
    disk.run("plan", "status", "last").expect(0)
    assert reserve.stat().st_blocks * 512 > 24 << 20  # taken again, but for what it cost
    reserve.unlink()
    disk.fill()
    assert disk.run("plan", "run", "plan.yaml").expect(6)
    (disk.world / "filler").unlink()
    disk.run("plan", "status", "last").expect(0)
    assert reserve.stat().st_blocks * 512 >= 32 << 20


def test_what_would_be_lost_by_a_rollback_without_room_is_given_up_only_if_asked(
    disk: SmallDisk,
) -> None:
    (disk.world / "work/plan.yaml").write_text(NOTES)
    disk.run("plan", "run", "plan.yaml").expect(0)
    with open(sandbox(disk) / "mine", "wb") as mine:
        mine.write(os.urandom(40 << 20))
    disk.fill()
    refused = disk.run("plan", "rollback", "last", "first", "--yes", "--json").expect(6)
    assert refused.data["error"]["type"] == "DiskFull", refused
    assert "--accept-loss" in refused.data["error"]["hint"]
    assert (sandbox(disk) / "mine").stat().st_size == 40 << 20
    assert (sandbox(disk) / "NOTES").read_text() == "noted"
    done = disk.run("plan", "rollback", "last", "first", "--yes", "--accept-loss", "--json")
    done.expect(0)
    assert any("not kept" in text for text in done.json["messages"]), done
    assert not (sandbox(disk) / "mine").exists()
    assert not (sandbox(disk) / "NOTES").exists()


@pytest.mark.parametrize("leave", range(0, 12 << 20, 1 << 19 if HEAVY else 3 << 20))
def test_with_any_room_left_each_verb_is_done_or_says_that_the_disk_is_full(
    disk: SmallDisk, leave: int
) -> None:
    """Fills before run, rollback, resume, apply, delete and gc; the reserve is there or given."""
    (disk.world / "work/plan.yaml").write_text(NOTES)
    disk.run("plan", "run", "plan.yaml").expect(0)
    app, fills = disk.world / "work/app", 0
    verbs = (
        ("plan", "checkpoint", "create", "last"),
        ("plan", "rollback", "last", "first", "--yes"),
        ("plan", "resume", "last"),
        ("plan", "apply", "last", "--yes"),
        ("plan", "run", "plan.yaml"),
        ("plan", "delete", "last", "--yes"),
        ("gc", "--grace", "0s"),
    )
    for verb in verbs:
        disk.fill(leave)
        fills += 1
        done = disk.run(*verb, "--json")
        assert done.rc in (0, 5, 6), done
        if done.rc == 6:
            assert done.data["error"]["type"] == "DiskFull", done
        if verb[1] == "apply":
            applied = (app / "NOTES").exists(), (app / "old").read_text() == "new"
            assert applied == ((True, True) if done.rc == 0 else (False, False)), done
        (disk.world / "filler").unlink()
        if done.rc:
            disk.run(*verb).expect(0)
    checked = disk.run("check", "--read-data", "--json").expect(0)
    assert not checked.data["problems"], checked
    assert not checked.json["messages"], checked
    assert fills == len(verbs)


class Filler:
    """Takes every byte that becomes free, from a moment on until it is told to stop."""

    def __init__(self, disk: SmallDisk, after: float) -> None:
        self._path = disk.world / "greedy"
        self._stop = threading.Event()
        self._after = after
        self._thread = threading.Thread(target=self._fill)

    def _fill(self) -> None:
        self._stop.wait(self._after)
        with open(self._path, "ab", buffering=0) as file:
            size = 1 << 20
            while not self._stop.is_set():
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    size = max(size // 2, 4096)
                    self._stop.wait(0.001)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(40 if HEAVY else 1))
def test_a_disk_that_fills_up_while_a_verb_works_costs_no_more_than_that_verb(
    disk: SmallDisk, seed: int
) -> None:
    """Somebody takes every free byte from a random moment on, also what we give back."""
    moment = random.Random(seed)
    app = disk.world / "work/app"
    (app / "data").write_bytes(os.urandom(3 << 20))
    (disk.world / "work/plan.yaml").write_text(
        NOTES + '  - {id: grow, on: app, run: "cat data data > larger; rm data"}\n'
    )
    disk.run("plan", "run", "plan.yaml").expect(0)
    expected = {"NOTES", "old", "larger"}
    for verb in (
        ("plan", "rollback", "last", "first", "--yes"),
        ("plan", "resume", "last"),
        ("plan", "apply", "last", "--yes"),
        ("plan", "delete", "last", "--yes"),
        ("gc", "--grace", "0s"),
    ):
        with Filler(disk, moment.uniform(0, 0.6)):
            done = disk.run(*verb, "--json")
        assert done.rc in (0, 5, 6), done
        if done.rc == 6:
            assert done.data["error"]["type"] == "DiskFull", done
        if done.rc and verb[1] != "delete":
            again = disk.run(*verb)
            # What recovery finished meanwhile need not be done again.
            assert again.rc == 0, again
        elif done.rc:
            disk.run("plan", "delete", "last", "--yes")
        if verb[1] == "rollback":
            assert {path.name for path in sandbox(disk).iterdir()} == {"old", "data"}
        if verb[1] == "apply":
            assert {path.name for path in app.iterdir()} == expected
            assert (app / "old").read_text() == "new"
    checked = disk.run("check", "--read-data", "--json").expect(0)
    assert not checked.data["problems"], checked
    assert disk.run("plan", "list", "--json").expect(0).data["plans"] == []


WRITES = """
import os, sqlite3, sys
from cleveragents.store.database import connect
folder, left = sys.argv[1], int(sys.argv[2])
db = connect(f"{folder}/store.db")
with open(f"{folder}/filler", "ab", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1024))
    except OSError:
        os.fsync(file.fileno())
    file.truncate(file.tell() - left)
    os.fsync(file.fileno())
try:
    db.execute("INSERT INTO store (name, value) VALUES ('x', 'y')")
    print("written")
except sqlite3.Error as error:
    print(error)
"""


@pytest.mark.parametrize("block", [1024, 2048])
def test_small_blocks_and_no_room_end_no_process(
    agents: Agents, tmp_path: Path, block: int
) -> None:
    """SQLite's index is mapped: a block that is missing there is a SIGBUS and no error."""
    with small_disk(agents, tmp_path, 48, block) as disk:
        for left in range(0, 48 << 10, 8 << 10):
            (disk.world / "store").mkdir()
            script = (sys.executable, "-c", WRITES, str(disk.store), str(left))
            done = disk.run_any(*script)
            assert done.rc == 0, (left, done.rc, done.stderr)
            shutil.rmtree(disk.world / "store")


def test_a_file_system_that_is_memory_counts_no_blocks_and_is_not_full(disk: SmallDisk) -> None:
    memory = disk.mounted / "memory"
    disk.inside(memory).mkdir()
    subprocess.run(disk.argv("mount", "-t", "ramfs", "ramfs", str(memory)), check=True)
    (disk.world / "work/plan.yaml").write_text(
        "name: fits\nresources: {app: {kind: fs-directory, path: app}}\n"
        'steps: [{id: note, tool: file.write, with: {path: NOTES, content: "noted"}}]\n'
    )
    env = {"CLEVERAGENTS_HOME": str(memory / "store")}
    disk.run("plan", "run", "plan.yaml", env=env).expect(0)
    disk.run("rollback", "first", "--yes", env=env).expect(0)
    assert disk.run("doctor", "--json", env=env).expect(0).data["free_bytes"] > 0
