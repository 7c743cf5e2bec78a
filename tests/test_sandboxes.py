"""Where sandboxes lie, and that only those of ours are captured."""

import os

import msgspec
import pytest

from cleveragents.checkpoints.sandboxes import layout
from cleveragents.errors import (
    SandboxMissing,
    SandboxNotOurs,
)
from cleveragents.workspace import open_workspace
from tests.in_process import TWO, Yard, box


def test_nothing_is_captured_in_a_sandbox_that_is_missing_or_not_ours(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        path = box(plan)
        path.rename(path.parent / "away")
        with pytest.raises(SandboxMissing, match="is missing"):
            plan.checkpoint("x")
        path.mkdir()
        (path / "theirs").write_text("x")
        with pytest.raises(SandboxNotOurs, match="not the directory this plan made"):
            plan.rollback("early")
        assert os.listdir(path) == ["theirs"]


def test_two_resources_of_one_folder_name_have_sandboxes_of_their_own(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.use(ws, TWO)
        (app,) = ws.ctx.store.resources.of_plan(plan.plan_id)
    replace = msgspec.structs.replace
    given = [
        app,
        replace(app, resource_id="2", name="more", path="/else/app"),
        replace(app, resource_id="3", name="dot", path="/home/.config"),
        replace(app, resource_id="4", name="db", kind="sqlite", path="/var/app.db"),
        replace(app, resource_id="5", name="own", strategy="none", path="/etc/own"),
    ]
    assert layout(given, "/s", "P") == {
        app.resource_id: ("/s/P/app", "/s/P/app"),
        "2": ("/s/P/more-app", "/s/P/more-app"),
        "3": ("/s/P/dot-config", "/s/P/dot-config"),
        "4": ("/s/P/db", "/s/P/db/app.db"),
        "5": ("/etc/own", "/etc/own"),
    }


def test_a_resource_without_a_sandbox_need_not_be_ours(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
        sandboxes = ws.ctx.manager.sandboxes(plan.plan_id)
        ((rid, record),) = sandboxes.records.items()
        away = msgspec.structs.replace(record, root="/nowhere")
        sandboxes.records[rid] = away
        with pytest.raises(SandboxMissing):
            sandboxes.require_ours()
        plain = msgspec.structs.replace(sandboxes.resources[rid], strategy="none")
        sandboxes.resources[rid] = plain
        sandboxes.require_ours()
