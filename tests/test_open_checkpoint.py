"""`agents plan open`: a checkpoint as files to look at, exact and read-only."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from cleveragents.errors import ContentDamaged, NotAllowed, NotFound
from cleveragents.workspace import open_workspace
from tests.harness import Agents
from tests.in_process import Yard, box, cli
from tests.rig import Shop
from tests.scratch import git

STEPS = """steps:
  - id: a
    run: "mkdir -p empty deep/er; echo x > deep/er/f; chmod 750 deep/er/f; ln -s ../f deep/l"
  - {id: b, run: "rm -r deep; echo b > b"}
"""


def tree(top: Path) -> dict[str, str]:
    """Names below a folder -> what is there; modes apart."""
    found: dict[str, str] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_text()
    return found


def test_a_checkpoint_is_opened_as_it_was_and_cannot_be_written(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, STEPS)
        before = {p: p.lstat() for p in box(plan).rglob("*")}
        opened = plan.open("a", "look")
        [app] = opened.resources
        assert (app.resource, app.files, opened.folder) == ("app", 3, str(yard.top / "look"))
        assert tree(Path(app.path)) == {
            "old.txt": "old\n",
            "empty": "folder",
            "deep": "folder",
            "deep/er": "folder",
            "deep/er/f": "x\n",
            "deep/l": "-> ../f",
        }
        modes = {
            p: stat.S_IMODE(p.lstat().st_mode) for p in (Path("look"), *Path("look").rglob("*"))
        }
        # For whoever opened it alone: what was closed to others stays so.
        assert {m for p, m in modes.items() if p.is_dir()} == {0o500}
        assert modes[Path("look/app/deep/er/f")] == 0o500
        assert modes[Path("look/app/old.txt")] == 0o400
        assert os.stat("look/app/old.txt").st_mtime_ns == os.stat(yard.app / "old.txt").st_mtime_ns
        assert before == {p: p.lstat() for p in box(plan).rglob("*")}
        assert app.state_hash in {row.state_hash for row in plan.checkpoints()}


def test_without_a_folder_it_goes_to_the_store_until_the_plan_is_deleted(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, STEPS)
        first = plan.open("first")
        assert first.folder.startswith(ws.ctx.settings.home)
        assert plan.open("first") == first
        plan.delete(force=True)
        assert not os.path.exists(first.folder)


def test_databases_are_files_and_repositories_have_their_history(agents: Agents) -> None:
    shop = Shop(agents)
    shop.ran(
        "- {id: a, on: db, tool: sql, with: {script: DELETE FROM users}}\n"
        "- {id: b, on: app, run: git -c user.name=a -c user.email=b commit -qm none --allow-empty}"
    )
    shop.run("plan", "apply", "last", "--yes").expect(0)
    where = agents.work / "there"
    opened = shop.ok("plan", "open", "last", "first", str(where))
    paths = {one["resource"]: Path(one["path"]) for one in opened["resources"]}
    [file] = paths["db"].iterdir()
    with sqlite3.connect(f"file:{file}?immutable=1", uri=True) as db:
        assert db.execute("SELECT count(*) FROM users").fetchone() == (2,)
    assert "none" not in git(agents, paths["app"], "log", "--format=%s")
    assert git(agents, paths["app"], "ls-files")


def test_what_is_there_is_never_overwritten(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        with pytest.raises(NotAllowed, match="app is not empty"):
            plan.open("first", "app")
        with pytest.raises(NotAllowed, match=r"old\.txt already exists and is not a folder"):
            plan.open("first", "app/old.txt")
        with pytest.raises(NotAllowed, match="is inside the folder of the sandboxes"):
            plan.open("first", f"{box(plan)}/x")
        with pytest.raises(NotFound):
            plan.open("nope", "look")
        Path("look").mkdir()
        plan.open("first", "look")


def test_a_link_is_not_followed_to_a_folder_that_would_become_read_only(yard: Yard) -> None:
    Path("mine").mkdir()
    before = Path("mine").stat().st_mode
    Path("link").symlink_to("mine")
    Path("nowhere").symlink_to("gone")
    with open_workspace() as ws:
        plan = yard.done(ws)
        for name in ("link", "nowhere"):
            with pytest.raises(NotAllowed, match=f"{name} already exists and is not a folder"):
                plan.open("first", name)
    assert list(Path("mine").iterdir()) == []
    assert Path("mine").stat().st_mode == before
    assert not Path("gone").exists()


def test_names_left_out(yard: Yard) -> None:
    with open_workspace() as ws:
        name = yard.done(ws).plan_id
    assert "opened in" in cli("plan", "open", "early").stdout
    assert cli("plan", "open", "early", "./one", "--json").data["folder"].endswith("/one")
    assert cli("plan", "open", name, "-1", "two", "--json").data["folder"].endswith("/two")
    assert cli("plan", "open", "yard", "first", "--json").data["resources"]
    assert "no checkpoint was named" in cli("plan", "open", expect=2).stderr


def test_a_damaged_checkpoint_is_not_shown_as_whole(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, "steps: [{id: a, run: seq 100000 > large}]")
        home = Path(ws.ctx.settings.home)
    for pack in (home / "content").rglob("*"):
        if pack.is_file() and pack.stat().st_size > 100_000:
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)
    with open_workspace() as ws, pytest.raises(ContentDamaged):
        ws.find(plan.plan_id).open("last", "look")
