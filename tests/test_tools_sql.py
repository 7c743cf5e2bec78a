"""SQL steps: all or nothing, and only in their own file."""

import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleveragents.errors import ToolFailed
from cleveragents.tools.limits import Capture, Deadline, OutOfTime
from cleveragents.tools.sql import run_sql, split
from tests.harness import PATIENCE
from tests.scratch import wait_until

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT {} FROM c"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name)")
        connection.execute("INSERT INTO t VALUES (1, 'one')")
        connection.commit()
    return path


def run(
    db: Path, script: str, params: Any = None, seconds: float = 30, read_only: bool = False
) -> str:
    out = Capture(10_000)
    run_sql(str(db), script, params, out, Deadline(seconds), read_only)
    return out.text()


def rows(db: Path, query: str = "SELECT * FROM t ORDER BY id") -> list[Any]:
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute(query).fetchall()


def test_a_script_changes_the_database_and_says_how_much(db: Path) -> None:
    text = run(db, "INSERT INTO t VALUES (2, 'two'), (3, NULL); DELETE FROM t WHERE id = 1;")
    assert text == "3 rows changed\n"
    assert rows(db) == [(2, "two"), (3, None)]


def test_rows_come_back_as_a_table(db: Path) -> None:
    run(db, "INSERT INTO t VALUES (2, 'a\tb\nc\\'), (3, x'00ff'), (4, zeroblob(100)), (5, NULL)")
    text = run(db, "SELECT id, name AS what FROM t WHERE id > 1; SELECT 1.5")
    assert text.splitlines() == [
        "id\twhat",
        "2\ta\\tb\\nc\\\\",
        "3\tx'00ff'",
        "4\t<blob of 100 bytes>",
        "5\tNULL",
        "1.5",
        "1.5",
    ]


def test_text_that_is_not_utf_8_is_shown_not_raised(db: Path) -> None:
    assert run(db, "SELECT CAST(x'ff41' AS TEXT) AS v") == "v\n\\\\xffA\n"


def test_rows_are_bounded(db: Path) -> None:
    text = run(db, ENDLESS.format("x") + " LIMIT 100000")
    assert len(text) < 11_000
    assert "bytes left out" in text


def test_returning_gives_rows_and_the_count(db: Path) -> None:
    assert run(db, "INSERT INTO t VALUES (9, 'x') RETURNING id") == "id\n9\n1 row changed\n"


def test_an_empty_script_changes_nothing(db: Path) -> None:
    assert run(db, " ; -- nothing\n /* at all */") == "0 rows changed\n"


def test_parameters_by_position_and_by_name(db: Path) -> None:
    run(db, "INSERT INTO t VALUES (?, ?);", [2, "x;y"])
    run(db, "INSERT INTO t VALUES (:id, :name)", {"id": 3, "name": None})
    assert rows(db)[1:] == [(2, "x;y"), (3, None)]


def test_parameters_need_a_single_statement(db: Path) -> None:
    with pytest.raises(
        ToolFailed, match="params are for a script of one statement, and this one has 2"
    ):
        run(db, "SELECT ?; SELECT 1", [1])


def test_a_failing_script_leaves_the_database_untouched(db: Path) -> None:
    before = db.read_bytes()
    script = "INSERT INTO t VALUES (2, 'x');\nALTER TABLE t ADD more;\nINSERT INTO t(id) VALUES (1)"
    with pytest.raises(ToolFailed) as caught:
        run(db, script)
    assert caught.value.message == (
        "statement 3 (INSERT INTO t(id) VALUES (1)): UNIQUE constraint failed: t.id"
    )
    assert db.read_bytes() == before
    assert os.listdir(db.parent) == ["app.db"]


def test_a_long_statement_is_named_by_its_beginning(db: Path) -> None:
    with pytest.raises(ToolFailed, match=r"statement 1 \(SELECT 'aaa[a]+\.\.\.\)"):
        run(db, f"SELECT '{'a' * 100}' FROM nowhere")


