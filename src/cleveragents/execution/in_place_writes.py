"""Writes in place by failed or dead calls, which stay and belong to the agent."""

from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.execution.step_writes import writes_of
from cleveragents.model.plan import Plan, StepState
from cleveragents.model.resource import Change
from cleveragents.model.tool import CallState, ToolCall


def remember(ctx: Context, call: ToolCall, before: States, now: States) -> None:
    """Record a call's writes in the commit of their group."""
    remember_changes(ctx, call, ctx.manager.changes(call.plan_id, before, now))


def remember_changes(ctx: Context, call: ToolCall, changes: tuple[Change, ...]) -> None:
    sandboxes = ctx.manager.sandboxes(call.plan_id)
    names = {sandboxes.resources[rid].name for rid in sandboxes.in_place}
    there = [change for change in changes if change.resource in names]
    ctx.store.calls.add_writes(writes_of(ctx.store.resources.of_plan(call.plan_id), call, there))


def interrupted_call(ctx: Context, plan: Plan) -> ToolCall | None:
    """The newest call of a step whose process died."""
    steps = ctx.store.plans.steps(plan.plan_id)
    dead = {step.step_id for step in steps if step.state is StepState.PROCESSING}
    calls = [
        call
        for call in ctx.store.calls.of_plan(plan.plan_id)
        if call.step_id in dead and call.state in (CallState.RUNNING, CallState.INTERRUPTED)
    ]
    return calls[-1] if calls else None
