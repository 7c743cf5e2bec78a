"""What a capture becomes is decided by a pure function."""

from typing import Any

import pytest

from cleveragents.checkpoints.create import Capture, CheckpointRequest, Choice, decide, one_row
from cleveragents.checkpoints.manager import States
from cleveragents.errors import CheckpointFailed
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType, SandboxCheckpoint
from cleveragents.model.plan import Step
from cleveragents.model.resource import Resource

MARK = 7
RESOURCES = {
    name: Resource(
        resource_id=name, plan_id="p", name=name, kind="fs-directory", path=name, strategy="copy"
    )
    for name in ("docs", "app")
}
HEAD = CheckpointGroup(
    group_id="g",
    plan_id="p",
    decision_id=None,
    checkpoint_type=CheckpointType.MANUAL,
    triggers=("manual",),
    label=None,
    step_index=0,
    version=1,
    view_mark=MARK,
    members={"docs": "c1", "app": "c2"},
    created_at="",
)


def states(**hashes: str) -> dict[str, SandboxCheckpoint]:
    return {
        rid: SandboxCheckpoint(resource_id=rid, root=b"", state_hash=text, added_bytes=5)
        for rid, text in hashes.items()
    }


def record(_before: States, _now: States) -> None: ...


def prepare(_now: States) -> None: ...


SAME = Capture(HEAD, states(docs="1", app="1"), states(docs="1", app="1"))


def choice(capture: Capture = SAME, view_mark: int = MARK, **request: Any) -> Choice:
    trigger = request.pop("trigger", CheckpointType.MANUAL)
    return decide(trigger, CheckpointRequest(**request), capture, view_mark, RESOURCES)


def test_nothing_changed_and_the_head_has_the_name_already() -> None:
    made = choice()
    assert made.head is HEAD
    assert made.is_written


def test_nothing_changed_and_the_head_gets_one_more_name() -> None:
    made = choice(trigger=CheckpointType.PRE_EXECUTE)
    assert made.head is HEAD
    assert not made.is_written
    assert made.keeps_content


@pytest.mark.parametrize("request_", [{"plan": {"state": "complete"}}, {"record": record}])
def test_what_is_to_be_written_is_written_beside_the_head(request_: dict[str, Any]) -> None:
    made = choice(**request_)
    assert made.head is HEAD
    assert not made.is_written


def test_what_is_left_behind_at_once_is_not_kept_twice() -> None:
    made = choice(prepare=prepare)
    assert made.head is HEAD
    assert not made.keeps_content


def test_a_group_has_rows_of_what_changed_only() -> None:
    made = choice(Capture(HEAD, SAME.before, states(docs="2", app="1")))
    assert made.head is None
    assert made.rows == states(docs="2")
    assert made.keeps_content


def test_the_first_group_has_a_row_of_everything() -> None:
    assert choice(Capture(None, {}, SAME.now)).rows == SAME.now


@pytest.mark.parametrize(
    ("mark", "request_"),
    [
        (MARK + 1, {}),
        (MARK, {"view_changed": True}),
        (MARK, {"force": True}),
        (MARK, {"label": "x"}),
    ],
)
def test_a_changed_view_or_a_wish_makes_a_group_with_one_row(
    mark: int, request_: dict[str, Any]
) -> None:
    made = choice(view_mark=mark, **request_)
    assert made.head is None
    assert [(rid, row.added_bytes) for rid, row in made.rows.items()] == [("docs", 0)]


def test_the_one_row_is_of_the_steps_resource() -> None:
    step = Step(step_id="s", plan_id="p", index=0, tool="t", resource="app", spec={})
    assert list(one_row(SAME.now, step, RESOURCES)) == ["app"]


def test_a_plan_without_anything_to_capture_is_refused() -> None:
    with pytest.raises(CheckpointFailed, match="no resource"):
        choice(Capture(None, {}, {}))
