"""Cancel and delete: no unapplied work is lost unasked."""

import os
import shutil
from pathlib import Path

import pytest

from cleveragents.errors import (
    PlanCancelled,
    SandboxMissing,
    UnappliedWork,
)
from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace, settings_here
from tests.in_process import Yard, files


def test_a_cancelled_plan_changes_nothing_and_goes_nowhere(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        assert plan.cancel().state is State.CANCELLED
        assert files(plan) == {"one.txt", "two.txt"}
        with pytest.raises(PlanCancelled):
            plan.resume()
        with pytest.raises(PlanCancelled):
            plan.rollback("first")
        assert os.listdir(yard.app) == ["old.txt"]


def test_cancel_can_remove_the_sandbox_and_the_diff_stays(yard: Yard) -> None:
    settings = settings_here(None, {"sandbox.cleanup": "on_terminal"})
    with open_workspace(settings=settings) as ws:
        plan = ws.run(yard.plan())
        where = Path(plan.sandboxes["app"])
        patch = plan.diff().patch
        plan.cancel()
        assert not where.exists()
        assert plan.diff().patch == patch
        with pytest.raises(UnappliedWork, match="3 changes"):
            plan.delete()  # its checkpoints are all that is left of its work
        assert plan.delete(force=True) == 3


def test_delete_asks_where_only_the_checkpoints_hold_the_work(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        shutil.rmtree(plan.sandboxes["app"])
        with pytest.raises(SandboxMissing) as caught:
            plan.apply()
        kept = f"agents plan export {plan.plan_id} --patch DIR"
        assert caught.value.hint == f"{kept}, then agents plan delete {plan.plan_id}"
        with pytest.raises(UnappliedWork, match="3 changes"):
            plan.delete()
        plan.delete(force=True)
        idle = yard.done(ws, "steps: [{id: a, run: 'true'}]")
        shutil.rmtree(idle.sandboxes["app"])
        assert idle.delete() == 0


def test_delete_refuses_to_lose_work_unless_forced(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = ws.run(yard.plan())
        where = Path(plan.sandboxes["app"])
        with pytest.raises(UnappliedWork, match="3 changes"):
            plan.delete()
        assert where.exists()
        assert plan.delete(force=True) == 3
        assert not where.exists()
        assert ws.plans() == []
