"""What people call plans, checkpoints and decisions: names, labels, `last`, sessions, ids."""

import os
import re
from collections.abc import Iterable
from shlex import quote

from cleveragents.errors import CheckpointPruned, ForeignCheckpoint, NotFound, UsageError
from cleveragents.model.checkpoint import RESERVED, CheckpointGroup, CheckpointType
from cleveragents.model.decision import Correction, Decision, DecisionState
from cleveragents.model.plan import Plan, Step
from cleveragents.model.triggers import nearest
from cleveragents.model.units import plural
from cleveragents.store import Store


def find_plan(store: Store, text: str) -> tuple[Plan, str]:
    """The plan, and a note if the name is ambiguous or none was given.

    Without a name: the newest plan that works on this directory, or on something in it.
    """
    if text in ("", "last"):
        newest = store.plans.newest()
        if newest is None:
            raise NotFound("there is no plan yet", "agents run -- COMMAND, or agents plan run FILE")
        if text:
            return store.plans.get(newest), ""
        plan = store.plans.get(_of_this_directory(store))
        return plan, f"the newest plan of this directory: {plan.name}  {plan.plan_id}"
    named = store.plans.named(text)
    if named:
        remark = f"{len(named)} plans are called {text!r}; this is the newest" if named[1:] else ""
        return store.plans.get(named[0]), remark
    if followed := store.sessions.plans_of(text):
        return store.plans.get(followed[0]), ""
    found = _by_end(text, store.plans.ids(), "plan")
    if found is None:
        names = [plan.name for plan in store.plans.all()]
        raise NotFound(f"no plan {text!r}{nearest(text, names)}", "agents plan list")
    return store.plans.get(found), ""


def typed_plan(store: Store, plan: Plan) -> str:
    """What to type for a plan: its name where that means this one and can be typed, else its id."""
    name = plan.name
    plain = name.isprintable() and not name.startswith("-") and name != "last"
    is_newest = store.plans.named(name)[:1] == [plan.plan_id]
    return name if plain and is_newest else plan.plan_id


def _of_this_directory(store: Store) -> str:
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        raise NotFound(
            "the current directory is gone, and no plan is named", "agents plan list"
        ) from None
    found = store.plans.newest_of(here)
    if found is None:
        raise NotFound(f"no plan works on {here}, or on something in it", "agents plan list")
    return found


def require_label(label: str | None) -> None:
    """Refuse a label that already means a checkpoint."""
    if label in RESERVED or (label and _AGO.fullmatch(label)):
        raise UsageError(f"{label!r} cannot be a label: it means a checkpoint of every plan")


_AGO = re.compile(r"-(\d+)|@\{-(\d+)\}|@\{(\d+) steps? ago\}")
AFTER_STEP = {
    CheckpointType.AFTER_TOOL_EXECUTE,
    CheckpointType.AFTER_STEP,
    CheckpointType.AFTER_SUBPLAN,
}


def find_group(store: Store, plan: Plan, text: str) -> CheckpointGroup:
    """The group named by an id, a label, `first`, `last`, `-1`, `@{2 steps ago}` or a step."""
    if ago := _AGO.fullmatch(text):
        if ago[3] is not None:
            return _steps_ago(store, plan, int(ago[3]))
        return _groups_ago(store, plan, int(ago[1] or ago[2]))
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
    if step := _step_named(store, plan, text):
        return _after_step(store, plan, step)
    found = _by_end(text, ids, "checkpoint")
    if found is None:
        _refuse_foreign(plan, text, rows)
        labels = [row[3] for row in own if row[3]]
        if store.plans.named(text):
            raise NotFound(
                f"{text!r} is a plan, and no checkpoint of plan {plan.name!r}",
                f"name one behind it: agents plan checkpoints {quote(text)} lists them",
            )
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


