"""Every built-in kind of sandbox keeps the contract; and what only some of them have to keep."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.errors import AgentsError, ApplyRefused, CheckpointFailed, SandboxError
from cleveragents.testing import (
    Bench,
    Change,
    SandboxContract,
    Seen,
    look,
    open_bench,
    require_same,
    stamps,
)
from tests.harness import Agents

OLD = 981_173_106_123_456_789
"""A time long past, with nanoseconds."""


def make_tree(root: Path) -> None:
    """Everything a directory can hold, with distinct old mtimes."""
    for folder in ("sub/deep", "empty", "closed", "vendor/lib/.git", "gone"):
        (root / folder).mkdir(parents=True)
    for name, content in {
        "readme.txt": b"hello\n",
        "run.sh": b"#!/bin/sh\n",
        "secret": b"token",
        "crlf.txt": b"a\r\nb\r\n",
        "empty.txt": b"",
        "sub/inner.txt": b"inner\n",
        "sub/deep/leaf.bin": bytes(range(256)),
        "vendor/lib/.git/HEAD": b"ref: refs/heads/main\n",
        "gone/only.txt": b"only\n",
        "big.bin": os.urandom(600_000),
    }.items():
        (root / name).write_bytes(content)
    for raw in (b"caf\xe9", b"new\nline", b"-dash", "日本".encode()):
        Path(os.fsdecode(os.path.join(os.fsencode(root), raw))).write_bytes(raw)
    os.chmod(root / "run.sh", 0o755)
    os.chmod(root / "secret", 0o600)
    os.chmod(root / "closed", 0o750)
    os.symlink("readme.txt", root / "link")
    os.symlink("nowhere/at all", root / "dangling")
    os.mkfifo(root / "pipe")
    os.chmod(root / "pipe", 0o640)
    for number, path in enumerate(look(root)):
        os.utime(root / os.fsdecode(path), ns=(OLD, OLD + number), follow_symlinks=False)


def patched(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"patched")


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


TREE_CHANGES: dict[str, Change] = {
    "content": lambda p: (p / "readme.txt").write_text("changed\n"),
    "content of the same size": lambda p: (p / "readme.txt").write_text("HELLO\n"),
    "a few bytes of a large file": lambda p: patched(p / "big.bin", 300_000),
    "a file cut short": lambda p: os.truncate(p / "big.bin", 262_144),
    "mode": lambda p: os.chmod(p / "secret", 0o640),
    "executable bit": lambda p: os.chmod(p / "run.sh", 0o644),
    "mode of a directory": lambda p: os.chmod(p / "closed", 0o700),
    "new file": lambda p: (p / "new.txt").write_text("new"),
    "new empty file": lambda p: (p / "new.txt").touch(),
    "new empty directory": lambda p: (p / "hollow").mkdir(),
    "new tree": lambda p: ((p / "n/e/w").mkdir(parents=True), (p / "n/e/w/f").touch()),
    "deleted file": lambda p: (p / "crlf.txt").unlink(),
    "deleted empty directory": lambda p: (p / "empty").rmdir(),
    "deleted tree": lambda p: ((p / "gone/only.txt").unlink(), (p / "gone").rmdir()),
    "renamed file": lambda p: (p / "secret").rename(p / "renamed"),
    "renamed directory": lambda p: (p / "sub").rename(p / "moved"),
    "two names swapped": lambda p: (
        (p / "secret").rename(p / "x"),
        (p / "crlf.txt").rename(p / "secret"),
        (p / "x").rename(p / "crlf.txt"),
    ),
    "target of a link": lambda p: replaced(p / "link", lambda q: q.symlink_to("secret")),
    "link becomes file": lambda p: replaced(p / "link", lambda q: q.write_bytes(b"readme.txt")),
    "file becomes link": lambda p: replaced(p / "secret", lambda q: q.symlink_to("token")),
    "file becomes directory": lambda p: replaced(p / "secret", lambda q: os.makedirs(q / "in")),
    "directory becomes file": lambda p: ((p / "empty").rmdir(), (p / "empty").touch()),
    "tree becomes file": lambda p: (
        (p / "gone/only.txt").unlink(),
        (p / "gone").rmdir(),
        (p / "gone").write_text("file now"),
    ),
    "name that is not UTF-8": lambda p: (p / os.fsdecode(b"\xff\n\xfe")).touch(),
    "name with pathspec magic": lambda p: (p / ":(top)*").write_text("magic"),
    "mode of a pipe": lambda p: os.chmod(p / "pipe", 0o600),
    "deleted pipe": lambda p: (p / "pipe").unlink(),
    "file becomes pipe": lambda p: replaced(p / "secret", os.mkfifo),
    "nested repository": lambda p: (p / "vendor/lib/.git/HEAD").write_text("0" * 40),
}  # fmt: skip


def change_much(path: Path) -> None:
    for name in (
        "content", "a few bytes of a large file", "mode of a directory", "new tree",
        "deleted tree", "renamed directory", "target of a link", "file becomes directory",
        "directory becomes file", "name that is not UTF-8",
    ):  # fmt: skip
        TREE_CHANGES[name](path)


FEW = (
    "content", "executable bit", "new tree", "deleted tree", "renamed file", "target of a link",
    "file becomes directory", "tree becomes file", "name that is not UTF-8", "nested repository",
    "index", "commit", "branch", "stash", "ignored file",
)  # fmt: skip
"""Enough for a kind whose brother has to pass them all."""


class TreeContract(SandboxContract):
    def changes(self) -> dict[str, Change]:
        return TREE_CHANGES

    def all_changes(self, path: Path) -> None:
        change_much(path)


class TestCopyOnWriteOfADirectory(TreeContract):
    kind, strategy = "fs-directory", "copy_on_write"

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "docs")
        return folder / "docs"

    def test_excluded_paths_are_neither_captured_nor_restored_nor_applied(
        self, tmp_path: Path
    ) -> None:
        source = tmp_path / "docs"
        make_tree(source)
        (source / "kept.log").write_text("mine")
        rules = ("*.log", "cache")
        with open_bench(tmp_path, source, self.kind, self.strategy, exclude=rules) as bench:
            bench.create()
            assert not (bench.path / "kept.log").exists()
            first = bench.capture()
            for name in ("out/deep/a.log", "out/b.txt", "cache/in/c", "hollow/d.log"):
                (bench.path / name).parent.mkdir(parents=True, exist_ok=True)
                (bench.path / name).write_text(name)
            changed = bench.capture(first)
            staged = bench.sandbox.stage(changed, first, str(tmp_path / "back"))
            bench.sandbox.switch(staged, str(tmp_path / "back"))
            left = {path for path, seen in look(bench.path).items() if seen[0] == "file"}
            assert {b"out/deep/a.log", b"cache/in/c", b"hollow/d.log"} <= left
            assert b"out/b.txt" not in left
            bench.go(bench.capture(first), changed)
            staged = bench.stage_apply(first, changed)
            bench.sandbox.switch_apply(staged)
            bench.sandbox.finish_apply(staged)
        assert (source / "kept.log").read_text() == "mine"
        assert (source / "out/b.txt").read_text() == "out/b.txt"
        assert not list((source / "out/deep").glob("*"))
        assert not (source / "cache").exists()

    def test_an_empty_directory_that_gets_something_excluded_is_still_a_directory(
        self, tmp_path: Path
    ) -> None:
        source = tmp_path / "docs"
        make_tree(source)
        with open_bench(tmp_path, source, self.kind, self.strategy, exclude=("*.log",)) as bench:
            bench.create()
            first = bench.capture()
            (bench.path / "empty/a.log").write_text("a line")
            (bench.path / "new").touch()
            changed = bench.capture(first)
            assert [c.path for c in bench.sandbox.changes(first, changed)] == [b"new"]
            bench.go(changed, first)
            assert (bench.path / "empty/a.log").read_text() == "a line"
            assert bench.capture(changed).state_hash == first.state_hash

    def test_a_file_restored_over_a_directory_keeps_what_is_excluded_in_it(
        self, tmp_path: Path
    ) -> None:
        source = tmp_path / "docs"
        make_tree(source)
        with open_bench(tmp_path, source, self.kind, self.strategy, exclude=("*.log",)) as bench:
            bench.create()
            first = bench.capture()
            (bench.path / "secret").unlink()
            (bench.path / "secret").mkdir()
            (bench.path / "secret/mine.log").write_text("mine")
            changed = bench.capture(first)
            exact = look(bench.path)
            try:
                bench.go(changed, first)
            except AgentsError:
                require_same(look(bench.path), exact)
            else:
                kept = [seen for seen in look(bench.path).values() if seen[2] == b"mine"]
                assert kept, "the excluded file is lost"

    def test_a_pipe_keeps_its_mode_whatever_the_umask(self, bench: Bench) -> None:
        os.chmod(bench.source / "pipe", 0o622)
        before = os.umask(0o077)
        try:
            bench.create()
        finally:
            os.umask(before)
        require_same(look(bench.path), look(bench.source))

    def test_a_file_from_the_first_second_of_1970_gets_its_mtime_back(self, made: Bench) -> None:
        os.utime(made.path / "secret", ns=(0, 0))
        first = made.capture()
        (made.path / "secret").unlink()
        made.go(made.capture(first), first)
        assert (made.path / "secret").stat().st_mtime_ns == 0

    def test_a_state_taken_before_the_epoch_keeps_its_mtime(self, made: Bench) -> None:
        os.utime(made.path / "secret", ns=(-5_000_000_000, -5_000_000_000))
        first = made.capture()
        (made.path / "secret").unlink()
        made.go(made.capture(first), first)
        assert (made.path / "secret").stat().st_mtime_ns == -5_000_000_000

    def test_restore_never_writes_through_a_link_that_a_tool_planted(self, made: Bench) -> None:
        first = made.capture()
        outside = made.folder / "outside"
        outside.mkdir()
        (outside / "inner.txt").write_text("not yours")
        os.rename(made.path / "sub", made.path / "aside")
        os.symlink(outside, made.path / "sub")
        made.go(made.capture(first), first)
        assert (outside / "inner.txt").read_text() == "not yours"
        assert os.listdir(outside) == ["inner.txt"]
        assert made.capture(first).state_hash == first.state_hash

    def test_restore_never_writes_into_an_inode_somebody_else_has_open(self, made: Bench) -> None:
        first = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        with open(made.path / "readme.txt", "rb") as held:
            made.go(made.capture(first), first)
            assert held.read() == b"changed\n"

    def test_a_change_the_user_made_meanwhile_is_merged(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "new.txt").write_text("plan")
        result = made.capture(origin)
        (made.source / "own.txt").write_text("user")
        staged = made.stage_apply(origin, result)
        made.sandbox.switch_apply(staged)
        made.sandbox.finish_apply(staged)
        assert (made.source / "new.txt").read_text() == "plan"
        assert (made.source / "own.txt").read_text() == "user"

    def test_a_path_both_sides_changed_is_a_conflict(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "secret").write_bytes(b"plan\0")
        result = made.capture(origin)
        (made.source / "secret").write_bytes(b"user\0")
        proposal = made.propose(origin, result, made.options())
        assert [conflict.path for conflict in proposal.conflicts] == ["secret"]
        assert (made.source / "secret").read_bytes() == b"user\0"

    def test_a_file_the_user_changes_between_compare_and_switch_is_not_overwritten(
        self, made: Bench
    ) -> None:
        origin = made.capture()
        change_much(made.path)
        staged = made.stage_apply(origin, made.capture(origin))
        (made.source / "readme.txt").write_text("the user's own words\n")
        before = look(made.source)
        with pytest.raises(ApplyRefused):
            made.sandbox.switch_apply(staged)
        made.sandbox.undo_apply(staged)
        staging = {path for path in before if b".cleveragents-" in path}
        assert look(made.source) == {p: s for p, s in before.items() if p not in staging}

    def test_a_file_the_user_adds_between_compare_and_switch_is_not_overwritten(
        self, made: Bench
    ) -> None:
        origin = made.capture()
        (made.path / "new.txt").write_text("plan")
        staged = made.stage_apply(origin, made.capture(origin))
        (made.source / "new.txt").write_text("user")
        with pytest.raises(ApplyRefused):
            made.sandbox.switch_apply(staged)
        made.sandbox.undo_apply(staged)
        assert (made.source / "new.txt").read_text() == "user"

    def test_what_the_user_adds_beside_applied_files_outlives_an_undo(self, made: Bench) -> None:
        origin = made.capture()
        before = look(made.source)
        change_much(made.path)
        staged = made.stage_apply(origin, made.capture(origin))
        made.sandbox.switch_apply(staged)
        (made.source / "n/e/mine").write_text("mine")
        made.sandbox.undo_apply(staged)
        after = look(made.source)
        assert after.pop(b"n/e/mine")[2] == b"mine"
        folders = {b"n", b"n/e"}
        require_same({path: seen for path, seen in after.items() if path not in folders}, before)


class TestCopyOnWriteOfAGitCheckout(TreeContract):
    kind, strategy = "git-checkout", "copy_on_write"
    stride = 5

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "repo")
        make_repository(folder / "repo")
        return folder / "repo"

    def changes(self) -> dict[str, Change]:
        return {name: do for name, do in TREE_CHANGES.items() if name in FEW}


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=folder, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()


def make_repository(root: Path) -> None:
    (root / ".gitignore").write_text("ignored/\n*.cache\n")
    (root / "ignored").mkdir()
    (root / "ignored/data").write_text("data")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A", "--", ":!vendor", ":!big.bin")
    git(root, "commit", "-q", "-m", "start")
    git(root, "tag", "v1")


class GitContract(TreeContract):
    kind, strategy = "git-checkout", "git_worktree"
    private = (b".git",)

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "repo")
        make_repository(folder / "repo")
        return folder / "repo"

    def changes(self) -> dict[str, Change]:
        in_git = {
            "index": lambda p: (p / "fresh").touch() or git(p, "add", "fresh"),
            "commit": lambda p: git(p, "commit", "-q", "--allow-empty", "-m", "by a tool"),
            "branch": lambda p: git(p, "branch", "topic"),
            "stash": lambda p: (p / "secret").write_text("x") and git(p, "stash"),
            "ignored file": lambda p: (
                (p / "ignored").mkdir(exist_ok=True),
                (p / "ignored/more").touch(),
            ),
        }
        return {**TREE_CHANGES, **in_git}  # type: ignore[dict-item]

    def around(self, source: Path) -> object:
        """Refs, HEAD and index of the user's repository, as git itself tells them."""
        refs = git(source, "for-each-ref", "--format=%(refname) %(objectname)")
        mine = [line for line in refs.splitlines() if not line.startswith("refs/cleveragents/")]
        head = (source / ".git/HEAD").read_text()
        return mine, head, git(source, "ls-files", "--stage", "-z")

    def test_the_only_thing_in_the_users_git_directory_is_one_ref(self, bench: Bench) -> None:
        before = look(bench.source / ".git")
        bench.create()
        new = look(bench.source / ".git").keys() - before.keys()
        commit, _ = git_head(bench.source)
        files = {path for path in new if (bench.source / ".git" / os.fsdecode(path)).is_file()}
        ref = f"refs/cleveragents/{bench.place.plan_id}"
        assert {path for path in files if not path.startswith(b"logs/")} == (
            {ref.encode()} if commit else set()
        )

    def test_git_works_in_the_sandbox_and_the_user_sees_nothing_of_it(self, made: Bench) -> None:
        before = look(made.source / ".git")
        (made.path / "by-tool").write_text("x")
        git(made.path, "add", "by-tool")
        git(made.path, "commit", "-q", "-m", "by a tool")
        git(made.path, "tag", "made-here")
        require_same(look(made.source / ".git"), before)
        assert not (made.path / ".git/hooks").exists()


