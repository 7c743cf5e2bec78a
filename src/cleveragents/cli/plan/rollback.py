"""Commands: rollback, undo, redo."""

from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from cleveragents.cli import in_place, rollback_data
from cleveragents.cli.common import Options, command, found
from cleveragents.cli.conversation import (
    Part,
    going_of,
    part_options,
    roll_back_alone,
    with_conversation,
    would_change,
)
from cleveragents.cli.in_place import choices_options
from cleveragents.cli.options import (
    CheckpointCommand,
    Consent,
    Decorator,
    complete_with,
    consent_options,
    of_plan,
    plan_and_checkpoint,
    plan_argument,
)
from cleveragents.cli.plan.effects import not_compensated, outside_blocks, outside_text
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.lookup import short_group, typed_plan
from cleveragents.model.checkpoint import RollbackResult
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan
from cleveragents.model.units import plural
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.history.owners import Choices
    from cleveragents.history.undo import Undone


@command("plan rollback", cls=CheckpointCommand)
@plan_and_checkpoint
@click.option(
    "--only",
    multiple=True,
    metavar="RESOURCE|PATH",
    shell_complete=complete_with("resource"),
    help="Restore only this path or resource and leave the plan as it is; repeatable.",
)
@choices_options
@part_options
@consent_options("accept_loss", "yes", "dry_run")
def rollback(
    ws: Workspace,
    options: Options,
    plan: str,
    checkpoint: str,
    only: tuple[str, ...],
    choices: "Choices",
    part: Part,
    consent: Consent,
) -> Reply:
    """Roll back every sandbox and the plan's own view to a checkpoint."""
    one, notes = found(ws, plan)
    before = one.plan
    require_rollback(before)
    going, group = going_of(ws, one), one.group(checkpoint)
    if not part.files:
        return roll_back_alone(one, going, group, notes, consent.dry_run)
    group_id = group.group_id
    command = f"agents plan rollback {quote(plan or one.plan_id)} {quote(checkpoint)}"

    def question(todo: RollbackResult) -> str:
        from cleveragents.history.rollback_in_place import require_decided

        require_decided(todo.conflicts, one.plan_id, group_id)
        if only:
            return f"roll back {plural(len(todo.changes), 'change')}, and leave the plan as it is?"
        consent.require_accepted(todo.effects, command)
        return f"{outside_text(todo.effects)}roll back {_listed(todo)}?"

    def do() -> RollbackResult:
        if only:
            return one.restore(group_id, *only)
        return one.rollback(
            group_id,
            accept_loss=consent.accept_loss,
            choices=choices,
            remember=part.remember(going),
        )

    return consent.preview_ask_do(
        options,
        command,
        preview=lambda: one.preview_rollback(group_id, *only, choices=choices),
        show=lambda todo: would_change(
            rollback_reply(ws, before, todo, notes), going.conversation, part
        ),
        question=lambda todo: of_plan(before.name, notes, question(todo)),
        do=lambda: with_conversation(rollback_reply(ws, before, do(), notes), going.conversation),
    )


def rollback_reply(
    ws: Workspace, plan: Plan, result: RollbackResult, notes: tuple[str, ...]
) -> Reply:
    data = rollback_data.rollback_data(plan, result)
    summary, impact, after = (
        data["rollback_summary"],
        data["impact"],
        data["post_rollback_state"],
    )
    reverted = "nothing" if result.conflicts else _reverted(summary, result.dry_run)
    about = Panel(
        "Rollback Summary",
        (
            ("plan", f"{plan.name}  {summary['plan']}"),
            ("checkpoint", short_group(ws.ctx.store, plan.plan_id, result.group_id)),
            ("label", summary["label"] or "none"),
            ("reverted", reverted),
        ),
    )
    would: tuple[Block, ...] = (
        Table(
            ("action", "resource", "file"),
            tuple(
                (item["action"], item["resource"], item["file"])
                for item, change in zip(data["changes_reverted"], result.changes, strict=True)
                if not rollback_data.is_git_internal(plan, change)
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
                ("next", f"agents plan resume {quote(typed_plan(ws.ctx.store, plan))}"),
            ),
        ),
    )
    owners = in_place.owner_blocks(result, "plan rollback")
    blocks = (about, *(() if result.conflicts else would), *owners)
    blocks = (*blocks, *outside_blocks(result.effects))
    reply = Reply(data=data, blocks=blocks, messages=(*notes, *result.notes))
    return reply if result.dry_run else not_compensated(reply, plan, result.effects)


