"""Apply as a commit leaves index and work tree as a careful person would, or is refused."""

import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest

from cleveragents.errors import ApplyRefused
from tests.scratch import wait_until
from tests.test_apply_targets import LINES, Bench, look


class Repository(Bench):
    """A target whose index is looked at as well."""

    def made(self) -> "Repository":
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@example.invalid")
        self.write("kept.txt", LINES)
        self.write("other.txt", LINES)
        self.commit()
        return self

    def index(self) -> str:
        return self.git("ls-files", "-v", "--stage")

    def is_clean(self) -> bool:
        """Asked as scripts ask it: nothing is refreshed before."""
        done = subprocess.run(
            ["git", "diff-index", "--quiet", "HEAD"], cwd=self.target, check=False
        )
        return done.returncode == 0

    def refused(self, step: str, mess: str) -> str:
        """The reason why work cannot be a commit after `mess`; nothing at all has changed."""
        plan = self.run(step)
        subprocess.run(["sh", "-c", mess], cwd=self.target, check=True, capture_output=True)
        before = look(self.target), self.index(), self.git("rev-parse", "HEAD")
        with pytest.raises(ApplyRefused) as caught:
            plan.apply("commit")
        assert (look(self.target), self.index(), self.git("rev-parse", "HEAD")) == before
        assert caught.value.hint
        return caught.value.message


@pytest.fixture
def target(tmp_path: Path) -> Generator[Repository]:
    with ExitStack() as stack:
        yield Repository(tmp_path / "bench", stack).made()


CHANGE = "echo more >> kept.txt"


def test_a_staged_version_is_not_replaced(target: Repository) -> None:
    mess = "echo staged > kept.txt; git add kept.txt; git show HEAD:kept.txt > kept.txt"
    assert target.refused(CHANGE, mess) == "kept.txt has staged changes of your own"


def test_a_file_taken_out_of_the_index_stays_out(target: Repository) -> None:
    message = target.refused(CHANGE, "git rm -q --cached kept.txt")
    assert message == "kept.txt has staged changes of your own"


def test_a_staged_mode_is_not_replaced(target: Repository) -> None:
    message = target.refused(CHANGE, "git update-index --chmod=+x kept.txt")
    assert message == "kept.txt has staged changes of your own"


def test_a_staged_file_where_the_plan_makes_a_folder_is_not_dropped(target: Repository) -> None:
    mess = "echo x > new; git add new; rm new"
    assert target.refused("mkdir new; echo y > new/file", mess) == (
        "new has staged changes of your own"
    )


def test_a_file_that_is_only_announced_to_the_index_is_not_dropped(target: Repository) -> None:
    message = target.refused("echo y > new", "echo x > new; git add -N new; rm new")
    assert message == "new has staged changes of your own"


def test_other_staged_changes_stay_staged(target: Repository) -> None:
    plan = target.run(CHANGE)
    target.write("other.txt", "mine\n")
    target.git("add", "other.txt")
    plan.apply("commit")
    assert target.git("show", "--format=", "--name-only", "HEAD") == "kept.txt"
    assert target.git("diff", "--cached", "--name-only") == "other.txt"
    assert target.git("diff", "--name-only") == ""


def test_unasked_no_commit_is_made_beside_a_staged_version(target: Repository) -> None:
    plan = target.run(CHANGE)
    target.write("other.txt", "staged\n")
    target.git("add", "other.txt")
    target.write("other.txt", LINES)
    head = target.git("rev-parse", "HEAD")
    assert plan.apply()["applied"][0]["mode"] == "changes"
    assert target.git("rev-parse", "HEAD") == head
    assert target.git("diff", "--cached", "--name-only") == "other.txt"


MIDDLES = {
    "merge": "git merge -q --no-commit --no-ff side",
    "cherry-pick": "git cherry-pick side-clash || true",
    "revert": "git revert --no-edit HEAD~1 || true",
    "rebase": "git rebase -q side-clash || true",
    "bisect": "git bisect start",
    "am": "git format-patch -q -1 --stdout side-clash | git am -q || true",
}


