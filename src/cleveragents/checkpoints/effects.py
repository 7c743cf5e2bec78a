"""The ledger of effects outside the sandboxes: written before each call, read on rollback."""

from collections.abc import Collection, Iterable

import msgspec

from cleveragents.errors import LossNotAccepted, MayHaveHappened, NotFound
from cleveragents.lease import LeasedPlan, spec_of
from cleveragents.model.effect import STANDING, Effect, EffectClass, EffectState, Outlook
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Plan, Step, StepState
from cleveragents.model.plan_spec import PlanSpec
from cleveragents.model.tool import ToolCall, ToolSpec
from cleveragents.model.triggers import nearest
from cleveragents.store import Store, View
from cleveragents.tools.builtin import runs_process

GONE_OVER = (EffectState.ACCEPTED, EffectState.LOST)


UNDONE = (EffectState.COMPENSATED, EffectState.COMPENSATING)


def class_of(tool: ToolSpec) -> EffectClass | None:
    """The class of a tool's effects outside the sandboxes; None for none (pure)."""
    if tool.side_effects:
        return EffectClass.COMPENSABLE if tool.compensate else EffectClass.IRREVERSIBLE
    if tool.unsafe or (runs_process(tool) and tool.network and not tool.read_only):
        return EffectClass.UNKNOWN
    return None


def note(store: Store, tool: ToolSpec, call: ToolCall, resource: str | None) -> None:
    """Record the effect, in the commit that says the call is running."""
    effect_class = class_of(tool)
    if effect_class is None:
        return
    if tool.idempotent:
        store.effects.replace_repeated(call.plan_id, call.step_id)
    declared = effect_class is not EffectClass.UNKNOWN
    store.effects.put(
        Effect(
            effect_id=new_id(),
            plan_id=call.plan_id,
            step_id=call.step_id,
            call_id=call.call_id,
            decision_id=call.decision_id,
            effect_class=effect_class,
            side_effects=tool.side_effects,
            tool=call.tool,
            inputs=call.inputs if declared else {},
            resource=resource,
            compensate=tool.compensate if declared else None,
            state=EffectState.INTENDED,
            created_at=call.started_at,
        )
    )


def foreseen(discarded: Iterable[Effect]) -> Outlook:
    """The outcome for effects that the plan rolls back past (pure)."""
    standing = [effect for effect in discarded if effect.state in STANDING]
    last_first = sorted(standing, key=lambda effect: effect.seq, reverse=True)

    def of(effect_class: EffectClass) -> tuple[Effect, ...]:
        return tuple(effect for effect in last_first if effect.effect_class is effect_class)

    return Outlook(
        compensable=of(EffectClass.COMPENSABLE),
        irreversible=of(EffectClass.IRREVERSIBLE),
        unknown=of(EffectClass.UNKNOWN),
    )


def after(
    store: Store,
    plan_id: str,
    group_id: str = "",
    step_ids: Collection[str] | None = None,
    decision_ids: Collection[str | None] | None = None,
    children: Iterable[str] = (),
) -> Outlook:
    """The effects of calls after a group, of these steps or decisions, and of these child plans."""
    since = store.checkpoints.number(group_id) if group_id else 0
    own = [
        effect
        for effect in store.effects.of_plan(plan_id)
        if effect.seq > since
        and (step_ids is None or effect.step_id in step_ids)
        and (decision_ids is None or effect.decision_id in decision_ids)
    ]
    return foreseen((*own, *_below(store, children)))


def _below(store: Store, children: Iterable[str]) -> list[Effect]:
    """The effects of child plans, and of theirs."""
    found: list[Effect] = []
    for child in children:
        found += store.effects.of_plan(child)
        found += _below(store, (below.plan_id for below in store.plans.children(child)))
    return found


def outlook_at(
    store: Store, plan_id: str, group_id: str, view: View, children: Iterable[str] = ()
) -> Outlook:
    """The effects of returning to a group and view on the outside."""
    discarded: list[Effect] = []
    since = store.checkpoints.number(group_id)
    latest: dict[str, Effect] = {}
    for effect in store.effects.of_plan(plan_id):
        step = view.steps.get(effect.step_id)
        if effect.seq > since or step is None or step.decision_id != effect.decision_id:
            discarded.append(effect)
        elif step.state is StepState.PROCESSING:
            discarded.append(effect)  # its call was running when the group was made
        elif step.done:
            latest[step.step_id] = effect
    discarded += _below(store, children)
    return msgspec.structs.replace(
        foreseen(discarded),
        returning=tuple(e for e in latest.values() if e.state in GONE_OVER),
        not_repeated=tuple(e for e in latest.values() if e.state in UNDONE),
    )


