"""Effects outside the sandboxes: recorded before each call, compensated on rollback.

Restoring files never depends on a compensation: the restore's commit marks what has to be
compensated, and this or the next process runs that afterwards.
"""

import json
import time
from collections.abc import Collection
from itertools import groupby

import msgspec

from cleveragents.checkpoints.effects import (
    shown,
)
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.errors import AgentsError, SandboxError
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.tool_call import call_context
from cleveragents.lease import (
    LeasedPlan,
    hold,
)
from cleveragents.model.effect import Effect, EffectState
from cleveragents.model.plan import Plan
from cleveragents.model.tool import CallState, ToolResult, ToolSpec
from cleveragents.tools.runner import run_tool

TRIES = 3
BACK_OFF = (0.2, 1.0)
LONGEST_VARIABLE = 100_000
"""Linux refuses a program whose environment has a longer text than 128 KiB."""


def compensate_waiting(
    ctx: Context, leased: LeasedPlan, only: Collection[str] | None = None
) -> tuple[Effect, ...]:
    """Run pending compensations, last first; a failed one does not stop the others."""
    waiting = [
        effect
        for effect in ctx.store.effects.waiting(leased.plan.plan_id)
        if only is None or effect.effect_id in only
    ]
    if not waiting:
        return ()
    edited = _differs(ctx, leased)
    done = tuple(_compensate(ctx, leased, effect) for effect in waiting)
    head = leased.plan.head_group_id
    if head is not None and not edited and _differs(ctx, leased):
        # A compensation is for the outside: discard its changes in the sandboxes.
        todo = Restoration(group_id=head, plan={})
        ctx.checkpoints.rollback_to_checkpoint(leased, todo, lossy=True)
    return done


def compensated(ctx: Context, leased: LeasedPlan, todo: Restoration) -> tuple[Effect, ...]:
    """Run the compensations after a restore, also of child plans; returns how each ended."""
    done: list[Effect] = []
    for plan_id, effects in groupby(todo.outlook.compensable, key=lambda effect: effect.plan_id):
        only = {effect.effect_id for effect in effects}
        if plan_id == leased.plan.plan_id:
            done += compensate_waiting(ctx, leased, only)
        else:
            done += compensate_plan(ctx, plan_id, only)
    return tuple(done)


def compensate_plan(
    ctx: Context, plan_id: str, only: Collection[str] | None = None
) -> tuple[Effect, ...]:
    """The same for a plan that this process has not leased yet."""
    before_looking(ctx, plan_id)
    with hold(ctx.store, plan_id, "compensation", ctx.now) as lease:
        leased = LeasedPlan(ctx.store, ctx.store.plans.get(plan_id), lease, ctx.now)
        done = compensate_waiting(ctx, leased, only)
        leased.finish_background()
        return done


def retry_failed(ctx: Context, plan: Plan) -> tuple[Effect, ...]:
    """Retry the compensations that failed."""
    with work_on(ctx, plan.plan_id, "plan effects") as leased:
        recorded = ctx.store.effects.of_plan(plan.plan_id)
        failed = [effect.effect_id for effect in recorded if effect.state is EffectState.FAILED]
        with leased.transaction():
            ctx.store.effects.mark(failed, EffectState.COMPENSATING, ctx.now())
        return compensate_waiting(ctx, leased)


def _differs(ctx: Context, leased: LeasedPlan) -> bool:
    plan = leased.plan
    if plan.head_group_id is None:
        return True
    then = ctx.checkpoints.states(ctx.store.checkpoints.group(plan.head_group_id))
    try:
        return ctx.checkpoints.look(
            plan.plan_id, lambda now: bool(ctx.checkpoints.diff(plan.plan_id, then, now))
        )
    except SandboxError:
        return True


def _compensate(ctx: Context, leased: LeasedPlan, effect: Effect) -> Effect:
    ctx.talk.tell("compensate", {"id": effect.step_id, "tool": effect.tool})
    for attempt in range(TRIES):
        if attempt:
            time.sleep(BACK_OFF[attempt - 1])
        effect = msgspec.structs.replace(effect, attempts=effect.attempts + 1)
        _put(leased, effect)
        result = _run(ctx, leased, effect)
        fsio.point("compensate")
        effect = msgspec.structs.replace(effect, output=result.output, error=result.error)
        if result.ok:
            break
    state = EffectState.COMPENSATED if effect.error is None else EffectState.FAILED
    effect = msgspec.structs.replace(effect, state=state, ended_at=ctx.now())
    _put(leased, effect)
    if state is EffectState.FAILED:
        text = f"not compensated: {shown(effect)}: {effect.error}"
        ctx.talk.tell("warning", {"message": text})
    return effect


def _put(leased: LeasedPlan, effect: Effect) -> None:
    with leased.transaction():
        leased.store.effects.put(effect)


def _run(ctx: Context, leased: LeasedPlan, effect: Effect) -> ToolResult:
    declared = leased.spec.tools.get(effect.tool) or ToolSpec(name=effect.tool)
    tool = ToolSpec(
        name=f"compensate {effect.tool}",
        run=effect.compensate,
        timeout=declared.timeout,
        network=declared.network,
        env={**declared.env, **_environment(ctx, effect)},
    )
    try:
        context = call_context(ctx, leased, effect.step_id, effect.resource)
        return run_tool(tool, {"stdin": json.dumps(effect.inputs, default=str)}, context)
    except AgentsError as error:
        return ToolResult(
            ok=False, state=CallState.FAILED, output="", output_bytes=0, error=error.message
        )


def _environment(ctx: Context, effect: Effect) -> dict[str, str]:
    """A compensation's environment: the call's inputs, and its output if it returned."""
    calls = ctx.store.calls.of_plan(effect.plan_id)
    output = next((call.output for call in calls if call.call_id == effect.call_id), "")
    given = {"AGENTS_INPUT": json.dumps(effect.inputs, default=str), "AGENTS_OUTPUT": output}
    return {
        name: text
        for name, text in given.items()
        if len(text.encode("utf-8", "surrogateescape")) <= LONGEST_VARIABLE and "\0" not in text
    }
