"""How long a checkpoint takes where content goes to a bucket, in turns with the same without one.

    python benchmarks/bucket.py --delay 0.08 --rounds 30 [--pause 0.2] [--postgres 0.001]

Each round changes five files of 10 KB in a sandbox and makes a group, once in a store without a
bucket and once in one whose bucket answers after `--delay` seconds; with `--postgres` that one is
on a PostgreSQL server (with `fsync`) that is a journey of so many seconds away. The servers and
the proxies before them are processes of their own. Printed: the medians and their ratio, and how
long after its commit a group was in the bucket; with `--postgres` also how much longer a question
took through the proxy, which is slower than it was told to be, so that another number can be given.
What counts is the ratio: the machine may be busy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from cleveragents.execution.leasing import work_on
from cleveragents.execution.sandboxes import make_sandboxes
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.settings import Settings
from cleveragents.workspace import Workspace, open_workspace

PROJECT = Path(__file__).resolve().parents[1]
FILES, SIZE = 5, 10_000
SERVERS = """
import contextlib, json, sys
from benchmarks.delayed import delayed
from tests.buckets import Proxy, make_bucket, s3_server
from tests.databases import shared_store
from tests.pgserver import running
with contextlib.ExitStack() as stack:
    address = stack.enter_context(s3_server())
    proxy = stack.enter_context(Proxy(address))
    make_bucket(address, "plans")
    proxy.delay = float(sys.argv[1])
    url = direct = ""
    if sys.argv[2]:
        server = stack.enter_context(running(fsync="on", full_page_writes="on"))
        direct = stack.enter_context(shared_store(server))
        port = stack.enter_context(delayed(server.port, float(sys.argv[2])))
        url = direct.replace(f":{server.port}/", f":{port}/")
    print(json.dumps([proxy.url, url, direct]), flush=True)
    sys.stdin.read()
"""


@contextmanager
def servers(delay: float, postgres: float | None) -> Generator[tuple[str, str]]:
    """A bucket that answers after so many seconds, set for this process; the URL of a store, and
    that of the same without the proxy."""
    argv = [sys.executable, "-c", SERVERS, str(delay), "" if postgres is None else str(postgres)]
    with subprocess.Popen(
        argv, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT_URL"], *urls = json.loads(server.stdout.readline())
        os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        os.environ["AWS_REGION"] = "us-east-1"
        try:
            yield urls[0], urls[1]
        finally:
            assert server.stdin is not None
            server.stdin.close()


class Arm:
    """One store with a plan that is held, and its sandbox."""

    def __init__(self, stack: ExitStack, top: Path, url: str, store_url: str = "") -> None:
        app = top / "app"
        app.mkdir(parents=True)
        for number in range(200):
            (app / f"file{number}").write_bytes(os.urandom(2000))
        settings = Settings(home=os.fspath(top / "store"), content_url=url, store_url=store_url)
        self.ws: Workspace = stack.enter_context(open_workspace(settings=settings))
        plan = self.ws.plan("bench", {"app": os.fspath(app)}, folder=top)
        self.leased: LeasedPlan = stack.enter_context(work_on(self.ws.ctx, plan.plan_id, "bench"))
        make_sandboxes(self.ws.ctx, self.leased)
        self.ws.ctx.manager.follow(plan.plan_id)
        self.box = Path(next(iter(self.ws.ctx.manager.sandboxes(plan.plan_id).paths.values())))
        self.times: list[float] = []
        self.checkpoint()
        self.times.clear()

    def checkpoint(self) -> None:
        for number in range(FILES):
            (self.box / f"file{number}").write_bytes(os.urandom(SIZE))
        began = time.perf_counter()
        self.ws.ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, self.leased)
        self.times.append(time.perf_counter() - began)

    def behind(self) -> list[float]:
        """Seconds from the moment of each group to the one when the bucket had it."""
        uploads = self.ws.ctx.checkpoints.uploads
        assert uploads is not None
        uploads.wait_for(self.leased.plan.plan_id)
        plan_id = self.leased.plan.plan_id
        there = self.ws.ctx.store.segments.there(plan_id)
        groups = self.ws.ctx.store.checkpoints.groups(plan_id)
        return [
            (_when(there[one.group_id]) - _when(one.created_at)).total_seconds()
            for one in groups[1:]
        ]


def _when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def journey(url: str, direct: str) -> float:
    """Seconds by which a question takes longer through the proxy, in turns with one without it."""
    if not url:
        return 0.0
    import psycopg

    with psycopg.connect(url) as far, psycopg.connect(direct) as near:
        differences = [_asked(far) - _asked(near) for _ in range(100)]
    return statistics.median(differences)


def _asked(connection: Any) -> float:
    began = time.perf_counter()
    connection.execute("SELECT 1")
    return time.perf_counter() - began


def measured(
    delay: float, rounds: int, pause: float, postgres: float | None, top: Path
) -> dict[str, float]:
    with servers(delay, postgres) as (url, direct), ExitStack() as stack:
        longer = journey(url, direct)
        local = Arm(stack, top / "local", "")
        bucket = Arm(stack, top / "bucket", "s3://plans/bench", url)
        for number in range(rounds):
            for arm in (local, bucket) if number % 2 else (bucket, local):
                arm.checkpoint()
                time.sleep(pause)
        behind = sorted(bucket.behind())
    medians = {
        "local_ms": statistics.median(local.times) * 1000,
        "bucket_ms": statistics.median(bucket.times) * 1000,
    }
    return {
        **medians,
        "ratio": medians["bucket_ms"] / medians["local_ms"],
        "behind_p50_ms": statistics.median(behind) * 1000,
        "behind_p95_ms": behind[int(len(behind) * 0.95) - 1] * 1000,
        "journey_ms": longer * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.08)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--postgres", type=float, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cleveragents-") as folder:
        found = measured(given.delay, given.rounds, given.pause, given.postgres, Path(folder))
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
