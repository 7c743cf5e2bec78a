"""Cancel a plan, or delete it with everything it holds."""

from collections.abc import Iterator

from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import cancel_child
from cleveragents.content.removal import remove_tree
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, SandboxError, UnappliedWork
from cleveragents.execution.leasing import before_looking, work_on
from cleveragents.execution.sandboxes import remove_sandboxes
from cleveragents.history.opened import opened_home
from cleveragents.lease import (
    hold,
)
from cleveragents.maintenance.borrowed import find_loose, keep
from cleveragents.model.journal import Operation
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Plan, State
from cleveragents.model.units import plural
from cleveragents.sandbox.registry import traits_of


def cancel(ctx: Context, plan: Plan) -> Plan:
    """End a plan without applying it; sandbox and groups stay unless configured otherwise."""
    with work_on(ctx, plan.plan_id, "plan cancel", whatever_waits=True) as leased:
        require_not_final(leased.plan, "cancelled")
        entry = leased.opened(Operation.CANCEL)
        with leased.transaction():
            leased.write(state=State.CANCELLED)
            for child in ctx.store.plans.children(plan.plan_id):
                cancel_child(ctx.store, child)
            ctx.store.journal.put(leased.closed(entry))
        if ctx.settings.sandbox_cleanup == "on_terminal":
            ctx.checkpoints.keep_borrowed(leased)
            remove_sandboxes(ctx, plan.plan_id)
        return leased.plan


def unapplied(ctx: Context, plan: Plan) -> int:
    """How many changes the plan's sandboxes hold that were never applied."""
    before = ctx.checkpoints.initial_states(plan.plan_id)
    if plan.state is State.APPLIED or not before:
        return 0
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    try:
        if not sandboxes.elsewhere:
            sandboxes.require_ours()
    except SandboxError:
        return _kept(ctx, plan, before)
    before_looking(ctx, plan.plan_id)
    # What was done in place is real already: it stays, whatever becomes of the plan.
    before = {rid: state for rid, state in before.items() if rid not in sandboxes.in_place}
    diff = ctx.checkpoints.diff
    changes = ctx.checkpoints.look(
        plan.plan_id, lambda now: diff(plan.plan_id, before, now), but_in_place=True
    )
    return len(changes)


def _kept(ctx: Context, plan: Plan, before: States) -> int:
    """The same of its newest group, where no sandbox is left to look into."""
    if plan.head_group_id is None:
        return 0
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    kept = ctx.checkpoints.states(ctx.store.checkpoints.group(plan.head_group_id))
    differ = {
        rid: state
        for rid, state in before.items()
        if rid not in sandboxes.in_place and kept[rid].state_hash != state.state_hash
    }
    if sandboxes.only_on is not None:
        return len(differ)  # what differs in them is known there
    return len(ctx.checkpoints.diff(plan.plan_id, differ, {rid: kept[rid] for rid in differ}))


def delete(ctx: Context, plan: Plan, *, force: bool) -> int:
    """Free everything a plan holds; refuses if work would be lost, unless forced."""
    if plan.parent_plan_id is not None and plan.state is not State.CANCELLED:
        raise NotAllowed(
            f"plan {plan.name!r} is a child plan that its parent still needs",
            f"agents plan delete {plan.parent_plan_id} deletes both",
        )
    going = {one.plan_id for one in _family(ctx, plan)}
    for loose in find_loose(ctx, going):
        # Perhaps only this plan's ref holds what another one borrows.
        keep(ctx, loose)
    count = _delete(ctx, plan, force)
    if ctx.settings.content_url and plan.parent_plan_id is None:
        from cleveragents.maintenance.bucket import delete_plan

        delete_plan(ctx, plan.plan_id)
    return count


def _family(ctx: Context, plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in ctx.store.plans.children(plan.plan_id):
        yield from _family(ctx, child)


def _delete(ctx: Context, plan: Plan, force: bool) -> int:
    count = unapplied(ctx, plan)
    if count and not force:
        raise UnappliedWork(
            f"plan {plan.name!r} has {plural(count, 'change that was', 'changes that were')}"
            " never applied",
            f"agents plan apply {plan.plan_id}, or agents plan delete {plan.plan_id} --yes",
        )
    for child in ctx.store.plans.children(plan.plan_id):
        _delete(ctx, child, force=True)
    with hold(ctx.store, plan.plan_id, "plan delete", ctx.now):
        remove_sandboxes(ctx, plan.plan_id, again=True)
        remove_tree(opened_home(ctx.settings.home, plan.plan_id))
        with ctx.store.transaction():
            ctx.store.plans.delete(plan.plan_id, _repositories(ctx, plan))
    return count


def _repositories(ctx: Context, plan: Plan) -> list[str]:
    """Where a ref of ours may be left after all."""
    resources = ctx.store.resources.of_plan(plan.plan_id)
    kinds = {one.path: traits_of(one.kind) for one in resources}
    return [path for path, kind in kinds.items() if kind.is_repository and not kind.has_address]
