"""Runs a plan's own validations in its sandboxes, which are restored afterwards."""

from cleveragents.checkpoints.restoration import Restoration
from cleveragents.context import Context
from cleveragents.errors import ValidationFailed
from cleveragents.execution.tool_call import call_context
from cleveragents.lease import LeasedPlan
from cleveragents.model.plan_spec import ValidateSpec
from cleveragents.model.tool import ToolResult, ToolSpec
from cleveragents.tools.runner import run_tool


def validate(ctx: Context, leased: LeasedPlan) -> None:
    """Run the plan's validations in the sandbox, then restore it."""
    failed = ""
    for number, check in enumerate(leased.spec.validate):
        result = _run_validation(ctx, leased, number, check)
        if not result.ok:
            failed = f"validation {_shown(check)}: {result.error}"
            break
    if leased.spec.validate and leased.plan.head_group_id is not None:
        todo = Restoration(group_id=leased.plan.head_group_id, plan={})
        ctx.checkpoints.rollback_to_checkpoint(leased, todo, lossy=True)
        leased.finish_background()
    if failed:
        raise ValidationFailed(
            failed, f"agents plan rollback {leased.plan.plan_id} CHECKPOINT, or correct it"
        )


def _run_validation(
    ctx: Context, leased: LeasedPlan, number: int, check: ValidateSpec
) -> ToolResult:
    ctx.talk.tell("validate", {"run": _shown(check)})
    tool = ToolSpec(name=f"validate-{number}", run=check.run)
    call = call_context(ctx, leased, tool.name, check.on)
    return run_tool(tool, {}, call, check.timeout)


def _shown(check: ValidateSpec) -> str:
    return check.run if isinstance(check.run, str) else " ".join(check.run)
