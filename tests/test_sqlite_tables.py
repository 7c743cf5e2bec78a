"""Databases shown as their users see them, and opened so that they can do no harm."""

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cleveragents.sandbox.sqlite import tables as sqlite_tables
from cleveragents.sandbox.sqlite.tables import (
    TableChange,
    damage_in,
    hardened,
    table_changes,
    two_sides,
)
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
    assert re.search(r"table people +changed +3 +2 +2$", plain, re.MULTILINE)
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


def test_two_states_side_by_side_show_what_only_one_of_them_has(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        query(path, "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
        query(path, "INSERT INTO people VALUES (1, 'Ada'), (2, 'Grace\nHopper')")
    assert two_sides(table_changes(str(one), str(two))) is None
    query(one, "CREATE VIEW old AS SELECT 1")
    query(two, "CREATE INDEX by_name ON people (name)")
    query(two, "UPDATE people SET name = NULL WHERE id = 1")
    query(two, "DELETE FROM people WHERE id = 2")
    assert two_sides(table_changes(str(one), str(two))) == (
        "people: id=2  name='Grace\\nHopper'\npeople: id=1  name='Ada'\nview old",
        "index by_name\npeople: id=1  name=NULL",
    )
    query(two, "ALTER TABLE people ADD COLUMN born")
    query(
        two, "INSERT INTO people (id) SELECT value FROM json_each('[7,8,9,10,11,12,13,14,15,16]')"
    )
    _, after = two_sides(table_changes(str(one), str(two))) or ("", "")
    assert "table people, defined differently" in after
    assert after.splitlines()[-1] == "and 1 more"


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
    assert damage_in(str(sandbox))
    refused = agents.run("plan", "apply", "last", "--yes", "--json").expect(4).data["error"]
    assert "damaged" in refused["message"]
    assert database.read_bytes() == before


def changed(path: Path, before: str, after: str) -> dict[str, TableChange]:
    """What differs between two files, the second made of the first."""
    for name, scripts in (("a.db", (before,)), ("b.db", (before, after))):
        with closing(sqlite3.connect(path / name)) as db:
            for script in scripts:
                db.executescript(script)
    found = table_changes(str(path / "a.db"), str(path / "b.db"))
    return {item.name: item for item in found}


def test_rows_are_told_apart_by_the_primary_key(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (a, b, v, PRIMARY KEY (b, a));"
        "INSERT INTO t VALUES (1, 1, 'x'), (1, 2, x'00ff'), (2, 1, 1.5), (3, 3, NULL)",
        "UPDATE t SET v = 'X' WHERE a = 1 AND b = 1; DELETE FROM t WHERE b = 2;"
        "INSERT INTO t VALUES (9, 9, 9e999)",
    )["t"]
    assert found.columns == found.columns_before == ("a", "b", "v")
    assert [(row.action, row.before, row.after) for row in found.rows] == [
        ("removed", (1, 2, "x'00ff'"), None),
        ("changed", (1, 1, "x"), (1, 1, "X")),
        ("added", None, (9, 9, "inf")),
    ]
    assert not found.rows_left_out


def test_a_value_that_only_a_collation_takes_for_equal_has_changed(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT COLLATE NOCASE);"
        "INSERT INTO t VALUES (1, 'ada')",
        "UPDATE t SET v = 'Ada'",
    )["t"]
    assert [(row.before, row.after) for row in found.rows] == [((1, "ada"), (1, "Ada"))]


def test_without_a_key_a_changed_row_is_one_removed_and_one_added(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (v); INSERT INTO t VALUES ('a'), ('b'); CREATE TABLE u (v)",
        "UPDATE t SET v = 'c' WHERE v = 'a';"
        "ALTER TABLE u ADD COLUMN w; INSERT INTO u VALUES (1, 2)",
    )
    assert [(r.action, r.before or r.after) for r in found["t"].rows] == [
        ("removed", ("a",)),
        ("added", ("c",)),
    ]
    assert found["u"].rows == ()


def test_rows_and_values_are_bounded(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)"
        "INSERT INTO t SELECT i, printf('%.*c', 5000, 'x') FROM n",
    )["t"]
    assert len(found.rows) == 50
    assert found.rows_left_out
    assert (found.rows_added, found.rows[0].after) == (200, (1, "x" * 200 + "..."))


def test_text_that_is_no_text_is_shown(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)",
        "INSERT INTO t VALUES (1, CAST(x'ff61' AS TEXT))",
    )["t"]
    assert found.rows[0].after == (1, "\\xffa")


