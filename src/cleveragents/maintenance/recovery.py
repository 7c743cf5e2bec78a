"""What every open does first: finish what a dead process had begun."""

from cleveragents.apply.apply import finish_apply
from cleveragents.checkpoints.effects import (
    shown,
)
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content import removal
from cleveragents.context import Context
from cleveragents.errors import AgentsError, PlanBusy
from cleveragents.execution.compensation import (
    compensate_plan,
)
from cleveragents.lease import (
    RECOVERY,
    LeasedPlan,
    hold,
    holder,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.journal import EntryState, Operation
from cleveragents.model.plan import Failure, Phase, State
from cleveragents.store import Intent
from cleveragents.tools.leftovers import end_leftovers


def recover(ctx: Context) -> tuple[str, ...]:
    """Finish open intents and free plans whose process is gone; says what it did or could not."""
    said: list[str] = []
    for intent in ctx.store.intents.all():
        said += _recover_intent(ctx, intent)
    for plan_id in ctx.store.leases.held():
        if holder(ctx.store, plan_id, ctx.now()) is None:
            _clean(ctx, plan_id)
    for plan_id in ctx.store.effects.plans_waiting():
        said += _compensate(ctx, plan_id)
    for plan_id in ctx.store.plans.processing():
        if holder(ctx.store, plan_id, ctx.now()) is None:
            said += _free(ctx, plan_id)
    return tuple(said)


def _recover_intent(ctx: Context, intent: Intent) -> list[str]:
    try:
        with hold(ctx.store, intent.plan_id, RECOVERY, ctx.now) as lease:
            plan = ctx.store.plans.get(intent.plan_id)
            leased = LeasedPlan(ctx.store, plan, lease, ctx.now)
            if intent.intent_id not in {item.intent_id for item in ctx.store.intents.all()}:
                return []
            if intent.is_done:
                again = ctx.checkpoints.confirm_rollback(leased, intent)
                if plan.plan_id not in _waiting(ctx):
                    _tidy(ctx, leased)
                done = f"plan {plan.name!r}: a rollback was repeated because its files were lost"
                return [done] if again else []
            if intent.kind == "restore":
                ctx.checkpoints.finish_rollback(leased, intent)
                leased.finish_background()
            else:
                finish_apply(ctx, leased, intent)
            if leased.plan.state is not State.PROCESSING:
                _close_entries(ctx, leased)
            return [f"plan {plan.name!r}: an interrupted {intent.kind} was finished"]
    except PlanBusy:
        return []
    except Exception as error:  # noqa: BLE001 - one plan's trouble must not stop the others
        return [f"plan {intent.plan_id}: an interrupted {intent.kind} is pending: {error}"]


def _compensate(ctx: Context, plan_id: str) -> list[str]:
    """Continue the compensations of a rollback whose process died."""
    try:
        return [
            f"plan {plan_id}: {effect.state}: {shown(effect)}"
            for effect in compensate_plan(ctx, plan_id)
        ]
    except PlanBusy:
        return []
    except AgentsError as error:
        return [f"plan {plan_id}: compensations are pending: {error}"]


def _end_validations(ctx: Context, leased: LeasedPlan) -> None:
    """Validations of an apply that died may have left something in the sandboxes."""
    head = leased.plan.head_group_id
    if leased.plan.phase is not Phase.APPLY or not leased.spec.validate or head is None:
        return
    group = ctx.store.checkpoints.group(head)
    if group.checkpoint_type is CheckpointType.PRE_APPLY:
        todo = Restoration(group_id=head, plan={})
        ctx.checkpoints.rollback_to_checkpoint(leased, todo, lossy=True)
        leased.finish_background()


def _clean(ctx: Context, plan_id: str) -> None:
    """What a dead process had prepared and never begun is removed."""
    try:
        with hold(ctx.store, plan_id, RECOVERY, ctx.now) as lease:
            if plan_id not in _waiting(ctx):
                _tidy(ctx, LeasedPlan(ctx.store, ctx.store.plans.get(plan_id), lease, ctx.now))
    except PlanBusy:
        return


def _waiting(ctx: Context) -> set[str]:
    """Plans with something that is still to be finished."""
    return {intent.plan_id for intent in ctx.store.intents.all() if not intent.is_done}


def _tidy(ctx: Context, leased: LeasedPlan) -> None:
    plan = leased.plan
    ctx.manager.discard_staging(plan.plan_id)
    ctx.checkpoints.release_dropped(plan.plan_id)
    removal.remove_tree(f"{ctx.staging}/{plan.plan_id}")
    if plan.state is not State.PROCESSING:
        _close_entries(ctx, leased)


def _close_entries(ctx: Context, leased: LeasedPlan) -> None:
    """Operations that nobody will end any more end where the plan stands."""
    with leased.transaction():
        for entry in ctx.store.journal.open_entries(leased.plan.plan_id):
            ctx.store.journal.put(leased.closed(entry, EntryState.INTERRUPTED))
            if entry.operation is Operation.CORRECT:
                ctx.store.corrections.end(leased.plan, ctx.now())


def _free(ctx: Context, plan_id: str) -> list[str]:
    """No plan stays in `processing` without a process."""
    try:
        with hold(ctx.store, plan_id, RECOVERY, ctx.now) as lease:
            leased = LeasedPlan(ctx.store, ctx.store.plans.get(plan_id), lease, ctx.now)
            plan = leased.plan
            if plan.state is not State.PROCESSING:
                return []
            end_leftovers(plan_id)
            _end_validations(ctx, leased)
            verb = "apply" if plan.phase is Phase.APPLY else "resume"
            failure = Failure(
                "Interrupted",
                "its process ended before it finished",
                f"agents plan {verb} {plan_id}",
            )
            state = State.QUEUED if plan.phase is Phase.STRATEGIZE else State.ERRORED
            with leased.transaction():
                leased.write(state=state, error=failure)
                ctx.store.calls.interrupt(plan_id, ctx.now())
            _close_entries(ctx, leased)
            return [f"plan {plan.name!r}: its process ended before it finished"]
    except PlanBusy:
        return []
