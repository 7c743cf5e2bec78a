"""What people call plans, checkpoints and decisions: names, labels, `last`, ends of ids."""

from collections.abc import Iterable

from cleveragents.errors import CheckpointPruned, ForeignCheckpoint, NotFound, UsageError
from cleveragents.model.checkpoint import RESERVED, CheckpointGroup
from cleveragents.model.decision import Correction, Decision
from cleveragents.model.plan import Plan
from cleveragents.model.triggers import nearest
from cleveragents.model.units import plural
from cleveragents.store import Store


def find_plan(store: Store, text: str) -> tuple[Plan, str]:
    """The plan, and a remark if the name stood for several."""
    if text == "last":
        newest = store.plans.newest()
        if newest is None:
            raise NotFound("there is no plan yet", "agents plan run FILE")
        return store.plans.get(newest), ""
    named = store.plans.named(text)
    if named:
        remark = f"{len(named)} plans are called {text!r}; this is the newest" if named[1:] else ""
        return store.plans.get(named[0]), remark
    found = _by_end(text, store.plans.ids(), "plan")
    if found is None:
        names = [plan.name for plan in store.plans.all()]
        raise NotFound(f"no plan {text!r}{nearest(text, names)}", "agents plan list")
    return store.plans.get(found), ""


def require_label(label: str | None) -> None:
    """A label must not be one of the words that stand for a checkpoint anyway."""
    if label in RESERVED:
        raise UsageError(f"{label!r} cannot be a label: it means a checkpoint of every plan")


def find_group(store: Store, plan: Plan, text: str) -> CheckpointGroup:
    """The group that a checkpoint id, group id, label, `first` or `last` stands for."""
    if text in RESERVED:
        groups = store.checkpoints.groups(plan.plan_id)
        if not groups:
            raise NotFound(f"plan {plan.name!r} has no checkpoint yet")
        head = plan.head_group_id or groups[-1].group_id
        return groups[0] if text == "first" else store.checkpoints.group(head)
    rows = store.checkpoints.names()
    own = [row for row in rows if row[1] == plan.plan_id]
    labelled = [row for row in own if row[3] == text and row[4] is None]
    if labelled:
        return store.checkpoints.group(labelled[-1][0])
    ids = {name: row for row in own for name in (row[0], row[2]) if name}
    found = _by_end(text, ids, "checkpoint")
    if found is None:
        _refuse_foreign(plan, text, rows)
        labels = [row[3] for row in own if row[3]]
        raise NotFound(
            f"plan {plan.name!r} has no checkpoint {text!r}{nearest(text, labels)}",
            f"agents plan checkpoints {plan.plan_id}",
        )
    group = store.checkpoints.group(ids[found][0])
    if group.pruned_at is not None:
        raise CheckpointPruned(
            f"checkpoint {text} was pruned at {group.pruned_at}", _nearest_kept(store, plan, group)
        )
    return group


def _refuse_foreign(
    plan: Plan, text: str, rows: list[tuple[str, str, str, str | None, str | None]]
) -> None:
    others = {name: row[1] for row in rows if row[1] != plan.plan_id for name in (row[0], row[2])}
    matches = {owner for name, owner in others.items() if name and _fits(text, name)}
    if len(matches) == 1:
        owner = matches.pop()
        raise ForeignCheckpoint(
            f"checkpoint {text} belongs to plan {owner}, not to {plan.name!r}",
            f"agents plan rollback {owner} {text}",
        )


def _nearest_kept(store: Store, plan: Plan, gone: CheckpointGroup) -> str:
    kept, order = store.checkpoints.groups(plan.plan_id), store.order_of(plan.plan_id)
    earlier = [group for group in kept if order[group.group_id] < order[gone.group_id]]
    near = (earlier or kept)[-1]
    return f"the nearest kept one: agents plan rollback {plan.plan_id} {near.group_id}"


def find_decision(store: Store, text: str, plan_id: str | None = None) -> Decision:
    """By the beginning or end of its id, or, within a plan, by a step that depends on it."""
    known = {
        decision: plan
        for decision, plan in store.plans.all_decision_ids()
        if plan_id in (None, plan)
    }
    for step in store.plans.steps(plan_id) if plan_id else ():
        if step.step_id == text and step.decision_id:
            text = step.decision_id
    found = _by_end(text, known, "decision")
    if found is None:
        raise NotFound(f"no decision {text!r}", "agents plan tree PLAN")
    return next(d for d in store.plans.decisions(known[found]) if d.decision_id == found)


def find_correction(store: Store, plan: Plan, text: str) -> Correction:
    known = {row.correction_id: row for row in store.corrections.of_plan(plan.plan_id)}
    if text == "last" and known:
        return list(known.values())[-1]
    found = _by_end(text, known, "correction")
    if found is None:
        raise NotFound(
            f"plan {plan.name!r} has no correction {text!r}", f"agents plan log {plan.plan_id}"
        )
    return known[found]


def _fits(text: str, name: str) -> bool:
    asked = text.upper()
    return name.startswith(asked) or name.endswith(asked)


def _by_end(text: str, names: Iterable[str], kind: str) -> str | None:
    """The one id that begins or ends like this."""
    if not text:
        return None
    found = [name for name in names if _fits(text, name)]
    if len(found) > 1:
        exact = [name for name in found if name == text.upper()]
        if exact:
            return exact[0]
        shown = ", ".join(found[:5])
        raise UsageError(
            f"{text!r} is ambiguous: {plural(len(found), kind)} match: {shown}",
            "give more of the id",
        )
    return found[0] if found else None


def short_ids(ids: list[str], least: int = 6) -> dict[str, str]:
    """Id -> its shortest end that no other has."""
    for length in range(least, 27):
        ends = {name[-length:] for name in ids}
        if len(ends) == len(set(ids)):
            return {name: name[-length:] for name in ids}
    return {name: name for name in ids}