def test_a_renamed_table_is_one_table(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name); INSERT INTO users VALUES (1, 'Ada')",
        "ALTER TABLE users RENAME TO people; ALTER TABLE people ADD COLUMN active DEFAULT 1;"
        "INSERT INTO people VALUES (2, 'Grace', 0)",
    )
    assert list(found) == ["people"]
    people = found["people"]
    assert (people.renamed_from, people.status, people.definition_changed) == (
        "users",
        "changed",
        True,
    )
    assert (people.rows_before, people.rows_after) == (1, 2)
    assert [row.after for row in people.rows] == [(2, "Grace", 0)]


def test_a_row_with_something_else_than_the_default_in_a_new_column_has_changed(
    tmp_path: Path,
) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3), (4)",
        "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT -1; ALTER TABLE t ADD COLUMN s DEFAULT 'no';"
        "ALTER TABLE t ADD COLUMN v; UPDATE t SET n = 0 WHERE id = 1;"
        "UPDATE t SET s = 'yes' WHERE id = 2; UPDATE t SET v = 1 WHERE id = 3",
    )["t"]
    assert found.key == ("id",)
    assert [(row.action, row.before, row.after) for row in found.rows] == [
        ("changed", (1,), (1, 0, "no", None)),
        ("changed", (2,), (2, -1, "yes", None)),
        ("changed", (3,), (3, -1, "no", 1)),
    ]


def test_a_default_that_computes_is_not_computed(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)",
        "CREATE TABLE u (id INTEGER PRIMARY KEY, v DEFAULT (randomblob(9)));"
        "INSERT INTO u (id) VALUES (1); DROP TABLE t; ALTER TABLE u RENAME TO t",
    )["t"]
    assert (found.columns, found.rows) == (("id", "v"), ())


def test_another_table_in_the_place_of_one_that_went_is_not_that_one(tmp_path: Path) -> None:
    found = changed(tmp_path, "CREATE TABLE gone (x)", "DROP TABLE gone; CREATE TABLE fresh (y, x)")
    assert {name: item.status for name, item in found.items()} == {
        "gone": "removed",
        "fresh": "added",
    }


def changed_by_somebody(database: Path, script: str) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.executescript(script)


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "script",
    [
        "INSERT INTO people (name) VALUES (hex(randomblob(9000))); DELETE FROM people WHERE id > 3",
        "UPDATE same SET x = 5; UPDATE same SET x = 1",
        "CREATE TABLE more (x); DROP TABLE more",
        "DELETE FROM gone; VACUUM",
    ],
)
def test_a_target_that_holds_again_what_it_held_is_no_conflict(
    agents: Agents, database: Path, script: str, mode: str
) -> None:
    changed_by_somebody(database, f"PRAGMA journal_mode = {mode}")
    agents.run("plan", "run", "plan.yaml").expect(0)
    changed_by_somebody(database, "INSERT INTO same VALUES (9)")
    told = agents.run("plan", "apply", "db", "--yes").expect(4).stderr
    assert "the database was changed since the sandbox was made of it" in told
    changed_by_somebody(database, f"DELETE FROM same WHERE x = 9; {script}")
    agents.run("plan", "apply", "db", "--yes").expect(0)
    assert query(database, "SELECT name FROM people ORDER BY id") == [
        ("Ada L.",),
        ("Grace",),
        ("Alan",),
    ]
    assert query(database, "SELECT x FROM same") == [(1,), (1,)]
    agents.run("check").expect(0)


@pytest.mark.parametrize(
    "script",
    [
        "UPDATE same SET x = 1.0",
        "INSERT INTO gone VALUES ('a' || char(0) || 'c')",
        "INSERT INTO gone VALUES (CAST('a' || char(0) || 'b' AS BLOB))",
        "CREATE INDEX mine ON same (x)",
        "CREATE TRIGGER mine AFTER INSERT ON same BEGIN SELECT 1; END",
        "PRAGMA user_version = 7",
        "PRAGMA application_id = 7",
        "PRAGMA page_size = 8192; VACUUM",
    ],
)
def test_a_target_that_holds_anything_else_is_a_conflict(
    agents: Agents, database: Path, script: str
) -> None:
    changed_by_somebody(database, "INSERT INTO gone VALUES ('a' || char(0) || 'b')")
    agents.run("plan", "run", "plan.yaml").expect(0)
    changed_by_somebody(database, f"{'DELETE FROM gone; ' if 'gone' in script else ''}{script}")
    before = database.read_bytes()
    agents.run("plan", "apply", "db", "--yes").expect(4)
    assert database.read_bytes() == before
