"""What a git index says is told from the stat data that git writes anew whenever it looks."""

import os
import subprocess
from pathlib import Path

import pytest

from cleveragents.sandbox.git.index_entries import meaning_of
from cleveragents.workspace import open_workspace

AGENT = "-c user.name=agent -c user.email=agent@example.org"


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(params=["sha1", "sha256"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", f"--object-format={request.param}")
    for number in range(20):
        (tmp_path / ("n" * number + "ame")).write_text(f"{number}\n")
    git(tmp_path, "add", ".")
    return tmp_path


def meaning(repository: Path) -> str | None:
    return meaning_of((repository / ".git/index").read_bytes())


def test_looking_at_files_again_means_the_same(repository: Path) -> None:
    before = meaning(repository)
    bytes_before = (repository / ".git/index").read_bytes()
    os.utime(repository / "name", (1, 1))
    git(repository, "update-index", "--refresh")
    assert (repository / ".git/index").read_bytes() != bytes_before
    assert before is not None
    assert meaning(repository) == before


@pytest.mark.parametrize(
    "change",
    [
        ("rm", "--cached", "-q", "name"),
        ("update-index", "--chmod=+x", "name"),
        ("update-index", "--assume-unchanged", "name"),
        ("update-index", "--skip-worktree", "name"),
    ],
)
def test_every_change_of_the_index_means_something_else(
    repository: Path, change: tuple[str, ...]
) -> None:
    before = meaning(repository)
    git(repository, *change)
    assert meaning(repository) not in (None, before)


def test_other_content_means_something_else(repository: Path) -> None:
    before = meaning(repository)
    (repository / "name").write_text("another\n")
    git(repository, "add", "name")
    assert meaning(repository) not in (None, before)


@pytest.mark.parametrize("data", [b"", b"DIRC", b"not an index at all", b"DIRC\0\0\0\2\0\0\0\5"])
def test_what_is_no_index_has_no_meaning(data: bytes) -> None:
    assert meaning_of(data) is None


def test_a_format_that_is_not_read_has_none_either(repository: Path) -> None:
    git(repository, "update-index", "--index-version", "4")
    assert meaning(repository) is None


def test_looking_between_calls_is_nobodys_change_also_when_their_checkpoints_were_pruned(
    tmp_path: Path, unconfined: None
) -> None:
    git(tmp_path, "init", "-q")
    calm = tmp_path / "calm"
    for name in ("calm", "file"):
        (tmp_path / name).write_text("old\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    app = {"kind": "git-checkout", "path": str(tmp_path), "strategy": "in_place"}
    with open_workspace() as ws:
        plan = ws.plan("p", resources={"app": app}, policy={"max_checkpoints_per_plan": 3})
        for number in range(8):
            with plan.decision(f"number {number}") as one:
                one.call("shell", command=f"echo {number} > file; git {AGENT} commit -aqm {number}")
            calm.chmod(calm.stat().st_mode)  # a new ctime: git notes it in the index
            git(tmp_path, "status")
        plan.complete()
        assert len(plan.checkpoints()) < 16, "none was pruned"
        plan.rollback(plan.checkpoints()[0].group_id)
    shown = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, check=True
    )
    assert shown.stdout == b""
