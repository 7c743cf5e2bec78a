"""A store of an older version is brought up to date, whole or not at all."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cleveragents.errors import StoreError
from cleveragents.store import open_store
from cleveragents.store.database import HEAD_REVISION, connect, statements
from cleveragents.store.upgrade import config, run_migrations
from tests.harness import Agents

PLAN = """
name: old
resources: {work: {kind: fs-directory, path: work}}
steps: [{id: one, tool: file.write, with: {path: a.txt, content: "a"}}]
"""


def script():  # type: ignore[no-untyped-def]
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(config())


def shape(path: Path) -> list[tuple[str, str, str]]:
    """Tables and indexes with their statements, whatever the order and the blanks."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master ORDER BY name")
        found = [(kind, name, re.sub(r"\s*([(),])\s*", r"\1", sql)) for kind, name, sql in rows]
        found = [(kind, name, " ".join(sql.split())) for kind, name, sql in found]
    return [
        row
        for row in found
        if row[1] not in ("alembic_version", "sqlite_autoindex_alembic_version_1")
    ]


def stamp(path: Path) -> str:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def age(path: Path, revision: str = "0001") -> None:
    """Make a store what an older version would have left: its schema, with the rows it can hold."""
    old = path.with_name("old.db")
    run_migrations(str(old), script(), revision)
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


def test_migrations_from_nothing_lead_to_the_same_schema_as_a_new_store(tmp_path: Path) -> None:
    connect(str(tmp_path / "new.db")).close()
    sqlite3.connect(tmp_path / "migrated.db").close()
    run_migrations(str(tmp_path / "migrated.db"), script())
    assert shape(tmp_path / "migrated.db") == shape(tmp_path / "new.db")
    assert stamp(tmp_path / "migrated.db") == stamp(tmp_path / "new.db") == HEAD_REVISION


def test_the_newest_migration_is_what_a_new_store_is_stamped_with() -> None:
    assert script().get_current_head() == HEAD_REVISION


def test_an_older_store_is_upgraded_by_the_next_command_with_all_it_holds(agents: Agents) -> None:
    store = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    (agents.work / "work").mkdir()
    (agents.work / "plan.yaml").write_text(PLAN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    wanted = shape(store)
    age(store)
    assert shape(store) != wanted
    data = agents.run("plan", "status", "old", "--json").expect(0).data
    assert (data["phase"], data["state"]) == ("execute", "complete")
    assert shape(store) == wanted
    assert stamp(store) == HEAD_REVISION
    agents.run("plan", "rollback", "old", "first", "--yes").expect(0)


def test_numbers_of_old_rows_follow_how_they_were_written(tmp_path: Path) -> None:
    """Ids of a clock that stepped back: the row that was written last is the last."""
    home = tmp_path / "store"
    open_store(str(home)).close()
    age(home / "store.db", "0004")
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


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "store"
    open_store(str(home)).close()
    age(home / "store.db")
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        db.execute("CREATE TABLE plans_by_state (in_the_way)")
    before = shape(home / "store.db")
    with pytest.raises(Exception, match="plans_by_state"):
        open_store(str(home))
    assert shape(home / "store.db") == before
    assert stamp(home / "store.db") == "0001"


def test_a_store_of_a_newer_version_is_refused(agents: Agents) -> None:
    agents.run("plan", "list").expect(0)
    store = Path(agents.env["CLEVERAGENTS_HOME"]) / "store.db"
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    error = agents.run("plan", "list", "--json").expect(6).data["error"]
    assert error["type"] == "StoreError"
    assert "newer version" in error["message"]
    assert error["hint"]


def test_a_store_that_lost_its_stamp_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "store"
    open_store(str(home)).close()
    with closing(sqlite3.connect(home / "store.db")) as db, db:
        db.execute("DELETE FROM alembic_version")
    with pytest.raises(StoreError):
        open_store(str(home))


def test_a_store_that_is_up_to_date_imports_no_alembic(tmp_path: Path) -> None:
    code = (
        "import sys; from cleveragents.store import open_store;"
        f" open_store({str(tmp_path / 'store')!r}).close();"
        " print([m for m in sys.modules if m.startswith(('alembic', 'sqlalchemy'))])"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout == "[]\n"


def test_a_script_is_run_statement_by_statement() -> None:
    assert [s.strip() for s in statements("-- why\nCREATE TABLE a (x);\nCREATE TABLE b\n(y);")] == [
        "-- why\nCREATE TABLE a (x);",
        "CREATE TABLE b\n(y);",
    ]