@pytest.mark.parametrize("name", MIDDLES)
def test_no_commit_is_made_in_the_middle_of_something(target: Repository, name: str) -> None:
    for branch, file in (("side", "side.txt"), ("side-clash", "other.txt")):
        target.git("checkout", "-q", "-b", branch, "main")
        target.write(file, f"{branch}\n")
        target.commit()
    target.git("checkout", "-q", "main")
    for text in ("one\n", "two\n"):
        target.write("other.txt", text)
        target.commit()
    message = target.refused(CHANGE, MIDDLES[name])
    on_a_branch = name != "rebase"  # else HEAD is on no branch, which is said first
    assert (f"middle of a {name}" in message) is on_a_branch, message


def test_afterwards_nothing_is_dirty(target: Repository) -> None:
    target.git("mv", "other.txt", "gone.txt")
    target.commit()
    step = "echo more >> kept.txt; echo new > new; rm gone.txt; ln -s new link; chmod +x new"
    target.run(step).apply("commit")
    assert target.is_clean()
    assert target.git("status", "--porcelain") == ""


def test_after_an_apply_that_was_undone_nothing_is_dirty(target: Repository) -> None:
    hook = target.target / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    plan = target.run(CHANGE)
    before = target.index()
    with pytest.raises(ApplyRefused):
        plan.apply("commit", hooks=True)
    assert target.index() == before
    assert target.is_clean()


@pytest.mark.parametrize("flag", ["skip-worktree", "assume-unchanged"])
def test_a_bit_of_the_index_stays(target: Repository, flag: str) -> None:
    target.git("update-index", f"--{flag}", "kept.txt", "other.txt")
    tags = [line[0] for line in target.index().splitlines()]
    target.run("echo more >> kept.txt; rm other.txt").apply("commit")
    assert [line[0] for line in target.index().splitlines()] == tags[:1]
    assert target.git("show", "--format=", "--name-status", "HEAD") == "M\tkept.txt\nD\tother.txt"


def test_a_file_outside_a_sparse_checkout_is_named(target: Repository) -> None:
    target.write("deep/file.txt")
    target.commit()
    target.git("sparse-checkout", "set", "--no-cone", "/kept.txt")
    assert not (target.target / "other.txt").exists()
    message = target.refused("echo mine > other.txt", "true")
    assert message == "other.txt is in the commit and was not in the work tree"
    plan = target.run("echo more >> kept.txt")
    plan.apply("commit")
    assert target.git("ls-files", "-t").splitlines() == [
        "S deep/file.txt", "H kept.txt", "S other.txt",
    ]  # fmt: skip
    assert target.is_clean()


def test_modes_that_git_is_told_not_to_trust_are_not_committed(target: Repository) -> None:
    target.git("config", "core.fileMode", "false")
    (target.target / "kept.txt").chmod(0o755)
    target.write("tool", "echo\n", 0o755)
    plan = target.run("echo more >> kept.txt; chmod +x other.txt; echo x > made; chmod +x made")
    (target.target / "tool").unlink()
    assert plan.apply()["applied"][0]["mode"] == "commit"
    shown = target.git("ls-tree", "HEAD").splitlines()
    assert {line.split("\t")[1]: line[:6] for line in shown} == {
        "kept.txt": "100644",
        "other.txt": "100755",
        "made": "100755",
    }
    assert (target.target / "kept.txt").stat().st_mode & 0o777 == 0o755
    assert target.is_clean()


def test_a_link_that_is_a_file_here_stays_a_link_in_the_commit(target: Repository) -> None:
    os.symlink("kept.txt", target.target / "link")
    target.commit()
    target.git("config", "core.symlinks", "false")
    (target.target / "link").unlink()
    target.git("checkout", "-q", "--", "link")
    assert not (target.target / "link").is_symlink()
    plan = target.run("printf other.txt > link; echo more >> kept.txt")
    assert plan.apply()["applied"][0]["mode"] == "commit"
    assert target.git("ls-tree", "HEAD", "link")[:6] == "120000"
    assert target.git("show", "HEAD:link") == "other.txt"
    assert target.is_clean()


