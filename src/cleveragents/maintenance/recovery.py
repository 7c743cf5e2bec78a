"""Finishes the work of dead processes: this machine's when a store is opened, another machine's
before a plan is taken over from it.
"""

from collections.abc import Sequence

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
    host_name,
    is_alive,
    is_here,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.journal import TAKEN_OVER_BY, EntryState, Operation
from cleveragents.model.plan import Failure, Phase, State
from cleveragents.store import Intent
from cleveragents.tools.leftovers import end_leftovers

ENDED = (State.COMPLETE, State.ERRORED)


def recover(ctx: Context, plan_ids: Sequence[str]) -> tuple[str, ...]:
    """Finish open intents and free plans whose process is gone; says what it did or could not."""
    said: list[str] = []
    store = ctx.store
    # Intents first: until they are finished, sandboxes and targets may be half done.
    for plan_id in plan_ids:
        for intent in store.intents.of_plan(plan_id):
            said += recover_intent(ctx, intent)
    for plan_id in plan_ids:
        lease = store.leases.get(plan_id)
        if lease is not None and lease.held and not is_alive(store, lease):
            clean_up(ctx, plan_id, "" if is_here(store, lease) else lease.host)
    # After their restore, and before any process may take the plan again.
    for plan_id in plan_ids:
        if store.effects.waiting(plan_id):
            said += _compensate(ctx, plan_id)
    for plan_id in plan_ids:
        is_running = store.plans.get(plan_id).state is State.PROCESSING
        if is_running and holder(store, plan_id) is None:
            said += free_plan(ctx, plan_id)
    return tuple(said)


def recover_intent(ctx: Context, intent: Intent) -> list[str]:
    try:
        with hold(ctx.store, intent.plan_id, RECOVERY, ctx.now) as lease:
            plan = ctx.store.plans.get(intent.plan_id)
            leased = LeasedPlan(ctx.store, plan, lease, ctx.now)
            # Another process may have finished it while we waited for the lease.
            waiting = ctx.store.intents.of_plan(plan.plan_id)
            if intent.intent_id not in {item.intent_id for item in waiting}:
                return []
            if intent.is_done:
                again = ctx.checkpoints.confirm_rollback(leased, intent)
                if not _is_waiting(ctx, plan.plan_id):
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


def clean_up(ctx: Context, plan_id: str, lost_with: str = "") -> None:
    """Remove what a dead process prepared and never started.

    `lost_with`: its machine, if that was another one.
    """
    try:
        with hold(ctx.store, plan_id, RECOVERY, ctx.now) as lease:
            leased = LeasedPlan(ctx.store, ctx.store.plans.get(plan_id), lease, ctx.now)
            if lost_with:
                _note_loss(ctx, leased, lost_with)
            if not _is_waiting(ctx, plan_id):
                _tidy(ctx, leased)
    except PlanBusy:
        return


def _note_loss(ctx: Context, leased: LeasedPlan, host: str) -> None:
    """The steps whose groups only that machine had are to be run again, also of a complete plan."""
    plan = leased.plan
    pending = ctx.settings.content_url and ctx.store.segments.pending(plan.plan_id)
    if plan.phase is Phase.EXECUTE and plan.state in ENDED and pending:
        said = f"{host} was lost before all of it was in the bucket"
        failure = Failure("Interrupted", said, f"agents plan resume {plan.plan_id}")
        leased.commit(state=State.ERRORED, error=failure)


def _is_waiting(ctx: Context, plan_id: str) -> bool:
    """Whether the plan has unfinished work."""
    return any(not intent.is_done for intent in ctx.store.intents.of_plan(plan_id))


def _tidy(ctx: Context, leased: LeasedPlan) -> None:
    plan = leased.plan
    ctx.manager.discard_staging(plan.plan_id)
    ctx.checkpoints.release_dropped(plan.plan_id)
    removal.remove_tree(f"{ctx.staging}/{plan.plan_id}")
    if plan.state is not State.PROCESSING:
        _close_entries(ctx, leased)


def _close_entries(ctx: Context, leased: LeasedPlan) -> None:
    """End orphaned operations at the plan's current moment."""
    with leased.transaction():
        for entry in ctx.store.journal.open_entries(leased.plan.plan_id):
            taker = {TAKEN_OVER_BY: host_name()}
            ctx.store.journal.put(leased.closed(entry, EntryState.INTERRUPTED, **taker))
            if entry.operation is Operation.CORRECT:
                ctx.store.corrections.end(leased.plan, ctx.now())


def free_plan(ctx: Context, plan_id: str) -> list[str]:
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
