"""What `plan output` and `plan checkpoints` print for programs."""

from shlex import quote
from typing import Any

from cleveragents.cli.data import duration_ms
from cleveragents.cli.rollback_data import change_data, is_git_internal
from cleveragents.context import Context
from cleveragents.errors import NotFound
from cleveragents.model.plan import Plan, State
from cleveragents.model.triggers import nearest


def output_data(ctx: Context, plan: Plan, step: str) -> list[dict[str, Any]]:
    """`plan output`: every call with what it printed, or those of one step."""
    calls = ctx.store.calls.of_plan(plan.plan_id)
    if step and step not in {call.step_id for call in calls}:
        names = [call.step_id for call in calls]
        raise NotFound(
            f"no step {step!r} of plan {plan.name!r} was called{nearest(step, names)}",
            f"agents plan status {plan.plan_id}",
        )
    return [
        {
            "step": call.step_id,
            "tool": call.tool,
            "attempt": call.attempt,
            "state": str(call.state),
            "exit_code": call.exit_code,
            "output": call.output,
            "output_bytes": call.output_bytes,
            "error": call.error,
            "started_at": call.started_at,
            "ended_at": call.ended_at,
            "duration_ms": duration_ms(call.started_at, call.ended_at or ctx.now()),
        }
        for call in calls
        if step in ("", call.step_id)
    ]


def timeline_data(ctx: Context, plan: Plan) -> list[dict[str, Any]]:
    """The groups of `plan checkpoints`, oldest first: what each is about and what it changed."""
    from cleveragents.history.timeline import timeline

    steps = {step.index: step.step_id for step in ctx.store.plans.steps(plan.plan_id)}
    questions = {d.decision_id: d.question for d in ctx.store.plans.decisions(plan.plan_id)}
    return [
        {
            "group_id": (group := entry.group).group_id,
            "type": str(group.checkpoint_type),
            "triggers": list(group.triggers),
            "label": group.label,
            "pinned": group.pinned,
            "created_at": group.created_at,
            "step": steps.get(group.step_index),
            "decision_id": group.decision_id,
            "question": questions.get(group.decision_id or ""),
            "in_force": entry.in_force,
            "here": group.group_id == plan.head_group_id,
            "changes": [
                {**change_data(change), "action": str(change.action), "owner": str(owner)}
                for change, owner in zip(entry.changes, entry.owners, strict=True)
                if not is_git_internal(plan, change)
            ],
            "size_bytes": entry.size_bytes,
        }
        for entry in timeline(ctx, plan)
    ]


LAST_LINES = 8
"""Of what a failed step printed, that are shown with its error."""


def last_lines(ctx: Context, plan: Plan) -> tuple[str, ...]:
    """The last output of the failed step, or of its child plan's, and where the rest is."""
    step = plan.error.step if plan.error else None
    for child in ctx.store.plans.children(plan.plan_id):
        if child.parent_step_id == step and child.state is State.ERRORED:
            return last_lines(ctx, child)
    calls = [call for call in ctx.store.calls.of_plan(plan.plan_id) if call.step_id == step]
    said = calls[-1].output.splitlines() if calls and step else []
    printed = [line for line in said if line.strip()]
    if len(printed) < 2:  # a single line is part of the error itself
        return ()
    rest = f"(all of it: agents plan output {plan.plan_id} {quote(step or '')})"
    return (*(f"| {line}" for line in printed[-LAST_LINES:]), rest)
