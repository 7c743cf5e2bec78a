"""A clock that jumps between two commands changes nothing but what is shown as time.

Every command runs in a process of its own, as if NTP or a resumed machine had set the clock
meanwhile: with `faketime` where it is installed, and everywhere with the standard library told
another time (`tests/shifted.py`).
"""

import itertools
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cleveragents.lease import hold, is_alive
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.retention import Candidate, CheckpointRetentionPolicy, judge
from cleveragents.workspace import open_workspace
from tests.harness import Agents, Outcome, command
from tests.in_process import Yard, damage_store

MINUTE, DAY, YEAR = 60, 86_400, 400 * 86_400
JUMPS = [-MINUTE, MINUTE, -DAY, DAY, -YEAR, YEAR]
SOME = JUMPS if os.environ.get("CLEVERAGENTS_ALL_JUMPS") else [-DAY]
ROOT = str(Path(__file__).parent.parent)
PLAN = """
name: {name}
resources: {{app: {{kind: fs-directory, path: app}}}}
steps:
  - {{id: one, tool: file.write, with: {{path: one.txt, content: "one\\n"}}}}
  - {{id: two, tool: file.write, with: {{path: two.txt, content: "two\\n"}}}}
"""
CHILDREN = """
name: above
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: child, subplan: {steps: [{id: in, tool: file.write, with: {path: c.txt, content: c}}]}}
"""


