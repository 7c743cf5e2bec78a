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
from cleveragents.cluster.queue import Schedule
from cleveragents.errors import MachineError, StoreError, UsageError
from cleveragents.testing.queue_contract import Opened, QueueContract
from tests.pgserver import PgServer

_numbers = itertools.count()


class TestProcrastinate(QueueContract):
    @pytest.fixture(autouse=True)
    def place(self, pg: PgServer, tmp_path: Path) -> None:
        self.pg, self.notes = pg, tmp_path / "notes"

    @contextmanager
    def make(self) -> Generator[Opened]:
        name = f"queue{next(_numbers)}"
        self.pg.sql("postgres", f"CREATE DATABASE {name}")
        url = self.pg.url(name)
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