def test_a_deferred_violation_fails_at_the_commit(db: Path) -> None:
    script = """PRAGMA foreign_keys=ON;
        CREATE TABLE c (t REFERENCES t(id) DEFERRABLE INITIALLY DEFERRED);
        INSERT INTO c VALUES (77)"""
    with pytest.raises(ToolFailed, match="commit: FOREIGN KEY constraint failed"):
        run(db, script)
    assert rows(db, "SELECT name FROM sqlite_master") == [("t",)]


def test_a_script_with_its_own_transactions_runs_as_given(db: Path) -> None:
    with pytest.raises(ToolFailed, match="statement 4"):
        run(db, "BEGIN; INSERT INTO t VALUES (2, 'kept'); COMMIT; INSERT INTO t VALUES (1, 'no')")
    assert rows(db) == [(1, "one"), (2, "kept")]


def test_a_transaction_left_open_is_an_error_and_is_rolled_back(db: Path) -> None:
    with pytest.raises(ToolFailed, match="does not commit it"):
        run(db, "BEGIN; DELETE FROM t")
    assert rows(db) == [(1, "one")]


def test_savepoints_work_inside_our_transaction(db: Path) -> None:
    run(db, "SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; RELEASE a; INSERT INTO t VALUES (2, 'x')")
    assert rows(db) == [(1, "one"), (2, "x")]


@pytest.mark.parametrize(
    "script",
    [
        "ATTACH '{0}/other.db' AS o",
        "/* c */ attach database '{0}/other.db' AS o",
        "EXPLAIN ATTACH '{0}/other.db' AS o",
        "ATTACH '' AS o",
        "DETACH main",
        "VACUUM INTO '{0}/other.db'",
        "VACUUM INTO '{0}/' || 'other.db'",
        "PRAGMA temp_store_directory='{0}'",
        "PRAGMA Trusted_Schema=ON",
        "PRAGMA main.journal_mode=OFF",
        "SELECT load_extension('{0}/x.so')",
        "SELECT Load_Extension('{0}/x.so')",
    ],
)
def test_what_leaves_the_database_is_refused(db: Path, script: str) -> None:
    with pytest.raises(ToolFailed, match="not allowed: a step's SQL stays in its own database"):
        run(db, script.format(db.parent))
    assert os.listdir(db.parent) == ["app.db"]


def test_vacuum_and_the_journal_mode_may_be_set(db: Path) -> None:
    assert run(db, "PRAGMA journal_mode=WAL; INSERT INTO t VALUES (2, 'x')").startswith("journal")
    assert rows(db, "PRAGMA journal_mode") == [("wal",)]
    run(db, "VACUUM")
    run(db, "PRAGMA journal_mode=DELETE")
    assert rows(db) == [(1, "one"), (2, "x")]
    assert os.listdir(db.parent) == ["app.db"]


@pytest.mark.parametrize(
    "script", ["DELETE FROM t", "VACUUM", "PRAGMA user_version=3", "PRAGMA journal_mode=WAL"]
)
def test_a_read_only_tool_cannot_write(db: Path, script: str) -> None:
    before = db.read_bytes()
    with pytest.raises(ToolFailed, match=r"readonly database|not allowed"):
        run(db, script, read_only=True)
    assert run(db, "SELECT name FROM t", read_only=True) == "name\none\n"
    assert db.read_bytes() == before


def test_reading_a_wal_database_leaves_no_side_files(db: Path) -> None:
    run(db, "PRAGMA journal_mode=WAL")
    run(db, "SELECT * FROM t", read_only=True)
    assert os.listdir(db.parent) == ["app.db"]


def test_the_time_limit_ends_a_statement_that_computes(db: Path) -> None:
    with pytest.raises(OutOfTime):
        run(db, "DELETE FROM t;" + ENDLESS.format("count(*)"), seconds=0.3)
    assert rows(db) == [(1, "one")]


