"""The affected set of a correction: dependents, their paths, steps and child plans."""

from collections.abc import Callable
from typing import Any

import msgspec

from cleveragents.actors import OBSERVED
from cleveragents.checkpoints import effects
from cleveragents.context import Context
from cleveragents.errors import CorrectionRefused
from cleveragents.execution.use import PlanFile
from cleveragents.history.dependents import Facts
from cleveragents.lease import spec_of
from cleveragents.model.decision import (
    Decision,
    DecisionState,
)
from cleveragents.model.effect import Outlook as EffectOutlook
from cleveragents.model.impact import affected
from cleveragents.model.plan import Plan, State
from cleveragents.model.resource import Change
from cleveragents.model.revision import Revision, revised
from cleveragents.tools import resolve_tool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    guidance: str
    plan_file: PlanFile | None = None
    cascade: bool = False
    accept_loss: bool = False
    """Roll back past effects that cannot be undone, and repeat what may have happened."""
    remember: Callable[[Any], Any] | None = None
    """What becomes of the conversation of an agent that the plan follows."""


class Superseded(msgspec.Struct, frozen=True, kw_only=True):
    decision_id: str
    question: str
    chosen: str
    steps: tuple[str, ...]
    why: str


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The impact of a correction; `--dry-run` prints it."""

    plan_id: str
    decision_id: str | None
    superseded: tuple[Superseded, ...]
    kept: tuple[str, ...]
    """Decisions that stay in force."""
    steps: tuple[str, ...]
    """Steps that run again."""
    group_id: str | None
    """The group that the paths are rolled back to."""
    paths: dict[str, tuple[bytes, ...]]
    """Resource id -> paths that are rolled back."""
    changes: tuple[Change, ...] = ()
    """The files that differ from that now."""
    children: tuple[str, ...] = ()
    """Child plans that are rolled back and cancelled."""
    revision: Revision | None = None
    effects: EffectOutlook = EffectOutlook()
    """What it means for the world outside."""


def find_affected(
    ctx: Context, plan: Plan, roots: tuple[Decision, ...], request: Request
) -> Outlook:
    """Find the dependents of decisions and what to roll back. Only reads."""
    for root in roots:
        if root.state is not DecisionState.ACTIVE:
            raise CorrectionRefused(
                f"decision {root.decision_id} is already superseded",
                f"agents plan tree {plan.plan_id}",
            )
    revision = None
    if request.plan_file is not None:
        revision = revised(spec_of(plan), request.plan_file.spec, resolve_tool)
    facts = Facts(ctx, plan)
    names = {root.decision_id for root in roots} | facts.decisions_of(_undone(facts, revision))
    found = affected(facts.deeds, names, cascade=request.cascade)
    group, paths = facts.rollback_point(set(found))
    by_id = {d.decision_id: d for d in facts.decisions}
    steps = facts.steps_of(set(found))
    again = [s.step_id for s in facts.steps if s.step_id in steps or not s.done]
    children = children_of(ctx, plan, steps)
    require_not_applied(children)
    if plan.spec["actor"]["kind"] == OBSERVED:
        again = []  # the agent does it again
    if revision is not None:
        again = [name for name in again if name not in revision.removed] + list(revision.added)
    return Outlook(
        plan_id=plan.plan_id,
        decision_id=roots[0].decision_id if roots else next(iter(found), None),
        superseded=tuple(
            Superseded(
                decision_id=name,
                question=by_id[name].question,
                chosen=by_id[name].chosen,
                steps=tuple(s.step_id for s in facts.steps if s.decision_id == name),
                why=why,
            )
            for name, why in found.items()
        ),
        kept=tuple(name for name in by_id if name not in found),
        steps=tuple(again),
        group_id=group,
        paths={rid: tuple(sorted(some)) for rid, some in paths.items()},
        children=tuple(child.plan_id for child in children),
        revision=revision,
        effects=effects.after(
            ctx.store,
            plan.plan_id,
            decision_ids=set(found),
            children=[child.plan_id for child in children],
        ),
    )


def _undone(facts: Facts, revision: Revision | None) -> set[str]:
    """Done steps that a changed plan file invalidates."""
    if revision is None:
        return set()
    done = {step.step_id for step in facts.steps if step.done}
    return done & {*revision.changed, *revision.removed}


def children_of(ctx: Context, plan: Plan, steps: set[str]) -> list[Plan]:
    """The current child plans of those steps."""
    return [
        child
        for child in ctx.store.plans.children(plan.plan_id)
        if child.parent_step_id in steps and child.state is not State.CANCELLED
    ]


def require_not_applied(children: list[Plan]) -> None:
    applied = [child.plan_id for child in children if child.state is State.APPLIED]
    if applied:
        raise CorrectionRefused(
            f"child plans are applied and cannot be rolled back: {', '.join(applied)}",
            "revert them first: agents plan revert-applied PLAN",
        )
