"""Cleans up after an apply: staging, sandboxes, child plans, old backups."""

from collections.abc import Iterator

from cleveragents.apply import database_backups
from cleveragents.content import removal
from cleveragents.context import Context
from cleveragents.execution.sandboxes import remove_sandboxes
from cleveragents.lease import (
    LeasedPlan,
    hold,
)
from cleveragents.model.plan import Plan
from cleveragents.store import Intent


def keep_borrowed(ctx: Context, leased: LeasedPlan) -> None:
    """Store what the groups of the plan and its children borrow."""
    for child in _absorbed(ctx, leased.plan.plan_id):
        with hold(ctx.store, child.plan_id, "plan apply", ctx.now) as lease:
            ctx.checkpoints.keep_borrowed(LeasedPlan(ctx.store, child, lease, ctx.now))
    ctx.checkpoints.keep_borrowed(leased)


def tidy(ctx: Context, leased: LeasedPlan, intent: Intent) -> None:
    """Remove staging and, if so configured, the sandboxes; may be repeated."""
    sandboxes = ctx.manager.sandboxes(leased.plan.plan_id)
    for rid, one in intent.body["staged"].items():
        sandboxes[rid].finish_apply(one)
    removal.remove_tree(intent.body["staging"])
    if ctx.settings.sandbox_cleanup != "manual":
        _remove_children(ctx, leased.plan.plan_id)
        ctx.checkpoints.keep_borrowed(leased)
        database_backups.keep(ctx, leased, intent.body["staged"])
        remove_sandboxes(ctx, leased.plan.plan_id)
        database_backups.make_room(ctx, leased.plan)
    with leased.transaction():
        ctx.store.intents.remove(intent.intent_id)


def _remove_children(ctx: Context, plan_id: str) -> None:
    for child in _absorbed(ctx, plan_id):
        with hold(ctx.store, child.plan_id, "plan apply", ctx.now) as lease:
            ctx.checkpoints.keep_borrowed(LeasedPlan(ctx.store, child, lease, ctx.now))
            remove_sandboxes(ctx, child.plan_id)


def _absorbed(ctx: Context, plan_id: str) -> Iterator[Plan]:
    """Child plans whose work is part of the parent, innermost first."""
    for child in ctx.store.plans.children(plan_id):
        yield from _absorbed(ctx, child.plan_id)
        if all(resource.source for resource in ctx.store.resources.of_plan(child.plan_id)):
            yield child
