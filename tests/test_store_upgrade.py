"""A store of an older version is brought up to date, whole or not at all."""

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cleveragents.errors import StoreError
from cleveragents.store import open_store
from cleveragents.store.database import connect
from cleveragents.store.schema import MIGRATIONS, scripts, statements
from tests.harness import Agents

PLAN = """
name: old
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, tool: file.write, with: {path: a.txt, content: "a"}}]
"""


OLD = Path(__file__).parent / "old_schemas"
"""The statements of the versions from before the scripts, as they were then."""


def make_old(path: Path, number: int) -> None:
    """An empty store as that version made it."""
    texts = [(OLD / f"{each:04}.sql").read_text() for each in range(1, min(number, 4) + 1)]
    if number == 5:
        texts = [Path(scripts()[5]).read_text()]
    with closing(sqlite3.connect(path)) as db:
        db.executescript("".join(texts))
        db.execute("CREATE TABLE alembic_version (version_num TEXT NOT NULL PRIMARY KEY)")
        with db:
            db.execute("INSERT INTO alembic_version VALUES (?)", (f"{number:04}",))


def shape(path: Path) -> list[tuple[str, str, str]]:
    """Tables and indexes with their statements, whatever the order and the blanks."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master ORDER BY name")
        found = [(kind, name, re.sub(r"\s*([(),])\s*", r"\1", sql)) for kind, name, sql in rows]
        return [(kind, name, " ".join(sql.split())) for kind, name, sql in found]


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def age(path: Path, number: int = 1) -> None:
    """Make a store what an older version would have left: its schema, with the rows it can hold."""
    old = path.with_name("old.db")
    make_old(old, number)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("ATTACH ? AS new", (str(path),))
        tables = db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            if table == "alembic_version":
                continue
            names = [
                {row[1] for row in db.execute(f"PRAGMA {side}.table_info('{table}')")}
                for side in ("main", "new")
            ]
            columns = ", ".join(f'"{name}"' for name in sorted(names[0] & names[1]))
            by = " ORDER BY seq" if "seq" in names[1] else ""
            db.execute(
                f"INSERT OR IGNORE INTO main.{table} ({columns})"
                f" SELECT {columns} FROM new.{table}{by}"
            )
    for name in (f"{path}-wal", f"{path}-shm"):
        Path(name).unlink(missing_ok=True)
    old.replace(path)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_store_of_every_old_version_gets_the_schema_of_a_new_one(
    tmp_path: Path, number: int
) -> None:
    connect(str(tmp_path / "new.db")).close()
    make_old(tmp_path / "old.db", number)
    assert shape(tmp_path / "old.db") != shape(tmp_path / "new.db")
    connect(str(tmp_path / "old.db")).close()
    assert shape(tmp_path / "old.db") == shape(tmp_path / "new.db")
    assert version(tmp_path / "old.db") == version(tmp_path / "new.db") == max(scripts())


def test_numbers_of_scripts_follow_each_other() -> None:
    numbers = list(scripts())
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_new_script_is_run_by_a_new_store_and_by_one_that_is_there(tmp_path: Path) -> None:
    made = tmp_path / "made.db"
    connect(str(made)).close()
    folder = tmp_path / "scripts"
    shutil.copytree(MIGRATIONS, folder)
    number = max(scripts()) + 1
    (folder / f"{number:04}_more.sql").write_text("-- why\nCREATE TABLE more (x);\n")
    code = (
        "import sys; from cleveragents.store import database, schema;"
        " schema.MIGRATIONS = sys.argv[1];"
        " [database.connect(path).close() for path in sys.argv[2:]]"
    )
    fresh = tmp_path / "fresh.db"
    run = [sys.executable, "-c", code, str(folder), str(made), str(fresh)]
    subprocess.run(run, check=True)
    assert ("table", "more", "CREATE TABLE more(x)") in shape(made)
    assert shape(made) == shape(fresh)
    assert version(made) == version(fresh) == number


@pytest.mark.parametrize("number", [1, 4, 5])
def test_an_older_store_is_upgraded_by_the_next_command_with_all_it_holds(
    agents: Agents, number: int
) -> None:
    store = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    (agents.work / "work").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    wanted = shape(store)
    age(store, number)
    assert shape(store) != wanted
    data = agents.run("plan", "status", "old", "--json").expect(0).data
    assert (data["phase"], data["state"]) == ("execute", "complete")
    assert shape(store) == wanted
    assert version(store) == max(scripts())
    agents.run("plan", "rollback", "old", "first", "--yes").expect(0)


def test_numbers_of_old_rows_follow_how_they_were_written(tmp_path: Path) -> None:
    """Ids of a clock that stepped back: the row that was written last is the last."""
    home = tmp_path / "store"
    open_store(str(home)).close()
    age(home / "store.db", 4)
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        for plan in ("P2", "P1"):
            db.execute(
                "INSERT INTO plans VALUES (?, 'n', 'execute', 'queued', 1, 1, NULL, '', '', '',"
                " '{}', -1, NULL, NULL, 0, 0, 'null', 'null', 'null', '', '', NULL)",
                (plan,),
            )
        for group in ("3", "7", "5"):
            db.execute(
                "INSERT INTO checkpoint_groups VALUES"
                " (?, 'P1', NULL, 'manual', '[]', NULL, 0, 0, 0, 0, 'null', '', NULL, '{}')",
                (group,),
            )
        for call in ("4", "8", "6"):
            db.execute(
                "INSERT INTO tool_calls VALUES"
                " (?, 'P1', 's', 1, 't', '{}', 'ok', 0, '', 0, NULL, '', '', NULL, NULL)",
                (call,),
            )
    with closing(open_store(str(home))) as store:
        assert store.plans.ids() == ["P2", "P1"]
        assert [group.group_id for group in store.checkpoints.groups("P1")] == ["3", "7", "5"]
        order = store.order_of("P1")
        assert sorted(order, key=order.__getitem__) == ["3", "4", "7", "5", "8", "6"]


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "store"
    open_store(str(home)).close()
    age(home / "store.db")
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        db.execute("CREATE TABLE plans_by_state (in_the_way)")
    before = shape(home / "store.db")
    with pytest.raises(StoreError, match="plans_by_state"):
        open_store(str(home))
    assert shape(home / "store.db") == before
    assert version(home / "store.db") == 0


def test_an_upgrade_that_would_lose_a_reference_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "store"
    open_store(str(home)).close()
    age(home / "store.db")
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        db.execute("INSERT INTO intents VALUES ('I', 'nobody', 'apply', 'staged', '{}', '')")
    before = shape(home / "store.db")
    with pytest.raises(StoreError, match="a row of intents has no plans") as refused:
        open_store(str(home))
    assert refused.value.hint
    assert shape(home / "store.db") == before


def test_a_store_of_a_newer_version_is_refused(agents: Agents) -> None:
    agents.run("plan", "list").expect(0)
    store = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("PRAGMA user_version=9999")
    error = agents.run("plan", "list", "--json").expect(6).data["error"]
    assert error["type"] == "StoreError"
    assert "newer version" in error["message"]
    assert error["hint"]


def test_a_store_that_lost_its_version_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "store"
    open_store(str(home)).close()
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        db.execute("PRAGMA user_version=0")
    with pytest.raises(StoreError, match="lost its version"):
        open_store(str(home))


def test_an_old_store_that_lost_its_stamp_is_refused(tmp_path: Path) -> None:
    make_old(tmp_path / "store.db", 4)
    with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("DELETE FROM alembic_version")
    with pytest.raises(StoreError, match="lost its version"):
        connect(str(tmp_path / "store.db"))


def test_a_script_is_run_statement_by_statement() -> None:
    assert [s.strip() for s in statements("-- why\nCREATE TABLE a (x);\nCREATE TABLE b\n(y);")] == [
        "-- why\nCREATE TABLE a (x);",
        "CREATE TABLE b\n(y);",
    ]
