"""Data of rollbacks: files, effects outside, and the impact on the plan."""

from collections.abc import Sequence
from typing import Any

import msgspec

from cleveragents.checkpoints.sandboxes import traits_of
from cleveragents.cli import in_place
from cleveragents.model.checkpoint import RollbackResult
from cleveragents.model.effect import Effect, EffectClass, EffectState, Outlook
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Action, Change

_ACTIONS = {Action.CHANGED: "restored", Action.REMOVED: "removed", Action.ADDED: "recreated"}


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
    """Whether a change is in the sandbox's own git directory."""
    if change.path.split(b"/")[0] != b".git":
        return False
    kinds = {item["name"]: item["kind"] for item in plan.spec["resources"]}
    return traits_of(kinds[change.resource]).is_repository


def reverted_counts(plan: Plan, changes: Sequence[Change]) -> dict[str, int]:
    """The number of files and links, of folders, and of git's own files."""
    private = sum(is_git_internal(plan, change) for change in changes)
    shown = [change for change in changes if not is_git_internal(plan, change)]
    folders = sum(change.is_directory for change in shown)
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
        "in_place": in_place.owned_data(result),
        "conflicts": [msgspec.to_builtins(conflict) for conflict in result.conflicts],
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


def effects_count(effects: list[Effect]) -> dict[str, int]:
    """Counts of the effects outside the sandboxes that still stand, as far as we know."""
    standing = [effect for effect in effects if effect.state is not EffectState.COMPENSATED]
    return {
        "compensable": sum(e.effect_class is EffectClass.COMPENSABLE for e in standing),
        "irreversible": sum(e.effect_class is EffectClass.IRREVERSIBLE for e in standing),
        "unknown": sum(e.effect_class is EffectClass.UNKNOWN for e in standing),
        "not_compensated": sum(e.state is EffectState.FAILED for e in effects),
    }


def outlook_data(outlook: Outlook) -> dict[str, Any]:
    found = {
        "compensated": outlook.compensable,
        "irreversible": outlook.irreversible,
        "unknown": outlook.unknown,
        "not_repeated": outlook.not_repeated,
    }
    return {name: [effect_data(one) for one in effects] for name, effects in found.items()}
