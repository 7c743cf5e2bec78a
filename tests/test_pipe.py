"""The statements of a transaction on PostgreSQL: sent, not waited for, and all done or none."""

import os
import signal
from collections.abc import Generator
from contextlib import closing, suppress

import psycopg
import pytest

from cleveragents.content.pack_file import Location
from cleveragents.errors import MachineError, StoreError
from cleveragents.store import open_store
from cleveragents.store.database import Rows
from cleveragents.store.postgres import PostgresDatabase
from tests.databases import query_shared
from tests.scratch import wait_until

PUT = "INSERT INTO store (name, value) VALUES (?, ?)"
GET = "SELECT value FROM store WHERE name = ?"


@pytest.fixture
def db(on_postgres: str) -> Generator[PostgresDatabase]:
    with closing(PostgresDatabase(on_postgres)) as made:
        yield made


def noted(url: str, name: str) -> list[str]:
    return [value for (value,) in query_shared(url, GET, (name,))]


def test_the_server_works_while_the_home_writes_its_own_rows(on_postgres: str) -> None:
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event = 'ClientRead' AND query LIKE 'INSERT INTO store%'"
    )
    home = os.environ["CLEVERAGENTS_HOME"]
    with closing(open_store(home, on_postgres)) as store, store.transaction():
        store.note("x", "1")
        store.objects.add([(b"B" + bytes(32), Location("a.pack", 8, 1))])
        wait_until(lambda: query_shared(on_postgres, asked) == [(1,)], "the server")
    assert noted(on_postgres, "x") == ["1"]


def test_more_than_both_sides_hold_goes_through(db: PostgresDatabase, on_postgres: str) -> None:
    """Whoever only sent, or only received, would wait for the other side for ever."""
    text = "x\0" * 1_000_000
    with db.one_commit():
        for number in range(8):
            db.execute(PUT, (f"large{number}", text))
            db.execute(GET, (f"large{number}",))
        answers = [db.execute(GET, (f"large{number}",)) for number in range(8)]
        assert [answer.fetchone() for answer in answers] == [(text,)] * 8
    assert len(query_shared(on_postgres, "SELECT 1 FROM store WHERE name LIKE 'large%'")) == 8


def test_what_a_failed_transaction_asked_has_no_answer(
    db: PostgresDatabase, on_postgres: str
) -> None:
    late: list[Rows] = []

    def fail() -> None:
        with db.one_commit():
            db.execute(PUT, ("x", "1"))
            db.execute("INSERT INTO nowhere (name) VALUES (?)", ("x",))
            late.append(db.execute(GET, ("x",)))
            with suppress(psycopg.Error):
                late[0].fetchall()

    with pytest.raises(StoreError, match="nowhere"):
        fail()
    assert noted(on_postgres, "x") == []
    with pytest.raises(psycopg.OperationalError, match="is over"):
        late[0].fetchall()
    with db.one_commit():
        db.execute(PUT, ("x", "2"))
    assert noted(on_postgres, "x") == ["2"]


def test_a_commit_that_nobody_answers_has_failed(db: PostgresDatabase, on_postgres: str) -> None:
    """The server may have done it or not; whoever reads the rows will see."""

    def lose() -> None:
        with db.one_commit():
            db.execute(PUT, ("x", "1"))
            (number,) = db.execute("SELECT pg_backend_pid()").fetchone()
            query_shared(on_postgres, "SELECT pg_terminate_backend(?)", (number,))

    for _ in range(3):
        with pytest.raises(MachineError, match="does not answer"):
            lose()
    assert noted(on_postgres, "x") == []
    with db.one_commit():
        db.execute(PUT, ("x", "2"))
    assert noted(on_postgres, "x") == ["2"]


def test_who_is_interrupted_while_waiting_leaves_nothing_behind(
    db: PostgresDatabase, on_postgres: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def wait() -> None:
        with db.one_commit():
            db.execute(PUT, ("x", "1"))
            waits = db.execute("SELECT pg_sleep(1000)")
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            waits.fetchall()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert noted(on_postgres, "x") == []
    with db.one_commit():
        db.execute(PUT, ("x", "2"))
    assert noted(on_postgres, "x") == ["2"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_others_write_is_part_of_the_commit(
    db: PostgresDatabase, on_postgres: str, fails: bool
) -> None:
    for round_ in range(4):  # also when the server has kept the statements
        with suppress(ZeroDivisionError), db.one_commit():
            db.execute(PUT, (f"ours{round_}", "1"))
            with db.connection.transaction():
                db.connection.execute(PUT.replace("?, ?", "$1, $2"), (f"theirs{round_}", "1"))
            db.execute(PUT, (f"after{round_}", "1"))
            assert not fails or 1 / 0
    asked = "SELECT count(*) FROM store WHERE value = '1'"
    assert query_shared(on_postgres, asked) == [(0 if fails else 12,)]
