"""The data of commands' replies, with the names that programs rely on."""

from collections.abc import Iterable
from typing import Any

import msgspec

from cleveragents.checkpoints.sandboxes import is_captured, traits_of
from cleveragents.cli import in_place
from cleveragents.cli.rollback_data import effect_data, effects_count
from cleveragents.context import Context
from cleveragents.errors import NotFound
from cleveragents.execution.observed.settle import is_at_work
from cleveragents.lease import holder
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup
from cleveragents.model.conversation import anchor_in
from cleveragents.model.decision import Decision
from cleveragents.model.effect import EffectState
from cleveragents.model.journal import JournalEntry
from cleveragents.model.plan import Plan, State, Step, StepState
from cleveragents.model.settings import confine_in_force
from cleveragents.model.units import seconds_between


def step_states(ctx: Context, plan: Plan, steps: Iterable[Step]) -> dict[str, str]:
    """The state of each step; `processing` means interrupted if nobody is running the plan."""
    found = {step.step_id: str(step.state) for step in steps}
    begun = [name for name, state in found.items() if state == StepState.PROCESSING]
    if begun and plan.state is not State.PROCESSING and not is_at_work(ctx, plan.plan_id):
        found |= dict.fromkeys(begun, "interrupted")
    return found


def plan_data(ctx: Context, plan: Plan, resumed_from: str | None = None) -> dict[str, Any]:
    """`plan use`, `run`, `execute`, `resume`."""
    steps = ctx.store.plans.steps(plan.plan_id)
    states = step_states(ctx, plan, steps)
    return {
        "plan_id": plan.plan_id,
        "name": plan.name,
        "phase": str(plan.phase),
        "state": str(plan.state),
        "attempt": plan.attempt,
        "resumed_from": resumed_from,
        "sandboxes": sandbox_paths(ctx, plan),
        "steps": [
            {
                "id": step.step_id,
                "index": step.index,
                "state": states[step.step_id],
                "tool": step.tool,
                "attempts": step.attempts,
                "error": step.error,
            }
            for step in steps
        ],
        "last_checkpoint_id": plan.last_checkpoint_id,
        "checkpoints": checkpoint_list(ctx, plan),
    }


def sandbox_paths(ctx: Context, plan: Plan) -> dict[str, str]:
    """Name of each resource -> its sandbox, for those that exist."""
    names = {r.resource_id: r.name for r in ctx.store.resources.of_plan(plan.plan_id)}
    return {
        names[record.resource_id]: record.path
        for record in ctx.store.resources.sandboxes(plan.plan_id)
        if record.state == "ready"
    }


def checkpoint_list(ctx: Context, plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "id": row.checkpoint_id,
            "group": row.group_id,
            "type": str(row.checkpoint_type),
            "step_index": row.step_index,
            "label": row.label,
            "created_at": row.created_at,
            "state_hash": row.state_hash,
        }
        for row in ctx.checkpoints.list_checkpoints(plan.plan_id)
    ]


def error_data(plan: Plan) -> dict[str, Any] | None:
    return msgspec.to_builtins(plan.error) if plan.error is not None else None


def not_copied_data(ctx: Context, plan: Plan) -> dict[str, list[str]]:
    """Resource -> what could not be copied into its sandbox."""
    names = {one.resource_id: one.name for one in ctx.store.resources.of_plan(plan.plan_id)}
    return {
        names[record.resource_id]: record.origin["not_copied"]
        for record in ctx.store.resources.sandboxes(plan.plan_id)
        if record.origin.get("not_copied")
    }


def status_data(ctx: Context, plan: Plan) -> dict[str, Any]:
    steps = ctx.store.plans.steps(plan.plan_id)
    held = holder(ctx.store, plan.plan_id)
    resources = ctx.store.resources.of_plan(plan.plan_id)
    data: dict[str, Any] = {
        "plan_id": plan.plan_id,
        "name": plan.name,
        "phase": str(plan.phase),
        "state": str(plan.state),
        "attempt": plan.attempt,
        "progress": progress_data(ctx, plan, steps),
        "last_checkpoint_id": plan.last_checkpoint_id,
        "checkpoints": checkpoint_list(ctx, plan),
        "execution": {
            "sandbox": f"{ctx.settings.sandboxes}/{plan.plan_id}",
            "tool_calls": ctx.store.calls.count(plan.plan_id),
            "files_modified": files_modified(ctx, plan),
            "child_plans": len(ctx.store.plans.children(plan.plan_id)),
            "checkpoints": ctx.store.checkpoints.count(plan.plan_id),
        },
        "effects": effects_count(ctx.store.effects.of_plan(plan.plan_id)),
        "sandboxes": sandbox_paths(ctx, plan),
        "rollback_enabled": plan.rollback_enabled,
        "exclude": {r.name: list(r.exclude) for r in resources if r.exclude},
        "in_place": in_place.data_of(ctx, plan),
        "not_rolled_back": [r.name for r in resources if not is_captured(r)],
        "not_copied": not_copied_data(ctx, plan),
        "databases": databases_data(ctx, plan),
        "confinement": confinement_data(ctx, plan),
        "writable": list(ctx.settings.writable),
        "held_by": f"{held.verb} (process {held.pid} on {held.host})" if held else None,
        "bucket": bucket_data(ctx, plan),
        "content_on": content_on(ctx, plan),
        "conversation": _conversation_data(ctx, plan),
        "created_at": plan.created_at,
        "updated_at": plan.updated_at,
    }
    if (error := error_data(plan)) is not None:
        data["error"] = error
    return data


