"""Procrastinate as the queue, in the PostgreSQL database that has the store (extra `cluster`).

Its tables are in the store's own schema, so that a plan and its job are one commit. What it lacks
is beside them: which machine a worker is on, schedules that are added while workers run, and why a
plan was handed back.
"""

import asyncio
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
from croniter import croniter
from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException

from cleveragents import codec
from cleveragents.cluster.procrastinate_worker import PLAN, Deliveries
from cleveragents.cluster.queue import (
    Count,
    HandedBack,
    Job,
    Options,
    Order,
    Run,
    Schedule,
    Submit,
    Told,
    Worker,
)
from cleveragents.errors import MachineError, NotAllowed, StoreError, UsageError
from cleveragents.sandbox.postgres import address
from cleveragents.store.postgres import not_allowed, parameters

TABLES = """
CREATE TABLE IF NOT EXISTS agents_workers (
    worker_id BIGINT PRIMARY KEY REFERENCES procrastinate_workers (id) ON DELETE CASCADE,
    name TEXT NOT NULL
);
ALTER TABLE agents_workers ADD COLUMN IF NOT EXISTS at_once INTEGER NOT NULL DEFAULT 1;
ALTER TABLE agents_workers ADD COLUMN IF NOT EXISTS queues TEXT[] NOT NULL DEFAULT '{}';
CREATE INDEX IF NOT EXISTS agents_jobs_of_plan ON procrastinate_jobs (queueing_lock)
    WHERE status IN ('todo', 'doing');
CREATE TABLE IF NOT EXISTS agents_schedules (
    name TEXT PRIMARY KEY, body TEXT NOT NULL, since BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS agents_handed_back (
    plan_id TEXT PRIMARY KEY, worker TEXT NOT NULL, reason TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL DEFAULT now()
);
"""


