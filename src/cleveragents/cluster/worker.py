"""Run the plans that a queue delivers, each as a process of its own: `agents plan resume PLAN`,
or `agents plan apply PLAN` where this machine has what the plan changes.

So a plan that is cancelled or stopped ends as it does for a person who presses Ctrl-C, and one that
breaks breaks nothing else. What the process says decides whether the plan is handed back.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from cleveragents.cluster.needs import missing
from cleveragents.cluster.queue import HandBack, Options, Order, Schedule, Told
from cleveragents.errors import AgentsError
from cleveragents.lease import spec_of
from cleveragents.model.settings import Settings
from cleveragents.model.units import plural
from cleveragents.store.database import Database
from cleveragents.store.plans import PlanRepository
from cleveragents.store.postgres import PostgresDatabase
from cleveragents.store.records import ResourceRepository
from cleveragents.store.segments import SegmentRepository

SOON, LATER = 2.0, 15.0
"""Seconds until a plan is delivered again: somebody has it; this machine cannot run it."""
BUSY = frozenset({"PlanBusy", "LeaseLost"})
NOT_HERE = frozenset(
    {"ConfigError", "MachineError", "DiskFull", "ReadOnlyStore", "SandboxError", "SandboxMissing"}
    | {"NotInBucket", "StoreError", "StoreElsewhere", "BucketUnreachable", "BucketRefused"}
)
INTERRUPTED = 130
T = TypeVar("T")


class PlanRunner:
    """What a worker does with a delivery; satisfies `cluster.queue.Run` and `Submit`."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], tell: Told) -> None:
        self._settings, self._environ, self._tell = settings, environ, tell
        self._guard = threading.Lock()
        self._rows: PostgresDatabase | None = None

    async def run(self, plan_id: str, apply: Options | None) -> HandBack | None:
        if apply is not None:
            self._tell(f"{plan_id} is to be applied")
            words = ("plan", "apply", plan_id, "--yes", *apply)
            return self._report(plan_id, outcome(*await self._process(*words)))
        lacking = await asyncio.to_thread(self._lacking, plan_id)
        if isinstance(lacking, HandBack):
            return self._report(plan_id, lacking)
        if lacking:
            return self._report(plan_id, HandBack("; ".join(lacking), LATER))
        self._tell(f"{plan_id} begins")
        code, said = await self._process("plan", "resume", plan_id)
        back = outcome(code, said) or await asyncio.to_thread(self._left, plan_id)
        return self._report(plan_id, back, _error(said).get("message", "") if code else "")

    async def submit(self, schedule: Schedule, moment: int) -> HandBack | None:
        if not os.path.exists(schedule.file):
            return HandBack(f"{schedule.file} is not on this machine", LATER)
        words = ("plan", "submit", schedule.file, *order_options(schedule.order))
        code, said = await self._process(*words, cwd=os.path.dirname(schedule.file))
        return self._report(schedule.name, outcome(code, said))

    def _report(self, name: str, back: HandBack | None, failed: str = "") -> HandBack | None:
        ended = f"{name} ended: {failed}" if failed else f"{name} ended"
        self._tell(ended if back is None else f"{name} handed back: {back.reason}")
        return back

    def _read_rows(self, read: Callable[[Database], T]) -> T:
        """Over one connection, for whichever thread asks: a plan is not worth one of its own."""
        with self._guard:
            self._rows = self._rows or PostgresDatabase(self._settings.store_url)
            return read(self._rows)

    def _lacking(self, plan_id: str) -> list[str] | HandBack:
        try:
            plan = self._read_rows(lambda rows: PlanRepository(rows).get(plan_id))
            resources = self._read_rows(lambda rows: ResourceRepository(rows).of_plan(plan_id))
        except AgentsError as error:
            return HandBack(error.message, LATER)
        path = self._environ.get("PATH")
        return missing(
            spec_of(plan), resources, self._environ, lambda name: shutil.which(name, path=path)
        )

    def _left(self, plan_id: str) -> HandBack | None:
        """A plan is done when others can have it: what only this machine has, it could lose."""
        if not self._settings.content_url:
            return None
        try:
            left = len(self._read_rows(lambda rows: SegmentRepository(rows).pending(plan_id)))
        except AgentsError as error:
            return HandBack(error.message, LATER)
        said = f"{plural(left, 'group')} of it not in the bucket yet"
        return HandBack(said, LATER) if left else None

    async def _process(self, *words: str, cwd: str = "") -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cleveragents", *words, "--json"),
            cwd=cwd or self._settings.home,
            env=dict(self._environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # what is typed at the worker's terminal is for the worker
        )
        try:
            said, _ = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                await process.wait()
            raise
        return process.returncode or 0, said


def outcome(code: int, said: bytes) -> HandBack | None:
    """Whether the plan came to an end, be it a bad one, or has to be handed back (pure)."""
    if code == 0:
        return None
    if code == INTERRUPTED or code < 0:
        return HandBack("its process was stopped", SOON)
    error = _error(said)
    if error.get("type") in BUSY:
        return HandBack(error.get("message", "it is busy"), SOON)
    if error.get("type") in NOT_HERE or not error:
        return HandBack(error.get("message", f"its process ended with {code}"), LATER)
    return None


def _error(said: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(said)["data"].get("error") or {}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return {}


def order_options(order: Order) -> list[str]:
    """The options of `agents plan submit` that say the same."""
    said = [f"--queue={order.queue}", f"--priority={order.priority}"]
    return said + ([f"--limit-key={order.limit_key}"] if order.limit_key else [])