def progress_data(ctx: Context, plan: Plan, steps: list[Step]) -> list[dict[str, Any]]:
    """Every step, and how long its last call took or has been running."""
    times = ctx.store.calls.times(plan.plan_id)
    states, now = step_states(ctx, plan, steps), ctx.now()
    return [
        {
            "step": step.step_id,
            "status": states[step.step_id],
            "tool": step.tool,
            "attempts": step.attempts,
            "started_at": (taken := times.get(step.step_id, (None, None)))[0],
            "duration_ms": duration_ms(taken[0], taken[1] or now) if taken[0] else None,
        }
        for step in steps
    ]


def duration_ms(start: str, end: str) -> int:
    """How long a call took or has been running; a clock that was set back gives 0."""
    return max(0, round(seconds_between(start, end) * 1000))


def bucket_data(ctx: Context, plan: Plan) -> dict[str, Any] | None:
    """How much of the plan is in the bucket, and how far behind it is; None without a bucket."""
    if not ctx.settings.content_url:
        return None
    segments = ctx.store.segments
    behind = segments.behind(plan.plan_id)
    since = seconds_between(behind.since, ctx.now()) if behind.since else 0.0
    return {
        "url": ctx.settings.content_url,
        "groups": ctx.store.checkpoints.count(plan.plan_id) - behind.groups,
        "bytes": segments.size(segments.root_of(plan.plan_id)),
        "behind_groups": behind.groups,
        "behind_seconds": round(max(since, 0.0), 3),
    }


def _conversation_data(ctx: Context, plan: Plan) -> dict[str, Any] | None:
    """The conversation; most plans have none, and then nothing about agents is imported."""
    if anchor_in(plan.actor_state) is None:
        return None
    from cleveragents.cli.conversation import conversation_data

    return conversation_data(ctx, plan.plan_id)


def confinement_data(ctx: Context, plan: Plan) -> dict[str, Any]:
    """The plan's confinement; `agents doctor` says what this machine supports."""
    setting, policy = ctx.settings.confine, plan.spec.get("policy", {}).get("confine")
    return {
        "in_force": confine_in_force(setting, policy),
        "setting": setting,
        "plan_file": policy,
    }


def databases_data(ctx: Context, plan: Plan) -> list[dict[str, Any]]:
    resources = ctx.store.resources.of_plan(plan.plan_id)
    if all(traits_of(one.kind).server is None for one in resources):
        return []
    from cleveragents.maintenance.databases import costs_of

    return [msgspec.to_builtins(cost) for cost in costs_of(ctx, plan)]


def content_on(ctx: Context, plan: Plan) -> str | None:
    """The one machine that has the plan's content; None if it is here or in a bucket."""
    return ctx.manager.sandboxes(plan.plan_id).only_on if ctx.store.is_shared else None


def files_modified(ctx: Context, plan: Plan) -> int | None:
    """Paths that differ between the origin of the sandboxes and the newest state.

    None if the content is not on this machine."""
    if content_on(ctx, plan) is not None:
        return None
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    newest = ctx.manager.head_of(plan)
    if not groups or newest is None:
        return 0
    head = ctx.store.checkpoints.group(newest)
    changes = ctx.checkpoints.diff(
        plan.plan_id, ctx.checkpoints.states(groups[0]), ctx.checkpoints.states(head)
    )
    return sum(change.path.split(b"/")[0] != b".git" for change in changes)


def list_data(ctx: Context) -> list[dict[str, Any]]:
    return [
        {
            "plan_id": plan.plan_id,
            "name": plan.name,
            "phase": str(plan.phase),
            "state": str(plan.state),
            "attempt": plan.attempt,
            "parent_plan_id": plan.parent_plan_id,
            "last_checkpoint_id": plan.last_checkpoint_id,
            "created_at": plan.created_at,
            "updated_at": plan.updated_at,
        }
        for plan in ctx.store.plans.all()
    ]


def checkpoints_data(ctx: Context, plan: Plan) -> list[dict[str, Any]]:
    """`plan checkpoints`: oldest first."""
    names = {r.resource_id: r.name for r in ctx.store.resources.of_plan(plan.plan_id)}
    groups = {g.group_id: g for g in ctx.store.checkpoints.groups(plan.plan_id)}
    return [
        _row_data(row, names, groups[row.group_id])
        for row in ctx.checkpoints.list_checkpoints(plan.plan_id)
    ]