class _Plain:
    """The store's connection with the cursors that Procrastinate expects."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def cursor(self, **more: Any) -> Any:
        return psycopg.Cursor(self._connection, **more)


class ProcrastinateQueue:
    """Satisfies `cluster.queue.Queue`; `lease`: seconds after which a silent worker is dead."""

    def __init__(self, url: str, schema: str, lease: float) -> None:
        self._url, self._schema, self._lease = url, schema, lease
        self._deferring = App(connector=SyncPsycopgConnector())
        self._asking: psycopg.Connection[Any] | None = None

    def _connect(self) -> "psycopg.Connection[Any]":
        try:
            made = psycopg.connect(**parameters(self._url), autocommit=True)
            made.execute(f"SET search_path = {self._schema}".encode())
        except psycopg.Error as error:
            shown = address.public(self._url)
            raise MachineError(f"cannot connect to {shown}", "is the server running?") from error
        return made

    def _query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Query over one connection: waiting for a worker means polling.

        What is asked may be asked twice, so a server that was restarted meanwhile is no error.
        """
        if self._asking is not None and not self._asking.closed:
            with suppress(psycopg.OperationalError):
                return self._answer(self._asking, sql, parameters)
        self._asking = self._connect()
        weakref.finalize(self, self._asking.close)
        return self._answer(self._asking, sql, parameters)

    @staticmethod
    def _answer(
        connection: "psycopg.Connection[Any]", sql: str, parameters: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        try:
            cursor = connection.execute(sql.encode(), parameters)
        except psycopg.errors.UndefinedTable as error:
            raise _not_installed() from error
        return cursor.fetchall() if cursor.description else []

    def install(self) -> None:
        from procrastinate.schema import SchemaManager

        try:
            with self._connect() as connection, connection.transaction():
                found = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
                if found is None or found[0] is None:
                    connection.execute(SchemaManager.get_schema().encode())
                connection.execute(TABLES.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise not_allowed(address.public(self._url), error) from error

    def submit(
        self, plan_id: str, order: Order, connection: Any, apply: Options | None = None
    ) -> None:
        task = self._deferring.configure_task(
            PLAN,
            queue=order.queue,
            priority=order.priority,
            lock=order.limit_key or None,
            queueing_lock=plan_id,
            schedule_at=order.not_before,
            connection=_Plain(connection),
        )
        given: dict[str, Any] = {
            "plan_id": plan_id,
            **({} if apply is None else {"apply": list(apply)}),
        }
        try:
            task.defer(**given)
        except AlreadyEnqueued as error:
            raise NotAllowed(f"plan {plan_id} is already waiting for a worker") from error
        except ConnectorException as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedTable):
                raise _not_installed() from error
            raise

    def job(self, plan_id: str) -> Job | None:
        rows = self._query(
            "SELECT queue_name, priority, status = 'doing', coalesce(reason, '')"
            " FROM procrastinate_jobs LEFT JOIN agents_handed_back ON plan_id = queueing_lock"
            " WHERE queueing_lock = %s AND status IN ('todo', 'doing')"
            " ORDER BY status = 'doing' DESC LIMIT 1",
            (plan_id,),
        )
        names = ("queue", "priority", "running", "handed_back")
        return Job(**dict(zip(names, rows[0], strict=True))) if rows else None

    def cancel(self, plan_id: str, *, waiting_only: bool = False) -> bool:
        jobs = self._query(
            "SELECT procrastinate_cancel_job_v1(id, %s, true) FROM procrastinate_jobs"
            " WHERE queueing_lock = %s AND status IN ('todo', 'doing')",
            (not waiting_only, plan_id),
        )
        if any(job for (job,) in jobs):
            self._query("DELETE FROM agents_handed_back WHERE plan_id = %s", (plan_id,))
            return True
        return False

    def work(
        self, run: Run, submit: Submit, tell: Told, *, queues: Sequence[str], at_once: int
    ) -> None:
        self._query("SELECT 1 FROM agents_workers LIMIT 0")
        deliveries = Deliveries(self._url, self._schema, self._lease, run, submit, tell)
        asyncio.run(deliveries.until_stopped(list(queues), at_once))

    def schedule(self, schedule: Schedule) -> None:
        if not croniter.is_valid(schedule.cron):
            raise UsageError(
                f"not a cron expression: {schedule.cron!r}", "five fields, as in '0 3 * * *'"
            )
        self._query(
            "INSERT INTO agents_schedules (name, body, since) VALUES (%s, %s, %s)"
            " ON CONFLICT (name) DO UPDATE SET body = excluded.body, since = excluded.since",
            (schedule.name, msgspec.json.encode(schedule).decode(), int(time.time())),
        )

    def unschedule(self, name: str) -> bool:
        return bool(
            self._query("DELETE FROM agents_schedules WHERE name = %s RETURNING 1", (name,))
        )

    def schedules(self) -> list[Schedule]:
        rows = self._query("SELECT body FROM agents_schedules ORDER BY name")
        return [codec.from_json(body, Schedule) for (body,) in rows]

    def counts(self) -> list[Count]:
        rows = self._query(
            "SELECT queue_name, count(*) FILTER (WHERE ready AND status = 'todo'),"
            " count(*) FILTER (WHERE status = 'doing'), count(*) FILTER (WHERE NOT ready),"
            " coalesce(max(extract(epoch FROM now() - since)) FILTER (WHERE ready AND"
            " status = 'todo'), 0)::float8 FROM (SELECT queue_name, status,"
            " (status = 'doing' OR coalesce(scheduled_at, now()) <= now()) AS ready,"
            " coalesce(scheduled_at, (SELECT min(at) FROM procrastinate_events e"
            " WHERE e.job_id = j.id AND e.type = 'deferred')) AS since FROM procrastinate_jobs j"
            " WHERE status IN ('todo', 'doing')) found GROUP BY queue_name ORDER BY queue_name"
        )
        names = ("queue", "waiting", "running", "later", "oldest")
        return [Count(**dict(zip(names, row, strict=True))) for row in rows]

    def workers(self) -> list[Worker]:
        rows = self._query(
            "SELECT coalesce(a.name, 'worker ' || w.id),"
            " extract(epoch FROM now() - w.last_heartbeat)::float8,"
            " (SELECT coalesce(array_agg(j.args->>'plan_id' ORDER BY j.id), '{}')"
            " FROM procrastinate_jobs j WHERE j.worker_id = w.id AND j.status = 'doing'"
            " AND j.task_name = 'plan'), coalesce(a.at_once, 0), coalesce(a.queues, '{}')"
            " FROM procrastinate_workers w LEFT JOIN agents_workers a ON a.worker_id = w.id"
            " ORDER BY 1, w.id"
        )
        return [
            Worker(name=name, seen=seen, plans=tuple(plans), at_once=at_once, queues=tuple(queues))
            for name, seen, plans, at_once, queues in rows
        ]

    def handed_back(self) -> list[HandedBack]:
        rows = self._query("SELECT plan_id, worker, reason FROM agents_handed_back ORDER BY at")
        names = ("plan_id", "worker", "reason")
        return [HandedBack(**dict(zip(names, row, strict=True))) for row in rows]


def _not_installed() -> StoreError:
    return StoreError("the store has no queue", "agents store init, with the extra `cluster`")
