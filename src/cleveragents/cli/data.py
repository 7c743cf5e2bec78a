"""What commands tell: plain data made from the store, with the names programs rely on."""

from collections.abc import Sequence
from typing import Any

import msgspec

from cleveragents.context import Context
from cleveragents.errors import NotFound
from cleveragents.lease import (
    holder,
)
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup, RollbackResult
from cleveragents.model.decision import Decision
from cleveragents.model.effect import Effect, EffectClass, EffectState, Outlook
from cleveragents.model.journal import JournalEntry
from cleveragents.model.plan import Plan, State, Step, StepState
from cleveragents.model.resource import Action, Change
from cleveragents.model.settings import confine_in_force

_ACTIONS = {Action.CHANGED: "restored", Action.REMOVED: "removed", Action.ADDED: "recreated"}


def step_state(plan: Plan, step: Step) -> str:
    """Nothing is `processing` in a plan that is not: that step was interrupted."""
    stopped = step.state is StepState.PROCESSING and plan.state is not State.PROCESSING
    return "interrupted" if stopped else str(step.state)


def plan_data(ctx: Context, plan: Plan, resumed_from: str | None = None) -> dict[str, Any]:
    """`plan use`, `run`, `execute`, `resume`."""
    steps = ctx.store.plans.steps(plan.plan_id)
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
                "state": step_state(plan, step),
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


def status_data(ctx: Context, plan: Plan) -> dict[str, Any]:
    steps = ctx.store.plans.steps(plan.plan_id)
    held = holder(ctx.store, plan.plan_id, ctx.now())
    resources = ctx.store.resources.of_plan(plan.plan_id)
    data: dict[str, Any] = {
        "plan_id": plan.plan_id,
        "name": plan.name,
        "phase": str(plan.phase),
        "state": str(plan.state),
        "attempt": plan.attempt,
        "progress": [{"step": s.step_id, "status": step_state(plan, s)} for s in steps],
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
        "not_rolled_back": [r.name for r in resources if r.strategy == "none"],
        "databases": databases_data(ctx, plan),
        "confinement": confinement_data(ctx, plan),
        "writable": list(ctx.settings.writable),
        "held_by": f"{held.verb} (process {held.pid} on {held.host})" if held else None,
        "created_at": plan.created_at,
        "updated_at": plan.updated_at,
    }
    if (error := error_data(plan)) is not None:
        data["error"] = error
    return data


def confinement_data(ctx: Context, plan: Plan) -> dict[str, Any]:
    """How tools of the plan are to be confined; what that gives here, `agents doctor` says."""
    setting, policy = ctx.settings.confine, plan.spec.get("policy", {}).get("confine")
    return {
        "in_force": confine_in_force(setting, policy),
        "setting": setting,
        "plan_file": policy,
    }


def databases_data(ctx: Context, plan: Plan) -> list[dict[str, Any]]:
    if all(one.kind != "postgres" for one in ctx.store.resources.of_plan(plan.plan_id)):
        return []
    from cleveragents.maintenance.databases import costs_of

    return [msgspec.to_builtins(cost) for cost in costs_of(ctx, plan)]


def files_modified(ctx: Context, plan: Plan) -> int:
    """Paths that differ between what the sandboxes were made with and the newest state kept."""
    groups = ctx.store.checkpoints.groups(plan.plan_id)
    if not groups or plan.head_group_id is None:
        return 0
    head = ctx.store.checkpoints.group(plan.head_group_id)
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
    names = {r.resource_id: r.name for r in ctx.store.resources.of_plan(plan.plan_id)}
    members = ctx.store.checkpoints.of_members(group)
    view = ctx.store.plans.view_at(plan.plan_id, group.version)
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
                "sandbox_ref": row.sandbox_ref,
                "filesystem_path": row.filesystem_path,
                "metadata": {k: v for k, v in row.metadata_json.items() if k != "snapshot"},
            }
            for row in members.values()
        ],
        "steps_done": [name for name, step in view.steps.items() if step.done],
        "decisions_in_force": [
            name for name, d in view.decisions.items() if d.state.value == "active"
        ],
    }


