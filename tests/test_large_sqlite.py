"""A large SQLite file: what a step or a rollback costs follows the change, and nothing is missed.

Cost is counted in bytes that the process read and wrote, never by a clock. That nothing is missed
is shown by hashing the whole file beside every capture.
"""

import mmap
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cleveragents import open_workspace
from cleveragents.content import files, fsio
from cleveragents.content.native import fingerprint
from cleveragents.sandbox.sqlite import image
from cleveragents.sandbox.sqlite.live import copy_if_complete
from cleveragents.workspace import PlanHandle, Workspace

MB = 1 << 20
IO = Path("/proc/self/io")
needs_io = pytest.mark.skipif(not IO.exists(), reason="needs /proc/self/io to count bytes")


def make_database(path: Path, megabytes: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, turn INTEGER, body BLOB)")
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO t SELECT i, 0, randomblob(3600) FROM n",
            (megabytes * 256,),
        )


def moved() -> int:
    """Bytes that this process has asked the system to read or write so far."""
    lines = dict(line.split(": ") for line in IO.read_text().splitlines())
    return int(lines["rchar"]) + int(lines["wchar"])


class World:
    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self.live = folder / "live.db"
        make_database(self.live, megabytes)
        self.stack = ExitStack()
        self.ws: Workspace = self.stack.enter_context(open_workspace(str(folder / "store")))
        self.plan: PlanHandle = self.ws.plan(
            "large", {"db": {"kind": "sqlite", "path": str(self.live)}}
        )
        self.sql("UPDATE t SET turn = 1 WHERE id = 1")
        self.file = Path(self.plan.sandboxes["db"])

    def again(self) -> None:
        """As a new process would find it."""
        self.stack.close()
        self.stack = ExitStack()
        self.ws = self.stack.enter_context(open_workspace(str(self.folder / "store")))
        self.plan = self.ws.find(self.plan.plan_id)

    def sql(self, script: str) -> None:
        with self.plan.decision(script[:40]) as decision:
            decision.call("sql", script=script)

    def captured(self) -> bytes:
        """The key of the newest image."""
        self.plan.checkpoint()
        return self.plan.checkpoints()[-1].root_key

    def really(self) -> bytes:
        """The key of what is in the file, read from start to end by other code."""
        with open(self.file, "rb") as found:
            size = os.fstat(found.fileno()).st_size
            return files.hash_as(files.blocks(found.fileno()), size, b"b")

    def cost(self, work: Callable[[], object]) -> int:
        before = moved()
        work()
        return moved() - before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def proving(folder: Path) -> None:
    if not image.shows_mapped_writes(str(folder)):
        pytest.skip("stat data proves nothing on this file system, so every capture reads it all")


@pytest.fixture
def small(folder: Path) -> Generator[World]:
    world = World(folder, 3)
    yield world
    world.stack.close()


@needs_io
@pytest.mark.usefixtures("proving")
def test_cost_follows_the_change(folder: Path) -> None:
    world = World(folder, 64)
    try:
        step = world.cost(lambda: world.sql("UPDATE t SET turn = 2 WHERE id = 9000"))
        assert step < 8 * MB, f"a step of one row moved {step} bytes"
        nothing = world.cost(world.plan.checkpoint)
        assert nothing < MB, f"a checkpoint of nothing moved {nothing} bytes"
        target = world.plan.checkpoints()[0]
        back = world.cost(lambda: world.plan.rollback(target.checkpoint_id))
        assert back < 8 * MB, f"a rollback of one row moved {back} bytes"
        assert world.really() == target.root_key
        world.sql("UPDATE t SET turn = 3 WHERE id = 9000")
        world.again()
        back = world.cost(lambda: world.plan.rollback(target.checkpoint_id))
        assert back < 8 * MB, f"a rollback in a new process moved {back} bytes"
        assert world.really() == target.root_key
        # A program tells nobody what it writes: the file is read once, and once only; or mapped,
        # which is not counted, and then what differs is read.
        with closing(sqlite3.connect(world.file)) as db, db:
            db.execute("UPDATE t SET turn = 4 WHERE id = 5")
        scan = world.cost(world.plan.checkpoint)
        least, most = (0, 8) if fingerprint.ACCELERATED else (64, 80)
        assert least * MB < scan < most * MB, f"a program's row moved {scan} bytes"
        assert world.captured() == world.really()
    finally:
        world.stack.close()


