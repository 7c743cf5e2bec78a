"""What every queue must keep, as tests to inherit: see `cleveragents.cluster.queue`.

    class TestMyQueue(QueueContract):
        def make(self) -> Opened: ...

A worker is a thread or a process of yours that calls `Queue.work`; the contract starts it through
`Opened.worker`, and kills it where it says so, so it has to be a process.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
import pytest

from cleveragents.cluster.queue import Job, Order, Queue, Schedule, own_queue
from cleveragents.errors import NotAllowed

PATIENCE = 120.0
"""Seconds after which something that should happen counts as not happening."""


class WorkerProcess(Protocol):
    """A worker: it notes `begin ID` for each plan it is given, then does what the id says.

    `ok-*` ends at once; `slow-*` goes on until it is cancelled or the worker killed, and notes
    `cancelled ID`; `busy-*` is handed back twice and then ends, `never-*` always. It notes `end ID`
    at an end, `apply ID OPTIONS` instead of `begin ID` where it is to apply, and
    `submit NAME MOMENT` for a schedule.
    """

    def kill(self) -> None: ...
    def terminate(self) -> None: ...
    def wait(self) -> int: ...


class Opened(msgspec.Struct, frozen=True):
    """A queue of a test's own."""

    queue: Queue
    transaction: Callable[[], AbstractContextManager[Any]]
    """One of the store: gives its connection, commits at the end, rolls back on errors."""
    worker: Callable[..., WorkerProcess]
    """worker(queues=(), at_once=1) -> one that runs."""
    noted: Callable[[], list[str]]
    """What workers have noted so far, oldest first."""


def wait_for(what: Callable[[], Any], said: str) -> Any:
    start = time.monotonic()
    while (waited := time.monotonic() - start) < PATIENCE:
        if found := what():
            return found
        time.sleep(min(0.02 + waited / 10, 0.2))  # asking takes the time of those who are asked
    raise AssertionError(f"did not happen: {said}")


def submitted(opened: Opened) -> list[str]:
    return [text for text in opened.noted() if text.startswith("submit")]


def running(opened: Opened, plan_id: str) -> bool:
    job = opened.queue.job(plan_id)
    return job is not None and job.running


