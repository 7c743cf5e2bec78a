"""A rollback in place that can go neither on nor back is finished later, and never forgotten."""

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content import fsio
from cleveragents.errors import AgentsError, DiskFull
from cleveragents.workspace import PlanHandle, open_workspace
from tests.in_process import Arm, Yard
from tests.needed import needs

ROOT = os.geteuid() == 0
PLAN = """\
name: here
resources: {docs: {kind: fs-directory, path: docs, strategy: in_place}}
steps:
  - id: one
    run: "echo new > a; rm -r d; echo new > sub/b; mkdir -p sub/n; echo n > sub/n/n"
"""


def files(folder: Path) -> dict[str, str]:
    return {
        os.fspath(path.relative_to(folder)): path.read_text() if path.is_file() else "/"
        for path in sorted(folder.rglob("*"))
    }


def locked(on: bool, *folders: Path) -> None:
    """Nothing in them can be changed, as on a disk that failed and is read-only now."""
    if not ROOT:
        for folder in folders:
            folder.chmod(0o555 if on else 0o755)
        return
    done = subprocess.run(
        ["chattr", "+i" if on else "-i", *folders], check=False, capture_output=True
    )
    if on and done.returncode:
        pytest.skip(f"folders cannot be made immutable here: {done.stderr!r}")


def at_the(number: int, wanted: str, do: Callable[[], object]) -> Callable[[str], None]:
    """For `fsio.arm`: something happens just before the n-th change of a kind."""
    left = [number]

    def act(point: str) -> None:
        if point == wanted:
            left[0] -= 1
            if left[0] == 0:
                do()

    return act


@pytest.mark.parametrize(("kind", "number"), [("rename", 2), ("mkdir", 1), ("exchange", 2)])
def test_what_can_go_neither_on_nor_back_is_finished_by_the_next_command(
    yard: Yard, arm: Arm, kind: str, number: int
) -> None:
    if ROOT:
        needs("chattr")
    docs = yard.top / "docs"
    for name in ("a", "d/c", "sub/b"):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text("old\n")
    old = files(docs)
    try:
        with open_workspace() as ws:
            plan = ws.use(yard.plan(PLAN))
            plan.execute()
            new = files(docs)
            assert new != old
            (docs / "mine").write_text("mine\n")
            arm(at_the(number, kind, lambda: locked(True, docs, docs / "sub")))
            with pytest.raises(AgentsError, match="half done"):
                plan.rollback(plan.checkpoints()[0].group_id)
            fsio.arm(None)
            half = files(docs)
            del half["mine"]
            assert half not in (old, new)
            assert_refused(plan)
    finally:
        locked(False, docs, docs / "sub")
    with open_workspace() as ws:
        found = files(docs)
        assert found.pop("mine") == "mine\n"
        assert found == old
        assert not ws.ctx.store.intents.all()


def assert_refused(plan: PlanHandle) -> None:
    with pytest.raises(AgentsError, match="interrupted restore"):
        plan.checkpoint("here")


def test_a_full_disk_keeps_nothing_of_what_was_to_be_put_there(yard: Yard, arm: Arm) -> None:
    """The store is on another file system, and so what is staged lies beside the user's files."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == yard.top.stat().st_dev:
        pytest.skip("there is no other file system to put the store on")
    docs = yard.top / "docs"
    for name in ("a", "d/c", "sub/b"):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text("old\n")

    def fill(point: str) -> None:
        if point == "write" and any(docs.glob(".cleveragents-*/*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with tempfile.TemporaryDirectory(dir=shared) as home, open_workspace(home) as ws:
        plan = ws.use(yard.plan(PLAN))
        plan.execute()
        before = files(docs)
        arm(fill)
        with pytest.raises(DiskFull):
            plan.rollback(plan.checkpoints()[0].group_id)
        arm(None)
        assert files(docs) == before


def test_what_is_done_is_not_said_to_have_failed_because_leftovers_stay(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = yard.top / "docs"
    for name in ("a", "d/c", "sub/b"):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text("old\n")
    old, rmdir = files(docs), os.rmdir

    def refuse(path: str | bytes, **options: Any) -> None:
        if ".staging-" in os.fsdecode(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        rmdir(path, **options)

    with open_workspace() as ws:
        plan = ws.use(yard.plan(PLAN))
        plan.execute()
        monkeypatch.setattr(os, "rmdir", refuse)
        plan.rollback(plan.checkpoints()[0].group_id)
        assert files(docs) == old
