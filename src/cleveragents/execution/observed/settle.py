"""Ends an agent's open calls before others work on its plan, or refuses while it runs."""

from cleveragents.context import Context
from cleveragents.errors import PlanBusy
from cleveragents.lease import LeasedPlan, holder, start_time
from cleveragents.model.conversation import Session
from cleveragents.model.tool import ToolCall

RESTORES = frozenset({"plan rollback", "plan undo", "plan redo", "plan correct"})
"""Verbs that change files under whatever still runs."""


def is_alive(session: Session) -> bool:
    """Whether the agent's process is running."""
    return bool(session.pid) and start_time(session.pid) == session.started


def is_at_work(ctx: Context, plan_id: str) -> bool:
    """Whether a call is open and the process that makes or follows it is alive."""
    return bool(ctx.store.calls.running(plan_id)) and (
        holder(ctx.store, plan_id) is not None
        or any(is_alive(item) for item in ctx.store.sessions.of_plan(plan_id))
    )


def settle(ctx: Context, leased: LeasedPlan, verb: str) -> None:
    """Refuse while the agent runs a call; open calls of a dead one end as interrupted.

    Nothing is rolled back: the call's changes are kept and count as its work.
    """
    plan_id = leased.plan.plan_id
    alive = [item for item in ctx.store.sessions.of_plan(plan_id) if is_alive(item)]
    running = ctx.store.calls.running(plan_id)
    if running and alive:
        raise PlanBusy(
            f"plan {plan_id}: {alive[-1].agent} is running {_shown(running[-1])}",
            "wait until it has ended, or interrupt the agent",
        )
    background = [name for item in alive for name in item.background]
    if background and verb in RESTORES:
        raise PlanBusy(
            f"plan {plan_id}: {alive[-1].agent} has left running: {', '.join(background)}",
            "wait until they have ended, or end them",
        )
    if ctx.store.calls.of_open_steps(plan_id):
        from cleveragents.execution.observed.executor import ObservedExecutor

        ObservedExecutor(ctx, leased).interrupt(state=None)
    leased.end_operations()


def _shown(call: ToolCall) -> str:
    words = [value for value in call.inputs.values() if isinstance(value, str)]
    first = words[0].strip().splitlines()[:1] if words else []
    return f"{call.tool}: {first[0][:60]}" if first else call.tool
