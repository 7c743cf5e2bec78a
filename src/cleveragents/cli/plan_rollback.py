"""Commands that bring a plan back: rollback, undo, redo."""

from shlex import quote
from typing import Any

import click

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command
from cleveragents.cli.options import dry_option, loss_option, yes_option
from cleveragents.cli.plan_effects import not_compensated, outside_blocks, outside_text
from cleveragents.cli.plan_read import found
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.context import Context
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, RollbackResult
from cleveragents.model.plan import Plan
from cleveragents.model.units import plural


@command("plan rollback")
@click.argument("plan")
@click.argument("checkpoint")
@click.option(
    "--only",
    multiple=True,
    metavar="RESOURCE|PATH",
    help="Restore only this path or resource and leave the plan as it is; repeatable.",
)
@loss_option
@yes_option
@dry_option
def rollback(
    ctx: Context,
    options: Options,
    plan: str,
    checkpoint: str,
    only: tuple[str, ...],
    accept_loss: bool,
    yes: bool,
    dry_run: bool,
) -> Reply:
    """Roll back every sandbox and the plan's own view to a checkpoint."""
    from cleveragents.checkpoints.effects import (
        require_accepted,
    )
    from cleveragents.history import rollback as verb

    one, notes = found(ctx, plan)
    verb.require_rollback(one)
    group = find_group(ctx.store, one, checkpoint)
    if only:
        return _restore_only(ctx, options, one, group, only, yes, dry_run, notes)
    if dry_run or not yes:
        todo = verb.preview(ctx, one, group)
        if dry_run:
            return rollback_reply(one, todo, notes)
        command = f"agents plan rollback {plan} {checkpoint}"
        require_accepted(todo.effects, accept_loss, command)
        options.confirm(
            f"{outside_text(todo.effects)}roll back {plural(len(todo.changes), 'change')}, "
            f"{plural(todo.decisions_after, 'decision')} and"
            f" {plural(todo.tool_calls_after, 'tool call')}?",
            f"{command} --yes",
        )
    result = verb.rollback(ctx, one, group, accept_loss=accept_loss)
    return rollback_reply(one, result, notes)


def _restore_only(
    ctx: Context,
    options: Options,
    plan: Plan,
    group: CheckpointGroup,
    only: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    notes: tuple[str, ...],
) -> Reply:
    from cleveragents.history.restore_paths import preview_only, restore_only

    if dry_run or not yes:
        todo = preview_only(ctx, plan, group, only)
        if dry_run:
            return rollback_reply(plan, todo, notes)
        options.confirm(
            f"roll back {plural(len(todo.changes), 'change')}, and leave the plan as it is?",
            f"agents plan rollback {plan.plan_id} {group.group_id} --yes",
        )
    return rollback_reply(plan, restore_only(ctx, plan, group, only), notes)


def rollback_reply(plan: Plan, result: RollbackResult, notes: tuple[str, ...]) -> Reply:
    data = reports.rollback_data(plan, result)
    summary, impact, after = (
        data["rollback_summary"],
        data["impact"],
        data["post_rollback_state"],
    )
    blocks: tuple[Block, ...] = (
        Panel(
            "Rollback Summary",
            (
                ("plan", f"{plan.name}  {summary['plan']}"),
                ("checkpoint", summary["checkpoint"]),
                ("label", summary["label"] or "none"),
                ("reverted", _reverted(summary, result.dry_run)),
            ),
        ),
        Table(
            ("action", "resource", "file"),
            tuple(
                (item["action"], item["resource"], item["file"])
                for item, change in zip(data["changes_reverted"], result.changes, strict=True)
                if not reports.is_git_internal(plan, change)
            ),
            "Changes Reverted",
        ),
        Panel(
            "Impact",
            (
                ("child plans invalidated", str(impact["child_plans_invalidated"])),
                ("sandboxes", str(impact["sandbox"])),
                ("decisions after it", str(impact["decisions_after_cp"])),
                ("tool calls after it", str(impact["tool_calls_after_cp"])),
            ),
        ),
        Panel(
            "Post-Rollback State",
            (
                ("state", f"{after['phase']}/{after['state']}"),
                ("checkpoints remaining", str(after["checkpoints_remaining"])),
                ("next", f"agents plan resume {quote(plan.name)}"),
            ),
        ),
    )
    blocks = (*blocks, *outside_blocks(result.effects))
    reply = Reply(data=data, blocks=blocks, messages=notes)
    return reply if result.dry_run else not_compensated(reply, plan, result.effects)


def _reverted(summary: dict[str, Any], dry_run: bool) -> str:
    """What the numbers count, in words."""
    counts = [
        (summary["files_reverted"], "file", "files"),
        (summary["directories_reverted"], "directory", "directories"),
        (summary["git_internals_reverted"], "path in .git", "paths in .git"),
    ]
    told = [plural(*count) for count in (counts[0], *(c for c in counts[1:] if c[0]))]
    return ", ".join(told) + (" would be reverted" if dry_run else " reverted")


@command("plan undo")
@click.argument("plan")
@loss_option
def undo(ctx: Context, options: Options, plan: str, accept_loss: bool) -> Reply:
    """Undo the last execute, resume, rollback or manual edit as a whole."""
    from cleveragents.history import undo as verb

    return _travelled(ctx, plan, verb.undo, "undone", accept_loss)


@command("plan redo")
@click.argument("plan")
@loss_option
def redo(ctx: Context, options: Options, plan: str, accept_loss: bool) -> Reply:
    """Redo what was undone."""
    from cleveragents.history import undo as verb

    return _travelled(ctx, plan, verb.redo, "redone", accept_loss)


def _travelled(ctx: Context, text: str, verb: Any, word: str, accept_loss: bool) -> Reply:
    plan, notes = found(ctx, text)
    done = verb(ctx, plan, accept_loss=accept_loss)
    data = {
        word: done.operation,
        "entry": done.entry_id,
        **reports.rollback_data(plan, done.result),
    }
    after = data["post_rollback_state"]
    blocks = (
        Text(
            f"{word}: {done.operation}; {plural(len(done.result.changes), 'change')}; "
            f"the plan is {after['phase']}/{after['state']}"
        ),
        *outside_blocks(done.result.effects),
    )
    reply = Reply(data=data, blocks=blocks, messages=notes)
    return not_compensated(reply, plan, done.result.effects)