def test_the_time_limit_ends_a_statement_that_gives_rows(db: Path) -> None:
    with pytest.raises(OutOfTime):
        run(db, "DELETE FROM t;" + ENDLESS.format("x"), seconds=0.3)
    assert rows(db) == [(1, "one")]


def test_ctrl_c_ends_a_statement_and_rolls_back(db: Path) -> None:
    def interrupt() -> None:
        wait_until(Path(f"{db}-journal").exists, "the deletion")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(db, "DELETE FROM t;" + ENDLESS.format("count(*)"), seconds=PATIENCE)
    thread.join()
    assert rows(db) == [(1, "one")]


def test_a_locked_database_is_a_failure_in_time(db: Path) -> None:
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ToolFailed, match="begin immediate: database is locked"):
            run(db, "DELETE FROM t", seconds=0.3)


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_database_that_is_a_link_is_not_opened(db: Path, make: Any) -> None:
    link = db.parent / "link.db"
    make(link, db)
    with pytest.raises(ToolFailed, match="is a link or not a file"):
        run(link, "DELETE FROM t")
    assert rows(db) == [(1, "one")]


def test_a_side_file_that_is_a_link_stops_us_too(db: Path, tmp_path: Path) -> None:
    (db.parent / "app.db-wal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ToolFailed, match=r"app\.db-wal is a link"):
        run(db, "DELETE FROM t")


def test_a_missing_database_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"no such database: .*/none\.db"):
        run(tmp_path / "none.db", "SELECT 1")
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_no_database_is_named_a_failure(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to have a header" * 99)
    with pytest.raises(ToolFailed, match="file is not a database"):
        run(tmp_path / "x.db", "DELETE FROM t")


def test_a_database_whose_name_is_not_utf_8_or_looks_like_a_uri_works(db: Path) -> None:
    for name in (b"\xff?mode=memory#x.db", "ü %20.db".encode()):
        other = Path(os.fsdecode(os.fsencode(db.parent) + b"/" + name))
        db.rename(other)
        assert run(other, "SELECT count(*) AS n FROM t") == "n\n1\n"
        db = other


@pytest.mark.parametrize("code", [0, 0xDCFF, 0xD800])
def test_characters_that_sql_cannot_have_are_refused(db: Path, code: int) -> None:
    with pytest.raises(ToolFailed, match="a character that SQL cannot have"):
        run(db, f"SELECT '{chr(code)}'")


@pytest.mark.parametrize("params", [[2**70], [object()], [1, 2]])
def test_parameters_that_sqlite_cannot_take_are_a_failure(db: Path, params: list[Any]) -> None:
    with pytest.raises(ToolFailed, match="statement 1"):
        run(db, "SELECT ?", params)


def test_a_trigger_is_one_statement() -> None:
    trigger = "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; SELECT ';'; END"
    assert list(split(f"SELECT 1;{trigger};\n-- end;\n SELECT 2")) == [
        "SELECT 1",
        trigger,
        "SELECT 2",
    ]


def test_a_semicolon_in_quotes_or_comments_ends_nothing() -> None:
    whole = """SELECT ';', ";", `;`, [;], 'it''s;' /* ; */ -- ;\n, 1"""
    assert list(split(whole)) == [whole]
    assert list(split("SELECT 'open ; text")) == ["SELECT 'open ; text"]


def test_a_large_text_full_of_semicolons_is_split_in_no_time() -> None:
    statement = f"INSERT INTO t VALUES ('{'a;' * 500_000}')"
    assert list(split(f"{statement};{statement};")) == [statement, statement]


@given(st.lists(st.text("ab';\"`[]-*/ \n")))
def test_splitting_loses_no_statement(texts: list[str]) -> None:
    quoted = ["SELECT '" + text.replace("'", "''") + "'" for text in texts]
    assert list(split(";".join(quoted))) == quoted
