"""Where a plan may go from where it is. Pure: raises `NotAllowed`, changes nothing."""

from cleveragents.errors import NotAllowed, PlanApplied, PlanCancelled, RollbackDisabled
from cleveragents.model.plan import Phase, Plan, State
from cleveragents.model.resource import IN_PLACE


def require_not_final(plan: Plan, verb: str) -> None:
    if plan.state is State.APPLIED:
        applied = (plan.result or {}).get("applied", ())
        if applied and all(item["mode"] == IN_PLACE for item in applied):
            raise PlanApplied(
                f"plan {plan.name!r} worked in place and was ended: it cannot be {verb}",
                f"agents plan open {plan.plan_id} CHECKPOINT writes the files of one to look at",
            )
        raise PlanApplied(
            f"plan {plan.name!r} is applied and cannot be {verb}",
            f"agents plan revert-applied {plan.plan_id}",
        )
    if plan.state is State.CANCELLED:
        if verb == "cancelled":
            raise PlanCancelled(
                f"plan {plan.name!r} is cancelled already", f"agents plan diff {plan.plan_id}"
            )
        raise PlanCancelled(
            f"plan {plan.name!r} is cancelled and cannot be {verb}",
            f"agents plan diff {plan.plan_id}",
        )


def require_appliable(plan: Plan) -> None:
    """Apply starts from a finished Execute, or continues after an apply that did not succeed."""
    if plan.phase is Phase.APPLY or (plan.phase, plan.state) == (Phase.EXECUTE, State.COMPLETE):
        return
    raise NotAllowed(
        f"plan {plan.name!r} is {plan.phase}/{plan.state}: only a completed plan can be applied",
        f"agents plan resume {plan.plan_id}",
    )


def require_rollback(plan: Plan, verb: str = "rolled back") -> None:
    require_not_final(plan, verb)
    if not plan.rollback_enabled:
        raise RollbackDisabled(
            f"plan {plan.name!r} has rollback_enabled: false: nothing can be undone",
            "set policy: {rollback_enabled: true} in the plan file and use it again",
        )