def test_a_mode_or_link_of_the_users_own_is_not_committed(target: Repository) -> None:
    os.symlink("kept.txt", target.target / "link")
    target.commit()
    (target.target / "kept.txt").chmod(0o755)
    assert target.refused(CHANGE, "true") == "kept.txt has uncommitted changes of your own"
    (target.target / "kept.txt").chmod(0o644)
    (target.target / "link").unlink()
    os.symlink("other.txt", target.target / "link")
    message = target.refused("ln -sfn nowhere link", "true")
    assert message == "link has uncommitted changes of your own"


def test_the_users_own_mode_is_not_in_a_branch(target: Repository) -> None:
    (target.target / "kept.txt").chmod(0o755)
    target.run(CHANGE).apply("branch")
    assert target.git("ls-tree", "agents/work", "kept.txt")[:6] == "100644"


def test_what_is_staged_while_it_is_applied_is_not_lost(target: Repository) -> None:
    """The hook runs between the comparison and the switch, as a quick user would."""
    hook = target.target / ".git/hooks/prepare-commit-msg"
    hook.write_text(
        "#!/bin/sh\nname=$(echo staged | git hash-object -w --stdin)\n"
        "git update-index --cacheinfo 100644,$name,kept.txt\n"
    )
    hook.chmod(0o755)
    plan = target.run("echo more >> other.txt; rm kept.txt")
    with pytest.raises(ApplyRefused):
        plan.apply("commit", hooks=True)
    assert target.git("diff", "--cached", "--name-only") == "kept.txt"
    assert (target.target / "other.txt").read_text() == LINES


def test_a_split_index_stays_readable(target: Repository) -> None:
    target.git("config", "core.splitIndex", "true")
    target.git("update-index", "--split-index")
    target.run(CHANGE).apply("commit")
    assert target.git("status", "--porcelain") == ""
    assert target.is_clean()
    assert target.git("fsck", "--strict") == ""


def test_what_git_does_not_know_of_leaves_it_clean(target: Repository) -> None:
    """A mode that no commit holds: the file is another one, and there is no commit."""
    head = target.git("rev-parse", "HEAD")
    [done] = target.run("chmod 600 kept.txt").apply("commit")["applied"]
    assert done["commit"] is None
    assert target.git("rev-parse", "HEAD") == head
    assert (target.target / "kept.txt").stat().st_mode & 0o777 == 0o600
    assert target.is_clean()


def test_a_branch_that_another_git_holds_for_a_moment_is_waited_for(target: Repository) -> None:
    plan = target.run(CHANGE)
    head = target.git("rev-parse", "HEAD").strip()
    argv = ["git", "update-ref", "--stdin"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=target.target, text=True, bufsize=1, **pipes) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(f"start\nupdate refs/heads/main {head} {head}\nprepare\n")
        assert [other.stdout.readline() for _ in range(2)] == ["start: ok\n", "prepare: ok\n"]

        def release() -> None:
            wait_until(lambda: ended or _is_moving_a_branch(), "our git finds the branch locked")
            begun = monotonic()  # git by itself gives up after a tenth of a second
            wait_until(lambda: ended or monotonic() > begun + 0.5, "it has waited")
            other.stdin.close()

        ended: list[bool] = []
        waits = Thread(target=release)
        waits.start()
        try:
            plan.apply("commit")
        finally:
            ended.append(True)
            waits.join()
    assert target.git("rev-parse", "HEAD~1").strip() == head
    assert target.is_clean()


def _is_moving_a_branch() -> bool:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"update-ref\0-m\0agents plan apply\0" in process.read_bytes():
                return True
    return False
