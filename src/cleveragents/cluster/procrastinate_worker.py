"""A worker on Procrastinate: its own loop, and beside it what it leaves to its users.

Plans of workers that were not heard of are delivered again, schedules are looked at, and the
store's server may go away and come back.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, LiteralString

import msgspec
import psycopg
from croniter import croniter
from procrastinate import App, BaseRetryStrategy, JobContext, PsycopgConnector, RetryDecision
from procrastinate.exceptions import (
    AlreadyEnqueued,
    ConnectorException,
    JobAborted,
    UniqueViolation,
)
from procrastinate.job_context import AbortReason
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from procrastinate.worker import Worker

from cleveragents import codec
from cleveragents.cluster.queue import (
    OF_A_MACHINE,
    HandBack,
    Run,
    Schedule,
    Submit,
    Told,
    own_queue,
)
from cleveragents.lease import host_name
from cleveragents.sandbox.postgres import address
from cleveragents.sandbox.postgres.server import said
from cleveragents.store.postgres import not_allowed, parameters

PLAN, SUBMIT = "plan", "submit"
BEAT = 1.0
"""Seconds between two signs of life; less where the lease is shorter than three of them."""
ANSWERS_WITHIN = 10.0
"""Seconds after which a server counts as away."""
MISSED = 5.0
"""Seconds between two looks for plans that were cancelled; usually the server says so at once."""


class Returned(Exception):
    def __init__(self, back: HandBack) -> None:
        super().__init__(back.reason)
        self.delay: float = back.delay


class OnlyReturned(BaseRetryStrategy):
    """Only handed-back plans are delivered again; a failed plan is an errored plan."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, Returned):
            return RetryDecision(retry_in={"seconds": round(exception.delay)})
        return None


QUEUES = """
WITH RECURSIVE names(name) AS (
    (SELECT queue_name::text FROM procrastinate_jobs ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT queue_name::text FROM procrastinate_jobs WHERE queue_name > name
            ORDER BY queue_name LIMIT 1) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL AND (name NOT LIKE %(others)s OR name = %(own)s)
"""
"""Each name is one step along the index, however many plans wait."""


AGAIN = """
WITH silent AS (
    SELECT job.id, job.queue_name, job.priority,
           (SELECT max(priority) FROM procrastinate_jobs WHERE status = 'todo') AS highest
    FROM procrastinate_jobs job LEFT JOIN procrastinate_workers worker ON worker.id = job.worker_id
    WHERE job.status = 'doing' AND (
        job.worker_id IS NULL
        OR worker.last_heartbeat < now() - %(lease)s * interval '1 second'
    ) AND NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs waiting
        WHERE waiting.status = 'todo' AND waiting.queueing_lock = job.queueing_lock
    )
    FOR UPDATE OF job SKIP LOCKED
), again AS MATERIALIZED (
    SELECT id, queue_name, json_build_object('type', 'job_inserted', 'job_id', id)::text AS told,
           procrastinate_retry_job_v2(
               id, now(), CASE WHEN highest > priority THEN highest + 1 END, NULL, NULL
           )
    FROM silent
), woken AS MATERIALIZED (
    SELECT pg_notify('procrastinate_queue_v1#' || queue_name, told),
           pg_notify('procrastinate_any_queue_v1', told)
    FROM again
)
SELECT (SELECT count(*) FROM woken) AS again, %(lease)s + (
    SELECT min(extract(epoch FROM last_heartbeat - now()))::float8 FROM procrastinate_workers
    WHERE last_heartbeat >= now() - %(lease)s * interval '1 second'
) AS next, EXISTS (SELECT 1 FROM procrastinate_workers WHERE id = %(id)s) AS known
"""
"""Deliver again, once however many workers look, what those had that were not heard of, before all
that wait; tell who has room, as only a new job does by itself. Next: the seconds after which the
one that was silent for longest counts as dead, if it stays so."""


