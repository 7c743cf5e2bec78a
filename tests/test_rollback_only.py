"""`plan rollback --only`: some files or resources go back, the plan and all other files stay."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cleveragents.cli.main import root
from cleveragents.content import fsio
from cleveragents.errors import NotFound, UsageError
from cleveragents.history.restore_paths import Part, part_named
from cleveragents.model.resource import Action, Change
from cleveragents.workspace import open_workspace

PLAN = """
name: shop
resources:
  app: {kind: fs-directory, path: app}
  docs: {kind: fs-directory, path: docs}
  db: {kind: sqlite, path: shop.db}
steps:
  - {id: code, on: app, run: "echo new > a; mkdir -p sub/deep; echo c > sub/deep/c; rm -r gone; chmod 700 dir"}
  - {id: text, on: docs, run: "echo new > a; echo new > d"}
  - {id: rows, tool: sql, on: db, with: {script: "INSERT INTO t VALUES (2)"}}
"""  # noqa: E501


class Shop:
    def __init__(self, top: Path) -> None:
        self.top = top
        for name in ("app/gone/in", "app/dir", "docs"):
            (top / name).mkdir(parents=True)
        for name in ("app/a", "app/gone/in/x", "app/keep", "docs/a", "docs/d"):
            (top / name).write_text("old\n")
        with closing(sqlite3.connect(top / "shop.db")) as db:
            db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        (top / "plan.yaml").write_text(PLAN)
        self.paths = agents("plan", "run", "plan.yaml")["sandboxes"]

    def file(self, resource: str, name: str) -> Path:
        return Path(self.paths[resource]) / name

    @property
    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.paths["db"])) as db:
            return [row[0] for row in db.execute("SELECT x FROM t")]


def agents(*argv: str, expect: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(root, [*argv, "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == expect, (argv, result.output)
    return json.loads(result.stdout)["data"]


def status() -> dict[str, Any]:
    return agents("plan", "status", "shop")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("CLEVERAGENTS_SANDBOX_CONFINE", "off")
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


BACK = ("plan", "rollback", "shop", "first")


def test_one_path_is_rolled_back_and_everything_else_stays(shop: Shop) -> None:
    before = status()
    inode = shop.file("app", "sub/deep/c").stat().st_ino
    foreseen = agents(*BACK, "--only", "app:a", "--dry-run")
    assert foreseen["dry_run"]
    assert shop.file("app", "a").read_text() == "new\n"
    done = agents(*BACK, "--only", "app:a", "--yes")
    assert [(c["file"], c["action"]) for c in done["changes_reverted"]] == [("a", "restored")]
    assert done["changes_reverted"] == foreseen["changes_reverted"]
    assert done["impact"] == {
        "child_plans_invalidated": 0,
        "sandbox": 1,
        "decisions_after_cp": 0,
        "tool_calls_after_cp": 0,
    }
    assert shop.file("app", "a").read_text() == "old\n"
    assert shop.file("docs", "a").read_text() == "new\n"
    assert shop.file("app", "sub/deep/c").stat().st_ino == inode
    assert shop.rows == [1, 2]
    after = status()
    for key in ("phase", "state", "attempt", "progress"):
        assert after[key] == before[key]
    assert after["checkpoints"][-1]["type"] == "external_edit"
    assert agents("plan", "log", "shop")["entries"][-1]["operation"] == "restore"


def test_it_is_undone_and_redone_as_one(shop: Shop) -> None:
    shop.file("app", "hand").write_text("by hand\n")
    agents(*BACK, "--only", "app:a", "--only", "db", "--yes")
    assert shop.file("app", "hand").read_text() == "by hand\n"
    assert shop.rows == [1]
    assert agents("plan", "undo", "shop")["undone"] == "restore"
    assert shop.file("app", "a").read_text() == "new\n"
    assert shop.file("app", "hand").read_text() == "by hand\n"
    assert shop.rows == [1, 2]
    agents("plan", "redo", "shop")
    assert shop.file("app", "a").read_text() == "old\n"
    assert shop.rows == [1]


def test_a_resource_is_rolled_back_whole(shop: Shop) -> None:
    agents(*BACK, "--only", "app", "--yes")
    assert sorted(os.listdir(shop.paths["app"])) == ["a", "dir", "gone", "keep"]
    assert shop.file("app", "gone/in/x").read_text() == "old\n"
    assert shop.file("app", "dir").stat().st_mode & 0o777 != 0o700
    assert shop.file("docs", "d").read_text() == "new\n"
    assert agents("check")["problems"] == []


def test_folders_go_with_all_that_is_in_them_and_come_back_around_a_file(shop: Shop) -> None:
    agents(*BACK, "--only", "sub", "--yes")
    assert not shop.file("app", "sub").exists()
    assert not shop.file("app", "gone").exists()
    agents(*BACK, "--only", "gone/in/x", "--yes")
    assert shop.file("app", "gone/in/x").read_text() == "old\n"
    assert shop.file("app", "a").read_text() == "new\n"


def test_what_is_meant_has_to_be_clear(shop: Shop) -> None:
    about = agents(*BACK, "--only", "a", "--yes", expect=2)["error"]
    assert about["hint"] == "--only app:a, --only docs:a"
    assert agents(*BACK, "--only", "keep", "--yes", expect=3)["error"]["type"] == "NotFound"
    told = agents(*BACK, "--only", "app:keep", "--yes", expect=3)["error"]["message"]
    assert "nothing differs" in told
    for wrong in ("../x", "/etc", "app:.."):
        assert agents(*BACK, "--only", wrong, "--yes", expect=2)["error"]["type"] == "UsageError"
    declined = agents(*BACK, "--only", "app:a", expect=4)["error"]
    assert declined["hint"].endswith("--only app:a --json --yes")
    assert shop.file("app", "a").read_text() == "new\n"
    assert [e["operation"] for e in agents("plan", "log", "shop")["entries"]] == ["use", "execute"]


def test_from_python(shop: Shop) -> None:
    with open_workspace() as ws:
        plan = ws.find("shop")
        plan.restore("first", "docs:d", "db")
        assert shop.file("docs", "d").read_text() == "old\n"
        assert shop.rows == [1]
        with pytest.raises(NotFound):
            plan.restore("first", "nothing")
        assert plan.plan.state == "complete"


def test_a_death_at_any_commit_leaves_old_or_new(shop: Shop) -> None:
    ends: set[str] = set()
    for number in range(1, 40):
        child = os.fork()
        if child == 0:
            fsio.arm(number)
            try:
                agents(*BACK, "--only", "app:a", "--yes")
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        operations = [entry["operation"] for entry in agents("plan", "log", "shop")["entries"]]
        text = shop.file("app", "a").read_text()
        ends.add(text)
        assert (text == "old\n") == (operations[-1] == "restore")
        assert shop.file("docs", "a").read_text() == "new\n"
        if text == "old\n":
            agents("plan", "undo", "shop")
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert ends == {"old\n", "new\n"}


def changed(resource: str, path: str, before: str = "f:1", after: str = "f:2") -> Change:
    return Change(resource, path.encode(), Action.CHANGED, before, after)


def test_what_a_name_stands_for() -> None:
    changes = (changed("app", "src/a"), changed("docs", "src/b"))
    both = ["app", "docs"]
    assert part_named("app", both, changes) == Part("app")
    assert part_named("docs:src/", both, changes) == Part("docs", b"src")
    assert part_named("src/a", both, changes) == Part("app", b"src/a")
    assert part_named("anything", ["app"], changes) == Part("app", b"anything")
    with pytest.raises(UsageError):
        part_named("src", both, changes)


@pytest.mark.parametrize(
    ("change", "covered"),
    [
        (changed("app", "src/a"), True),
        (changed("app", "src"), True),
        (changed("app", "src2"), False),
        (changed("docs", "src/a"), False),
        (changed("app", "top", "d:755", "d:700"), False),
    ],
)
def test_a_part_covers_what_is_below_it(change: Change, covered: bool) -> None:
    assert Part("app", b"src").covers(change) == covered
    assert Part("app").covers(change) == (change.resource == "app")


def test_a_part_brings_the_folders_back_that_it_lies_in() -> None:
    part = Part("app", b"x/y/z")
    assert part.covers(changed("app", "x/y", "", "d:755"))
    assert not part.covers(changed("app", "x/y", "d:700", "d:755"))
    assert not part.covers(changed("app", "x/other", "", "d:755"))