class Clock:
    """Runs commands with the clock set to another time for each."""

    def __init__(self, agents: Agents, way: str) -> None:
        self.agents, self.way, self.offset = agents, way, 0.0

    def run(self, *argv: str) -> Outcome:
        if self.way == "faketime":
            # Processes are compared by the kernel's own clock, which no jump changes.
            before = ["faketime", "-m", "-f", f"{self.offset:+.0f}s", command()]
            env = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        else:
            before = [sys.executable, "-m", "tests.shifted", str(self.offset)]
            env = {"PYTHONPATH": ROOT}
        done = self._started([*before, *argv], env)
        while "faketime: sem_open: File exists" in done.stderr:
            # It is named after the process id, which one that was killed had before.
            done = self._started([*before, *argv], env)
        return Outcome(("agents", *argv), done.returncode, done.stdout, done.stderr)

    def _started(self, argv: list[str], env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv,
            cwd=self.agents.work,
            env=self.agents.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def ok(self, *argv: str) -> dict[str, Any]:
        return self.run(*argv, "--json").expect(0).data


def ways() -> list[str]:
    """Both where all is asked for, else the truer one that is there."""
    if os.environ.get("CLEVERAGENTS_ALL_JUMPS"):
        return ["faketime", "standard library"]
    return ["faketime" if shutil.which("faketime") else "standard library"]


@pytest.fixture(params=ways())
def clock(request: pytest.FixtureRequest, agents: Agents) -> Clock:
    if request.param == "faketime" and shutil.which("faketime") is None:
        pytest.skip("faketime is not installed: only the standard library is told another time")
    (agents.work / "app").mkdir()
    (agents.work / "app" / "kept.txt").write_text("kept\n")
    for name in ("job", "other"):
        (agents.work / f"{name}.yaml").write_text(PLAN.format(name=name))
    return Clock(agents, request.param)


def types(clock: Clock) -> list[str]:
    rows = clock.ok("plan", "checkpoints", "job")["checkpoints"]
    groups = {row["group_id"]: row["type"] for row in rows}
    return list(groups.values())


@pytest.mark.parametrize("jump", sorted({-MINUTE, -DAY, -YEAR, *SOME}))
def test_everything_after_a_jump_is_later_than_everything_before(clock: Clock, jump: float) -> None:
    """One jump after each command, there and back, through all that has a before and after."""
    sandbox = Path(clock.ok("plan", "run", "job.yaml")["sandboxes"]["app"])
    jumps = itertools.cycle((jump, -jump))

    def step(*argv: str) -> dict[str, Any]:
        clock.offset += next(jumps)
        return clock.ok("plan", *argv)

    before = types(clock)
    (sandbox / "hand.txt").write_text("by hand\n")
    step("checkpoint", "create", "job", "--label", "edited")
    assert types(clock)[: len(before)] == before
    assert types(clock)[-1] in ("manual", "external_edit")
    step("rollback", "job", "first", "--yes")
    assert sorted(p.name for p in sandbox.iterdir()) == ["kept.txt"]
    step("undo", "job")
    assert sorted(p.name for p in sandbox.iterdir()) == _ALL
    step("redo", "job")
    assert sorted(p.name for p in sandbox.iterdir()) == ["kept.txt"]
    step("undo", "job")
    step("prune", "job")
    step("run", "other.yaml")
    assert step("status", "last")["name"] == "other"
    assert [p["name"] for p in step("list")["plans"]] == ["other", "job"]
    step("rollback", "job", "edited", "--yes")
    step("resume", "job")
    step("apply", "job", "--yes")
    assert sorted(p.name for p in (clock.agents.work / "app").iterdir()) == _ALL


_ALL = ["hand.txt", "kept.txt", "one.txt", "two.txt"]


@pytest.mark.parametrize("jump", SOME)
def test_what_was_corrected_after_a_jump_is_applied(clock: Clock, jump: float) -> None:
    clock.ok("plan", "run", "job.yaml")
    tree = clock.ok("plan", "tree", "job")["tree"]
    decision = _decisions(tree)["one"]
    (clock.agents.work / "job.yaml").write_text(PLAN.format(name="job").replace('"one', '"ONE'))
    clock.offset = jump
    mended = ("--plan-file", "job.yaml", "--guidance", "louder", "--yes")
    clock.ok("plan", "correct", decision, "--mode", "revert", *mended)
    clock.offset = 2 * jump
    assert clock.ok("plan", "diff", "job", "--correction", "last")["files_changed"] == 1
    clock.ok("plan", "apply", "job", "--yes")
    app = clock.agents.work / "app"
    assert (app / "one.txt").read_text() == "ONE\n"
    assert (app / "two.txt").read_text() == "two\n"


def _decisions(tree: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree if isinstance(tree, list) else [tree]:
        found |= {
            step if isinstance(step, str) else step["id"]: node["decision_id"]
            for step in node["steps"]
        }
        found |= _decisions(node["children"])
    return found


@pytest.mark.parametrize("jump", SOME)
def test_after_a_jump_pruning_keeps_the_newest(clock: Clock, jump: float) -> None:
    text = PLAN.format(name="job") + "policy: {max_checkpoints_per_plan: 4}\n"
    (clock.agents.work / "job.yaml").write_text(text)
    sandbox = Path(clock.ok("plan", "run", "job.yaml")["sandboxes"]["app"])
    clock.offset = jump
    (sandbox / "hand.txt").write_text("by hand\n")
    made = clock.ok("plan", "checkpoint", "create", "job")
    rows = clock.ok("plan", "checkpoints", "job")["checkpoints"]
    assert rows[-1]["group_id"] == made["group_id"]
    assert rows[0]["type"] == "pre_execute"
    (sandbox / "hand.txt").write_text("again\n")
    clock.ok("plan", "rollback", "job", "last", "--yes")
    assert (sandbox / "hand.txt").read_text() == "by hand\n"


@pytest.mark.parametrize("jump", sorted({YEAR, *SOME}))
def test_after_a_jump_pruning_drops_no_young_group(clock: Clock, jump: float) -> None:
    """Neither while the clock is wrong nor when it has been set right."""
    text = PLAN.format(name="job")
    (clock.agents.work / "job.yaml").write_text(
        text + "policy: {max_checkpoints_per_plan: 4, keep: {within: 2h}}\n"
    )
    sandbox = Path(clock.ok("plan", "run", "job.yaml")["sandboxes"]["app"])

    def groups() -> list[str]:
        rows = clock.ok("plan", "checkpoints", "job")["checkpoints"]
        return list(dict.fromkeys(row["group_id"] for row in rows))

    for number, offset in enumerate((0, jump, jump, 0, -jump, 0)):
        before = groups()
        clock.offset = offset
        told = clock.ok("plan", "prune", "job", "--dry-run")["drop"]
        assert not told, "also what is told beforehand"
        (sandbox / "hand.txt").write_text(f"{number}\n")
        made = clock.ok("plan", "checkpoint", "create", "job")
        assert groups() == [*before, made["group_id"]]
        clock.ok("plan", "prune", "job")
        assert groups() == [*before, made["group_id"]]


def test_a_group_that_is_old_goes_although_its_clock_was_wrong_once() -> None:
    """By the store's order: what a wrong clock says of one group makes none before it older."""
    hours = [0, 1, 9000, 3, -9000, 5, 6]
    made = [_candidate(number, hour) for number, hour in enumerate(hours)]
    policy = CheckpointRetentionPolicy(max_checkpoints=1, keep_within=timedelta(hours=3))
    verdicts = judge(policy, made, _START + timedelta(hours=7))
    assert [v.keep for v in verdicts] == [True, False, True, True, True, True, True]
    seen = [msgspec.structs.replace(one, clock_set=timedelta(0)) for one in made]
    seen[2] = msgspec.structs.replace(seen[2], clock_set=timedelta(hours=-8998))
    verdicts = judge(policy, seen, _START + timedelta(hours=7))
    assert [v.keep for v in verdicts] == [True, False, False, False, False, True, True]


_START = datetime(2026, 1, 1, tzinfo=UTC)


def _candidate(number: int, hour: int) -> Candidate:
    group = CheckpointGroup(
        group_id=f"g{number}", plan_id="p", decision_id=None, step_index=0, version=0, view_mark=0,
        checkpoint_type=CheckpointType.MANUAL, triggers=("manual",), label=None, members={},
        created_at=(_START + timedelta(hours=hour)).isoformat(),
    )  # fmt: skip
    return Candidate(group=group, size_bytes=10, reachable=False, superseded=False)


@pytest.mark.parametrize("jump", SOME)
def test_unused_content_waits_for_its_grace_period_and_not_for_the_clock(
    clock: Clock, jump: float
) -> None:
    clock.ok("plan", "run", "job.yaml")
    clock.ok("plan", "delete", "job", "--yes")
    condemned = clock.ok("gc", "--grace", "1h")["condemned"]
    assert condemned > 0
    for offset in (abs(jump), -abs(jump), abs(jump)):
        clock.offset = offset
        assert clock.ok("gc", "--grace", "1h")["removed"] == 0, "not too early"
    clock.offset = -abs(jump)
    assert clock.ok("gc", "--grace", "0s")["removed"] == condemned, "and not never"


def test_last_is_nobodys_child(agents: Agents) -> None:
    (agents.work / "app").mkdir()
    (agents.work / "plan.yaml").write_text(CHILDREN)
    agents.run("plan", "run", "plan.yaml").expect(0)
    assert agents.run("plan", "status", "last", "--json").expect(0).data["name"] == "above"
    assert agents.run("plan", "status", "--json").expect(0).data["name"] == "above"
    names = [p["name"] for p in agents.run("plan", "list", "--json").expect(0).data["plans"]]
    assert len(names) == 2, "and the child is listed"


@pytest.mark.parametrize("jump", JUMPS)
def test_a_lease_of_another_host_lasts_ten_minutes_and_never_for_ever(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    with open_workspace() as ws:
        plan, store = ws.use(yard.plan()), ws.ctx.store
        with hold(store, plan.plan_id, "v", ws.ctx.now) as lease:
            monkeypatch.setattr("cleveragents.lease.host_name", lambda: "another")
            assert is_alive(store, lease)
            damage_store("UPDATE leases SET heard_at = heard_at - ?", jump)
            assert is_alive(store, lease) is (abs(jump) < store.lease_time)