@pytest.mark.usefixtures("proving")
def test_the_first_checkpoint_reads_nothing_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_again(*_: object) -> None:
        raise AssertionError("the copy was read again")

    monkeypatch.setattr(image, "take", read_again)
    make_database(folder / "live.db", 3)
    with open_workspace(str(folder / "store")) as ws:
        plan = ws.plan("first", {"db": {"kind": "sqlite", "path": str(folder / "live.db")}})
        with plan.decision("look") as decision:
            decision.call("sql", script="SELECT count(*) FROM t")
        rows = plan.checkpoints()
        assert rows[0].size_bytes >= 3 * MB
        assert Path(plan.sandboxes["db"]).read_bytes() == (folder / "live.db").read_bytes()


SCRIPTS = (
    "UPDATE t SET turn = turn + 1 WHERE id % 97 = {n} % 97",
    "DELETE FROM t WHERE id % 13 = {n} % 13",
    "INSERT INTO t(turn, body) SELECT {n}, randomblob(4000) FROM t LIMIT 60",
    "UPDATE t SET body = randomblob(9000) WHERE id % 31 = {n} % 31",
    "UPDATE t SET body = randomblob(3600)",
    "CREATE TABLE IF NOT EXISTS u{n}(x); INSERT INTO u{n} SELECT randomblob(700) FROM t LIMIT 9",
    "DELETE FROM t WHERE id > 300; INSERT INTO t(body) SELECT randomblob(5000) FROM t LIMIT 20",
    "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(body)",
    (
        "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(body);"
        " INSERT INTO words SELECT hex(randomblob(30)) FROM t LIMIT 40"
    ),
    "SELECT count(*) FROM t",
    "PRAGMA auto_vacuum=full; VACUUM",
    "PRAGMA synchronous=off; UPDATE t SET turn = {n} WHERE id = 6",
    "PRAGMA user_version = {n}; UPDATE t SET turn = {n} WHERE id = 3",
    "BEGIN; UPDATE t SET turn = {n} WHERE id < 4; COMMIT; UPDATE t SET turn = 0 WHERE id = 9",
    "VACUUM",
    "PRAGMA journal_mode=persist; UPDATE t SET turn = {n} WHERE id = 7",
    "UPDATE t SET turn = {n} WHERE id = 8; PRAGMA journal_mode=wal",
    "UPDATE t SET turn = {n} WHERE id = 8; PRAGMA journal_mode=delete",
)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_script_does_the_capture_is_the_file(small: World, seed: int) -> None:
    chance = random.Random(seed)
    for n in range(25):
        script = chance.choice(SCRIPTS).format(n=n)
        small.sql(script)
        assert small.captured() == small.really(), f"seed {seed}, turn {n}: {script}"
        if n % 8 == 7:
            target = chance.choice(small.plan.checkpoints())
            small.plan.rollback(target.checkpoint_id)
            assert small.really() == target.root_key, f"seed {seed}, turn {n}: rolled back"


def test_what_a_full_text_index_writes_at_the_commit_is_seen(small: World) -> None:
    small.sql("CREATE VIRTUAL TABLE words USING fts5(body)")
    for n in range(5):
        small.sql(f"UPDATE t SET turn = {n} WHERE id = 9; INSERT INTO words VALUES ('one {n}')")
        assert small.captured() == small.really()


def test_what_an_automatic_vacuum_moves_at_the_commit_is_seen(small: World) -> None:
    small.sql("PRAGMA auto_vacuum=full; VACUUM")
    small.sql("DELETE FROM t WHERE id BETWEEN 200 AND 300")
    assert small.captured() == small.really()


def test_pages_that_were_free_and_are_used_again_are_seen(small: World) -> None:
    """The rollback journal does not have them."""
    small.sql("DELETE FROM t WHERE id BETWEEN 200 AND 300")
    small.sql("INSERT INTO t(body) SELECT randomblob(3600) FROM t LIMIT 90")
    assert small.captured() == small.really()


def edit(path: Path, where: int, data: bytes) -> None:
    with open(path, "r+b") as found:
        found.seek(where)
        found.write(data)