def _listed(todo: RollbackResult) -> str:
    """The counts: `2 changes, 1 decision and 3 tool calls`."""
    counts = (todo.decisions_after, "decision"), (todo.tool_calls_after, "tool call")
    told = [plural(len(todo.changes), "change"), *(plural(*one) for one in counts if one[0])]
    return " and ".join((", ".join(told[:-1]), told[-1])) if told[1:] else told[0]


def _reverted(summary: dict[str, Any], dry_run: bool) -> str:
    """The counts in words."""
    counts = [
        (summary["files_reverted"], "file", "files"),
        (summary["directories_reverted"], "directory", "directories"),
        (summary["git_internals_reverted"], "path in .git", "paths in .git"),
    ]
    told = [plural(*count) for count in (counts[0], *(c for c in counts[1:] if c[0]))]
    return ", ".join(told) + (" would be reverted" if dry_run else " reverted")


files_only_option: Decorator = click.option(
    "--files-only", is_flag=True, help="Leave the agent's conversation as it is."
)


@command("plan undo")
@plan_argument
@consent_options("accept_loss", "dry_run")
@files_only_option
def undo(ws: Workspace, options: Options, plan: str, consent: Consent, files_only: bool) -> Reply:
    """Undo the last execute, resume, rollback or manual edit as a whole."""
    return _travel(ws, plan, consent, files_only, redo=False)


@command("plan redo")
@plan_argument
@consent_options("accept_loss", "dry_run")
@files_only_option
def redo(ws: Workspace, options: Options, plan: str, consent: Consent, files_only: bool) -> Reply:
    """Redo what was undone."""
    return _travel(ws, plan, consent, files_only, redo=True)


def _travel(ws: Workspace, plan: str, consent: Consent, files_only: bool, redo: bool) -> Reply:
    one, notes = found(ws, plan)
    before, going = one.plan, going_of(ws, one, again=True)
    part, word = Part(conversation=not files_only), "redone" if redo else "undone"
    if consent.dry_run:
        todo = _travelled(before, one.preview_undo(redo=redo), word, notes)
        return would_change(todo, going.conversation, part)
    go = one.redo if redo else one.undo
    done = go(accept_loss=consent.accept_loss, remember=part.remember(going))
    return with_conversation(_travelled(before, done, word, notes), going.conversation)


CALLED = {"external_edit": "manual edits", "restore": "rollback --only"}
"""Operations whose names are for programs."""


def _travelled(plan: Plan, done: "Undone", word: str, notes: tuple[str, ...]) -> Reply:
    data: dict[str, Any] = {
        word: done.operation,
        "entry": done.entry_id,
        **rollback_data.rollback_data(plan, done.result),
    }
    after = data["post_rollback_state"]
    dry, verb = ("would be ", "would be") if done.result.dry_run else ("", "is")
    called = CALLED.get(done.operation, done.operation)
    what = f"{called} {done.prompt!r}" if done.prompt else called
    told = (
        f"{dry}{word}: {what}; {plural(len(done.result.changes), 'change')}; "
        f"the plan {verb} {after['phase']}/{after['state']}"
    )
    if done.result.conflicts:
        told = f"would not be {word}: {what}; {plural(len(done.result.conflicts), 'conflict')}"
    owners = in_place.owner_blocks(done.result, "plan undo") if done.result.dry_run else ()
    blocks = (Text(told), *owners, *outside_blocks(done.result.effects))
    reply = Reply(data=data, blocks=blocks, messages=(*notes, *done.result.notes))
    return reply if done.result.dry_run else not_compensated(reply, plan, done.result.effects)
