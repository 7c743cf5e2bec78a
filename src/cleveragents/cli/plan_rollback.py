"""Commands that bring a plan back: rollback, undo, redo."""

from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import Consent, consent_options, loss_option
from cleveragents.cli.plan_effects import not_compensated, outside_blocks, outside_text
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.model.checkpoint import RollbackResult
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan
from cleveragents.model.units import plural
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.history.undo import Undone


@command("plan rollback")
@click.argument("plan")
@click.argument("checkpoint")
@click.option(
    "--only",
    multiple=True,
    metavar="RESOURCE|PATH",
    help="Restore only this path or resource and leave the plan as it is; repeatable.",
)
@consent_options("accept_loss", "yes", "dry_run")
def rollback(
    ws: Workspace,
    options: Options,
    plan: str,
    checkpoint: str,
    only: tuple[str, ...],
    consent: Consent,
) -> Reply:
    """Roll back every sandbox and the plan's own view to a checkpoint."""
    one, notes = found(ws, plan)
    before = one.plan
    require_rollback(before)
    group_id = one.group(checkpoint).group_id
    command = f"agents plan rollback {plan} {checkpoint}"

    def question(todo: RollbackResult) -> str:
        if only:
            return f"roll back {plural(len(todo.changes), 'change')}, and leave the plan as it is?"
        consent.require_accepted(todo.effects, command)
        return (
            f"{outside_text(todo.effects)}roll back {plural(len(todo.changes), 'change')}, "
            f"{plural(todo.decisions_after, 'decision')} and"
            f" {plural(todo.tool_calls_after, 'tool call')}?"
        )

    def do() -> RollbackResult:
        if only:
            return one.restore(group_id, *only)
        return one.rollback(group_id, accept_loss=consent.accept_loss)

    return consent.preview_ask_do(
        options,
        command,
        preview=lambda: one.preview_rollback(group_id, *only),
        show=lambda todo: rollback_reply(before, todo, notes),
        question=question,
        do=lambda: rollback_reply(before, do(), notes),
    )


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
def undo(ws: Workspace, options: Options, plan: str, accept_loss: bool) -> Reply:
    """Undo the last execute, resume, rollback or manual edit as a whole."""
    one, notes = found(ws, plan)
    return _travelled(one.plan, one.undo(accept_loss=accept_loss), "undone", notes)


@command("plan redo")
@click.argument("plan")
@loss_option
def redo(ws: Workspace, options: Options, plan: str, accept_loss: bool) -> Reply:
    """Redo what was undone."""
    one, notes = found(ws, plan)
    return _travelled(one.plan, one.redo(accept_loss=accept_loss), "redone", notes)


def _travelled(plan: Plan, done: "Undone", word: str, notes: tuple[str, ...]) -> Reply:
    data: dict[str, Any] = {
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
