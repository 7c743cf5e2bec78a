"""Commands for many machines: submit plans, run workers, show the cluster."""

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from cleveragents.cli.common import Options, command, found
from cleveragents.cli.render import Block, Reply, Table, Text
from cleveragents.cluster.queue import DEFAULT, Order, Queue, Schedule
from cleveragents.cluster.submit import queue_of, submit
from cleveragents.errors import NotFound, UsageError
from cleveragents.model.units import show_when
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.cluster.status import Bucket


@command("plan submit")
@click.argument("file", metavar="FILE|PLAN")
@click.option("--queue", default=DEFAULT, show_default=True, help="Choose the queue.")
@click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="Run plans with a higher number first.",
)
@click.option("--at", metavar="TIME", help="Start no earlier than this (RFC 3339, or HH:MM today).")
@click.option("--every", metavar="CRON", help="Submit FILE at these times, in UTC.")
@click.option("--limit-key", default="", help="Run only one plan with this key at a time.")
def submit_plan(
    ws: Workspace,
    options: Options,
    file: str,
    queue: str,
    priority: int,
    at: str | None,
    every: str | None,
    limit_key: str,
) -> Reply:
    """Hand a plan to the workers; its resources are captured here, now."""
    engine = queue_of(ws.ctx.settings)
    if not queue or "," in queue:
        raise UsageError(f"not the name of a queue: {queue!r}", "agents worker --queues A,B")
    moment = moment_of(at, datetime.now().astimezone()) if at else None
    order = Order(queue=queue, priority=priority, not_before=moment, limit_key=limit_key)
    if every:
        return _schedule(ws, engine, file, every, order)
    one, notes = (ws.use(file), ()) if os.path.exists(file) else found(ws, file)
    submit(ws.ctx, one.plan_id, engine, order)
    data = {"plan_id": one.plan_id, "name": one.plan.name, **msgspec.to_builtins(order)}
    when = f" from {moment.isoformat()}" if moment else ""
    told = (
        f"{one.plan.name} {one.plan_id} waits in queue {queue}{when};"
        f" agents plan status {one.plan_id} shows how far it is"
    )
    return Reply(data=data, blocks=(Text(told),), messages=notes)


def moment_of(text: str, now: datetime) -> datetime:
    """Parse a time; one without a zone is local (pure)."""
    try:
        if len(text) <= 5:
            clock = datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007
            return datetime.combine(now.date(), clock, now.tzinfo).astimezone(UTC)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"not a time: {text!r}", "2026-11-17T09:00:00Z, or 09:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)).astimezone(UTC)


def _schedule(ws: Workspace, engine: Queue, file: str, cron: str, order: Order) -> Reply:
    if order.not_before is not None:
        raise UsageError("--at and --every exclude each other", "leave one of them out")
    read = ws.read(file)
    made = Schedule(name=read.spec.name, cron=cron, file=read.path, order=order)
    engine.schedule(made)
    told = (
        f"{made.name} is submitted at {cron!r} (UTC); agents cluster unschedule {made.name} ends it"
    )
    return Reply(data={"schedule": msgspec.to_builtins(made)}, blocks=(Text(told),))


@command("worker")
@click.option("--queues", metavar="NAMES", help="Take plans from these queues only: A,B.")
@click.option(
    "--at-once",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Run this many plans at a time.",
)
def worker(ws: Workspace, options: Options, queues: str | None, at_once: int) -> Reply:
    """Run submitted plans until SIGTERM, then finish them; a second SIGTERM hands them back."""
    from cleveragents.cluster.worker import PlanRunner

    names = [name for name in (queues or "").split(",") if name]
    engine = queue_of(ws.ctx.settings)

    def tell(text: str) -> None:
        if not options.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    runner = PlanRunner(ws.ctx.settings, os.environ, tell)
    tell(f"waiting for plans in {', '.join(names) or 'every queue'}, {at_once} at a time")
    engine.work(runner.run, runner.submit, tell, queues=names, at_once=at_once)
    return Reply(data={"queues": names, "at_once": at_once}, blocks=(Text("stopped"),))


@command("cluster status")
def cluster_status(ws: Workspace, options: Options) -> Reply:
    """Show workers, queues, schedules, plans that changed hands, and what the bucket lacks."""
    from cleveragents.cluster.status import cluster_status as status_now

    now = status_now(ws.ctx)
    blocks: list[Block] = [
        Table(
            ("worker", "heard of", "plans"),
            tuple((w.name, f"{w.seen:.0f} s ago", " ".join(w.plans)) for w in now.workers),
            "Workers",
        ),
        Table(
            ("queue", "waiting", "running", "later", "oldest waits"),
            tuple(
                (c.queue, str(c.waiting), str(c.running), str(c.later), f"{c.oldest:.0f} s")
                for c in now.queues
            ),
            "Queues",
        ),
    ]
    if not now.workers:
        blocks[0] = Text("no worker is heard of: agents worker, on any machine with this store")
    if not now.queues:
        blocks[1] = Text("no plan waits for a worker")
    more = (
        (("schedule", "UTC", "file"), [(s.name, s.cron, s.file) for s in now.schedules]),
        (
            ("plan", "handed back by", "why"),
            [(one.plan_id, one.worker, one.reason) for one in now.handed_back],
        ),
        (
            ("plan", "operation", "taken over by", "when"),
            [(t.plan_id, t.operation, t.by, show_when(t.at)) for t in now.take_overs],
        ),
    )
    titles = ("Schedules", "Handed Back", "Taken Over")
    blocks += [
        Table(head, tuple(rows), title)
        for (head, rows), title in zip(more, titles, strict=True)
        if rows
    ]
    return Reply(data=msgspec.to_builtins(now), blocks=(*blocks, *_bucket(now.bucket)))


def _bucket(bucket: "Bucket | None") -> tuple[Block, ...]:
    """How far the bucket is behind."""
    if bucket is None:
        return ()
    if not bucket.late:
        return (Text(f"everything is in the bucket {bucket.url}"),)
    rows = tuple((one.plan_id, str(one.groups), f"{one.seconds:.1f} s") for one in bucket.late)
    return (Table(("plan", "groups not there", "for"), rows, f"Bucket {bucket.url}"),)


@command("cluster unschedule")
@click.argument("name")
def unschedule(ws: Workspace, options: Options, name: str) -> Reply:
    """Stop submitting a plan file on its schedule."""
    if not queue_of(ws.ctx.settings).unschedule(name):
        raise NotFound(f"no schedule is called {name!r}", "agents cluster status")
    return Reply(data={"unscheduled": name}, blocks=(Text(f"{name} is submitted no more"),))
