"""Rows of steps after a correction or with a changed plan file."""

from collections.abc import Iterable
from typing import Any

import msgspec

from cleveragents.actors import KINDS, OBSERVED
from cleveragents.context import Context
from cleveragents.execution.use import PlanFile, step_of
from cleveragents.lease import LeasedPlan
from cleveragents.model.decision import (
    Decision,
    DecisionKind,
    DecisionState,
)
from cleveragents.model.plan import Plan, Step, StepState
from cleveragents.model.plan_spec import StepSpec
from cleveragents.store import Store


def steps_after(
    ctx: Context, leased: LeasedPlan, again: set[str], file: PlanFile | None
) -> tuple[list[Step], list[str]]:
    """The changed rows, and the ids of removed ones."""
    now = ctx.store.plans.steps(leased.plan.plan_id)
    if leased.spec.actor.kind in KINDS:
        # The actor decides again what to do.
        return [], [step.step_id for step in now if step.step_id in again or not step.done]
    if leased.spec.actor.kind == OBSERVED:
        # So does an observed agent, which is told when it continues.
        return [], [step.step_id for step in now if step.step_id in again]
    if file is None:
        return [fresh(step) for step in now if step.step_id in again], []
    return revised_steps(now, file.spec.steps, again, leased.plan.plan_id)


def fresh(step: Step) -> Step:
    """The step as neither done nor decided."""
    return msgspec.structs.replace(step, state=StepState.QUEUED, error=None, decision_id=None)


def revised_steps(
    now: list[Step], specs: tuple[StepSpec, ...], again: set[str], plan_id: str
) -> tuple[list[Step], list[str]]:
    """Rows for a changed plan file; done steps stay done unless in `again` (pure)."""
    known = {step.step_id: step for step in now}
    changed: list[Step] = []
    for index, spec in enumerate(specs):
        wanted = step_of(plan_id, index, spec)
        old = known.get(spec.id)
        if old is not None and old.step_id not in again and old.done:
            wanted = msgspec.structs.replace(old, index=index)
        elif old is not None:
            wanted = msgspec.structs.replace(wanted, attempts=old.attempts)
        if wanted != old:
            changed.append(wanted)
    kept = {spec.id for spec in specs}
    return changed, [step.step_id for step in now if step.step_id not in kept]


def failed_attempts(
    store: Store, plan: Plan, changed: list[Step], removed: list[str]
) -> tuple[Decision, ...]:
    """Decisions of failed attempts at steps that are decided again or removed."""
    now = store.plans.steps(plan.plan_id)
    left = {step.decision_id for step in now}
    left -= {step.decision_id for step in merged(now, changed, removed)}
    return tuple(
        decision
        for decision in store.plans.decisions(plan.plan_id)
        if decision.decision_id in left
        and decision.kind is DecisionKind.STEP
        and decision.state is DecisionState.ACTIVE
    )


def merged(now: list[Step], changed: list[Step], removed: list[str]) -> Iterable[Step]:
    rows = {step.step_id: step for step in now} | {step.step_id: step for step in changed}
    return (step for name, step in rows.items() if name not in removed)


def source_fields(file: PlanFile) -> dict[str, Any]:
    """The fields that a plan takes from its new plan file."""
    return {
        "spec": msgspec.to_builtins(file.spec),
        "source_path": file.path,
        "source_text": file.text,
    }
