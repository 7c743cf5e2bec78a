"""What works on the resource itself keeps the same contract for its states and the way back."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cleveragents.errors import CheckpointFailed, SandboxError
from cleveragents.testing import Bench, Change, InPlaceContract, Seen, look, require_same
from tests.test_sandbox_contract import (
    FEW,
    TREE_CHANGES,
    GitContract,
    SqliteContract,
    change_much,
    dump,
    git,
    impatient,  # noqa: F401 - a fixture
    make_repository,
    make_tree,
    run_sql,
    run_sql_and_die,
)

GITS_OWN = (b".git/objects/", b".git/refs/cleveragents", b".git/logs/refs/cleveragents")


class TestDirectoryInPlace(InPlaceContract):
    kind = "fs-directory"

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "docs")
        return folder / "docs"

    def changes(self) -> dict[str, Change]:
        return TREE_CHANGES

    def all_changes(self, path: Path) -> None:
        change_much(path)

    def test_an_edit_made_since_the_capture_is_not_lost(self, made: Bench) -> None:
        first = made.capture()
        (made.path / "readme.txt").write_text("by the agent\n")
        current = made.capture(first)
        (made.path / "readme.txt").write_text("by the person, just now\n")
        with pytest.raises(SandboxError, match=r"readme\.txt changed"):
            made.sandbox.stage(current, first, made.staging())
        assert (made.path / "readme.txt").read_text() == "by the person, just now\n"

    def test_an_edit_made_since_staging_is_not_lost(self, made: Bench) -> None:
        first = made.capture()
        (made.path / "readme.txt").write_text("by the agent\n")
        staging = made.staging()
        staged = made.sandbox.stage(made.capture(first), first, staging)
        (made.path / "readme.txt").write_text("by the person, just now\n")
        with pytest.raises(SandboxError, match=r"readme\.txt changed"):
            made.sandbox.switch(staged, staging)
        assert (made.path / "readme.txt").read_text() == "by the person, just now\n"

    def test_what_is_put_back_belongs_to_whom_the_file_did(self, made: Bench) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(made.path / "readme.txt", 1234, 1235)
        os.chown(made.path / "gone", 1236, 1237)
        first = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        (made.path / "gone/only.txt").unlink()
        made.go(made.capture(first), first)
        about = [os.stat(made.path / name) for name in ("readme.txt", "gone/only.txt")]
        assert [(one.st_uid, one.st_gid) for one in about] == [(1234, 1235), (1236, 1237)]

    def test_a_folder_that_is_put_back_belongs_to_whom_the_one_above_does(
        self, made: Bench
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        inner = made.path / "own/inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("theirs\n")
        for path in (made.path / "own", inner, inner / "file"):
            os.chown(path, 1234, 1235)
        first = made.capture()
        shutil.rmtree(inner)
        made.go(made.capture(first), first)
        about = [os.stat(path) for path in (inner, inner / "file")]
        assert [(one.st_uid, one.st_gid) for one in about] == [(1234, 1235)] * 2


class TestRepositoryInPlace(InPlaceContract):
    kind = "git-checkout"
    stride = 3

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "repo")
        make_repository(folder / "repo")
        return folder / "repo"

    def changes(self) -> dict[str, Change]:
        return GitContract.changes(self)  # type: ignore[arg-type]

    def all_changes(self, path: Path) -> None:
        change_much(path)
        git(path, "commit", "-q", "--allow-empty", "-m", "by a tool")

    def exactly(self, root: Path) -> dict[bytes, Seen]:
        """All but git's objects, and our ref."""
        return {p: seen for p, seen in look(root).items() if not p.startswith(GITS_OWN)}


class TestDirtyRepositoryInPlace(TestRepositoryInPlace):
    stride = 7

    def make_source(self, folder: Path) -> Path:
        root = super().make_source(folder)
        (root / "readme.txt").write_text("my own, not committed\n")
        (root / "staged.txt").write_text("staged")
        git(root, "add", "staged.txt")
        (root / "-dash").unlink()
        return root

    def changes(self) -> dict[str, Change]:
        return {name: do for name, do in super().changes().items() if name in FEW}