FETCH = """
WITH first AS (
    SELECT id FROM procrastinate_jobs job
    WHERE status = 'todo' AND queue_name = ANY(%(queues)s)
    AND (scheduled_at IS NULL OR scheduled_at <= now())
    AND NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs other
        WHERE other.lock = job.lock AND (other.status = 'doing' OR (
            other.status = 'todo' AND other.queue_name = ANY(%(queues)s)
            AND (other.scheduled_at IS NULL OR other.scheduled_at <= now())
            AND (other.priority, job.id) > (job.priority, other.id)
        ))
    )
    ORDER BY priority DESC, id LIMIT 1 FOR UPDATE OF job SKIP LOCKED
)
UPDATE procrastinate_jobs SET status = 'doing', worker_id = %(worker)s
FROM first WHERE procrastinate_jobs.id = first.id RETURNING procrastinate_jobs.*
"""
"""Procrastinate's own has a plan wait for every other of its limit key, also for one that is not to
run yet, was handed back, or is in a queue that nobody takes from."""


REGISTERED = """
WITH alive AS (
    INSERT INTO procrastinate_workers (id) OVERRIDING SYSTEM VALUE VALUES (%(id)s)
    ON CONFLICT (id) DO NOTHING
)
INSERT INTO agents_workers (worker_id, name, at_once, queues)
VALUES (%(id)s, %(name)s, %(takes)s, %(queues)s)
ON CONFLICT (worker_id) DO UPDATE SET at_once = excluded.at_once
"""
"""What a worker takes; one that was silent for too long was taken off by others, and is back."""


class OwnMachine(JobManager):
    """Whoever takes from every queue leaves those of other machines alone, and a plan waits only
    for those of its limit key that could be taken, or run."""

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        if queues is None:
            rows = await self.connector.execute_query_all_async(
                QUEUES, others=f"{OF_A_MACHINE}%", own=own_queue(host_name())
            )
            queues = [row["name"] for row in rows]
        with suppress(UniqueViolation):  # a worker of other queues started one with its key
            rows = await self.connector.execute_query_all_async(
                FETCH, queues=list(queues), worker=worker_id
            )
            return Job.from_row(rows[0]) if rows else None
        return None


