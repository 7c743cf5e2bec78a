"""A thousand decisions in one plan: the last ones are no more work than the first.

Decided by counting what the store and the file system are asked, never by a clock; what a clock
says is in docs/measurements.md.
"""

import os
import shutil
import sqlite3
import statistics
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cleveragents.content.capture import updating
from cleveragents.content.native import walker
from cleveragents.context import Talk
from cleveragents.workspace import open_workspace

DECISIONS = 1000
PATHS = 20
SLACK = 1.02
"""Ids and numbers get longer, so that now and then a page more is read."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Work:
    """What was asked so far, and how much of it by the end of each step."""

    def __init__(self) -> None:
        self.now = {"statements": 0, "instructions": 0, "files": 0}
        self.at: list[dict[str, int]] = []

    def add(self, what: str, count: int = 1) -> None:
        self.now[what] += count

    def tell(self, event: str, _data: dict[str, Any]) -> None:
        if event == "done":
            self.at.append(dict(self.now))

    def per_step(self, what: str) -> list[int]:
        return [b[what] - a[what] for a, b in zip(self.at, self.at[1:], strict=False)]


@pytest.fixture
def folder() -> Generator[Path]:
    found = Path(tempfile.mkdtemp(dir=MEMORY))
    yield found
    shutil.rmtree(found)


def write_plan(folder: Path, more: str = "") -> str:
    (folder / "docs").mkdir()
    steps = "".join(
        f"  - {{id: s{n:04}, tool: file.write, on: docs{more.format(n)}, with: "
        f"{{path: 'd{n % 3}/f{n % PATHS:02}', content: '{n:04}'}}}}\n"
        for n in range(DECISIONS)
    )
    head = "name: long\nresources: {docs: {kind: fs-directory, path: docs}}\nsteps:\n"
    (folder / "plan.yaml").write_text(head + steps)
    return str(folder / "plan.yaml")


def counted(folder: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    look, walk = updating.look, walker.walk

    def looked(fd: int, name: bytes, limit: int) -> Any:
        work.add("files")
        return look(fd, name, limit)

    def walked(*arguments: Any) -> walker.Found:
        found = walk(*arguments)
        work.add("files", sum(len(walker.unpack(b)) for _, b in found if isinstance(b, bytes)))
        return found

    connect = sqlite3.connect

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*arguments, **options)
        database.set_trace_callback(lambda _sql: work.add("statements"))
        database.set_progress_handler(lambda: work.add("instructions", 10), 10)
        return database

    monkeypatch.setattr(updating, "look", looked)
    monkeypatch.setattr(walker, "walk", walked)
    monkeypatch.setattr(sqlite3, "connect", connected)
    with open_workspace(str(folder / "store"), talk=Talk(tell=work.tell)) as ws:
        plan = ws.use(file)
        plan.execute()
        assert plan.plan.state == "complete"
        assert len(work.at) == DECISIONS
        assert len(ws.ctx.store.checkpoints.groups(plan.plan_id)) <= 50
        assert len(ws.ctx.store.plans.decisions(plan.plan_id)) == DECISIONS + 1
    return work


def test_a_thousand_decisions_cost_the_same_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = counted(folder, write_plan(folder), monkeypatch)
    for what in work.now:
        steps = work.per_step(what)
        early, late = steps[100:200], steps[-100:]
        assert statistics.median(early) > 0, f"no {what} were counted"
        for of in (statistics.median, max):
            assert of(late) <= SLACK * of(early), f"{what}: {of(early)}, later {of(late)}"