class TestSqliteInPlace(InPlaceContract):
    kind = "sqlite"
    keeps_mtime = False

    def make_source(self, folder: Path) -> Path:
        return SqliteContract.make_source(self, folder)  # type: ignore[arg-type]

    def changes(self) -> dict[str, Change]:
        return SqliteContract.changes(self)  # type: ignore[arg-type]

    def all_changes(self, path: Path) -> None:
        SqliteContract.all_changes(self, path)  # type: ignore[arg-type]

    def test_the_same_bytes_written_again_are_the_same_state(self, made: Bench) -> None:
        first = made.capture()
        run_sql(made.path, "UPDATE t SET name = name || '!'; VACUUM")
        changed = made.capture(first)
        run_sql(made.path, "UPDATE t SET name = name WHERE id = 7")
        assert first.state_hash != changed.state_hash == made.capture(changed).state_hash

    def test_an_open_connection_sees_the_rollback_and_stays_sound(self, made: Bench) -> None:
        first = made.capture()
        with closing(sqlite3.connect(made.path)) as user:
            user.execute("INSERT INTO t VALUES (99, 'by the agent')")
            user.commit()
            inode = made.path.stat().st_ino
            made.go(made.capture(first), first)
            assert user.execute("SELECT count(*) FROM t WHERE id = 99").fetchone() == (0,)
            user.execute("INSERT INTO t VALUES (100, 'later')")
            user.commit()
            assert user.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert made.path.stat().st_ino == inode

    def test_rows_written_since_the_capture_are_not_lost(self, made: Bench) -> None:
        first = made.capture()
        run_sql(made.path, "INSERT INTO t VALUES (99, 'by the agent')")
        current = made.capture(first)
        staging = made.staging()
        staged = made.sandbox.stage(current, first, staging)
        run_sql(made.path, "INSERT INTO t VALUES (100, 'by the person')")
        before = dump(made.path)
        with pytest.raises(SandboxError, match="changed while"):
            made.sandbox.switch(staged, staging)
        with pytest.raises(SandboxError, match="changed while"):
            made.sandbox.stage(current, first, made.staging())
        assert dump(made.path) == before

    @pytest.mark.usefixtures("impatient")
    def test_a_database_that_stays_locked_is_left_alone(self, made: Bench) -> None:
        first = made.capture()
        run_sql(made.path, "INSERT INTO t VALUES (99, 'by the agent')")
        staging = made.staging()
        staged = made.sandbox.stage(made.capture(first), first, staging)
        with closing(sqlite3.connect(made.path, isolation_level=None)) as user:
            user.execute("BEGIN IMMEDIATE")
            with pytest.raises(SandboxError, match="cannot be written"):
                made.sandbox.switch(staged, staging)
        made.sandbox.switch(staged, staging)
        assert made.capture(first).state_hash == first.state_hash

    @pytest.mark.parametrize("what", ["nothing", "no database"])
    def test_a_file_that_an_agent_broke_comes_back_and_goes_again(
        self, made: Bench, what: str
    ) -> None:
        first, before = made.capture(), dump(made.path)
        made.path.unlink()
        if what == "no database":
            made.path.write_bytes(b"not SQLite" * 1000)
        broken = made.capture(first)
        made.go(broken, first)
        assert dump(made.path) == before
        made.go(first, broken)
        assert made.path.exists() is (what == "no database")
        assert made.capture(first).state_hash == broken.state_hash

    @pytest.mark.parametrize("what", ["directory", "link"])
    def test_what_is_no_file_is_refused(self, made: Bench, what: str) -> None:
        made.path.unlink()
        made.path.mkdir() if what == "directory" else made.path.symlink_to("elsewhere.db")
        with pytest.raises(CheckpointFailed, match="something else"):
            made.capture()

    def test_reading_it_leaves_file_and_neighbours_as_they_are(self, made: Bench) -> None:
        """But for the shared memory of those who have it open."""
        before = {p: seen for p, seen in look(made.root).items() if not p.endswith(b"-shm")}
        first = made.capture()
        made.capture(first)
        after = {p: seen for p, seen in look(made.root).items() if not p.endswith(b"-shm")}
        require_same(after, before)

    test_restore_brings_back_mtimes_and_touches_nothing_else = None
    """There is nothing else."""

    def exactly(self, root: Path) -> dict[bytes, Seen]:
        """The database as its users see it: SQLite has counters of its own in the file."""
        return {b"app.db": ("file", 0, repr(dump(root / "app.db")).encode())}


class TestSqliteInPlaceInUse(TestSqliteInPlace):
    """It is in WAL mode and what was last written is only in the WAL."""

    def make_source(self, folder: Path) -> Path:
        source = super().make_source(folder)
        run_sql_and_die(source, "PRAGMA journal_mode=WAL; INSERT INTO t VALUES (1, 'in the wal')")
        return source
