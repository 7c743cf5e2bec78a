"""Plans per second by workers that share a PostgreSQL server, beside as many processes on SQLite.

    python -m benchmarks.workers --workers 8 --plans 1000

The plans have ten steps that write a file each. The workers have homes of their own and a shared
folder for a bucket; the server has `fsync` and tells each statement, so they are counted. Beside it
the same plans in one home without either, `--workers` processes at a time; there the statements of
one plan are counted. All of it is on one machine: what differs is what the sharing costs.
"""

import argparse
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cleveragents.cluster.queue import Order
from cleveragents.cluster.submit import install_queue, queue_of, submit
from cleveragents.model.settings import Settings
from cleveragents.workspace import open_workspace
from tests.databases import query_shared, shared_store
from tests.pgserver import PgServer, running

STEPS = "".join(
    f"  - {{id: s{n}, tool: file.write, with: {{path: f{n}, content: '{n}'}}}}\n" for n in range(10)
)
TOLD = re.compile(r"LOG:  (execute|statement)")
UNFINISHED = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"


def plan_file(top: Path) -> str:
    (top / "app").mkdir(exist_ok=True)
    file = top / "plan.yaml"
    file.write_text(
        f"name: p\nresources: {{a: {{kind: fs-directory, path: app}}}}\nsteps:\n{STEPS}"
    )
    return os.fspath(file)


def environment(home: Path, url: str = "", bucket: str = "") -> dict[str, str]:
    return os.environ | {
        "CLEVERAGENTS_HOME": os.fspath(home),
        "CLEVERAGENTS_STORE_URL": url,
        "CLEVERAGENTS_CONTENT_URL": bucket,
        "CLEVERAGENTS_SANDBOX_CONFINE": "off",
    }


@contextmanager
def working(count: int, top: Path, url: str, bucket: str) -> Generator[None]:
    argv = [sys.executable, "-m", "cleveragents", "worker", "--at-once", "1"]
    with ExitStack() as stack:
        for number in range(count):
            env = environment(top / f"home{number}", url, bucket)
            with open(top / f"worker{number}.log", "wb") as log:
                one = stack.enter_context(subprocess.Popen(argv, env=env, stdout=log, stderr=log))
            stack.callback(one.kill)
        yield


def shared(server: PgServer, url: str, workers: int, plans: int, top: Path) -> dict[str, float]:
    bucket = f"file://{top}/bucket"
    settings = Settings(
        home=os.fspath(top / "home"), store_url=url, content_url=bucket, confine="off"
    )
    install_queue(settings)
    with open_workspace(settings=settings) as ws:
        queue, file = queue_of(settings), plan_file(top)
        ids = [ws.use(file).plan_id for _ in range(plans)]
        for plan_id in ids:
            submit(ws.ctx, plan_id, queue, Order())
    log = server.data.parent / "log"
    before = len(TOLD.findall(log.read_text(errors="replace")))
    began = time.monotonic()
    with working(workers, top, url, bucket):
        while query_shared(url, UNFINISHED)[0][0]:
            time.sleep(1.0)
        took = time.monotonic() - began
    asked = len(TOLD.findall(log.read_text(errors="replace"))) - before
    states = query_shared(url, "SELECT state, count(*) FROM plans GROUP BY state")
    assert states == [("complete", plans)], states
    return {"plans_per_s": plans / took, "statements_per_plan": asked / plans}


def alone(workers: int, plans: int, top: Path) -> dict[str, float]:
    settings = Settings(home=os.fspath(top / "alone"), confine="off")
    with open_workspace(settings=settings) as ws:
        file = plan_file(top)
        ids = [ws.use(file).plan_id for _ in range(plans)]
    env = environment(top / "alone")

    def run(plan_id: str) -> None:
        argv = [sys.executable, "-m", "cleveragents", "plan", "execute", plan_id]
        subprocess.run(argv, env=env, check=True, capture_output=True)

    began = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, ids))
    took = time.monotonic() - began
    return {"plans_per_s": plans / took, "statements_per_plan": statements(settings, file)}


def statements(settings: Settings, file: str) -> int:
    """Of one plan, counted in this process."""
    found: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*arguments, **options)
        made.set_trace_callback(found.append)
        return made

    sqlite3.connect = traced
    try:
        with open_workspace(settings=settings) as ws:
            plan = ws.use(file)
            del found[:]
            plan.execute()
            return len(found)
    finally:
        sqlite3.connect = connect


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--plans", type=int, default=1000)
    given = parser.parse_args()
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleveragents-")))
        told = {"fsync": "on", "full_page_writes": "on", "log_statement": "all"}
        server = stack.enter_context(running(**told, max_connections="200"))
        url = stack.enter_context(shared_store(server))
        found = {
            "shared": shared(server, url, given.workers, given.plans, top),
            "alone": alone(given.workers, given.plans, top),
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