def joined(first: Outlook, *others: Outlook) -> Outlook:
    """Of a plan and its child plans together, last first (pure)."""

    def all_of(name: str) -> tuple[Effect, ...]:
        found = [effect for outlook in (first, *others) for effect in getattr(outlook, name)]
        return tuple(sorted(found, key=lambda effect: effect.seq, reverse=True))

    return Outlook(**{name: all_of(name) for name in Outlook.__struct_fields__})


def marks(outlook: Outlook, without_way_back: EffectState) -> dict[str, tuple[str, ...]]:
    """State -> the effects that enter it once the plan is rolled back (pure)."""
    lost = (*outlook.irreversible, *outlook.unknown)
    found = {
        EffectState.COMPENSATING: outlook.compensable,
        without_way_back: lost,
        EffectState.HAPPENED: outlook.returning,
    }
    return {
        state.value: tuple(effect.effect_id for effect in effects)
        for state, effects in found.items()
        if effects
    }


def mark(store: Store, outlook: Outlook, now: str) -> None:
    """Apply the marks in the caller's transaction, after what cannot be undone was accepted."""
    for state, effect_ids in marks(outlook, EffectState.ACCEPTED).items():
        store.effects.mark(effect_ids, EffectState(state), now)


def shown(effect: Effect) -> str:
    what = ", ".join(effect.side_effects) or "not known"
    maybe = " (may have happened)" if effect.state is EffectState.INTENDED else ""
    return f"step {effect.step_id!r}, {effect.tool}: {what}{maybe}"


def require_accepted(outlook: Outlook, accept_loss: bool, command: str) -> None:
    """Refuse to roll back past what cannot be undone, unless that was accepted."""
    if outlook.irreversible and not accept_loss:
        raise LossNotAccepted(
            f"this cannot be undone: {'; '.join(map(shown, outlook.irreversible))}",
            outlook.irreversible,
            f"{command} --accept-loss rolls back anyway",
        )


def in_doubt(
    effects: Iterable[Effect], steps: Iterable[Step], plan: Plan, spec: PlanSpec
) -> list[Effect]:
    """Effects of steps to repeat that may have happened and would happen again (pure)."""
    going_back = plan.error is not None and plan.error.undo_to is not None
    waiting = {step.step_id: step for step in steps if not step.done}
    found: list[Effect] = []
    for effect in effects:
        step, tool = waiting.get(effect.step_id), spec.tools.get(effect.tool)
        declared = effect.effect_class is not EffectClass.UNKNOWN
        if step is None or tool is None or tool.idempotent or not declared:
            continue
        # A dead step's effects are compensated before the step runs again.
        undone = (
            effect.effect_class is EffectClass.COMPENSABLE
            and (going_back or step.state is StepState.PROCESSING)
            and spec.policy.rollback_enabled
        )
        if effect.state in (*STANDING, EffectState.LOST) and not undone:
            found.append(effect)
    return found


def doubtful(store: Store, plan: Plan) -> list[Effect]:
    recorded, steps = store.effects.of_plan(plan.plan_id), store.plans.steps(plan.plan_id)
    return in_doubt(recorded, steps, plan, spec_of(plan))


def require_repeatable(leased: LeasedPlan, repeat: Collection[str], command: str = "") -> None:
    """Refuse to repeat effects that may have happened; `command` repeats them anyway."""
    _require_steps(leased, repeat)
    doubts = doubtful(leased.store, leased.plan)
    left = [effect for effect in doubts if effect.step_id not in repeat]
    if left:
        flags = " ".join(
            f"--repeat {step_id}" for step_id in dict.fromkeys(e.step_id for e in left)
        )
        raise MayHaveHappened(
            f"this would be repeated: {'; '.join(map(shown, left))}",
            tuple(left),
            command or f"agents plan resume {leased.plan.plan_id} {flags}",
        )


def _require_steps(leased: LeasedPlan, step_ids: Collection[str]) -> None:
    if not step_ids:
        return
    plan, store = leased.plan, leased.store
    known = [step.step_id for step in store.plans.steps(plan.plan_id)]
    known += [effect.step_id for effect in store.effects.of_plan(plan.plan_id)]
    for step_id in step_ids:
        if step_id not in known:
            raise NotFound(
                f"plan {plan.name!r} has no step {step_id!r}{nearest(step_id, known)}",
                f"agents plan status {plan.plan_id}",
            )