class QueueContract(ABC):
    """Inherit it, give a queue, and every test runs on that."""

    @abstractmethod
    def make(self) -> AbstractContextManager[Opened]: ...

    @pytest.fixture
    def opened(self) -> Generator[Opened]:
        with self.make() as opened:
            yield opened

    def submit(self, opened: Opened, plan_id: str, **order: Any) -> None:
        with opened.transaction() as connection:
            opened.queue.submit(plan_id, Order(**order), connection)

    def ended(self, opened: Opened, *plan_ids: str) -> None:
        for plan_id in plan_ids:
            wait_for(lambda plan=plan_id: f"end {plan}" in opened.noted(), f"{plan_id} ends")

    def test_installing_twice_is_installing_once(self, opened: Opened) -> None:
        self.submit(opened, "ok-1")
        opened.queue.install()
        assert [count.waiting for count in opened.queue.counts()] == [1]

    def test_what_is_rolled_back_is_not_delivered(self, opened: Opened) -> None:
        with suppress(ZeroDivisionError), opened.transaction() as connection:
            opened.queue.submit("ok-gone", Order(), connection)
            raise ZeroDivisionError
        self.submit(opened, "ok-1")
        worker = opened.worker()
        self.ended(opened, "ok-1")
        worker.terminate()
        assert worker.wait() == 0
        assert not [text for text in opened.noted() if "ok-gone" in text]

    def test_a_plan_waits_once(self, opened: Opened) -> None:
        self.submit(opened, "ok-1")
        with pytest.raises(NotAllowed, match="waiting"):
            self.submit(opened, "ok-1")

    def test_higher_priorities_come_first_and_a_queue_is_chosen(self, opened: Opened) -> None:
        self.submit(opened, "ok-low")
        self.submit(opened, "ok-high", priority=5)
        self.submit(opened, "ok-other", queue="other")
        worker = opened.worker(queues=("default",))
        self.ended(opened, "ok-low")
        begun = [text for text in opened.noted() if text.startswith("begin")]
        assert begun == ["begin ok-high", "begin ok-low"]
        (other,) = [count for count in opened.queue.counts() if count.waiting]
        assert other.queue == "other"
        worker.terminate()
        worker.wait()

    def test_not_before_its_time(self, opened: Opened) -> None:
        self.submit(opened, "ok-later", not_before=datetime.now(UTC) + timedelta(days=1))
        self.submit(opened, "ok-now")
        worker = opened.worker()
        self.ended(opened, "ok-now")
        assert sum(count.later for count in opened.queue.counts()) == 1
        assert "begin ok-later" not in opened.noted()
        worker.terminate()
        worker.wait()

    def test_what_is_handed_back_is_delivered_again(self, opened: Opened) -> None:
        self.submit(opened, "busy-1")
        worker = opened.worker()
        self.ended(opened, "busy-1")
        assert opened.noted().count("begin busy-1") == 3
        worker.terminate()
        worker.wait()

    def test_plans_of_a_killed_worker_go_to_another(self, opened: Opened) -> None:
        self.submit(opened, "slow-1")
        first = opened.worker()
        wait_for(lambda: "begin slow-1" in opened.noted(), "the first worker begins")
        assert [worker.plans for worker in opened.queue.workers()] == [("slow-1",)]
        first.kill()
        first.wait()
        second = opened.worker()
        wait_for(lambda: opened.noted().count("begin slow-1") == 2, "the second one begins")
        second.kill()
        second.wait()

    def test_what_a_killed_worker_had_comes_before_all_that_wait(self, opened: Opened) -> None:
        self.submit(opened, "slow-1")
        killed = opened.worker()
        wait_for(lambda: "begin slow-1" in opened.noted(), "the first worker begins")
        self.submit(opened, "slow-2")
        other = opened.worker()
        wait_for(lambda: "begin slow-2" in opened.noted(), "the other one has no room")
        self.submit(opened, "ok-3", priority=5)
        killed.kill()
        killed.wait()
        wait_for(lambda: not running(opened, "slow-1"), "it is noticed")
        assert opened.queue.cancel("slow-2")
        wait_for(lambda: opened.noted().count("begin slow-1") == 2, "the other one has it")
        assert "begin ok-3" not in opened.noted()
        other.kill()
        other.wait()

    def test_of_one_limit_key_one_runs_at_a_time(self, opened: Opened) -> None:
        self.submit(opened, "slow-1", limit_key="k")
        self.submit(opened, "slow-2", limit_key="k")
        self.submit(opened, "ok-3")
        worker = opened.worker(at_once=3)
        self.ended(opened, "ok-3")
        wait_for(lambda: "begin slow-1" in opened.noted(), "the first of the key begins")
        assert "begin slow-2" not in opened.noted()
        assert opened.queue.cancel("slow-1")
        wait_for(lambda: "begin slow-2" in opened.noted(), "then the second does")
        worker.kill()
        worker.wait()

    def test_one_that_cannot_run_yet_holds_up_no_other_of_its_limit_key(
        self, opened: Opened
    ) -> None:
        later = datetime.now(UTC) + timedelta(days=1)
        self.submit(opened, "ok-later", limit_key="k", not_before=later, priority=5)
        self.submit(opened, "ok-for-nobody", limit_key="k", queue="nobody")
        self.submit(opened, "ok-1", limit_key="k")
        worker = opened.worker(queues=("default",))
        self.ended(opened, "ok-1")
        worker.terminate()
        worker.wait()

    def test_of_one_limit_key_the_higher_priority_comes_first(self, opened: Opened) -> None:
        self.submit(opened, "ok-1", limit_key="k")
        self.submit(opened, "ok-2", limit_key="k", priority=5)
        self.submit(opened, "ok-3", limit_key="k", queue="other")
        workers = [opened.worker(queues=("default",)), opened.worker(queues=("other",))]
        self.ended(opened, "ok-1", "ok-2", "ok-3")
        of_both = [text for text in opened.noted() if not text.endswith("3")]
        assert of_both == ["begin ok-2", "end ok-2", "begin ok-1", "end ok-1"]
        for worker in workers:
            worker.terminate()
            worker.wait()

    def test_a_cancelled_plan_is_stopped_or_never_begun(self, opened: Opened) -> None:
        self.submit(opened, "ok-waits", queue="nobody")
        assert opened.queue.cancel("ok-waits")
        assert not opened.queue.cancel("ok-waits")
        self.submit(opened, "slow-1")
        worker = opened.worker()
        wait_for(lambda: "begin slow-1" in opened.noted(), "it begins")
        assert opened.queue.cancel("slow-1")
        wait_for(lambda: "cancelled slow-1" in opened.noted(), "it is stopped")
        wait_for(lambda: not sum(c.running for c in opened.queue.counts()), "and gone")
        worker.terminate()
        assert worker.wait() == 0

    def test_what_waits_can_be_taken_back_and_what_runs_is_left_alone(self, opened: Opened) -> None:
        assert opened.queue.job("ok-1") is None
        self.submit(opened, "ok-1", queue="nobody", priority=3)
        job = opened.queue.job("ok-1")
        assert job == Job(queue="nobody", priority=3, running=False, handed_back="")
        assert opened.queue.cancel("ok-1", waiting_only=True)
        assert opened.queue.job("ok-1") is None
        self.submit(opened, "slow-1")
        worker = opened.worker()
        wait_for(lambda: "begin slow-1" in opened.noted(), "it begins")
        assert not opened.queue.cancel("slow-1", waiting_only=True)
        job = opened.queue.job("slow-1")
        assert job is not None
        assert job.running
        worker.kill()
        worker.wait()

    def test_why_a_plan_was_handed_back_is_said_until_it_is_cancelled(self, opened: Opened) -> None:
        self.submit(opened, "never-1")
        worker = opened.worker()
        wait_for(opened.queue.handed_back, "it is handed back")
        job = opened.queue.job("never-1")
        assert job is not None
        assert job.handed_back == "somebody has it"
        wait_for(lambda: opened.queue.cancel("never-1", waiting_only=True), "it is cancelled")
        assert opened.queue.handed_back() == []
        worker.kill()
        worker.wait()

    def test_what_is_for_another_machine_is_left_alone(self, opened: Opened) -> None:
        here = own_queue(os.uname().nodename)
        self.submit(opened, "ok-there", queue=own_queue("elsewhere"), priority=9)
        with opened.transaction() as connection:
            opened.queue.submit("ok-here", Order(queue=here), connection, ("--as=branch", "--x"))
            opened.queue.submit("ok-bare", Order(queue=here), connection, ())
        for queues in ((), ("other",)):
            self.submit(opened, f"ok-{len(queues)}", queue="other")
            worker = opened.worker(queues=queues)
            self.ended(opened, "ok-here", "ok-bare", f"ok-{len(queues)}")
            worker.terminate()
            worker.wait()
        assert {"apply ok-here --as=branch --x", "apply ok-bare "} <= set(opened.noted())
        assert not [text for text in opened.noted() if "ok-there" in text]

    def test_workers_say_what_they_take_and_nothing_once_they_stop(self, opened: Opened) -> None:
        self.submit(opened, "slow-1", queue="a")
        worker = opened.worker(queues=("a", "b"), at_once=3)
        wait_for(lambda: any(one.at_once for one in opened.queue.workers()), "it says so")
        (found,) = opened.queue.workers()
        assert (found.at_once, set(found.queues)) == (3, {"a", "b"})
        assert found.takes("b")
        assert not found.takes("c")
        assert found.takes(own_queue(found.host))
        assert not found.takes(own_queue("elsewhere"))
        wait_for(lambda: "begin slow-1" in opened.noted(), "it begins")
        worker.terminate()
        wait_for(lambda: not opened.queue.workers()[0].takes("b"), "it takes nothing more")
        worker.kill()
        worker.wait()

    def test_one_signal_drains_and_a_second_hands_back(self, opened: Opened) -> None:
        self.submit(opened, "slow-1")
        self.submit(opened, "ok-2")
        worker = opened.worker()
        wait_for(lambda: "begin slow-1" in opened.noted(), "it begins")
        worker.terminate()
        wait_for(
            lambda: "cancelled slow-1" in opened.noted() or worker.terminate(), "it is stopped"
        )
        assert worker.wait() == 0
        assert "begin ok-2" not in opened.noted()
        assert sum(count.waiting for count in opened.queue.counts()) == 2

    def test_a_schedule_is_submitted_once_for_all_workers(self, opened: Opened) -> None:
        every = Schedule(name="often", cron="* * * * * */1", file="/nowhere/plan.yaml")
        opened.queue.schedule(every)
        assert opened.queue.schedules() == [every]
        workers = [opened.worker(), opened.worker()]
        wait_for(lambda: len(submitted(opened)) > 2, "it is submitted")
        assert opened.queue.unschedule("often")
        assert not opened.queue.unschedule("often")
        for worker in workers:
            worker.terminate()
            worker.wait()
        assert len(submitted(opened)) == len(set(submitted(opened)))
