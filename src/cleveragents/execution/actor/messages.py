"""Messages to an actor: the plan's status at the start, and the result of each step."""

from collections.abc import Iterable

from cleveragents import codec
from cleveragents.actors import MODEL
from cleveragents.actors.protocol import Start, StepDone
from cleveragents.context import Context
from cleveragents.lease import LeasedPlan
from cleveragents.model.plan import Step
from cleveragents.model.plan_spec import StepSpec
from cleveragents.model.tool import CallState, ToolCall, ToolResult, ToolSpec
from cleveragents.tools import BUILTINS
from cleveragents.tools.builtin import inputs_of

TAIL, MODEL_TAIL = 4000, 16_001
"""Of an output; a model is told of as much as it had seen, and whether that was all."""


def start_message(ctx: Context, leased: LeasedPlan, steps: Iterable[Step]) -> Start:
    """The plan, its done steps, the guidance in force, and the actor's own state."""
    plan, spec, store = leased.plan, leased.spec, ctx.store
    is_model = spec.actor.kind == MODEL
    finished = store.calls.finished(plan.plan_id, MODEL_TAIL if is_model else TAIL)
    return Start(
        plan={
            "id": plan.plan_id,
            "name": plan.name,
            "description": spec.description,
            "attempt": plan.attempt,
            **({"goal": spec.actor.goal} if is_model else {}),
            "resources": {item.name: item.kind for item in spec.resources},
            "tools": {name: _tool_data(tool) for name, tool in {**BUILTINS, **spec.tools}.items()},
        },
        guidance=store.plans.guidance(plan.plan_id),
        done=tuple(_step_done(step, finished) for step in steps if step.done),
        state=plan.actor_state,
    )


def result_of(call: ToolCall | None, error: str | None) -> ToolResult:
    """The result of a call; a step may also fail afterwards, if its changes cannot be kept."""
    if call is None:
        state = CallState.FAILED if error else CallState.OK
        return ToolResult(ok=not error, state=state, output="", output_bytes=0, error=error)
    state = CallState.FAILED if error and call.state is CallState.OK else call.state
    return ToolResult(
        ok=state is CallState.OK,
        state=state,
        output=call.output,
        output_bytes=call.output_bytes,
        exit_code=call.exit_code,
        error=error,
    )


def _step_done(step: Step, finished: dict[str, tuple[str, str]]) -> StepDone:
    spec = codec.convert(step.spec, StepSpec)
    _, output = finished.get(step.step_id, ("", ""))
    return StepDone(id=spec.id, tool=spec.tool, on=spec.on, inputs=spec.inputs, output=output)


def _tool_data(tool: ToolSpec) -> dict[str, object]:
    inputs = inputs_of(tool)
    return {
        "description": tool.description,
        "read_only": tool.read_only,
        "with": None
        if inputs is None
        else {each.name: {"type": each.type, "required": each.required} for each in inputs},
    }
