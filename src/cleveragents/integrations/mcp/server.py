"""The server of `agents mcp`: seven tools and three resources over standard input and output."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from shlex import join
from typing import Annotated, Any, ParamSpec, TypeVar

from anyio import to_thread
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from cleveragents import __version__
from cleveragents.errors import AgentsError
from cleveragents.integrations.mcp.plans import (
    CheckpointInfo,
    CheckpointList,
    PlanDiff,
    Plans,
    PlanStatus,
    Recorded,
    Restored,
)
from cleveragents.model.units import plural

INSTRUCTIONS = """\
Checkpoints of the files and databases you work on. Call checkpoint_create before something that \
may go wrong, record_decision when you choose between alternatives, checkpoint_diff to see what \
changed. plan_rollback shows what it would do, and restores only when `confirm` repeats the \
checkpoint's id. `plan` may be left out: then it is the newest plan of this directory."""
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
RESTORES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
NOT_FROM_INSIDE = (
    "nothing was changed: this is the plan of the session you work in, and your memory of it cannot"
    " be rewound while your turn runs; end your turn and ask the person to run the command"
)
DECLINED = "nothing was changed: the person declined"

P = ParamSpec("P")
T = TypeVar("T")


class Consent(BaseModel):
    restore: bool = Field(description="Restore files and databases now")


async def _run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread, because it waits for disks; errors are returned with their hint."""
    try:
        return await to_thread.run_sync(partial(function, *args, **kwargs))
    except AgentsError as error:
        hint = f" (hint: {error.hint})" if error.hint else ""
        raise ToolError(f"{error.message}{hint}") from error


def _can_ask(ctx: Context[Any]) -> bool:
    """Whether the client can ask its user; if not, only `confirm` remains."""
    capabilities = ctx.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _agreed(answer: ElicitationResult[Consent]) -> bool:
    return answer.action == "accept" and answer.data.restore


def server(home: str | None = None, plan: str = "") -> MCPServer[Any]:
    """A server over one store; `plan`: the default for calls that name none."""
    made: MCPServer[Any] = MCPServer("agents", instructions=INSTRUCTIONS, version=__version__)
    plans = Plans(home, plan)
    _add_readers(made, plans)
    _add_writers(made, plans)
    _add_restorers(made, plans)
    _add_resources(made, plans)
    return made


def _add_readers(made: MCPServer[Any], plans: Plans) -> None:
    @made.tool(annotations=READS)
    async def plan_status(plan: str = "") -> PlanStatus:
        """Show a plan's state, steps and sandboxes."""
        return await _run(plans.status, plan)

    @made.tool(annotations=READS)
    async def checkpoint_list(plan: str = "", limit: int = 20) -> CheckpointList:
        """List the newest checkpoints of a plan, oldest first."""
        return await _run(plans.checkpoints, plan, max(1, limit))

    @made.tool(annotations=READS)
    async def checkpoint_diff(start: str = "", end: str = "", plan: str = "") -> PlanDiff:
        """Show what changed between two checkpoints; by default from the beginning until now."""
        return await _run(plans.diff, plan, start, end)


def _add_writers(made: MCPServer[Any], plans: Plans) -> None:
    @made.tool(annotations=ADDS)
    async def checkpoint_create(label: str = "", plan: str = "") -> CheckpointInfo:
        """Create a checkpoint of all files and databases of the plan now."""
        return await _run(plans.create, plan, label)

    @made.tool(annotations=ADDS)
    async def record_decision(
        question: str,
        chosen: str,
        alternatives: list[str] | None = None,
        rationale: str = "",
        confidence: Annotated[float, Field(ge=0, le=1)] | None = None,
        plan: str = "",
    ) -> Recorded:
        """Record a decision with its alternatives; it is a point to return to."""
        about = {
            "alternatives": tuple(alternatives or ()),
            "rationale": rationale,
            "confidence": confidence,
        }
        return await _run(plans.record, plan, question, chosen, about)


def _add_restorers(made: MCPServer[Any], plans: Plans) -> None:
    async def ask_first(
        ctx: Context[Any], checkpoint: str, confirm: str, plan: str
    ) -> Consent | Elicit[Consent]:
        would = await _run(plans.preview, plan, checkpoint)
        inside = await _run(plans.in_a_turn, plan)
        if not _can_ask(ctx) or inside or confirm != would.checkpoint:
            return Consent(restore=True)
        question = f"Roll back to {would.checkpoint}: {plural(would.paths_in_all, 'path')} change?"
        return Elicit(question, Consent)

    @made.tool(annotations=RESTORES)
    async def plan_rollback(
        checkpoint: str,
        consent: Annotated[ElicitationResult[Consent], Resolve(ask_first)],
        confirm: str = "",
        plan: str = "",
    ) -> Restored:
        """Roll files and databases back to a checkpoint; shows what it would do unless confirmed.

        `confirm` repeats the checkpoint's id as the first call gave it.
        """
        would = await _run(plans.preview, plan, checkpoint)
        command = ["agents", "plan", "rollback", would.plan_id, would.checkpoint, "--yes"]
        if await _run(plans.in_a_turn, plan):
            return replace(would, say=NOT_FROM_INSIDE, command=command)
        if confirm != would.checkpoint:
            say = f"nothing was changed; to do it, call again with confirm={would.checkpoint!r}"
            return replace(would, say=say, command=command)
        if not _agreed(consent):
            return replace(would, say=DECLINED)
        return await _run(plans.rollback, plan, would.checkpoint)

    async def ask_undo(ctx: Context[Any], plan: str) -> Consent | Elicit[Consent]:
        if not _can_ask(ctx) or await _run(plans.in_a_turn, plan):
            return Consent(restore=True)
        return Elicit("Undo the last operation of the plan?", Consent)

    @made.tool(annotations=RESTORES)
    async def plan_undo(
        consent: Annotated[ElicitationResult[Consent], Resolve(ask_undo)], plan: str = ""
    ) -> Restored:
        """Undo the last operation of the plan as a whole: a prompt, a rollback, an edit."""
        if inside := await _run(plans.in_a_turn, plan):
            raise ToolError(f"{NOT_FROM_INSIDE}: {join(['agents', 'plan', 'undo', inside])}")
        if not _agreed(consent):
            raise ToolError(DECLINED)
        return await _run(plans.undo, plan)


def _add_resources(made: MCPServer[Any], plans: Plans) -> None:
    @made.resource("plans://all", mime_type="application/json")
    async def all_plans() -> str:
        """All plans of the store, newest first."""
        return json.dumps(await _run(plans.all))

    @made.resource("plan://{plan}", mime_type="application/json")
    async def one_plan(plan: str) -> str:
        """A plan's state, steps and sandboxes."""
        return json.dumps(asdict(await _run(plans.status, plan)))

    @made.resource("plan://{plan}/diff", mime_type="text/x-diff")
    async def plan_diff(plan: str) -> str:
        """What a plan has changed so far, as a patch."""
        return (await _run(plans.diff, plan, "", "")).patch
