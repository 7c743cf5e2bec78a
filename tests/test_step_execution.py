"""Steps of a plan: retries, failure policies, read-only tools, shared decisions, interrupts."""

import os
from typing import Any

import pytest

from cleveragents.errors import (
    CheckpointFailed,
)
from cleveragents.execution.executor import PlanExecutor
from cleveragents.execution.sandboxes import make_sandboxes
from cleveragents.lease import (
    working_on,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.journal import EntryState, Operation
from cleveragents.model.plan import State, StepState
from cleveragents.model.tool import CallState
from cleveragents.workspace import PlanHandle, Workspace, open_workspace
from tests.in_process import TWO, Yard, box, execute, states

THIRD_TIME = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; test $n -ge 2"


@pytest.mark.parametrize(
    ("text", "pauses"),
    [
        (f"steps: [{{id: a, run: {THIRD_TIME!r}, retries: 5}}]", [0.1, 0.5]),
        (
            f"policy: {{max_retries_per_step: 2}}\nsteps: [{{id: a, run: {THIRD_TIME!r}}}]",
            [0.1, 0.5],
        ),
        (
            f"tools: {{t: {{run: {THIRD_TIME!r}, idempotent: true}}}}\nsteps: [{{id: a, tool: t}}]",
            [0.1, 0.5],
        ),
    ],
    ids=["step", "policy", "idempotent"],
)
def test_a_step_is_tried_again_with_growing_pauses(
    yard: Yard, text: str, pauses: list[float]
) -> None:
    with open_workspace() as ws:
        plan = yard.use(ws, text)
        assert execute(ws, plan) == pauses
        assert plan.plan.state is State.COMPLETE
        calls = ws.ctx.store.calls.of_plan(plan.plan_id)
        assert [(c.attempt, c.state) for c in calls] == [
            (1, CallState.FAILED),
            (2, CallState.FAILED),
            (3, CallState.OK),
        ]
        assert (box(plan) / "n").read_text() == "3\n"


def test_without_any_rule_a_step_is_tried_once(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.use(ws, "steps: [{id: a, run: 'false'}]")
        assert execute(ws, plan) == []
        assert len(ws.ctx.store.calls.of_plan(plan.plan_id)) == 1


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("rollback_plan", {"old.txt"}),
        ("rollback_step", {"old.txt", "one"}),
        ("stop", {"old.txt", "one", "half"}),
    ],
)
def test_a_failure_rolls_back_as_much_as_the_policy_says(
    yard: Yard, policy: str, left: set[str]
) -> None:
    with open_workspace() as ws:
        plan = yard.use(
            ws,
            f"policy: {{on_failure: {policy}}}\n"
            "steps: [{id: a, run: touch one}, {id: b, run: touch half; false}]",
        )
        execute(ws, plan)
        assert set(os.listdir(box(plan))) == left
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.step == "b"
        assert plan.plan.error.undo_to is None
        first = StepState.QUEUED if policy == "rollback_plan" else StepState.COMPLETE
        assert states(ws, plan) == {"a": first, "b": StepState.ERRORED}


