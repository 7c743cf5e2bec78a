"""What ten thousand workers would ask of a database and a bucket, from what one plan asked.

    python -m benchmarks.arithmetic              the table in docs/cluster.md, from what is recorded
    python -m benchmarks.arithmetic --measure    first measure anew, and record it

Measured is a plan of fifteen steps, each of which writes five files of 10 KB, on a PostgreSQL
server and an S3 server of its own. Counted, not timed: how busy the machine is does not matter.
"""

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bucket import servers
from cleveragents.model.settings import Settings
from cleveragents.workspace import open_workspace

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks/results/cluster.json"
PAGE = ROOT / "docs/cluster.md"
BEGIN, END = "<!-- made by benchmarks/arithmetic.py -->\n", "<!-- /made -->\n"
STEPS = 15
WRITE = "for i in 1 2 3 4 5; do head -c 10000 /dev/urandom > f$i; done"

WORKERS, PLANS, PEAK, DAYS = 10_000, 1_000_000, 5, 7
"""Workers; plans a day; how many times the usual the busiest moment is; days that are kept."""
BEAT, MONTH, DAY = 10 / 3, 30, 86_400
"""Seconds between two signs of life of a worker with the usual lease; days; seconds."""
PUT, GIGABYTE = 0.005 / 1000, 0.023
"""Dollars for a put, and for a gigabyte and a month: the usual price of S3."""


class Measured(NamedTuple):
    """Of one plan, for each of its groups."""

    date: str
    groups: int
    statements: float
    """All that the database was asked, reading included."""
    transactions: float
    """Those that wrote."""
    wal_bytes: float
    puts: float
    bytes: float


def recorded() -> Measured:
    return Measured(**json.loads(RECORDED.read_text()))


def table(one: Measured) -> str:
    """The arithmetic (pure)."""
    a_day = PLANS * one.groups
    groups = a_day / DAY
    puts = a_day * one.puts * MONTH
    kept = a_day * one.bytes * DAYS / 1e9
    rows = {
        "groups": (f"{one.groups} a plan", f"{groups:,.0f} /s, {groups * PEAK:,.0f} at peak"),
        "write transactions": (
            f"{one.transactions:.1f} a group",
            f"{groups * one.transactions:,.0f} /s, {groups * one.transactions * PEAK:,.0f} at peak",
        ),
        "statements": (
            f"{one.statements:.0f} a group",
            f"{groups * one.statements:,.0f} /s, {groups * one.statements * PEAK:,.0f} at peak",
        ),
        "write-ahead log": (
            f"{one.wal_bytes / 1000:.1f} KB a group",
            f"{a_day * one.wal_bytes / 1e9:,.0f} GB a day",
        ),
        "signs of life": (
            f"one in {BEAT:.1f} s and worker",
            f"{WORKERS / BEAT:,.0f} transactions /s that are not waited for",
        ),
        "connections": ("3 a plan that runs", f"{WORKERS * 3:,}: behind a pooler"),
        "content": (
            f"{one.bytes / 1000:.0f} KB a group",
            f"{a_day * one.bytes / 1e12:.1f} TB a day",
        ),
        "puts": (
            f"{one.puts:.2f} a group",
            f"{puts / 1e6:,.0f} M a month, ${puts * PUT:,.0f}",
        ),
        f"{DAYS} days kept": ("", f"{kept / 1000:,.1f} TB, ${kept * GIGABYTE:,.0f} a month"),
    }
    lines = [f"| {name} | {each} | {all_} |" for name, (each, all_) in rows.items()]
    head = f"| | measured {one.date} | {WORKERS:,} workers, {PLANS:,} plans a day |"
    return "\n".join([head, "| --- | --- | --- |", *lines]) + "\n"


def on_page(text: str) -> tuple[str, str, str]:
    """What is before the table, the table, and what is behind it."""
    before, _, rest = text.partition(BEGIN)
    found, _, behind = rest.partition(END)
    return before + BEGIN, found, END + behind


def measured() -> Measured:
    asked: list[bytes] = []
    import psycopg

    execute = psycopg.Connection.execute

    def traced(self: Any, query: bytes, *rest: Any, **options: Any) -> Any:
        asked.append(query)
        return execute(self, query, *rest, **options)

    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleveragents-")))
        url, _ = stack.enter_context(servers(0.0, 0.0))
        (top / "app").mkdir()
        steps = "".join(f"  - {{id: s{n}, run: {WRITE}}}\n" for n in range(STEPS))
        head = "name: p\nresources: {app: {kind: fs-directory, path: app}}\nsteps:\n"
        (top / "plan.yaml").write_text(head + steps)
        settings = Settings(
            home=os.fspath(top / "store"), store_url=url, content_url="s3://plans/x", confine="off"
        )
        psycopg.Connection.execute = traced
        stack.callback(setattr, psycopg.Connection, "execute", execute)
        ws = stack.enter_context(open_workspace(settings=settings))
        # The first one touches every page once, and the log has the whole of each.
        ws.run(top / "plan.yaml")
        plan = ws.use(top / "plan.yaml")
        before = _log_position(url)
        del asked[:]
        plan.execute()
        store = ws.ctx.store
        statements = [one for one in asked if one not in {b"BEGIN", b"COMMIT"}]
        commits, log = asked.count(b"COMMIT"), _log_position(url) - before
        groups = store.checkpoints.count(plan.plan_id)
        assert not store.segments.pending(plan.plan_id)
        puts, size = store.segments.after(plan.plan_id, 0), store.segments.size(plan.plan_id)
    return Measured(
        date=datetime.now(UTC).date().isoformat(),
        groups=groups,
        statements=round(len(statements) / groups, 2),
        transactions=round(commits / groups, 2),
        wal_bytes=round(log / groups),
        puts=round(len(puts) / groups, 2),
        bytes=round(size / groups),
    )


def _log_position(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute(b"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        RECORDED.write_text(json.dumps(measured()._asdict(), indent=2) + "\n")
    before, _, behind = on_page(PAGE.read_text())
    PAGE.write_text(before + table(recorded()) + behind)


if __name__ == "__main__":
    main()
