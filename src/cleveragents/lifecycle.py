"""Where a plan may go from where it is. Pure: raises `NotAllowed`, changes nothing."""

from cleveragents.errors import NotAllowed, PlanApplied, PlanCancelled
from cleveragents.plan import Phase, Plan, State

NEXT: dict[tuple[Phase, State], frozenset[tuple[Phase, State]]] = {
    (Phase.STRATEGIZE, State.QUEUED): frozenset({(Phase.STRATEGIZE, State.PROCESSING)}),
    (Phase.STRATEGIZE, State.PROCESSING): frozenset(
        {(Phase.STRATEGIZE, State.COMPLETE), (Phase.STRATEGIZE, State.ERRORED)}
    ),
    (Phase.STRATEGIZE, State.COMPLETE): frozenset({(Phase.EXECUTE, State.QUEUED)}),
    (Phase.EXECUTE, State.QUEUED): frozenset({(Phase.EXECUTE, State.PROCESSING)}),
    (Phase.EXECUTE, State.PROCESSING): frozenset(
        {(Phase.EXECUTE, State.COMPLETE), (Phase.EXECUTE, State.ERRORED)}
    ),
    (Phase.EXECUTE, State.COMPLETE): frozenset(
        {(Phase.APPLY, State.QUEUED), (Phase.EXECUTE, State.QUEUED)}
    ),
    (Phase.APPLY, State.QUEUED): frozenset({(Phase.APPLY, State.PROCESSING)}),
    (Phase.APPLY, State.PROCESSING): frozenset(
        {
            (Phase.APPLY, State.APPLIED),
            (Phase.APPLY, State.CONSTRAINED),
            (Phase.APPLY, State.ERRORED),
        }
    ),
}


def require_not_final(plan: Plan, verb: str) -> None:
    if plan.state is State.APPLIED:
        raise PlanApplied(
            f"plan {plan.name!r} is applied and cannot be {verb}",
            f"agents plan log {plan.plan_id} shows what it did; undo it with a new plan",
        )
    if plan.state is State.CANCELLED:
        raise PlanCancelled(
            f"plan {plan.name!r} is cancelled and cannot be {verb}",
            f"agents plan diff {plan.plan_id} still shows its work",
        )


def require_appliable(plan: Plan) -> None:
    """Apply starts from a finished Execute, or goes on after an apply that did not succeed."""
    if plan.phase is Phase.APPLY or (plan.phase, plan.state) == (Phase.EXECUTE, State.COMPLETE):
        return
    raise NotAllowed(
        f"plan {plan.name!r} is {plan.phase}/{plan.state}: only a completed plan can be applied",
        f"agents plan resume {plan.plan_id}",
    )
