"""Groups made, kept and dropped by hand."""

from cleveragents.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.context import Context
from cleveragents.errors import NotAllowed
from cleveragents.journal import Operation
from cleveragents.leases import working_on
from cleveragents.lifecycle import require_not_final
from cleveragents.plan import Plan
from cleveragents.retention import Verdict
from cleveragents.rollback import changes_since, require_rollback
from cleveragents.session import Session
from cleveragents.settling import adopt_edits, settle_death
from cleveragents.store import Lease


def _unheld(ctx: Context, plan: Plan) -> Session:
    """For looking only: a session that holds nothing and therefore cannot write."""
    nobody = Lease(
        plan_id=plan.plan_id,
        epoch=-1,
        host="",
        boot_id="",
        pid=0,
        started="",
        verb="",
        held=False,
        renewed_at="",
    )
    return Session(ctx.store, plan, nobody, ctx.now)


def preview_prune(ctx: Context, plan: Plan) -> tuple[Verdict, ...]:
    return ctx.checkpoints.verdicts(_unheld(ctx, plan))


def prune_plan(ctx: Context, plan: Plan) -> tuple[Verdict, ...]:
    with working_on(ctx.store, plan.plan_id, "plan prune", ctx.now) as session:
        entry = session.opened(Operation.PRUNE)
        verdicts = ctx.checkpoints.prune_checkpoints(session)
        with ctx.store.transaction(session.lease):
            dropped = sum(not v.keep for v in verdicts)
            ctx.store.journal.put(session.closed(entry, dropped=dropped))
        return verdicts


def create_manual(ctx: Context, plan: Plan, label: str | None) -> CheckpointGroup:
    """`plan checkpoint create`: always a group, for somebody asked for one."""
    require_not_final(plan, "checkpointed")
    require_rollback(plan)
    with working_on(ctx.store, plan.plan_id, "plan checkpoint create", ctx.now) as session:
        if session.plan.head_group_id is None:
            raise NotAllowed(
                f"plan {plan.name!r} has no sandbox yet", f"agents plan execute {plan.plan_id}"
            )
        settle_death(ctx, session)
        head = ctx.store.checkpoints.group(session.plan.head_group_id)
        if label is None and changes_since(ctx, head):
            return adopt_edits(ctx, session, CheckpointType.MANUAL)
        if changes_since(ctx, head):
            adopt_edits(ctx, session)
        entry = session.opened(Operation.CHECKPOINT, label=label)
        group = ctx.checkpoints.create_checkpoint(
            CheckpointType.MANUAL, session, label=label, force=True, reason="asked for"
        )
        with session.transaction():
            ctx.store.journal.put(session.closed(entry))
        return group


def delete_group(ctx: Context, plan: Plan, group: CheckpointGroup) -> None:
    """Drop one group, unless something still stands on it."""
    with working_on(ctx.store, plan.plan_id, "plan checkpoint delete", ctx.now) as session:
        reasons = {v.group_id: v.reason for v in ctx.checkpoints.verdicts(session)}
        fixed = ("first", "newest", "pre_apply", "undo can reach it", "pinned")
        if reasons[group.group_id] in fixed:
            raise NotAllowed(
                f"group {group.group_id} stays: {reasons[group.group_id]}",
                f"agents plan prune {plan.plan_id} --dry-run",
            )
        with ctx.store.transaction(session.lease):
            ctx.manager.delete_checkpoint(plan.plan_id, [group.group_id], ctx.now())