def test_bytes_written_past_sqlite_with_the_old_mtime_are_seen(small: World) -> None:
    before = small.captured()
    found = os.stat(small.file)
    edit(small.file, 2 * MB + 2000, b"by hand")
    os.utime(small.file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert small.captured() == small.really() != before


def test_bytes_written_right_after_a_capture_are_seen(small: World) -> None:
    for turn in range(50):
        before = small.captured()
        edit(small.file, 2 * MB + 2000, b"%05d" % turn)
        assert small.captured() == small.really() != before


def test_bytes_written_through_a_mapping_are_seen(small: World) -> None:
    before = small.captured()
    with open(small.file, "r+b") as found, mmap.mmap(found.fileno(), 0) as mapped:
        mapped[2 * MB + 2000] ^= 255
    assert small.captured() == small.really() != before


@pytest.mark.usefixtures("proving")
def test_a_note_of_another_boot_is_not_believed(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut can take the content and leave the stat data."""
    small.captured()
    [note] = (small.folder / "store/cache").iterdir()
    assert image.load(str(note)) is not None
    other = small.folder / "boot_id"
    other.write_text("another\n")
    monkeypatch.setattr(image, "_BOOT", str(other))
    assert image.load(str(note)) is None


@pytest.mark.usefixtures("proving")
def test_a_note_goes_with_its_sandbox(small: World) -> None:
    assert list((small.folder / "store/cache").iterdir())
    small.plan.delete(force=True)
    assert not list((small.folder / "store/cache").iterdir())


@pytest.mark.usefixtures("proving")
def test_a_torn_note_is_not_believed(small: World) -> None:
    small.captured()
    [note] = (small.folder / "store/cache").iterdir()
    edit(note, 40, b"\xff\xff")
    small.again()
    assert small.captured() == small.really()


@pytest.mark.usefixtures("proving")
def test_a_rollback_writes_into_the_file_if_it_is_only_ours(small: World) -> None:
    target = small.plan.checkpoints()[0]
    small.sql("UPDATE t SET turn = 7 WHERE id = 500")
    inode = os.stat(small.file).st_ino
    small.plan.rollback(target.checkpoint_id)
    assert os.stat(small.file).st_ino == inode
    assert small.really() == target.root_key
    small.sql("UPDATE t SET turn = 7 WHERE id = 500")
    outside = small.folder / "outside.db"
    os.link(small.file, outside)
    kept = outside.read_bytes()
    small.plan.rollback(target.checkpoint_id)
    assert small.really() == target.root_key
    assert outside.read_bytes() == kept, "a rollback wrote through a hard link"


@pytest.mark.usefixtures("proving")
def test_a_rollback_that_dies_anywhere_is_finished_by_the_next_command(small: World) -> None:
    target = small.plan.checkpoints()[0]
    small.stack.close()
    store, plan_id, died_writing = str(small.folder / "store"), small.plan.plan_id, 0
    for kill_at in range(1, 100):
        with open_workspace(store) as ws, ws.find(plan_id).decision("change") as decision:
            decision.call("sql", script="UPDATE t SET turn = turn + 1 WHERE id IN (5, 400)")
        child = os.fork()
        if child == 0:
            fsio.arm(kill_at)
            try:
                with open_workspace(store) as ws:
                    ws.find(plan_id).rollback(target.checkpoint_id)
            finally:
                os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        before = small.really()
        with open_workspace(store) as ws:
            ws.find(plan_id).rollback(target.checkpoint_id)
        assert small.really() == target.root_key, f"killed at point {kill_at}"
        died_writing += before != target.root_key
        if not died:
            break
    assert died_writing > 3
    shutil.rmtree(small.folder / "store")


def test_a_database_behind_a_link_is_copied_with_its_log(folder: Path) -> None:
    """SQLite has the log beside the file that the link leads to."""
    make_database(folder / "real.db", 1)
    (folder / "link.db").symlink_to("real.db")
    with closing(sqlite3.connect(folder / "real.db", isolation_level=None)) as user:
        user.execute("PRAGMA journal_mode=WAL")
        user.execute("UPDATE t SET turn = 42 WHERE id = 1")
        assert (
            copy_if_complete(
                str(folder / "link.db"), str(folder / "copy.db"), None, lambda _size: None
            )
            is None
        )
        user.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert copy_if_complete(
            str(folder / "link.db"), str(folder / "copy.db"), None, lambda _size: None
        )
    with closing(sqlite3.connect(folder / "copy.db")) as copy:
        assert copy.execute("SELECT turn FROM t WHERE id = 1").fetchone() == (42,)
