"""What apply finds in a target that moved on, and what a sandbox is made from."""

import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from cleveragents.apply import apply as applying
from cleveragents.content.copy import copying
from cleveragents.content.copy.census import census
from cleveragents.content.scope import Scope
from cleveragents.errors import (
    ApplyConflict,
    ApplyRefused,
    CarryLimit,
    ContentDamaged,
    PlanFileError,
    SandboxError,
    UsageError,
)
from cleveragents.model.resource import Resource
from cleveragents.model.settings import Settings
from cleveragents.sandbox import registry, tree
from cleveragents.sandbox.control import control_files
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.blobs import BaseTree, Blobs
from cleveragents.sandbox.protocol import ApplyOptions, Making, Place
from cleveragents.workspace import PlanHandle, Workspace, open_workspace

LINES = "".join(f"line {number}\n" for number in range(1, 10))


class Bench:
    """A store, one target, and plans of one shell step on it."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.target = root / "target"
        self.target.mkdir(parents=True)
        self._stack = stack
        self._ws: Workspace | None = None
        self.settings = Settings(home=str(root / "store"), confine="off")

    @property
    def ws(self) -> Workspace:
        if self._ws is None:
            self._ws = self._stack.enter_context(open_workspace(settings=self.settings))
        return self._ws

    def write(self, path: str, text: str | bytes = "text\n", mode: int = 0o644) -> Path:
        where = self.target / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(text.encode() if isinstance(text, str) else text)
        where.chmod(mode)
        return where

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.target, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def repository(self, *options: str) -> None:
        self.git("init", "-q", "-b", "main", *options)
        self.write("kept.txt", LINES)
        self.commit()

    def commit(self, message: str = "more") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def plan_file(self, step: str, more: str = "", others: str = "") -> str:
        kind = "git-checkout" if (self.target / ".git").exists() else "fs-directory"
        file = self.root / "plan.yaml"
        file.write_text(
            f"name: work\nresources:\n  app: {{kind: {kind}, path: target{more}}}\n{others}"
            f"steps:\n  - {{id: one, on: app, run: {step!r}}}\n"
        )
        return str(file)

    def run(self, step: str, more: str = "", others: str = "") -> PlanHandle:
        plan = self.ws.run(self.plan_file(step, more, others))
        assert plan.plan.error is None, plan.plan.error
        return plan

    def conflicts(self, plan: PlanHandle) -> dict[str, str]:
        """Path -> reason, of an apply that must change nothing."""
        before = look(self.target)
        with pytest.raises(ApplyConflict) as caught:
            plan.apply("changes")
        assert look(self.target) == before
        return {item.path: item.reason for item in caught.value.conflicts}


def look(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every path outside .git with its mode and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] == ".git":
            continue
        mode = path.lstat().st_mode
        text = b""
        if stat.S_ISLNK(mode):
            text = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
            text = path.read_bytes()
        found[name] = (mode, text)
    return found


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path / "bench", stack)


# a directory that moved on: folders


def test_a_new_file_brings_back_the_folder_the_target_lost(bench: Bench) -> None:
    bench.write("a/b/old")
    plan = bench.run("echo new > a/b/new")
    (bench.target / "a/b/old").unlink()
    (bench.target / "a/b").rmdir()
    (bench.target / "a").rmdir()
    plan.apply()
    assert (bench.target / "a/b/new").read_text() == "new\n"
    assert not (bench.target / "a/b/old").exists()


def test_a_file_the_plan_changed_conflicts_with_its_lost_folder(bench: Bench) -> None:
    file = bench.write("a/old")
    plan = bench.run("echo more >> a/old")
    file.unlink()
    file.parent.rmdir()
    assert bench.conflicts(plan) == {"a/old": "changed by the plan, removed in the target"}


def test_what_both_sides_removed_is_no_conflict(bench: Bench) -> None:
    one, two = bench.write("a/one"), bench.write("two")
    plan = bench.run("rm -r a two; echo new > new")
    one.unlink()
    one.parent.rmdir()
    two.unlink()
    plan.apply()
    assert list(look(bench.target)) == ["new"]


def test_a_folder_that_became_a_file_conflicts(bench: Bench) -> None:
    file = bench.write("a/old")
    plan = bench.run("echo more >> a/old")
    file.unlink()
    file.parent.rmdir()
    bench.write("a", "a file now\n")
    assert bench.conflicts(plan) == {"a/old": "its folder is no longer a directory"}


def test_a_folder_that_became_a_link_is_not_followed(bench: Bench) -> None:
    file = bench.write("a/old")
    plan = bench.run("echo more >> a/old")
    outside = bench.root / "outside"
    file.parent.rename(outside)
    (bench.target / "a").symlink_to(outside)
    assert bench.conflicts(plan) == {"a/old": "its folder is no longer a directory"}
    assert (outside / "old").read_text() == "text\n"


def test_a_plan_may_turn_a_file_into_a_folder_and_back(bench: Bench) -> None:
    bench.write("file")
    bench.write("folder/inner")
    plan = bench.run("rm -r file folder; mkdir file; echo in > file/inner; echo out > folder")
    plan.apply()
    assert (bench.target / "file/inner").read_text() == "in\n"
    assert (bench.target / "folder").read_text() == "out\n"


def test_a_removed_folder_stays_while_the_user_has_something_in_it(bench: Bench) -> None:
    bench.write("a/inner/old")
    bench.write("a/other")
    plan = bench.run("rm -r a")
    bench.write("a/inner/mine", "mine\n")
    plan.apply()
    files = {name for name in look(bench.target) if (bench.target / name).is_file()}
    assert files == {"a/inner/mine"}


def test_a_removed_folder_whose_mode_the_user_changed_goes_too(bench: Bench) -> None:
    folder = bench.write("a/old").parent
    plan = bench.run("rm -r a")
    folder.chmod(0o700)
    plan.apply()
    assert not folder.exists()


def test_a_folder_both_sides_made_keeps_the_mode_of_the_target(bench: Bench) -> None:
    plan = bench.run("mkdir -m 755 a; echo new > a/new")
    (bench.target / "a").mkdir(mode=0o700)
    plan.apply()
    assert stat.S_IMODE((bench.target / "a").stat().st_mode) == 0o700
    assert (bench.target / "a/new").read_text() == "new\n"


def test_a_folder_on_one_side_and_a_file_on_the_other_conflict(bench: Bench) -> None:
    plan = bench.run("mkdir a")
    bench.write("a", "a file\n")
    assert bench.conflicts(plan) == {"a": "a directory on one side only"}


def test_a_folder_only_the_plan_changed_the_mode_of_may_be_gone(bench: Bench) -> None:
    folder = bench.write("a/old").parent
    plan = bench.run("chmod 700 a; echo new > new")
    (folder / "old").unlink()
    folder.rmdir()
    plan.apply()
    assert list(look(bench.target)) == ["new"]


# a directory that moved on: files


def test_changes_of_different_lines_are_merged(bench: Bench) -> None:
    file = bench.write("file", LINES)
    plan = bench.run("sed -i s/line.1/plan/ file; chmod 755 file")
    file.write_text(LINES.replace("line 9", "user"))
    plan.apply()
    assert file.read_text() == LINES.replace("line 9", "user").replace("line 1\n", "plan\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


def test_a_mode_of_the_user_and_a_text_of_the_plan_are_both_kept(bench: Bench) -> None:
    file = bench.write("file", LINES)
    plan = bench.run("echo more >> file")
    file.chmod(0o600)
    plan.apply()
    assert file.read_text() == LINES + "more\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_text_of_the_user_and_a_mode_of_the_plan_are_both_kept(bench: Bench) -> None:
    file = bench.write("file", LINES)
    plan = bench.run("chmod 755 file")
    file.write_text("mine\n")
    plan.apply()
    assert file.read_text() == "mine\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("step", "theirs", "reason"),
    [
        ("echo plan > file", b"user\n", "changed on both sides in the same place"),
        (
            "printf 'a\\0b' > file",
            b"x\n" + LINES.encode(),
            "changed on both sides in the same place",
        ),
        ("rm file", b"user\n", "changed on both sides"),
        ("ln -sf kept file", b"user\n", "changed on both sides"),
        ("echo plan > file", None, "changed on both sides"),
    ],
)
def test_one_file_changed_on_both_sides_is_a_conflict(
    bench: Bench, step: str, theirs: bytes | None, reason: str
) -> None:
    file = bench.write("file", LINES)
    plan = bench.run(step)
    if theirs is None:
        file.unlink()
    else:
        file.write_bytes(theirs)
    assert bench.conflicts(plan) == {"file": reason}


def test_two_different_modes_are_a_conflict(bench: Bench) -> None:
    file = bench.write("file", LINES)
    plan = bench.run("chmod 755 file")
    file.chmod(0o600)
    assert bench.conflicts(plan) == {"file": "changed on both sides in the same place"}


def test_two_new_files_of_one_name_conflict_unless_they_are_equal(bench: Bench) -> None:
    plan = bench.run("echo same > same; echo plan > other; ln -s here link; ln -s a differs")
    bench.write("same", "same\n")
    bench.write("other", "user\n")
    (bench.target / "link").symlink_to("here")
    (bench.target / "differs").symlink_to("b")
    assert set(bench.conflicts(plan)) == {"other", "differs"}


def test_after_a_conflict_is_resolved_the_plan_applies(bench: Bench) -> None:
    file = bench.write("file", "old\n")
    plan = bench.run("echo plan > file")
    file.write_text("user\n")
    assert bench.conflicts(plan)
    file.write_text("old\n")
    plan.apply()
    assert file.read_text() == "plan\n"


def test_files_that_make_tools_run_are_named_before_apply(bench: Bench) -> None:
    plan = bench.run("mkdir -p .github/workflows; touch .github/workflows/ci.yml CLAUDE.md plain")
    (proposal,) = applying.preview_apply(bench.ws.ctx, plan.plan, applying.Request())
    assert set(proposal.control_files) == {".github/workflows/ci.yml", "CLAUDE.md"}
    assert "plain" in proposal.files
    assert look(bench.target) == {}
    assert control_files([b"sub/.git/config", b"gitconfig"]) == ("sub/.git/config",)


# what of a repository is carried


def sandbox_of(plan: PlanHandle) -> Path:
    return Path(plan.sandboxes["app"])


def test_carry_tracked_takes_the_tracked_files_as_they_are_now(bench: Bench) -> None:
    bench.repository()
    bench.write("a/b/deep")
    bench.commit()
    bench.write("kept.txt", "edited\n")
    bench.write("untracked")
    bench.write("a/untracked")
    plan = bench.run("true", ", carry: tracked")
    found = look(sandbox_of(plan))
    assert set(found) == {"kept.txt", "a", "a/b", "a/b/deep"}
    assert found["kept.txt"][1] == b"edited\n"


def test_carry_committed_takes_the_commit_and_nothing_newer(bench: Bench) -> None:
    bench.repository()
    bench.write("bin/tool", "#!/bin/sh\n", 0o755)
    bench.write("left/out")
    (bench.target / "link").symlink_to("bin/tool")
    bench.commit()
    bench.write("kept.txt", "edited\n")
    bench.write("untracked")
    plan = bench.run("true", ", carry: committed, exclude: [left]")
    found = look(sandbox_of(plan))
    assert set(found) == {"kept.txt", "bin", "bin/tool", "link"}
    assert found["kept.txt"][1] == LINES.encode()
    assert found["link"][1] == b"bin/tool"
    assert stat.S_IMODE(found["bin/tool"][0]) == 0o755


def test_remotes_and_identity_are_known_in_the_sandbox(bench: Bench) -> None:
    bench.repository()
    bench.git("remote", "add", "origin", 'https://example.invalid/a"b.git')
    bench.git("config", "user.name", "Some One")
    bench.git("tag", "v1")
    where = sandbox_of(bench.run("true"))
    config = ["git", "-C", str(where), "config", "--get"]
    for key, value in (
        ("remote.origin.url", 'https://example.invalid/a"b.git'),
        ("user.name", "Some One"),
    ):
        assert subprocess.check_output([*config, key], text=True).rstrip("\n") == value
    tags = subprocess.check_output(["git", "-C", str(where), "tag"], text=True)
    assert tags == "v1\n"


def test_ignored_files_stay_out_unless_they_are_asked_for(bench: Bench) -> None:
    bench.repository()
    bench.write(".gitignore", "*.log\n")
    bench.write(".git/info/exclude", "private\n")
    bench.commit()
    plan = bench.run("touch a.log private seen")
    (seen,) = applying.preview_apply(bench.ws.ctx, plan.plan, applying.Request())
    assert (set(seen.files), seen.ignored_count) == ({"seen"}, 2)
    plan.apply(ignored=True)
    assert {"a.log", "private", "seen"} < set(look(bench.target))


# apply to a repository


def test_a_clean_repository_gets_a_commit(bench: Bench) -> None:
    bench.repository()
    bench.write("gone")
    before = bench.commit()
    plan = bench.run("echo new > new; chmod 755 new; rm gone; ln -s new link")
    plan.apply()
    assert bench.git("rev-parse", "HEAD~1") == before
    assert bench.git("status", "--porcelain") == ""
    listed = bench.git("ls-tree", "HEAD").splitlines()
    assert {line.split()[3]: line.split()[0] for line in listed} == {
        "kept.txt": "100644",
        "link": "120000",
        "new": "100755",
    }


def test_apply_waits_for_another_git_command(bench: Bench) -> None:
    bench.repository()
    plan = bench.run("echo new > new")
    lock = bench.write(".git/index.lock", "")
    with pytest.raises(ApplyRefused, match="another git command"):
        plan.apply()
    assert not (bench.target / "new").exists()
    lock.unlink()
    plan.apply()
    assert (bench.target / "new").exists()


def test_apply_is_refused_on_another_branch(bench: Bench) -> None:
    bench.repository()
    plan = bench.run("echo new > new")
    bench.git("checkout", "-q", "-b", "other")
    with pytest.raises(ApplyRefused, match="was on main and is on other now"):
        plan.apply()
    bench.git("checkout", "-q", "main")
    plan.apply("commit")
    assert bench.git("ls-tree", "--name-only", "main").split() == ["kept.txt", "new"]


def test_a_detached_head_gets_changes_and_no_commit(bench: Bench) -> None:
    bench.repository()
    bench.git("checkout", "-q", "--detach")
    before = bench.git("rev-parse", "HEAD")
    plan = bench.run("echo new > new")
    with pytest.raises(ApplyRefused, match="detached HEAD"):
        plan.apply("commit")
    plan.apply()
    assert bench.git("rev-parse", "HEAD") == before
    assert bench.git("status", "--porcelain") == "?? new"


@pytest.mark.parametrize(
    ("attributes", "step", "reason"),
    [
        ("*.dat filter=lfs", "echo x > a.dat", "a.dat goes through a git filter"),
        ("*.dat ident", "echo x > a.dat", "a.dat goes through a git filter"),
        ("*.txt text", "printf 'a\\r\\n' > a.txt", "a.txt has line endings that git converts"),
    ],
)
def test_what_git_would_convert_is_never_committed(
    bench: Bench, attributes: str, step: str, reason: str
) -> None:
    bench.repository()
    bench.write(".gitattributes", attributes + "\n")
    before = bench.commit()
    plan = bench.run(step)
    with pytest.raises(ApplyRefused, match=reason):
        plan.apply("commit")
    plan.apply()
    assert bench.git("rev-parse", "HEAD") == before
    assert bench.git("status", "--porcelain").startswith("?? a.")


def test_autocrlf_keeps_only_files_with_such_line_endings_out_of_a_commit(bench: Bench) -> None:
    bench.repository()
    bench.git("config", "core.autocrlf", "input")
    before = bench.git("rev-parse", "HEAD")
    bench.run("printf 'a\\r\\n' > a.txt").apply()
    assert bench.git("rev-parse", "HEAD") == before
    (bench.target / "a.txt").unlink()
    bench.run("printf 'a\\n' > a.txt").apply()
    assert bench.git("rev-parse", "HEAD~1") == before


@pytest.mark.parametrize("mode", ["commit", "branch"])
def test_a_file_that_git_converts_is_not_called_changed_by_its_owner(
    bench: Bench, mode: str
) -> None:
    bench.repository()
    bench.git("config", "core.autocrlf", "true")
    (bench.target / "a.txt").write_bytes(b"one\r\n")
    bench.commit()
    assert bench.git("status", "--porcelain") == ""
    plan = bench.run("printf 'two\\r\\n' >> a.txt")
    with pytest.raises(ApplyRefused, match=r"a.txt has line endings that git converts"):
        plan.apply(mode)


def test_the_users_uncommitted_changes_are_never_committed(bench: Bench) -> None:
    bench.repository()
    bench.write("other")
    before = bench.commit()
    bench.write("kept.txt", "mine\n")
    plan = bench.run("echo plan >> kept.txt")
    for mode in ("commit", "branch"):
        with pytest.raises(ApplyRefused, match=r"kept.txt has uncommitted changes of your own"):
            plan.apply(mode)
    plan.apply()
    assert (bench.target / "kept.txt").read_text() == "mine\nplan\n"
    assert bench.git("rev-parse", "HEAD") == before


def test_a_commit_that_is_asked_for_leaves_other_uncommitted_changes_alone(bench: Bench) -> None:
    bench.repository()
    bench.write("other")
    bench.commit()
    bench.write("other", "mine, and longer\n")
    plan = bench.run("echo new > new")
    plan.apply("commit")
    assert bench.git("show", "--name-only", "--format=").split() == ["new"]
    assert bench.git("status", "--porcelain") == "M other"


def test_unasked_one_uncommitted_change_makes_it_plain_changes(bench: Bench) -> None:
    bench.repository()
    before = bench.git("rev-parse", "HEAD")
    bench.write("kept.txt", "mine\n")
    bench.run("echo new > new").apply()
    assert bench.git("rev-parse", "HEAD") == before
    assert (bench.target / "new").read_text() == "new\n"


def test_as_changes_leaves_even_a_clean_repository_without_a_commit(bench: Bench) -> None:
    bench.repository()
    before = bench.git("rev-parse", "HEAD")
    plan = bench.run("echo plan > kept.txt")
    bench.write("kept.txt", "user\n")
    assert bench.conflicts(plan) == {"kept.txt": "changed on both sides in the same place"}
    bench.git("checkout", "-q", "kept.txt")
    plan.apply("changes")
    assert bench.git("rev-parse", "HEAD") == before
    assert bench.git("status", "--porcelain") == "M kept.txt"


def test_as_branch_leaves_the_checkout_alone(bench: Bench) -> None:
    bench.repository()
    before, files = bench.git("rev-parse", "HEAD"), look(bench.target)
    plan = bench.run("echo new > new")
    bench.git("checkout", "-q", "-b", "other")
    plan.apply("branch")
    assert look(bench.target) == files
    assert bench.git("rev-parse", "agents/work~1", "HEAD").split() == [before, before]
    assert bench.git("show", "agents/work:new") == "new"


def test_as_branch_never_moves_a_branch_that_exists(bench: Bench) -> None:
    bench.repository()
    bench.git("branch", "agents/work")
    before = bench.git("rev-parse", "agents/work")
    plan = bench.run("echo new > new")
    with pytest.raises(ApplyRefused, match="branch agents/work already exists"):
        plan.apply("branch")
    assert bench.git("rev-parse", "agents/work") == before
    bench.git("branch", "-D", "agents/work")
    plan.apply("branch")
    assert bench.git("show", "agents/work:new") == "new"


def test_a_repository_without_a_commit_gets_its_first_one(bench: Bench) -> None:
    bench.git("init", "-q", "-b", "main")
    plan = bench.run("echo new > new")
    with pytest.raises(ApplyRefused, match="no commit to branch from"):
        plan.apply("branch")
    plan.apply("commit")
    assert bench.git("rev-list", "--count", "main") == "1"
    assert bench.git("show", "main:new") == "new"


def test_one_target_that_cannot_be_switched_leaves_every_target_as_it_was(bench: Bench) -> None:
    bench.repository()
    docs, other = bench.root / "docs", bench.root / "zoo"
    docs.mkdir()
    (docs / "file").write_text("old\n")
    subprocess.run(["git", "clone", "-q", str(bench.target), str(other)], check=True)
    others = "  docs: {kind: fs-directory, path: docs}\n  zoo: {kind: git-checkout, path: zoo}\n"
    step = 'echo new > new; echo new > "$AGENTS_SANDBOX_ZOO/new"; rm "$AGENTS_SANDBOX_DOCS/file"'
    plan = bench.run(step, others=others)
    roots = (bench.target, docs, other)
    before = [look(root) for root in roots]
    tip = bench.git("rev-parse", "HEAD")
    lock = other / ".git/refs/heads/main.lock"
    lock.touch()
    with pytest.raises(ApplyRefused, match="branch main could not be moved"):
        plan.apply()
    assert [look(root) for root in roots] == before
    for root in (bench.target, other):
        status = ["git", "-C", str(root), "status", "--porcelain"]
        assert subprocess.check_output(status) == b""
    assert bench.git("rev-parse", "HEAD") == tip
    lock.unlink()
    plan.apply()
    assert bench.git("rev-parse", "HEAD~1") == tip
    assert (other / "new").read_text() == "new\n"
    assert not (docs / "file").exists()


def test_a_split_index_is_understood(bench: Bench) -> None:
    bench.repository()
    bench.git("update-index", "--split-index")
    before = bench.git("rev-parse", "HEAD")
    bench.run("rm kept.txt; echo new > new").apply()
    assert bench.git("rev-parse", "HEAD~1") == before
    assert bench.git("status", "--porcelain") == ""


def test_a_plan_that_only_removes_gets_its_commit_too(bench: Bench) -> None:
    bench.repository()
    bench.write("gone")
    bench.commit()
    bench.run("rm gone").apply()
    assert bench.git("show", "--name-status", "--format=") == "D\tgone"


def test_a_file_the_user_never_added_is_not_committed(bench: Bench) -> None:
    bench.repository()
    before = bench.git("rev-parse", "HEAD")
    bench.write("mine", "mine\n")
    plan = bench.run("echo plan >> mine")
    with pytest.raises(ApplyRefused, match="mine has uncommitted changes of your own"):
        plan.apply("commit")
    plan.apply()
    assert bench.git("rev-parse", "HEAD") == before
    assert (bench.target / "mine").read_text() == "mine\nplan\n"


def test_an_empty_folder_makes_no_empty_commit(bench: Bench) -> None:
    bench.repository()
    before = bench.git("rev-parse", "HEAD")
    bench.run("mkdir empty").apply()
    assert (bench.target / "empty").is_dir()
    assert bench.git("rev-parse", "HEAD") == before


def test_unasked_a_repository_without_a_commit_gets_one(bench: Bench) -> None:
    bench.git("init", "-q", "-b", "main")
    bench.run("echo new > new").apply()
    assert bench.git("ls-tree", "--name-only", "main") == "new"


def test_a_repository_copied_whole_is_applied_without_its_git_directory(bench: Bench) -> None:
    bench.repository()
    before = bench.git("rev-parse", "HEAD")
    step = "echo new > new; git add new; git -c user.name=x -c user.email=x commit -q -m tool"
    bench.run(step, ", strategy: copy_on_write").apply()
    assert bench.git("rev-parse", "HEAD") == before
    assert bench.git("status", "--porcelain") == "?? new"


def test_one_plan_that_ends_leaves_the_ref_of_another(bench: Bench) -> None:
    bench.repository()
    ending, staying = bench.run("echo a > a"), bench.run("echo b > b")
    ending.delete(force=True)
    assert bench.git("for-each-ref", "--format=%(refname)", "refs/cleveragents") == (
        f"refs/cleveragents/{staying.plan_id}"
    )


# repositories of other shapes


def test_a_plan_still_tells_its_work_when_the_repository_is_gone(bench: Bench) -> None:
    bench.repository()
    plan = bench.run("rm kept.txt; echo new > new")
    shutil.rmtree(bench.target / ".git")
    with open_workspace(settings=bench.settings) as later:
        files = later.find(plan.plan_id).diff("first", "last").files
    assert {item.path for item in files} == {"kept.txt", "new"}


def test_a_base_commit_that_git_cannot_read_is_an_error_and_not_an_empty_tree(
    bench: Bench,
) -> None:
    bench.repository()
    repository = command.locate(str(bench.target))
    base = BaseTree(lambda: repository, bench.git("rev-parse", "HEAD"))
    shutil.rmtree(bench.target / ".git")
    try:
        with pytest.raises(SandboxError, match="cannot read the base commit"):
            base.get(b"kept.txt")
    finally:
        base.close()


def test_without_git_one_is_told_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="git is not installed"):
        command.run("--version")


def test_a_folder_of_a_repository_is_refused_and_the_repository_is_named(bench: Bench) -> None:
    bench.repository()
    (bench.target / "sub").mkdir()
    with pytest.raises(SandboxError, match="lies inside the repository") as caught:
        command.locate(str(bench.target / "sub"))
    assert str(bench.target) in (caught.value.hint or "")
    with pytest.raises(SandboxError, match="is not a git repository"):
        command.locate(str(bench.root))


def test_a_repository_whose_path_has_a_newline_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "a\nb"
    odd.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=odd, check=True)
    with pytest.raises(SandboxError, match="newline"):
        command.locate(str(odd))


def test_a_sha256_repository_is_sandboxed_and_gets_its_commit(bench: Bench) -> None:
    try:
        bench.repository("--object-format=sha256")
    except subprocess.CalledProcessError:
        pytest.skip("this git has no sha256")
    plan = bench.run("git log --format=%H -1 > seen; rm kept.txt")
    before = bench.git("rev-parse", "HEAD")
    plan.apply("commit")
    assert bench.git("show", "HEAD:seen") == before
    assert len(before) == 64
    assert bench.git("ls-tree", "--name-only", "HEAD") == "seen"
    assert bench.git("status", "--porcelain") == ""


def test_a_shallow_clone_is_shallow_in_the_sandbox_too(bench: Bench) -> None:
    bench.repository()
    bench.write("second")
    bench.commit()
    origin = bench.root / "origin"
    bench.target.rename(origin)
    url = f"file://{origin}"
    subprocess.run(["git", "clone", "-q", "--depth=1", url, str(bench.target)], check=True)
    plan = bench.run("git rev-list --count HEAD > count")
    assert (sandbox_of(plan) / "count").read_text() == "1\n"


def test_a_blob_that_is_gone_is_damage_and_not_an_empty_file(bench: Bench) -> None:
    bench.repository()
    name = bench.git("rev-parse", "HEAD:kept.txt")
    repository = command.locate(str(bench.target))
    blobs = Blobs(lambda: repository)
    try:
        assert blobs.get(b"g" + bytes.fromhex(name)) == LINES.encode()
        with pytest.raises(ContentDamaged, match="no longer in"):
            blobs.get(b"g" + bytes(20))
    finally:
        blobs.close()


def test_a_base_tree_answers_alike_one_by_one_and_all_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.repository()
    bench.write("a/b")
    commit = bench.commit()
    repository = command.locate(str(bench.target))
    paths = (b"kept.txt", b"a", b"a/b", b"not there", b"kept.txt", b"odd\nname")
    answers = []
    for many in (500, 0):
        monkeypatch.setattr(BaseTree, "MANY", many)
        base = BaseTree(lambda: repository, commit)
        answers.append([base.get(path) for path in paths])
        base.close()
    assert answers[0] == answers[1]
    found = dict(zip(paths, answers[0], strict=True))
    assert found[b"kept.txt"] is not None
    assert found[b"kept.txt"][1] == len(LINES)
    assert found[b"a"] is found[b"not there"] is None


def test_a_git_command_that_fails_shows_what_git_said(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="git rev-parse failed"):
        command.run("rev-parse", "--verify", "HEAD", cwd=str(tmp_path))
    with pytest.raises(SandboxError, match="no such directory"):
        command.run("status", cwd=str(tmp_path / "absent"))


# no sandbox


def test_a_resource_without_a_sandbox_is_worked_on_itself_and_never_rolled_back(
    bench: Bench,
) -> None:
    real = bench.root / "real"
    real.mkdir()
    file = shlex.quote(str(real / "done"))
    others = "  real: {kind: fs-directory, path: real, strategy: none, require_sandbox: false}\n"
    plan = bench.run(f"echo x > here; echo x > {file}", others=others)
    assert plan.sandboxes["real"] == str(real)
    assert (real / "done").exists()
    plan.rollback("first")
    assert not (sandbox_of(plan) / "here").exists()
    assert (real / "done").exists(), "nothing of it was kept, so nothing can be put back"
    plan.resume()
    plan.apply()
    assert (bench.target / "here").exists()
    assert list(real.iterdir()) == [real / "done"]


def test_a_plan_without_any_sandbox_is_refused_before_it_begins(bench: Bench) -> None:
    file = bench.root / "bare.yaml"
    file.write_text(
        "name: bare\npolicy: {require_checkpoints: false}\nsteps: [{id: a, run: touch x}]\n"
        "resources: {raw: {kind: fs-directory, path: ., strategy: none, require_sandbox: false}}\n"
    )
    with pytest.raises(PlanFileError, match="no resource has a sandbox: 'raw'"):
        bench.ws.use(str(file))
    assert bench.ws.plans() == []


def test_no_sandbox_has_to_be_asked_for_twice(bench: Bench) -> None:
    with pytest.raises(UsageError, match="require_sandbox: false"):
        bench.ws.run(bench.plan_file("true", ", strategy: none"))


def test_no_sandbox_promises_nothing_and_says_so(bench: Bench) -> None:
    resource = Resource(
        resource_id="r",
        plan_id="p",
        name="real",
        kind="fs-directory",
        path=str(bench.target),
        strategy="none",
    )
    packs = bench.ws.ctx.manager.packs
    place = Place(plan_id="p", resource=resource, root="", path=resource.path, packs=packs)
    making = Making(limit_bytes=0, limit_files=0, confirm=lambda *_: None, progress=lambda *_: None)
    with pytest.raises(SandboxError, match="cannot be rolled back"):
        registry.open_sandbox(place).create(making)
    meant = msgspec.structs.replace(resource, require_sandbox=False)
    sandbox = registry.open_sandbox(msgspec.structs.replace(place, resource=meant))
    assert sandbox.create(making) == {"path": str(bench.target)}
    bench.write("file")
    with packs.batch() as batch:
        state = sandbox.capture(batch, None)
        bench.write("file", "changed\n")
        assert sandbox.recapture(batch, {}) == state
        assert sandbox.changes(state, state) == ()
        options = ApplyOptions(mode=None, ignored=False, message="", branch="", staging="")
        proposal = sandbox.compare(state, state, options, batch)
    assert (proposal.mode, proposal.files) == ("none", ())
    assert sandbox.applied(sandbox.stage_apply(proposal, options)).files == 0
    sandbox.switch(sandbox.stage(state, state, ""), "")
    sandbox.remove()
    assert (bench.target / "file").read_text() == "changed\n"


# registry


def test_every_built_in_sandbox_can_be_loaded_and_an_unknown_one_is_named() -> None:
    for kind, strategy in registry.BUILT_IN:
        assert registry.factory(kind, strategy).strategy == strategy
    with pytest.raises(UsageError, match="no sandbox for sqlite with strategy 'other'"):
        registry.factory("sqlite", "other")


def test_a_kind_that_another_package_registers_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINTS}]\nmine:special = cleveragents.sandbox.none:NoSandbox\n"
        "plain = cleveragents.sandbox.none:NoSandbox\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.registered.cache_clear()
    try:
        assert registry.kinds()["mine"] == ("special",)
        assert registry.kinds()["plain"] == ("default",)
        assert registry.factory("mine", "special").strategy == "none"
    finally:
        registry.registered.cache_clear()


# what is copied


def test_the_mode_of_the_directory_itself_is_a_change_and_is_rolled_back(bench: Bench) -> None:
    plan = bench.run("chmod 770 .")
    where = sandbox_of(plan)
    assert stat.S_IMODE(where.stat().st_mode) == 0o770
    plan.rollback("first")
    assert stat.S_IMODE(where.stat().st_mode) != 0o770


def test_links_are_shown_by_diff_as_their_text(bench: Bench) -> None:
    plan = bench.run("ln -s some/where link; mkdir folder")
    patch = plan.diff("first").patch
    assert "new file mode 120000" in patch
    assert "+some/where" in patch


def test_above_the_carry_limit_the_largest_folders_are_named(bench: Bench) -> None:
    bench.settings = Settings(home=str(bench.root / "store"), confine="off", carry_limit_bytes=5000)
    bench.write("small/file", b"x" * 10)
    bench.write("huge/file", b"x" * 9000)
    with pytest.raises(CarryLimit, match=r"'app' has 2 files.*the largest: huge") as caught:
        bench.ws.run(bench.plan_file("true"))
    assert "exclude: [huge, small]" in (caught.value.hint or "")
    bench.run("true", ", exclude: [huge]")


def test_an_inner_resource_is_linked_in_and_the_link_is_restored_by_rollback(bench: Bench) -> None:
    bench.write("deep/inner/file", "inner\n")
    others = "  inner: {kind: fs-directory, path: target/deep/inner}\n"
    plan = bench.run("echo x > deep/inner/new; echo x > outer", others=others)
    link = sandbox_of(plan) / "deep/inner"
    text = os.readlink(link)
    assert link.resolve() == Path(plan.sandboxes["inner"])
    for spoil in (lambda: None, *spoilers(link)):
        spoil()
        plan.rollback("first")
        assert os.readlink(link) == text
        assert [path.name for path in link.iterdir()] == ["file"]


def spoilers(link: Path) -> tuple[Callable[[], object], ...]:
    def by_folder() -> None:
        link.unlink()
        (link / "below").mkdir(parents=True)

    def by_file() -> None:
        link.unlink()
        link.write_text("not a link\n")

    return by_folder, by_file, link.unlink


def test_a_fifo_is_copied_as_one_and_nobody_waits_for_it(bench: Bench) -> None:
    os.mkfifo(bench.target / "pipe", 0o640)
    os.chmod(bench.target / "pipe", 0o640)
    (bench.target / "link").symlink_to("nowhere")
    copy = bench.root / "copy"
    copy.mkdir()
    copied: list[int] = []
    bench.write("file", b"x" * 10, 0o751)
    bench.write("left/out")
    copying.Copier(Scope(), lambda path, _: path != b"left", copied.append).copy(
        str(bench.target), str(copy)
    )
    want = look(bench.target)
    assert look(copy) == {name: want[name] for name in ("pipe", "link", "file")}
    assert copied == [10]


@pytest.fixture
def unprivileged() -> Generator[Path]:
    """A folder that a user without privileges may use, and to be one while the test runs."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_file_that_cannot_be_read_is_named_and_not_left_out(unprivileged: Path) -> None:
    source, copy = unprivileged / "source", unprivileged / "copy"
    (source / "sub").mkdir(parents=True)
    copy.mkdir()
    (source / "sub/secret").write_text("secret")
    (source / "sub/secret").chmod(0)
    with pytest.raises(SandboxError, match="sub/secret cannot be copied: Permission") as caught:
        copying.Copier(Scope(), lambda _path, _is_dir: True, lambda _size: None).copy(
            str(source), str(copy)
        )
    assert "'sub/secret' to the resource's exclude" in (caught.value.hint or "")


def test_a_folder_that_cannot_be_read_is_named_before_anything_is_copied(
    unprivileged: Path,
) -> None:
    closed = unprivileged / "closed"
    closed.mkdir(mode=0)
    try:
        with pytest.raises(SandboxError, match="closed cannot be read: Permission denied"):
            census(str(unprivileged), Scope())
        assert census(str(unprivileged), Scope(exclude=(b"closed",))).files == 0
    finally:
        closed.chmod(0o700)


def test_a_directory_that_is_missing_cannot_be_counted(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot be read: No such file"):
        census(str(tmp_path / "absent"), Scope())


def test_roots_that_hold_everything_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    tree.require_not_too_wide(str(home / "work"))
    for wide in ("/", str(home), str(tmp_path)):
        with pytest.raises(SandboxError, match="is not sandboxed"):
            tree.require_not_too_wide(wide)
    with pytest.raises(SandboxError, match="is not sandboxed"):
        tree.require_not_too_wide(str(home / "work"), str(home / "work/store"))
    with pytest.raises(SandboxError, match="no such directory"):
        tree.require_not_too_wide(str(home / "absent"))
