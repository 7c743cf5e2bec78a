"""A worker of `cleveragents.testing.queue_contract`, as a process: URL, notes, queues, at once."""

import asyncio
import sys
from collections import Counter

from cleveragents.cluster.procrastinate_queue import ProcrastinateQueue
from cleveragents.cluster.queue import HandBack, Schedule

url, notes, queues, at_once = sys.argv[1:]
begun: Counter[str] = Counter()


def note(text: str) -> None:
    with open(notes, "a") as file:
        file.write(f"{text}\n")


async def run(plan_id: str, apply: tuple[str, ...] | None) -> HandBack | None:
    note(f"begin {plan_id}" if apply is None else f"apply {plan_id} {' '.join(apply)}")
    begun[plan_id] += 1
    if plan_id.startswith("never-") or (plan_id.startswith("busy-") and begun[plan_id] < 3):
        return HandBack("somebody has it", 0)
    if plan_id.startswith("slow-"):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            note(f"cancelled {plan_id}")
            raise
    note(f"end {plan_id}")
    return None


async def submit(schedule: Schedule, moment: int) -> HandBack | None:
    note(f"submit {schedule.name} {moment}")
    return None


ProcrastinateQueue(url, "public", 1.5).work(
    run, submit, note, queues=[name for name in queues.split(",") if name], at_once=int(at_once)
)