def test_a_tool_that_says_it_only_reads_fails_if_it_writes(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.use(
            ws,
            "tools: {good: {run: cat old.txt, read_only: true},"
            " bad: {run: echo > oops, read_only: true}}\n"
            "steps: [{id: a, tool: good}, {id: b, tool: bad}]",
        )
        execute(ws, plan)
        assert states(ws, plan) == {"a": StepState.COMPLETE, "b": StepState.ERRORED}
        assert plan.plan.error is not None
        assert "bad says it is read-only and changed" in plan.plan.error.message
        assert "oops" in plan.plan.error.message
        assert os.listdir(box(plan)) == ["old.txt"]


def test_steps_can_share_a_decision_and_a_milestone_has_its_name(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.use(
            ws,
            "steps: [{id: a, run: touch one, decision: {question: q, chosen: c}},"
            " {id: b, run: touch two, decision: a, checkpoint: both}, {id: c, run: touch three}]",
        )
        execute(ws, plan)
        assert plan.plan.state is State.COMPLETE
        steps = {s.step_id: s.decision_id for s in ws.ctx.store.plans.steps(plan.plan_id)}
        assert steps["a"] == steps["b"] != steps["c"]
        questions = [d.question for d in ws.ctx.store.plans.decisions(plan.plan_id)]
        assert questions == ["yard", "q", "c"]
        known = ws.ctx.store.plans.all_decision_ids()
        assert len(known) == 3
        assert (steps["a"], plan.plan_id) in known
        plan.rollback("both")
        assert set(os.listdir(box(plan))) == {"old.txt", "one", "two"}


@pytest.mark.parametrize("required", [True, False])
def test_a_tool_does_not_write_without_a_checkpoint_from_before_unless_allowed(
    yard: Yard, required: bool
) -> None:
    policy = f"policy: {{auto_create_on: [], require_checkpoints: {str(required).lower()}}}\n"
    with open_workspace() as ws:
        plan = yard.use(ws, policy + "steps: [{id: a, run: touch one}]")
        with working_on(ws.ctx.store, plan.plan_id, "test", ws.ctx.now) as leased:
            executor = PlanExecutor(ws.ctx, leased)
            executor.strategize()
            make_sandboxes(ws.ctx, leased)
            if not required:
                executor.execute(Operation.EXECUTE)
                assert (box(plan) / "one").exists()
                return
            with pytest.raises(CheckpointFailed, match="no checkpoint exists from before"):
                executor.execute(Operation.EXECUTE)
        assert os.listdir(box(plan)) == ["old.txt"]
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.type == "CheckpointFailed"
        assert executed(ws, plan) == [EntryState.DONE]
        entries = ws.ctx.store.journal.of_plan(plan.plan_id)
        (entry,) = [e for e in entries if e.operation is Operation.EXECUTE]
        assert entry.detail["outcome"] == "failed"


def executed(ws: Workspace, plan: PlanHandle) -> list[EntryState]:
    entries = ws.ctx.store.journal.of_plan(plan.plan_id)
    return [e.state for e in entries if e.operation is Operation.EXECUTE]


def test_an_interrupt_leaves_a_plan_that_can_be_resumed(yard: Yard) -> None:
    interrupt = f'touch "$AGENTS_PLAN_DIR/came"; kill -INT {os.getpid()}; sleep 600'
    once = f'test -e "$AGENTS_PLAN_DIR/came" || {{ {interrupt}; }}; touch one'
    with open_workspace() as ws:
        plan = yard.use(ws, f"steps: [{{id: a, run: {once!r}}}, {{id: b, run: touch two}}]")
        with pytest.raises(KeyboardInterrupt):
            execute(ws, plan)
        assert plan.plan.state is State.ERRORED
        assert plan.plan.error is not None
        assert plan.plan.error.type == "Interrupted"
        assert plan.plan.error.hint == f"agents plan resume {plan.plan_id}"
        assert executed(ws, plan) == [EntryState.INTERRUPTED]
        plan.resume()
        assert plan.plan.state is State.COMPLETE
        assert set(os.listdir(box(plan))) == {"old.txt", "one", "two"}


def test_a_step_whose_result_cannot_be_kept_counts_as_failed(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_workspace() as ws:
        plan = yard.use(ws, TWO)
        creating = ws.ctx.checkpoints.create_checkpoint

        def refusing(trigger: CheckpointType, *args: Any, **options: Any) -> Any:
            if trigger is CheckpointType.AFTER_TOOL_EXECUTE:
                raise CheckpointFailed("a mount point is in the way")
            return creating(trigger, *args, **options)

        monkeypatch.setattr(ws.ctx.checkpoints, "create_checkpoint", refusing)
        execute(ws, plan)
        assert plan.plan.error is not None
        assert plan.plan.error.message == "step a: a mount point is in the way"
        assert states(ws, plan)["a"] is StepState.ERRORED
        assert os.listdir(box(plan)) == ["old.txt"]


def test_a_tool_that_neither_writes_nor_promises_to_only_read_is_not_checked(yard: Yard) -> None:
    with open_workspace() as ws:
        plan = yard.use(
            ws, "tools: {t: {run: echo > log, writes: false}}\nsteps: [{id: a, tool: t}]"
        )
        execute(ws, plan)
        assert plan.plan.state is State.COMPLETE
        assert (box(plan) / "log").exists()
