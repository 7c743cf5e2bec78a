"""Procrastinate keeps the contract of queues, on a real PostgreSQL server."""

import itertools
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cleveragents.cluster.procrastinate_queue import ProcrastinateQueue
from cleveragents.cluster.queue import Order, Schedule
from cleveragents.errors import MachineError, StoreError, UsageError
from cleveragents.testing.queue_contract import PATIENCE, Opened, QueueContract, wait_for
from tests.pgserver import PgServer, running

_numbers = itertools.count()


class TestProcrastinate(QueueContract):
    @pytest.fixture(autouse=True)
    def place(self, pg: PgServer, tmp_path: Path) -> None:
        self.pg, self.notes = pg, tmp_path / "notes"

    @contextmanager
    def make(self) -> Generator[Opened]:
        name = f"queue{next(_numbers)}"
        self.pg.sql("postgres", f"CREATE DATABASE {name}")
        self.url = url = self.pg.url(name)
        queue = ProcrastinateQueue(url, "public", 1.5)
        queue.install()
        started: list[subprocess.Popen[bytes]] = []

        def worker(queues: tuple[str, ...] = (), at_once: int = 1) -> subprocess.Popen[bytes]:
            argv = ["-m", "tests.queue_worker", url, str(self.notes), ",".join(queues)]
            started.append(subprocess.Popen([sys.executable, *argv, str(at_once)]))
            return started[-1]

        def noted() -> list[str]:
            return self.notes.read_text().splitlines() if self.notes.exists() else []

        try:
            yield Opened(queue, lambda: transaction(url), worker, noted)
        finally:
            for process in started:
                process.kill()
                process.wait()
            self.pg.sql("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def test_workers_are_told_of_what_a_killed_one_had(self, opened: Opened) -> None:
        """They need not ask again and again; and however many look after it, it is told once."""
        plans = [f"slow-{number}" for number in range(4)]
        with opened.transaction() as connection:
            for plan_id in plans:
                opened.queue.submit(plan_id, Order(), connection)
        killed = opened.worker(at_once=4)
        wait_for(lambda: len(opened.noted()) == 4, "it has them all")
        others = [opened.worker(queues=("other",)) for _ in range(3)]
        wait_for(lambda: len(opened.queue.workers()) == 4, "the others look after it")
        with psycopg.connect(self.url, autocommit=True) as listening:
            listening.execute('LISTEN "procrastinate_queue_v1#default"')
            killed.kill()
            killed.wait()
            heard = list(listening.notifies(timeout=PATIENCE, stop_after=4))
            assert len(heard) == 4
            (again,) = listening.execute(
                "SELECT count(*) FROM procrastinate_events WHERE type = 'deferred_for_retry'"
            )
        assert again == (4,)
        for other in others:
            other.terminate()
            assert other.wait() == 0

    def test_a_worker_that_others_thought_dead_is_one_again(self, opened: Opened) -> None:
        worker = opened.worker(at_once=2)
        wait_for(opened.queue.workers, "it is there")
        with opened.transaction() as connection:
            connection.execute("DELETE FROM procrastinate_workers")
        wait_for(lambda: any(one.at_once == 2 for one in opened.queue.workers()), "it is again")
        self.submit(opened, "ok-1")
        self.ended(opened, "ok-1")
        worker.terminate()
        assert worker.wait() == 0

    def test_one_that_cannot_be_delivered_again_keeps_no_other_from_it(
        self, opened: Opened
    ) -> None:
        with opened.transaction() as connection:
            for plan_id in ("slow-1", "slow-2"):
                opened.queue.submit(plan_id, Order(), connection)
        killed = opened.worker(at_once=2)
        wait_for(lambda: len(opened.noted()) == 2, "it has both")
        with opened.transaction() as connection:
            opened.queue.submit("slow-1", Order(queue="nobody"), connection)
        killed.kill()
        killed.wait()
        other = opened.worker(queues=("default",))
        wait_for(lambda: opened.noted().count("begin slow-2") == 2, "the second one is begun")
        assert opened.noted().count("begin slow-1") == 1, "it waits already, where it was put"
        other.kill()
        other.wait()


def test_a_worker_says_once_when_the_server_is_away_and_once_when_it_is_back(
    tmp_path: Path,
) -> None:
    notes, errors = tmp_path / "notes", tmp_path / "errors"
    notes.touch()
    with running() as server, open(errors, "w") as stderr:
        queue = ProcrastinateQueue(server.url(), "public", 1.5)
        queue.install()
        argv = [sys.executable, "-m", "tests.queue_worker", server.url(), str(notes), "", "2"]
        worker = subprocess.Popen(argv, stderr=stderr)
        try:
            wait_for(queue.workers, "it is there")
            server.stop_hard()
            wait_for(lambda: "does not answer" in notes.read_text(), "it says so")
            server.start()
            wait_for(lambda: "answers again" in notes.read_text(), "and that it is back")
            with transaction(server.url()) as connection:
                queue.submit("ok-1", Order(), connection)
            wait_for(lambda: "end ok-1" in notes.read_text(), "and takes plans")
        finally:
            worker.kill()
            worker.wait()
    said = [line for line in notes.read_text().splitlines() if "answer" in line]
    assert all("does not answer" in line for line in said[::2])
    assert all(line == "the store answers again" for line in said[1::2])
    assert "root-secret" not in notes.read_text()
    assert errors.read_text() == ""


@contextmanager
def transaction(url: str) -> Generator[Any]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        yield connection


def test_a_database_without_a_queue_says_how_to_get_one(pg: PgServer) -> None:
    queue = ProcrastinateQueue(pg.url("template1"), "public", 1.5)
    with pytest.raises(StoreError, match="has no queue"):
        queue.counts()


def test_a_server_that_is_away_is_named_without_its_password(pg: PgServer) -> None:
    away = ProcrastinateQueue("postgresql://me:s3cret@127.0.0.1:1/x", "public", 1.5)
    with pytest.raises(MachineError, match=r"127\.0\.0\.1:1/x") as refused:
        away.workers()
    assert "s3cret" not in str(refused.value)


def test_a_wrong_cron_expression_is_refused() -> None:
    queue = ProcrastinateQueue("postgresql://127.0.0.1:1/x", "public", 1.5)
    with pytest.raises(UsageError, match="not a cron expression"):
        queue.schedule(Schedule(name="x", cron="every day", file="/x"))
