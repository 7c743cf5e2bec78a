"""An actor's decisions without a result: they are superseded, and it decides again (pure)."""

from collections.abc import Iterable, Mapping

from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.plan import Step


def open_ended(
    decisions: Iterable[Decision],
    steps: Iterable[Step],
    order: Mapping[str, int],
    last_good: Mapping[str, int],
) -> tuple[Decision, ...]:
    """Decisions after the last done step, on which no done step depends."""
    done = [step for step in steps if step.done]
    last = max((last_good[s.step_id] for s in done if s.step_id in last_good), default=0)
    used = {step.decision_id for step in done}
    return tuple(
        decision
        for decision in decisions
        if decision.kind in (DecisionKind.ACTOR, DecisionKind.STEP)
        and decision.state is DecisionState.ACTIVE
        and decision.decision_id not in used
        and order[decision.decision_id] > last
    )


def undone_steps(decisions: Iterable[Decision], steps: Iterable[Step]) -> set[str]:
    """Undone steps, without those a user appended: the actor must not drop them."""
    users = {d.decision_id for d in decisions if d.kind is DecisionKind.USER_INTERVENTION}
    return {s.step_id for s in steps if not s.done and s.decision_id not in users}


def without_result(
    decisions: Iterable[Decision], steps: Iterable[Step], gone: set[str]
) -> tuple[Decision, ...]:
    """Decisions left without steps when those in `gone` are removed."""
    known, all_steps = tuple(decisions), tuple(steps)
    tried = {s.decision_id for s in all_steps if s.step_id in gone}
    used = {s.decision_id for s in all_steps if s.step_id not in gone}
    used |= {d.parent_id for d in known if d.state is DecisionState.ACTIVE}
    return tuple(
        d
        for d in known
        if d.state is DecisionState.ACTIVE
        and (
            (d.kind is DecisionKind.STEP and d.step_id in gone)
            or (d.kind is DecisionKind.ACTOR and d.decision_id in tried - used)
        )
    )