class Deliveries:
    """The deliveries to one worker, until it is told to stop."""

    def __init__(
        self, url: str, schema: str, lease: float, run: Run, submit: Submit, tell: Told
    ) -> None:
        self._url, self._schema, self._lease = url, schema, lease
        self._shown = address.public(url)
        self._run, self._submit, self._tell = run, submit, tell
        self._is_away = False
        self._beat = min(BEAT, lease / 3)
        self._name = f"{host_name()}:{os.getpid()}"
        self._signals = 0
        self._worker: Worker | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def until_stopped(self, queues: list[str], at_once: int) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.set_exception_handler(_unless_away)
        _hush()
        while not self._signals:
            try:
                await self._until_disconnected(queues, at_once)
            except ConnectorException as error:
                if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                    raise not_allowed(self._shown, error.__cause__) from error
                self._away(error)
                await asyncio.sleep(self._beat)

    def _away(self, error: ConnectorException) -> None:
        """Report an absent server once, until it answers again."""
        if not self._is_away:
            why = said(error.__cause__) if isinstance(error.__cause__, psycopg.Error) else "no word"
            self._tell(f"the store at {self._shown} does not answer, and is asked again: {why}")
        self._is_away = True

    def _back(self) -> None:
        if self._is_away:
            self._tell("the store answers again")
        self._is_away = False

    def _stop(self) -> None:
        """First: no more plans. Again: those that run are stopped, and handed back."""
        self._signals += 1
        if self._worker is not None:
            self._worker.stop()
        if self._signals > 1:
            for task in self._running:
                task.cancel()

    async def _until_disconnected(self, queues: list[str], at_once: int) -> None:
        app = App(
            connector=PsycopgConnector(
                kwargs=parameters(self._url),
                configure=self._configure,
                min_size=1,
                max_size=4,
                timeout=ANSWERS_WITHIN,
            )
        )
        app.job_manager = OwnMachine(app.connector)
        app.task(name=PLAN, pass_context=True, retry=OnlyReturned())(self._plan)
        app.task(name=SUBMIT, pass_context=True, retry=OnlyReturned())(self._scheduled)
        async with app.open_async():
            self._worker = worker = Worker(
                app=app,
                queues=[*queues, own_queue(host_name())] if queues else None,
                name=self._name,
                concurrency=at_once,
                install_signal_handlers=False,
                update_heartbeat_interval=self._beat,
                stalled_worker_timeout=self._lease,
                fetch_job_polling_interval=2.0,
                abort_job_polling_interval=MISSED,
                delete_jobs="always",
            )
            beside = asyncio.create_task(self._look_after(app, worker, queues, at_once))
            try:
                await worker.run()
            finally:
                beside.cancel()

    async def _configure(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        await connection.execute(f"SET search_path = {self._schema}".encode())
        await connection.commit()

    async def _look_after(self, app: App, worker: Worker, queues: list[str], at_once: int) -> None:
        told, rest = -1, 0.1
        while True:
            await asyncio.sleep(rest)
            if worker.worker_id is None:
                continue
            rest, takes = self._beat, 0 if self._signals else at_once
            try:
                if told != takes:
                    await _execute(
                        app,
                        REGISTERED,
                        id=worker.worker_id,
                        name=self._name,
                        takes=takes,
                        queues=queues,
                    )
                    told = takes
                found = await self._deliver_again(app, worker.worker_id)
                self._back()
                rest = min(self._beat, self._beat if found["next"] is None else found["next"])
                told = told if found["known"] else -1
                await self._submit_due(app)
            except ConnectorException as error:
                self._away(error)

    async def _deliver_again(self, app: App, worker_id: int) -> dict[str, Any]:
        """Deliver silent workers' plans again; returns when to check next, and if we are alive."""
        return await app.connector.execute_query_one_async(AGAIN, lease=self._lease, id=worker_id)

    async def _submit_due(self, app: App) -> None:
        rows = await app.connector.execute_query_all_async(
            "SELECT body, since FROM agents_schedules ORDER BY name"
        )
        made = [(codec.from_json(row["body"], Schedule), row["since"]) for row in rows]
        for schedule, moment in due(made, time.time()):
            job = Job(
                id=None,
                queue=schedule.order.queue,
                priority=schedule.order.priority,
                lock=None,
                queueing_lock=f"schedule:{schedule.name}",
                task_name=SUBMIT,
                task_kwargs={"timestamp": moment, "schedule": msgspec.to_builtins(schedule)},
            )
            # One row per schedule and moment: of all workers only one gets it in.
            with suppress(AlreadyEnqueued):
                await app.job_manager.defer_periodic_job(job, schedule.name, moment)

    async def _plan(
        self, context: JobContext, plan_id: str, apply: list[str] | None = None
    ) -> None:
        work = self._run(plan_id, None if apply is None else tuple(apply))
        back = await self._followed(context, work)
        if back is None:
            await _execute(
                context.app, "DELETE FROM agents_handed_back WHERE plan_id = %(id)s", id=plan_id
            )
            return
        await _execute(
            context.app,
            "INSERT INTO agents_handed_back (plan_id, worker, reason)"
            " VALUES (%(id)s, %(worker)s, %(reason)s) ON CONFLICT (plan_id) DO UPDATE"
            " SET worker = excluded.worker, reason = excluded.reason, at = now()",
            id=plan_id,
            worker=self._name,
            reason=back.reason,
        )
        raise Returned(back)

    async def _scheduled(
        self, context: JobContext, timestamp: int, schedule: dict[str, Any]
    ) -> None:
        work = self._submit(codec.convert(schedule, Schedule), timestamp)
        if (back := await self._followed(context, work)) is not None:
            raise Returned(back)

    async def _followed(self, context: JobContext, work: Any) -> HandBack | None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if context.abort_reason() is AbortReason.USER_REQUEST:
                raise JobAborted from None
            return HandBack("its worker was stopped", 0)
        finally:
            self._running.discard(task)


def _hush() -> None:
    """Of a server that is away its libraries tell at length, each thread at each attempt."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(
        lambda record: not isinstance((record.exc_info or (0, 0))[1], ConnectorException)
    )
    logging.getLogger("procrastinate").addHandler(handler)
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)


def _unless_away(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a plan ended with could not be noted with its server away: it is delivered again."""
    if not isinstance(context.get("exception"), ConnectorException):
        loop.default_exception_handler(context)


def due(made: Iterable[tuple[Schedule, int]], now: float) -> list[tuple[Schedule, int]]:
    """Each schedule with its last moment, in UTC, since it was made (pure)."""
    found = [
        (schedule, int(croniter(schedule.cron, now).get_prev(float)), since)
        for schedule, since in made
    ]
    return [(schedule, moment) for schedule, moment, since in found if moment > since]


async def _execute(app: App, sql: LiteralString, **values: Any) -> None:
    await app.connector.execute_query_async(sql, **values)