def _groups_ago(store: Store, plan: Plan, count: int) -> CheckpointGroup:
    """The group that many before the current one."""
    groups = store.checkpoints.groups(plan.plan_id)
    at = next((n for n, one in enumerate(groups) if one.group_id == plan.head_group_id), -1)
    if count > at:
        raise NotFound(
            f"plan {plan.name!r} has {plural(max(at, 0), 'checkpoint')} before the last one",
            f"agents plan checkpoints {plan.plan_id}",
        )
    return groups[at - count]


def _steps_ago(store: Store, plan: Plan, count: int) -> CheckpointGroup:
    done = [step for step in store.plans.steps(plan.plan_id) if step.done]
    groups = store.checkpoints.groups(plan.plan_id)
    if count == len(done) and (before := [one for one in groups if one.step_index < 0]):
        return before[-1]
    if count >= len(done):
        raise NotFound(
            f"plan {plan.name!r} has done {plural(len(done), 'step')}",
            f"agents plan status {plan.plan_id}",
        )
    return _after_step(store, plan, sorted(done, key=lambda step: step.index)[-1 - count])


def _step_named(store: Store, plan: Plan, text: str) -> Step | None:
    return next((s for s in store.plans.steps(plan.plan_id) if s.step_id == text), None)


def _after_step(store: Store, plan: Plan, step: Step) -> CheckpointGroup:
    """The newest group that was made when the step had succeeded."""
    for group in reversed(store.checkpoints.groups(plan.plan_id)):
        if group.step_index == step.index and not AFTER_STEP.isdisjoint(group.triggers):
            return group
    raise NotFound(
        f"no checkpoint from after step {step.step_id!r} is kept",
        f"agents plan checkpoints {plan.plan_id}",
    )


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
    """Find by the start or end of its id, or, within a plan, by a step that depends on it."""
    known = {
        decision: plan
        for decision, plan in store.plans.all_decision_ids()
        if plan_id in (None, plan)
    }
    for step in store.plans.steps(plan_id) if plan_id else ():
        if step.step_id == text and step.decision_id:
            text = step.decision_id
    found = _by_end(text, known, "decision")
    if found is None and plan_id:
        steps = [step.step_id for step in store.plans.steps(plan_id)]
        name = store.plans.get(plan_id).name
        raise NotFound(
            f"plan {name!r} has no decision or step {text!r}{nearest(text, steps)}",
            f"agents plan tree {plan_id}",
        )
    if found is None:
        raise NotFound(f"no decision {text!r}", "agents plan tree")
    return next(d for d in store.plans.decisions(known[found]) if d.decision_id == found)


def named_decision(store: Store, text: str) -> tuple[Decision, tuple[str, ...]]:
    """Find by id, or by a step of the default plan; also returns a note on which plan."""
    try:
        return find_decision(store, text), ()
    except NotFound:
        plan, remark = find_plan(store, "")
        return find_decision(store, text, plan.plan_id), (remark,)


def find_decisions(store: Store, plan_id: str) -> list[Decision]:
    """The decisions in force, which commands can name."""
    return [d for d in store.plans.decisions(plan_id) if d.state is DecisionState.ACTIVE]


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


LEAST = 4
"""Letters of an id: what a person took for a number must not become a rollback."""


def _fits(text: str, name: str) -> bool:
    asked = text.upper()
    return len(text) >= LEAST and (name.startswith(asked) or name.endswith(asked))


def _by_end(text: str, names: Iterable[str], kind: str) -> str | None:
    """The one id that begins or ends like this."""
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


SHORTEST_ID = 6


def short_group(store: Store, plan_id: str, group_id: str) -> str:
    """The id of a group as the list of the plan's checkpoints shows it."""
    kept = [group.group_id for group in store.checkpoints.groups(plan_id)]
    return short_ids([*kept, group_id])[group_id]


def short_ids(ids: list[str]) -> dict[str, str]:
    """Id -> its shortest unique end."""
    for length in range(SHORTEST_ID, 27):
        ends = {name[-length:] for name in ids}
        if len(ends) == len(set(ids)):
            return {name: name[-length:] for name in ids}
    return {name: name for name in ids}
