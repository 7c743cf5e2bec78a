"""The power is cut after a verb that changes what is the user's, other than by an apply."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests import power
from tests.test_power_cut import DOCS, PLAN, World

missing = power.needed()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")

IN_PLACE = """
name: here
resources:
  docs: {kind: fs-directory, path: docs, strategy: in_place}
  db: {kind: sqlite, path: app.db, strategy: in_place}
steps:
  - {id: one, on: docs, run: "echo one > mine; echo new > sub/made; rm sub/kept"}
  - {id: rows, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (2)"}}
"""


@pytest.fixture(params=["same", "different"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[power.Machine]:
    """The store is on the first disk, the user's files on the last."""
    with power.machine(tmp_path, ("one",) if request.param == "same" else ("one", "two")) as made:
        yield made


def world(machine: power.Machine, plan: str) -> World:
    """With a plan that has run, all of it on disk."""
    made = World(machine, "one", [*machine.disks][-1], plan)
    made.run("plan", "run", "plan.yaml").expect(0)
    for disk in machine.disks:
        machine.sync(disk)
    return made


def test_a_rollback_in_place_outlives_a_cut_and_leaves_nothing_of_ours(
    machine: power.Machine,
) -> None:
    shop = world(machine, IN_PLACE)
    shop.run("plan", "rollback", "here", "first", "--yes").expect(0)
    machine.cut_power()
    assert shop.files(shop.here / "docs") == {"mine": "theirs\n", "sub/kept": "kept\n"}
    assert shop.sql("app.db", "SELECT x FROM t") == [[1]]
    shop.run("plan", "undo", "here").expect(0)
    machine.cut_power()
    assert shop.files(shop.here / "docs") == {"mine": "one\n", "sub/made": "new\n"}
    assert shop.sql("app.db", "SELECT x FROM t") == [[1], [2]]


def test_a_disk_that_fails_alone_is_as_a_power_cut(tmp_path: Path) -> None:
    """The boot is the same: only the mount tells that what was not synced is gone."""
    with power.machine(tmp_path, ("one",)) as machine:
        shop = World(machine, "one", "one", DOCS)
        ran = shop.run("plan", "run", "plan.yaml", "--json").expect(0)
        machine.pull_disks()
        found = shop.run("check", "--json").expect(6)
        assert "mounted again" in found.data["problems"][0]
        said = shop.run("plan", "diff", "docs").expect(0).stderr
        assert "after its disk was mounted again" in said
        shop.run("check").expect(0)
        (machine.inside(ran.data["sandboxes"]["docs"]) / "mine").write_text("")
        machine.sync("one")
        machine.pull_disks()
        said = shop.run("plan", "apply", "docs", "--yes").expect(0).stderr
        assert "after its disk was mounted again" in said
        assert shop.files(shop.here / "docs") == {
            "mine": "one\n",
            "sub/kept": "kept\n",
            "sub/made": "new\n",
        }


def test_an_exported_branch_outlives_a_cut(machine: power.Machine) -> None:
    shop = world(machine, PLAN)
    made = shop.run("plan", "export", "cut", "--branch", "topic/out", "--json").expect(0).data
    machine.cut_power()
    assert shop.sh("cd repo; git fsck --strict >&2; git rev-parse topic/out").split() == [
        made["tip"]
    ]
