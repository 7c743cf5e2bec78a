"""Who may write a plan: leases, boots and start times of processes."""

import errno
import os
import threading

import pytest

from cleveragents import lease
from cleveragents.content import fsio
from cleveragents.errors import LeaseLost, PlanBusy
from cleveragents.history.diff import diff_of_failure
from cleveragents.workspace import open_workspace
from tests.harness import PATIENCE
from tests.in_process import Yard, fail_with


def test_a_machine_that_does_not_tell_its_boot_is_like_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (fsio, lease):
        monkeypatch.setattr(module, "open", fail_with(errno.ENOENT), raising=False)
    assert fsio.boot_id() == "unknown"
    assert lease.start_time(os.getpid()) is None


def test_a_lease_that_was_given_back_is_good_for_nothing(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        lease = ws.ctx.store.leases.get(plan.plan_id)
        assert lease is not None
        assert not lease.held
        with pytest.raises(LeaseLost, match="taken over"), ws.ctx.store.transaction():
            ws.ctx.store.leases.check(lease)
        assert diff_of_failure(ws.ctx, plan.plan) is None


def test_whoever_notes_an_event_is_waited_for_and_others_are_named(yard: Yard) -> None:
    with open_workspace() as ws:
        plan_id = ws.run(yard.plan()).plan_id

    noted, asked = threading.Event(), threading.Event()

    def note() -> None:
        with (
            open_workspace(recover=False) as own,
            lease.hold(own.ctx.store, plan_id, f"{lease.EVENT}codex", own.ctx.now),
        ):
            noted.set()
            assert asked.wait(PATIENCE)

    other = threading.Thread(target=note)
    other.start()
    assert noted.wait(PATIENCE)
    with open_workspace(recover=False) as ws:
        threading.Timer(0.1, asked.set).start()
        with lease.hold(ws.ctx.store, plan_id, "plan undo", ws.ctx.now):
            assert asked.is_set()
            with (
                pytest.raises(PlanBusy, match="held by `plan undo`"),
                lease.hold(ws.ctx.store, plan_id, "plan apply", ws.ctx.now),
            ):
                pass
    other.join()
