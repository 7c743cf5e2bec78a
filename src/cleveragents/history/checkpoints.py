"""Makes, keeps and deletes groups on request."""

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.checkpoints.manager import States
from cleveragents.context import Context
from cleveragents.errors import NotAllowed
from cleveragents.execution.leasing import work_on
from cleveragents.execution.manual_edits import adopt_edits, changes_since, without_kept_folders
from cleveragents.lease import LeasedPlan
from cleveragents.lookup import require_label
from cleveragents.model.checkpoint import CheckpointGroup, CheckpointType
from cleveragents.model.journal import Operation
from cleveragents.model.lifecycle import require_not_final, require_rollback
from cleveragents.model.plan import Plan, StepState
from cleveragents.model.retention import Verdict
from cleveragents.store import Lease


def _unheld(ctx: Context, plan: Plan) -> LeasedPlan:
    """The plan without a lease, which therefore cannot write."""
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
    return LeasedPlan(ctx.store, plan, nobody, ctx.now)


def preview_prune(ctx: Context, plan: Plan) -> tuple[Verdict, ...]:
    return ctx.checkpoints.verdicts(_unheld(ctx, plan))


def prune_plan(ctx: Context, plan: Plan) -> tuple[Verdict, ...]:
    with work_on(ctx, plan.plan_id, "plan prune") as leased:
        entry = leased.opened(Operation.PRUNE)
        verdicts = ctx.checkpoints.prune_checkpoints(leased)
        with leased.transaction():
            dropped = sum(not v.keep for v in verdicts)
            ctx.store.journal.put(leased.closed(entry, dropped=dropped))
        return verdicts


def create_manual(ctx: Context, plan: Plan, label: str | None) -> CheckpointGroup:
    """`plan checkpoint create`: always makes a group."""
    require_label(label)
    require_not_final(plan, "checkpointed")
    require_rollback(plan)
    with work_on(ctx, plan.plan_id, "plan checkpoint create") as leased:
        if leased.plan.head_group_id is None:
            raise NotAllowed(
                f"plan {plan.name!r} has no sandbox yet", f"agents plan execute {plan.plan_id}"
            )
        if _is_step_interrupted(ctx, leased):
            from cleveragents.execution.reconcile import reconcile

            reconcile(ctx, leased, discard_edits=False)
        head = ctx.store.checkpoints.group(leased.plan.head_group_id)
        if label is not None and changes_since(ctx, head):
            adopt_edits(ctx, leased)
        return _asked_for(ctx, leased, label)


def _is_step_interrupted(ctx: Context, leased: LeasedPlan) -> bool:
    """Whether the sandboxes may hold half a step's work, which is not a manual edit."""
    failure = leased.plan.error
    if failure is not None and failure.undo_to is not None:
        return True
    steps = ctx.store.plans.steps(leased.plan.plan_id)
    return any(step.state is StepState.PROCESSING for step in steps)


def _asked_for(ctx: Context, leased: LeasedPlan, label: str | None) -> CheckpointGroup:
    """Capture and commit once; manual edits become an operation that can be undone."""
    plan_id = leased.plan.plan_id
    asked = leased.opened(Operation.CHECKPOINT, label=label)
    edited = leased.opened(Operation.EXTERNAL_EDIT)

    def by_hand(before: States, now: States) -> bool:
        changes = ctx.checkpoints.diff(plan_id, before, now)
        return bool(without_kept_folders(changes, ctx.manager.sandboxes(plan_id).paths))

    def record(before: States, now: States) -> None:
        entry = edited if by_hand(before, now) else asked
        ctx.store.journal.put(leased.closed(entry))

    request = CheckpointRequest(
        label=label,
        force=True,
        reason=lambda before, now: "manual edit" if by_hand(before, now) else "asked for",
        record=record,
    )
    return ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, leased, request)


def delete_group(ctx: Context, plan: Plan, group: CheckpointGroup) -> None:
    """Delete one group, unless something still needs it."""
    with work_on(ctx, plan.plan_id, "plan checkpoint delete") as leased:
        reasons = {v.group_id: v.reason for v in ctx.checkpoints.verdicts(leased)}
        fixed = ("first", "newest", "pre_apply", "undo can reach it", "pinned")
        if reasons[group.group_id] in fixed:
            raise NotAllowed(
                f"group {group.group_id} stays: {reasons[group.group_id]}",
                f"agents plan prune {plan.plan_id} --dry-run",
            )
        with leased.transaction():
            ctx.manager.delete_checkpoint(plan.plan_id, [group.group_id], ctx.now())
        ctx.checkpoints.release_dropped(plan.plan_id)
