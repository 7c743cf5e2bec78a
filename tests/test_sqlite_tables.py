"""Databases shown as their users see them, and opened so that they can do no harm."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.sandbox.sqlite import tables as sqlite_tables
from cleveragents.sandbox.sqlite.tables import hardened, is_sound, table_changes
from tests.harness import Agents
from tests.scratch import query

SCHEMA = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE "odd "" name" (x);
CREATE TABLE gone (x);
CREATE TABLE same (x);
CREATE VIEW shown AS SELECT name FROM people;
INSERT INTO people (name) VALUES ('Ada'), ('Grace'), ('Edith');
INSERT INTO "odd "" name" VALUES (1);
INSERT INTO same VALUES (1), (1);
"""
PLAN = """
name: db
resources: {db: {kind: sqlite, path: app.db}}
steps:
  - id: change
    tool: sql
    with:
      script: |
        UPDATE people SET name = 'Ada L.' WHERE id = 1;
        INSERT INTO people (name) VALUES ('Alan');
        DELETE FROM people WHERE id = 3;
        DROP TABLE gone;
        CREATE TABLE fresh (y);
        INSERT INTO fresh VALUES (1), (2);
        ALTER TABLE "odd "" name" ADD COLUMN z;
        CREATE INDEX by_name ON people (name);
        DROP VIEW shown;
"""


@pytest.fixture
def database(agents: Agents) -> Path:
    path = agents.work / "app.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
    (agents.work / "plan.yaml").write_text(PLAN)
    return path


def tables(agents: Agents, *options: str) -> dict[str, dict[str, Any]]:
    shown = agents.run("plan", "diff", "last", "--json", *options).expect(0).data
    [file] = shown["files"]
    return {item["name"]: item for item in file["tables"]}


def test_diff_shows_tables_and_rows(agents: Agents, database: Path) -> None:
    agents.run("plan", "run", "plan.yaml").expect(0)
    found = tables(agents)
    assert {name: item["status"] for name, item in found.items()} == {
        "people": "changed",
        'odd " name': "changed",
        "gone": "removed",
        "fresh": "added",
        "by_name": "added",
        "shown": "removed",
    }
    people = found["people"]
    assert (people["rows_before"], people["rows_after"]) == (3, 3)
    assert (people["rows_added"], people["rows_removed"]) == (2, 2)
    assert not people["definition_changed"]
    odd = found['odd " name']
    assert odd["definition_changed"]
    assert odd["rows_added"] is None
    assert (odd["rows_before"], odd["rows_after"]) == (1, 1)
    assert found["fresh"]["rows_after"] == 2
    plain = agents.run("plan", "diff", "last", "--stat").expect(0).stdout
    assert "table people" in plain
    assert "3 -> 3" in plain
    assert "index by_name" in plain


def test_diff_after_a_database_was_broken_by_a_tool_still_answers(
    agents: Agents, database: Path
) -> None:
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    sandbox = Path(ran["sandboxes"]["db"])
    sandbox.write_bytes(b"no database any more")
    assert tables(agents) == {}
    sandbox.unlink()
    assert {item["status"] for item in tables(agents).values()} == {"removed"}


def test_rows_of_a_large_database_are_counted_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("a", 1), ("b", 2)):
        query(tmp_path / name, "CREATE TABLE t (x)")
        query(tmp_path / name, f"INSERT INTO t SELECT value FROM json_each('{[*range(rows)]}')")
    one, two = str(tmp_path / "a"), str(tmp_path / "b")
    [item] = table_changes(one, two)
    assert (item.rows_before, item.rows_after, item.rows_added, item.rows_removed) == (1, 2, 1, 0)
    monkeypatch.setattr(sqlite_tables, "LARGEST", 10)
    [item] = table_changes(one, two)
    assert (item.rows_before, item.rows_after, item.rows_added) == (1, 2, None)
    assert table_changes(one, one) == ()
    assert [item.status for item in table_changes(None, two)] == ["added"]


def test_a_virtual_table_is_not_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        query(tmp_path / name, "CREATE VIRTUAL TABLE f USING fts5(x)")
    query(tmp_path / "b", "INSERT INTO f VALUES ('word')")
    found = {item.name for item in table_changes(str(tmp_path / "a"), str(tmp_path / "b"))}
    assert "f" not in found
    assert "f_content" in found


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'other.db' AS other",
        "SELECT load_extension('x')",
        "SELECT * FROM harmful",
        "VACUUM INTO 'copy.db'",
    ],
)
def test_a_database_is_opened_so_that_it_can_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.chdir(tmp_path)
    query(tmp_path / "x.db", "CREATE VIEW harmful AS SELECT load_extension('x')")
    with closing(hardened(str(tmp_path / "x.db"))) as db:
        assert db.execute("PRAGMA trusted_schema").fetchone() == (0,)
        with pytest.raises(sqlite3.Error):
            db.execute(statement).fetchall()
    assert os.listdir(tmp_path) == ["x.db"]


def test_a_damaged_database_is_never_applied(agents: Agents, database: Path) -> None:
    before = database.read_bytes()
    with closing(sqlite3.connect(database)) as db, db:
        db.executemany("INSERT INTO same VALUES (?)", [("x" * 500,) for _ in range(200)])
    before = database.read_bytes()
    ran = agents.run("plan", "run", "plan.yaml", "--json").expect(0).data
    sandbox = Path(ran["sandboxes"]["db"])
    with open(sandbox, "r+b") as file:
        file.seek(4096 * 8)
        file.write(b"\xff" * 8192)
    assert is_sound(str(sandbox))
    refused = agents.run("plan", "apply", "last", "--yes", "--json").expect(4).data["error"]
    assert "damaged" in refused["message"]
    assert database.read_bytes() == before
