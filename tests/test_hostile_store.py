"""What the store says is looked at before it is used: a name that leads elsewhere goes nowhere."""

import itertools
import json
import os
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from cleveragents import open_workspace
from cleveragents.content import trees
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.keys import (
    BLOB,
)
from cleveragents.content.native import manifests
from cleveragents.content.restore.operation import Op
from cleveragents.content.restore.switch import Switch
from cleveragents.content.trees import (
    Listing,
)
from cleveragents.errors import UnsafeName
from tests.harness import Agents
from tests.scratch import query

HOSTILE = {
    "up": b"../../../escaped",
    "dots": b"..",
    "dot": b".",
    "empty": b"",
    "absolute": b"/tmp/escaped",
    "inside": b"a/b",
    "NUL": b"a\0b",
}


def run(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    (agents.work / "plan.yaml").write_text(
        "name: hostile\nresources: {app: {kind: fs-directory, path: app}}\n"
        "steps:\n  - {id: work, run: echo more > own}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    return Path(agents.env["CLEVERAGENTS_HOME"])


def die_in_apply(agents: Agents) -> None:
    """Leave an apply of a directory and a database whose files are staged."""
    for number in range(_BEFORE, 200):
        kill = {"CLEVERAGENTS_TEST_KILL_AT": str(number)}
        assert agents.run("plan", "apply", "last", "--yes", env=kill).rc == -9
        store = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
        if query(store, "SELECT state FROM intents") == [("staged",)]:
            return
    pytest.fail("it never left an intent")


_BEFORE = 22
"""Fault points of an apply that come before anything can be staged."""


def with_database(agents: Agents) -> Path:
    app = agents.work / "app"
    app.mkdir()
    (app / "own").write_text("own\n")
    query(agents.work / "live.db", "CREATE TABLE t(x)")
    (agents.work / "plan.yaml").write_text(
        "name: hostile\nresources:\n  app: {kind: fs-directory, path: app}\n"
        "  db: {kind: sqlite, path: live.db}\n"
        "steps:\n  - {id: work, on: app, run: echo more > own}\n"
        "  - {id: row, on: db, tool: sql, with: {script: INSERT INTO t VALUES (1)}}\n"
    )
    agents.run("plan", "run", "plan.yaml").expect(0)
    return Path(agents.env["CLEVERAGENTS_HOME"])


def test_staging_that_a_row_says_lies_elsewhere_is_left_alone(agents: Agents) -> None:
    """Else a recovery would remove the user's folder, or switch what lies in it."""
    store = with_database(agents) / "store.db"
    die_in_apply(agents)
    mine = agents.work / "mine"
    mine.mkdir()
    (mine / "kept").write_text("kept\n")
    own, live = agents.work / "app" / "own", agents.work / "live.db"
    [(text,)] = query(store, "SELECT body FROM intents")
    names = dict(query(store, "SELECT name, resource_id FROM resources"))
    before = own.read_text(), query(live, ROWS)
    for which, state in itertools.product(("whole", "app", "db"), ("staged", "committed")):
        body = json.loads(text)
        told = body if which == "whole" else body["staged"][names[which]]
        told["staging"] = str(mine)
        query(store, "UPDATE intents SET body = ?, state = ?", json.dumps(body), state)
        done = agents.run("plan", "list", "--json").expect(0)
        assert [text for text in done.json["messages"] if str(mine) in text], (which, state)
        assert (mine / "kept").read_text() == "kept\n"
        assert (own.read_text(), query(live, ROWS)) == before
    query(store, "UPDATE intents SET body = ?, state = 'staged'", text)
    agents.run("plan", "list").expect(0)
    assert (own.read_text(), query(live, ROWS)) == ("more\n", [(1,)]), "with the right row"


ROWS = "SELECT * FROM t"


def plant(listing: Listing, database: Path) -> None:
    """Make the first checkpoint one of this directory, as a program that can write rows could."""
    with open_workspace() as ws:
        ctx = ws.ctx
        with ctx.manager.packs.batch() as batch:
            batch.put(BLOB, b"escaped\n")
            tree = trees.store_directory(listing, batch)
            batch.seal()
            with ctx.store.transaction():
                ctx.store.objects.add(batch.located.items())
    row, text = query(
        database, "SELECT rowid, metadata_json FROM checkpoints ORDER BY rowid LIMIT 1"
    )[0]
    about = json.loads(text)
    whole = blake3(b"root %o " % about["mode"] + tree.state).hexdigest()
    query(
        database,
        "UPDATE checkpoints SET root_key = ?, state_hash = ?, metadata_json = ? WHERE rowid = ?",
        tree.key,
        whole,
        json.dumps({**about, "tree": tree.state.hex()}),
        row,
    )


def file(name: bytes) -> Entry:
    key = BLOB + blake3(b"escaped\n").digest()
    return Entry(name, EntryKind.FILE, 0o644, 8, 0, key)


@pytest.mark.parametrize("name", ["up", "NUL"])
def test_a_manifest_with_a_name_that_leads_elsewhere_is_refused_and_found(
    agents: Agents, name: str
) -> None:
    store = run(agents)
    plant(Listing.of([file(HOSTILE[name])]), store / "store.db")
    refused = agents.run("plan", "rollback", "last", "first", "--yes", "--json").expect(4)
    assert refused.data["error"]["type"] == "UnsafeName"
    assert not list(agents.work.parent.rglob("*escaped*"))
    for option in ((), ("--read-data",)):
        problems = agents.run("check", *option, "--json").data["problems"]
        assert any("which leads out of it" in text for text in problems), problems


def test_every_manifest_is_looked_at_when_all_data_is_read(agents: Agents) -> None:
    """Also one that no checkpoint refers to."""
    run(agents)
    with open_workspace() as ws, ws.ctx.manager.packs.batch() as batch:
        trees.store_directory(Listing.of([file(b"..")]), batch)
        batch.seal()
        with ws.ctx.store.transaction():
            ws.ctx.store.objects.add(batch.located.items())
    assert agents.run("check", "--json").expect(0).data["problems"] == []
    problems = agents.run("check", "--read-data", "--json").data["problems"]
    assert ["'..'" in text for text in problems] == [True]


@pytest.mark.parametrize("find", [manifests.unsafe, manifests.python_unsafe])
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_both_twins_find_the_name(find: object, name: bytes) -> None:
    assert callable(find)
    fine = [file(b".a"), file(b"...")]
    assert find(Listing.of(fine).data) is None
    assert find(Listing.of([*fine, file(name)]).data) == name


@pytest.mark.parametrize("find", [manifests.unsafe, manifests.python_unsafe])
def test_both_twins_find_a_link_and_a_folder_of_one_name(find: object) -> None:
    assert callable(find)
    link = Entry(b"sub", EntryKind.LINK, 0o777, key=b"/tmp")
    folder = Entry(b"sub", EntryKind.DIRECTORY, 0o755)
    assert find(manifests.manifest([link, folder])) == b"sub"
    assert find(manifests.manifest([file(b"b"), file(b"a")])) == b"a"


def test_pieces_of_a_large_directory_are_looked_at(tmp_path: Path) -> None:
    names = [b"n%03d" % number for number in range(100)]
    whole = {b"t" + blake3(part).digest(): part for part in _parts([*names, b"zz/../../x"])}
    top = trees.PIECED + b"".join(key[1:] for key in whole)
    load = trees.reading({**whole, b"top": top}.__getitem__)
    with pytest.raises(UnsafeName, match="zz/"):
        load(b"top")


def _parts(names: list[bytes]) -> list[bytes]:
    parts = manifests.pieces(
        manifests.manifest([file(name) for name in names]), manifests.manifest([])
    )
    return [part for part in parts if isinstance(part, bytes)]


@pytest.mark.parametrize("path", [b"../x", b"a/../../x", b"/x", b"a//x", b"", b"."])
def test_an_operation_of_a_row_that_leads_elsewhere_is_refused(tmp_path: Path, path: bytes) -> None:
    """An intent says what to switch: also when a recovery reads it from the database."""
    row = msgspec.to_builtins(Op(0, path, None, file(b"x"), (1, 8, 0)))
    op = msgspec.convert(row, Op)
    os.mkdir(tmp_path / "root")
    with pytest.raises(UnsafeName):
        Switch(str(tmp_path / "root"), str(tmp_path), (op,), force=True).forward()
    assert [p.name for p in tmp_path.iterdir()] == ["root"]


@given(st.lists(st.binary(max_size=4) | st.sampled_from([b".", b"..", b"a/b", b"a"])))
def test_both_twins_say_the_same_of_any_names(names: list[bytes]) -> None:
    for order in (names, sorted(set(names))):
        data = manifests.manifest([file(name) for name in order])
        assert manifests.unsafe(data) == manifests.python_unsafe(data)
