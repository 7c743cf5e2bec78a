"""Rolls back a failed step or plan, keeping the record of the failure."""

import msgspec

from cleveragents.checkpoints import effects
from cleveragents.checkpoints.restoration import (
    Restoration,
    restoration_to,
)
from cleveragents.context import Context
from cleveragents.execution import compensation
from cleveragents.lease import LeasedPlan
from cleveragents.model.plan import Failure, State, Step, StepState
from cleveragents.model.resource import Change
from cleveragents.store import Source

_OF_THE_FILE = Source.__struct_fields__


def roll_back_failure(ctx: Context, leased: LeasedPlan) -> tuple[Change, ...]:
    """Roll back to the start of the failed step, or of the plan; the failure stays on record."""
    failure = leased.plan.error
    assert failure is not None
    assert failure.undo_to is not None
    store, plan = ctx.store, leased.plan
    target = store.checkpoints.group(failure.undo_to)
    done = msgspec.structs.replace(failure, undo_to=None)
    todo = restoration_to(store, plan, target, state=State.ERRORED, error=done)
    steps = store.plans.steps(plan.plan_id)
    todo = _still_failed(_with_file_in_force(todo, steps), steps, done)
    changes = ctx.checkpoints.rollback_to_checkpoint(leased, todo, lossy=True)
    compensation.compensated(ctx, leased, todo)
    for effect in todo.outlook.irreversible:
        text = f"cannot be undone: {effects.shown(effect)}"
        ctx.talk.tell("warning", {"message": text})
    return changes


def _with_file_in_force(todo: Restoration, now: list[Step]) -> Restoration:
    """Keep the current plan file, whichever was in force then (pure)."""
    then = {step.step_id: step for step in todo.steps}
    back: list[Step] = []
    for step in now:
        old = then.get(step.step_id)
        if step.step_id in todo.removed_steps or (old is not None and old.spec != step.spec):
            anew = {"state": StepState.QUEUED, "decision_id": None, "error": None}
            back.append(msgspec.structs.replace(step, **anew))
        elif old is not None:
            back.append(msgspec.structs.replace(old, index=step.index))
    # With another file the view differs from that group's: the next group must hold it.
    kept = (*_OF_THE_FILE, "view_mark") if "spec" in todo.plan else ()
    plan = {name: value for name, value in todo.plan.items() if name not in kept}
    return msgspec.structs.replace(todo, plan=plan, steps=tuple(back), removed_steps=())


def _still_failed(todo: Restoration, now: list[Step], failure: Failure) -> Restoration:
    """Keep the failed state: a rollback undoes the step's changes, not its failure."""
    kept = {step.step_id: step for step in now} | {step.step_id: step for step in todo.steps}
    failed = next((s for s in now if s.step_id == failure.step), None)
    if failed is None:
        return todo
    shown = msgspec.structs.replace(
        kept[failed.step_id], state=StepState.ERRORED, error=failed.error, attempts=failed.attempts
    )
    others = tuple(step for step in todo.steps if step.step_id != failed.step_id)
    removed = tuple(name for name in todo.removed_steps if name != failed.step_id)
    return msgspec.structs.replace(todo, steps=(*others, shown), removed_steps=removed)