def change_data(change: Change) -> dict[str, Any]:
    data = {
        "resource": change.resource,
        "file": change.shown,
        "action": _ACTIONS[change.action],
    }
    try:
        change.path.decode("utf-8")
    except UnicodeDecodeError:
        import base64

        data["file_b64"] = base64.b64encode(change.path).decode("ascii")
    return data


def is_git_internal(plan: Plan, change: Change) -> bool:
    """Whether it is part of the git directory that a sandbox has for itself."""
    kinds = {item["name"]: item["kind"] for item in plan.spec["resources"]}
    return change.path.split(b"/")[0] == b".git" and kinds[change.resource] == "git-checkout"


def reverted_counts(plan: Plan, changes: Sequence[Change]) -> dict[str, int]:
    """Files and links; folders; what is git's own. Together they are all changes."""
    private = sum(is_git_internal(plan, change) for change in changes)
    shown = [change for change in changes if not is_git_internal(plan, change)]
    folders = sum(
        all(side.startswith("d:") for side in (change.before, change.after) if side)
        for change in shown
    )
    return {
        "files_reverted": len(shown) - folders,
        "directories_reverted": folders,
        "git_internals_reverted": private,
    }


def rollback_data(plan: Plan, result: RollbackResult) -> dict[str, Any]:
    return {
        "rollback_summary": {
            "plan": plan.plan_id,
            "checkpoint": result.checkpoint_id,
            "group": result.group_id,
            "label": result.label,
            **reverted_counts(plan, result.changes),
        },
        "changes_reverted": [change_data(change) for change in result.changes],
        "impact": {
            "child_plans_invalidated": result.child_plans_invalidated,
            "sandbox": len(result.sandboxes),
            "decisions_after_cp": result.decisions_after,
            "tool_calls_after_cp": result.tool_calls_after,
        },
        "post_rollback_state": {
            "phase": result.phase,
            "state": result.state,
            "checkpoints_remaining": result.checkpoints_remaining,
        },
        "effects": outlook_data(result.effects),
        "dry_run": result.dry_run,
    }


def effect_data(effect: Effect) -> dict[str, Any]:
    return {
        "effect_id": effect.effect_id,
        "plan_id": effect.plan_id,
        "step": effect.step_id,
        "tool": effect.tool,
        "class": str(effect.effect_class),
        "state": str(effect.state),
        "side_effects": list(effect.side_effects),
        "attempts": effect.attempts,
        "output": effect.output,
        "error": effect.error,
        "created_at": effect.created_at,
        "ended_at": effect.ended_at,
    }


def outlook_data(outlook: Outlook) -> dict[str, Any]:
    found = {
        "compensated": outlook.compensable,
        "irreversible": outlook.irreversible,
        "unknown": outlook.unknown,
        "not_repeated": outlook.not_repeated,
    }
    return {name: [effect_data(one) for one in effects] for name, effects in found.items()}


def effects_count(effects: list[Effect]) -> dict[str, int]:
    """How much of what calls did outside the sandboxes is still there, as far as we know."""
    standing = [effect for effect in effects if effect.state is not EffectState.COMPENSATED]
    return {
        "compensable": sum(e.effect_class is EffectClass.COMPENSABLE for e in standing),
        "irreversible": sum(e.effect_class is EffectClass.IRREVERSIBLE for e in standing),
        "unknown": sum(e.effect_class is EffectClass.UNKNOWN for e in standing),
        "not_compensated": sum(e.state is EffectState.FAILED for e in effects),
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
    plan = ctx.store.plans.get(plan_id)
    return {
        **msgspec.to_builtins(decision),
        "steps": [{"id": s.step_id, "state": step_state(plan, s), "tool": s.tool} for s in steps],
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
        "output": last.output if last else _said(plan),
        "failed_state": plan.error.group_id if plan.error else None,
        "effects": [effect_data(e) for e in recorded if e.call_id in here and e not in failed],
        "not_compensated": [effect_data(effect) for effect in failed],
    }


def _said(plan: Plan) -> str:
    """What the actor wrote to stderr, when it is the actor that failed."""
    return plan.error.output if plan.error else ""
