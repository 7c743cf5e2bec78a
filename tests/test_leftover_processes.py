"""Processes that a step left running are ended, and no others."""

import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from cleveragents.model.ids import new_id
from cleveragents.tools import leftovers
from tests.in_process import fail_with


@contextmanager
def fled(plan_id: str, step_id: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "600"],
        env={**os.environ, "AGENTS_PLAN_ID": plan_id, "AGENTS_STEP_ID": step_id},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_what_a_step_left_is_ended_and_another_steps_is_not(
    has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    plan = new_id()
    with fled(plan, "one") as first, fled(plan, "two") as second:
        assert leftovers.end_leftovers(plan, "one") == 1
        assert first.wait(600) == -9
        assert second.poll() is None
        assert leftovers.end_leftovers(plan) == 1
        assert second.wait(600) == -9
        assert leftovers.end_leftovers(plan) == 0


def test_a_process_that_cannot_be_killed_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = new_id()
    monkeypatch.setattr(leftovers, "PATIENCE", 0.05)
    with fled(plan, "one") as process:
        monkeypatch.setattr(leftovers.signal, "pidfd_send_signal", fail_with(errno.EPERM))
        assert leftovers.end_leftovers(plan) == 0
        assert process.poll() is None


def test_where_there_is_no_proc_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = new_id()
    with fled(plan, "one") as process, monkeypatch.context() as patch:
        patch.setattr(leftovers.os, "listdir", fail_with(errno.ENOENT))
        assert leftovers.end_leftovers(plan) == 0
        assert process.poll() is None


def test_a_process_whose_number_was_given_away_is_not_killed() -> None:
    plan = new_id()
    with fled(plan, "one") as process:
        assert not leftovers.kill_marked(process.pid, {b"AGENTS_PLAN_ID=another"})
        assert process.poll() is None


def test_the_ancestors_of_this_process_are_known_as_far_as_they_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {os.getpid(), os.getppid()} <= leftovers.ancestry()
    monkeypatch.setattr(leftovers, "open", fail_with(errno.EACCES), raising=False)
    assert leftovers.ancestry() == {os.getpid()}