def _row_data(row: Checkpoint, names: dict[str, str], group: CheckpointGroup) -> dict[str, Any]:
    return {
        "checkpoint_id": row.checkpoint_id,
        "group_id": row.group_id,
        "resource": names.get(row.resource_id, row.resource_id),
        "type": str(row.checkpoint_type),
        "step_index": row.step_index,
        "decision_id": row.decision_id,
        "label": row.label,
        "created_at": row.created_at,
        "state_hash": row.state_hash,
        "size_bytes": row.size_bytes,
        "pinned": group.pinned,
    }


def group_data(ctx: Context, plan: Plan, group: CheckpointGroup) -> dict[str, Any]:
    """`plan checkpoint show`."""
    from cleveragents.history.timeline import contents_of

    names = {r.resource_id: r.name for r in ctx.store.resources.of_plan(plan.plan_id)}
    members = ctx.store.checkpoints.of_members(group)
    view = ctx.store.plans.view_at(plan.plan_id, group.version)
    contents = contents_of(ctx, plan, group)
    return {
        "group_id": group.group_id,
        "plan_id": plan.plan_id,
        "type": str(group.checkpoint_type),
        "triggers": list(group.triggers),
        "label": group.label,
        "pinned": group.pinned,
        "decision_id": group.decision_id,
        "step_index": group.step_index,
        "created_at": group.created_at,
        "checkpoints": [
            {
                **_row_data(row, names, group),
                "own": row.group_id == group.group_id,
                "contents": contents.get(names.get(row.resource_id, ""), {}),
                "sandbox_ref": row.sandbox_ref,
                "filesystem_path": row.filesystem_path,
                "metadata": {k: v for k, v in row.metadata_json.items() if k != "snapshot"},
            }
            for row in members.values()
        ],
        "steps_done": [
            step.step_id
            for step in sorted(view.steps.values(), key=lambda step: step.index)
            if step.done
        ],
        "decisions_in_force": [
            made.decision_id
            for made in ctx.store.plans.decisions(plan.plan_id)
            if (then := view.decisions.get(made.decision_id)) and then.state.value == "active"
        ],
    }


def log_data(entries: list[JournalEntry]) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(entry), "state": entry.shown_state} for entry in entries]


def tree_data(ctx: Context, plan: Plan, show_superseded: bool) -> list[dict[str, Any]]:
    """The decision tree, nested; children in the order they were decided."""
    decisions = [
        d
        for d in ctx.store.plans.decisions(plan.plan_id)
        if show_superseded or d.state.value == "active"
    ]
    steps: dict[str | None, list[str]] = {}
    for step in ctx.store.plans.steps(plan.plan_id):
        steps.setdefault(step.decision_id, []).append(step.step_id)
    known = {d.decision_id for d in decisions}

    def nested(parent: str | None) -> list[dict[str, Any]]:
        below = [d for d in decisions if (d.parent_id if d.parent_id in known else None) == parent]
        return [
            {
                "decision_id": d.decision_id,
                "question": d.question,
                "chosen": d.chosen,
                "state": str(d.state),
                "steps": steps.get(d.decision_id, []),
                "children": nested(d.decision_id),
            }
            for d in below
        ]

    return nested(None)


def explain_data(ctx: Context, decision: Decision) -> dict[str, Any]:
    plan_id = decision.plan_id
    groups = [
        g.group_id
        for g in ctx.store.checkpoints.groups(plan_id)
        if g.decision_id == decision.decision_id
    ]
    steps = ctx.store.plans.steps_of(decision)
    states = step_states(ctx, ctx.store.plans.get(plan_id), steps)
    return {
        **msgspec.to_builtins(decision),
        "steps": [{"id": s.step_id, "state": states[s.step_id], "tool": s.tool} for s in steps],
        "groups": groups,
        "wrote": [
            {"path": w.path.decode("utf-8", "backslashreplace"), "step": w.step_id}
            for by, w in ctx.store.calls.writes_by_decision(plan_id)
            if by == decision.decision_id
        ],
    }


def failed_step(ctx: Context, plan: Plan) -> dict[str, Any]:
    """`plan errors`: the step, its output, its kept state, and what it did outside."""
    recorded = ctx.store.effects.of_plan(plan.plan_id)
    failed = [effect for effect in recorded if effect.state is EffectState.FAILED]
    if plan.error is None and not failed:
        raise NotFound(f"plan {plan.name!r} has no error", f"agents plan status {plan.plan_id}")
    step = plan.error.step if plan.error else None
    calls = [c for c in ctx.store.calls.of_plan(plan.plan_id) if step and c.step_id == step]
    last = calls[-1] if calls else None
    here = {call.call_id for call in calls}
    return {
        "plan_id": plan.plan_id,
        "error": error_data(plan),
        "step": step,
        "exit_code": last.exit_code if last else None,
        "attempts": len(calls),
        "output": last.output if last else _actor_output(plan),
        "failed_state": plan.error.group_id if plan.error else None,
        "effects": [effect_data(e) for e in recorded if e.call_id in here and e not in failed],
        "not_compensated": [effect_data(effect) for effect in failed],
    }


def _actor_output(plan: Plan) -> str:
    """What the actor wrote to stderr, when it is the actor that failed."""
    return plan.error.output if plan.error else ""