def git_head(folder: Path) -> tuple[str, str]:
    done = subprocess.run(
        ["git", "rev-parse", "-q", "--verify", "HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip(), (folder / ".git/HEAD").read_text()


class TestWorktreeOfACleanRepository(GitContract):
    def make_source(self, folder: Path) -> Path:
        root = super().make_source(folder)
        git(root, "add", "-f", "vendor/lib/../../big.bin")
        git(root, "commit", "-q", "-m", "the large one too")
        return root

    def test_the_first_checkpoint_stores_no_file_that_the_base_commit_has(
        self, made: Bench
    ) -> None:
        assert made.capture().added_bytes < 20_000

    def test_the_old_content_of_a_changed_file_outlives_the_users_repository(
        self, made: Bench
    ) -> None:
        first = made.capture()
        exact = look(made.root)
        change_much(made.path)
        changed = made.capture(first)
        import shutil

        shutil.rmtree(made.source / ".git/objects")
        made.sandbox.close()
        staging = made.staging()
        staged = made.sandbox.stage(changed, first, staging)
        made.sandbox.switch(staged, staging)
        require_same(look(made.root), exact)

    def test_the_base_survives_the_users_amend_and_gc(self, made: Bench) -> None:
        first = made.capture()
        exact = look(made.root)
        git(made.source, "commit", "-q", "--amend", "-m", "other", "--allow-empty")
        (made.source / "readme.txt").write_text("rewritten\n")
        git(made.source, "commit", "-q", "-a", "--amend", "-m", "other")
        git(made.source, "reflog", "expire", "--expire=now", "--all")
        git(made.source, "gc", "-q", "--prune=now")
        change_much(made.path)
        made.go(made.capture(first), first)
        require_same(look(made.root), exact)

    def test_by_default_a_clean_target_gets_one_commit(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        staged = made.stage_apply(origin, made.capture(origin))
        base, _ = git_head(made.source)
        made.sandbox.switch_apply(staged)
        made.sandbox.switch_apply(staged)
        made.sandbox.finish_apply(staged)
        assert git(made.source, "rev-list", f"{base}..HEAD", "--count") == "1"
        assert git(made.source, "status", "--porcelain", "--untracked-files=no") == ""
        assert made.sandbox.applied(staged).commit == git_head(made.source)[0]

    def test_as_branch_touches_neither_files_nor_head(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        before, head, times = (
            look(made.source, (b".git",)),
            git_head(made.source),
            stamps(made.source),
        )
        options = made.options(mode="branch", ignored=False)
        proposal = made.propose(origin, made.capture(origin), options)
        staged = made.sandbox.stage_apply(proposal, options)
        made.sandbox.switch_apply(staged)
        made.sandbox.finish_apply(staged)
        assert git(made.source, "show", "agents/test:readme.txt") == "changed"
        assert (look(made.source, (b".git",)), git_head(made.source)) == (before, head)
        assert (
            stamps(made.source / "sub").items()
            <= {path.removeprefix(b"sub/"): about for path, about in times.items()}.items()
        )


class TestWorktreeOfADirtyRepository(GitContract):
    stride = 5

    def make_source(self, folder: Path) -> Path:
        root = super().make_source(folder)
        (root / "readme.txt").write_text("my own, not committed\n")
        (root / "staged.txt").write_text("staged")
        git(root, "add", "staged.txt")
        (root / "crlf.txt").write_bytes(b"")
        (root / "-dash").unlink()
        return root

    def changes(self) -> dict[str, Change]:
        return {name: do for name, do in super().changes().items() if name in FEW}

    def test_the_users_uncommitted_changes_are_never_committed(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "new.txt").write_text("plan")
        head, index = git_head(made.source), self.around(made.source)
        staged = made.stage_apply(origin, made.capture(origin))
        made.sandbox.switch_apply(staged)
        made.sandbox.finish_apply(staged)
        assert made.sandbox.applied(staged).commit is None
        assert (git_head(made.source), self.around(made.source)) == (head, index)

    def test_as_commit_is_refused_for_a_file_that_has_both(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "readme.txt").write_text("my own, not committed\nand the plan's\n")
        with pytest.raises(ApplyRefused, match="uncommitted"):
            made.propose(origin, made.capture(origin), made.options(mode="commit"))


class TestWorktreeOfARepositoryWithoutACommit(GitContract):
    stride = 5

    def make_source(self, folder: Path) -> Path:
        make_tree(folder / "repo")
        git(folder / "repo", "init", "-q", "-b", "main")
        return folder / "repo"

    def changes(self) -> dict[str, Change]:
        wanted = set(FEW) - {"stash", "branch"}
        return {name: do for name, do in super().changes().items() if name in wanted}


class TestWorktreeOfADetachedHead(GitContract):
    stride = 5

    def make_source(self, folder: Path) -> Path:
        root = super().make_source(folder)
        git(root, "checkout", "-q", "--detach")
        return root

    def changes(self) -> dict[str, Change]:
        return {name: do for name, do in super().changes().items() if name in FEW}

    def test_apply_leaves_plain_changes(self, made: Bench) -> None:
        origin = made.capture()
        (made.path / "readme.txt").write_text("changed\n")
        head = git_head(made.source)
        staged = made.stage_apply(origin, made.capture(origin))
        made.sandbox.switch_apply(staged)
        made.sandbox.finish_apply(staged)
        assert made.sandbox.applied(staged).mode == "changes"
        assert git_head(made.source) == head


def run_sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


def run_sql_and_die(path: Path, script: str) -> None:
    """In a process that ends without closing: its WAL or journal stays behind."""
    code = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for line in sys.argv[2].split(';'): db.execute(line).fetchall()\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path), script], check=True)


def dump(path: Path) -> list[str]:
    """The database as SQL, read from a copy so that the original is not even opened."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for side in ("", "-wal", "-journal"):
            if os.path.exists(f"{path}{side}"):
                shutil.copyfile(f"{path}{side}", f"{folder}/copy{side}")
        with closing(sqlite3.connect(f"{folder}/copy")) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            return [f"user_version {version}", *db.iterdump()]


SQL_CHANGES = {
    "inserted row": "INSERT INTO t VALUES (99, 'new')",
    "updated row": "UPDATE t SET name = 'other' WHERE id = 7",
    "deleted rows": "DELETE FROM t WHERE id > 100",
    "new table": "CREATE TABLE u (x)",
    "dropped table": "DROP TABLE t",
    "new index": "CREATE INDEX i ON t (name)",
    "altered table": "ALTER TABLE t ADD COLUMN extra",
    "user version": "PRAGMA user_version = 5",
    "blob of 700 KB": "CREATE TABLE b (x); INSERT INTO b VALUES (randomblob(700000))",
    "vacuum after a delete": "DELETE FROM t WHERE id > 10; VACUUM",
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a lock that is not given up."""
    patient = sqlite3.connect

    def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        return patient(*arguments, **{**named, "timeout": 0.2})

    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr("cleveragents.sandbox.sqlite.live.BUSY_SECONDS", 0.2)


class SqliteContract(SandboxContract):
    kind, strategy = "sqlite", "snapshot"
    keeps_mtime = False

    def make_source(self, folder: Path) -> Path:
        run_sql(folder / "app.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
        with closing(sqlite3.connect(folder / "app.db")) as db, db:
            rows = ((n, f"name {n} " * 20) for n in range(1000, 4000))
            db.executemany("INSERT INTO t VALUES (?, ?)", [(7, "seven"), *rows])
        return folder / "app.db"

    def changes(self) -> dict[str, Change]:
        def run(script: str) -> Change:
            return lambda path: run_sql(path, script)

        return {
            **{name: run(script) for name, script in SQL_CHANGES.items()},
            "row in a WAL that was left": lambda path: run_sql_and_die(
                path, "PRAGMA journal_mode=WAL; INSERT INTO t VALUES (99, 'in the wal')"
            ),
        }

    def all_changes(self, path: Path) -> None:
        run_sql(path, "INSERT INTO t (name) VALUES ('once more'); CREATE TABLE IF NOT EXISTS u (x)")

    def untouched(self, folder: Path) -> tuple[dict[bytes, Seen], dict[bytes, tuple[int, int]]]:
        """All but the shared memory of those who have the database open."""
        seen, times = super().untouched(folder)
        shared = b"app.db-shm"
        return {p: seen[p] for p in seen if p != shared}, {
            p: times[p] for p in times if p != shared
        }

    def seen_of_target(self, source: Path) -> object:
        return dump(source)

    def seen_of_result(self, path: Path) -> object:
        return dump(path)


class TestSnapshotOfASqliteFile(SqliteContract):
    def test_one_row_of_a_large_database_costs_few_chunks(self, made: Bench) -> None:
        run_sql(made.path, "CREATE TABLE b (x); INSERT INTO b VALUES (randomblob(5000000))")
        first = made.capture()
        run_sql(made.path, "UPDATE t SET name = 'changed' WHERE id = 2000")
        assert made.capture(first).added_bytes < 3 * 262_144 + 2_000

    def test_a_transaction_that_died_in_the_middle_is_not_in_the_checkpoint(
        self, made: Bench
    ) -> None:
        first = made.capture()
        before = dump(made.path)
        run_sql_and_die(
            made.path,
            "PRAGMA cache_size=1; BEGIN; UPDATE t SET name = 'half' || id",
        )
        assert (made.root / "app.db-journal").exists()
        again = made.capture(first)
        assert dump(made.path) == before
        made.go(again, first)
        assert dump(made.path) == before

    def test_a_stale_wal_does_not_undo_the_restore(self, made: Bench) -> None:
        first = made.capture()
        exact = look(made.root)
        run_sql_and_die(made.path, "PRAGMA journal_mode=WAL; INSERT INTO t VALUES (5, 'stale')")
        staging = made.staging()
        staged = made.sandbox.stage(made.capture(first, strict=False), first, staging)
        run_sql_and_die(made.path, "INSERT INTO t VALUES (6, 'staler')")
        made.sandbox.switch(staged, staging)
        require_same(look(made.root), exact)

    def test_a_connection_open_on_the_live_file_sees_what_was_applied(self, made: Bench) -> None:
        origin = made.capture()
        run_sql(made.path, "INSERT INTO t VALUES (99, 'applied')")
        with closing(sqlite3.connect(made.source)) as user:
            count = user.execute("SELECT count(*) FROM t").fetchone()[0]
            staged = made.stage_apply(origin, made.capture(origin))
            inode = made.source.stat().st_ino
            made.sandbox.switch_apply(staged)
            assert user.execute("SELECT count(*) FROM t").fetchone()[0] == count + 1
            assert made.source.stat().st_ino == inode

    def test_a_live_file_that_somebody_changed_is_a_conflict(self, made: Bench) -> None:
        origin = made.capture()
        run_sql(made.path, "INSERT INTO t VALUES (99, 'plan')")
        run_sql(made.source, "INSERT INTO t VALUES (98, 'user')")
        before = dump(made.source)
        proposal = made.propose(origin, made.capture(origin), made.options())
        assert [conflict.path for conflict in proposal.conflicts] == ["app.db"]
        assert dump(made.source) == before

    def test_a_live_file_changed_between_compare_and_switch_is_not_overwritten(
        self, made: Bench
    ) -> None:
        origin = made.capture()
        run_sql(made.path, "INSERT INTO t VALUES (99, 'plan')")
        staged = made.stage_apply(origin, made.capture(origin))
        run_sql(made.source, "INSERT INTO t VALUES (98, 'user')")
        before = dump(made.source)
        with pytest.raises(ApplyRefused):
            made.sandbox.switch_apply(staged)
        assert dump(made.source) == before

    @pytest.mark.usefixtures("impatient")
    def test_apply_to_a_file_that_is_locked_is_refused_in_time(self, made: Bench) -> None:
        origin = made.capture()
        run_sql(made.path, "INSERT INTO t VALUES (99, 'plan')")
        staged = made.stage_apply(origin, made.capture(origin))
        with closing(sqlite3.connect(made.source, isolation_level=None)) as user:
            user.execute("BEGIN IMMEDIATE")
            in_time(lambda: made.sandbox.switch_apply(staged), ApplyRefused)

    @pytest.mark.usefixtures("impatient")
    @pytest.mark.parametrize("journal", ["DELETE", "PERSIST", "MEMORY", "WAL"])
    def test_a_sandbox_never_has_half_of_a_transaction(self, bench: Bench, journal: str) -> None:
        """Somebody is in the middle of one, and part of it is in the file already."""
        before = dump(bench.source)
        with closing(sqlite3.connect(bench.source, isolation_level=None)) as user:
            user.execute(f"PRAGMA journal_mode={journal}")
            user.execute("PRAGMA cache_size=1")
            user.execute("BEGIN EXCLUSIVE")
            user.execute("UPDATE t SET name = 'half ' || id || name")
            try:
                in_time(bench.create)
            except SandboxError:
                return
            assert dump(bench.path) == before

    @pytest.mark.parametrize("what", ["nothing", "directory", "pipe", "link", "no database"])
    def test_a_file_that_a_tool_broke_is_refused_and_can_be_rolled_back(
        self, made: Bench, what: str
    ) -> None:
        first = made.capture()
        exact = look(made.root)
        other = made.folder / "other.db"
        run_sql(other, "CREATE TABLE secret (x)")
        theirs = (look(made.folder / "users"), other.read_bytes(), other.stat().st_ino)
        made.path.unlink()
        {
            "nothing": lambda: None,
            "directory": lambda: (made.path / "x").mkdir(parents=True),
            "pipe": lambda: os.mkfifo(made.path),
            "link": lambda: os.symlink(other, made.path),
            "no database": lambda: made.path.write_bytes(b"not SQLite" * 1000),
        }[what]()
        in_time(lambda: made.capture(first), CheckpointFailed)
        found: list[object] = []
        in_time(lambda: found.append(made.capture(first, strict=False)))
        in_time(lambda: made.go(found[0], first))  # type: ignore[arg-type]
        require_same(look(made.root), exact)
        assert (look(made.folder / "users"), other.read_bytes(), other.stat().st_ino) == theirs


class TestSnapshotOfASqliteFileInUse(SqliteContract):
    """The live database is in WAL mode and what was last written is only in the WAL."""

    def make_source(self, folder: Path) -> Path:
        source = super().make_source(folder)
        run_sql_and_die(source, "PRAGMA journal_mode=WAL; INSERT INTO t VALUES (1, 'in the wal')")
        assert Path(f"{source}-wal").stat().st_size > 0
        return source


@pytest.mark.parametrize(
    "step",
    [
        "echo x > logs/a.log; echo y > f",
        "mkdir out; echo 1 > out/a; echo 2 > out/b.log",
        "mkdir -p out/deep; echo 1 > out/a; echo 2 > out/deep/b.log",
        "mkdir -p cache/x; echo 1 > cache/x/y; echo y > f",
        "rmdir logs; echo 1 > logs; echo y > f",
    ],
)
def test_excluded_files_are_never_in_the_way_of_a_rollback(agents: Agents, step: str) -> None:
    (agents.work / "docs/logs").mkdir(parents=True)
    (agents.work / "plan.yaml").write_text(
        'name: p\nresources: {docs: {kind: fs-directory, path: docs, exclude: ["*.log", cache]}}\n'
        f"steps: [{{id: one, run: '{step}'}}]\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    [sandbox] = Path(agents.env["CLEVERAGENTS_HOME"], "sandboxes").glob("*/docs")
    excluded = {p: s for p, s in look(sandbox).items() if b".log" in p or b"cache/x/y" in p}
    for _ in range(2):
        agents.run("plan", "rollback", "last", "first", "--yes").expect(0)
        now = look(sandbox)
        assert now[b"logs"][0] == "directory"
        assert {path: now.get(path) for path in excluded} == excluded
        assert not now.keys() & {b"f", b"out/a"}
        again = agents.run("plan", "resume", "last", "--dry-run", "--json").expect(0).data
        # A folder that holds something excluded had to stay, and is seen as a folder.
        assert {change["file"] for change in again["changes"]} <= {"out", "out/deep"}
        agents.run("plan", "undo", "last").expect(0)
        assert look(sandbox).keys() & {b"f", b"out/a"}


def in_time(action: Callable[[], object], expected: type[Exception] | None = None) -> None:
    """It ends within 15 s, with that error if one is named. Runs here, watched from a thread."""
    import signal

    def ring(_signal: int, _frame: object) -> None:
        raise TimeoutError("it hangs")

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 15)
    try:
        if expected is None:
            action()
        else:
            with pytest.raises(expected):
                action()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
