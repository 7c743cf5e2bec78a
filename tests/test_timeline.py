"""`plan checkpoints`: when, after which step, what changed, and what leads to where the plan is."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cleveragents.model.units import show_when
from tests.harness import Agents

PLAN = """
name: told
resources: {app: {kind: fs-directory, path: .}}
steps:
  - {id: make, run: "echo 1 > n; echo 1 > m"}
  - {id: edit, run: "echo 2 > n; rm m", checkpoint: good}
"""


def groups(agents: Agents) -> list[dict[str, Any]]:
    return agents.run("plan", "checkpoints", "told", "--json").expect(0).data["groups"]


def counted(group: dict[str, Any]) -> dict[str, str]:
    return {change["file"]: change["action"] for change in group["changes"]}


def test_each_group_tells_what_it_changed_and_whether_it_leads_here(agents: Agents) -> None:
    (agents.work / "told.yaml").write_text(PLAN)
    agents.run("plan", "run", "told.yaml").expect(0)
    first = groups(agents)
    made, edited = (
        next(g for g in first if g["step"] == step and g["type"] == "after_tool_execute")
        for step in ("make", "edit")
    )
    assert counted(made) == {"n": "added", "m": "added"}
    assert counted(edited) == {"n": "changed", "m": "removed"}
    assert all(group["in_force"] for group in first)
    assert {c["owner"] for group in first for c in group["changes"]} == {"agent"}
    assert [group["here"] for group in first] == [False] * (len(first) - 1) + [True]
    assert first[-1]["label"] == "good"

    agents.run("plan", "rollback", "told", made["group_id"], "--yes").expect(0)
    agents.run("plan", "resume", "told").expect(0)
    again = groups(agents)
    left = {group["group_id"] for group in again if not group["in_force"]}
    assert edited["group_id"] in left
    assert made["group_id"] not in left
    # Compared with the group that leads here, not with the one that was left.
    redone = [g for g in again if g["step"] == "edit" and g["in_force"] and g["changes"]]
    assert [counted(group) for group in redone] == [{"n": "changed", "m": "removed"}]

    shown = agents.run("plan", "checkpoints", "told").stdout.splitlines()
    assert sum(line.startswith("x  ") for line in shown) == len(left)
    assert sum(line.startswith(">  ") for line in shown) == 1
    assert any("~1 -1" in line and "after_tool_execute" in line for line in shown)


def test_a_plan_without_a_group_says_so(agents: Agents) -> None:
    (agents.work / "told.yaml").write_text(PLAN)
    agents.run("plan", "use", "told.yaml").expect(0)
    assert agents.run("plan", "checkpoints", "told").stdout == "no checkpoint yet\n"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "just now"), (9, "just now"), (10, "10s ago"), (61, "1m ago"), (86399, "23h ago")],
)
def test_a_time_is_said_as_people_say_it(seconds: int, said: str) -> None:
    now = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
    assert show_when((now - timedelta(seconds=seconds)).isoformat(), now) == said


@pytest.mark.parametrize("days", [-1, 1, 400])
def test_another_day_is_shown_as_a_local_date(days: int) -> None:
    now = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
    then = now - timedelta(days=days)
    assert show_when(then.isoformat(), now) == then.astimezone().strftime("%Y-%m-%d %H:%M")


def test_each_change_has_an_owner(agents: Agents) -> None:
    (agents.work / "told.yaml").write_text(PLAN)
    box = agents.run("plan", "run", "told.yaml", "--json").expect(0).data["sandboxes"]["app"]
    Path(box, "mine").write_text("mine")
    agents.run("plan", "checkpoint", "create", "told").expect(0)
    last = groups(agents)[-1]
    assert [(c["file"], c["owner"]) for c in last["changes"]] == [("mine", "somebody else")]
