"""`agents plan correct`: redo one decision and everything that depends on it."""

from typing import Any

import click
import msgspec

from cleveragents.checkpoints.effects import (
    require_accepted,
)
from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command
from cleveragents.cli.options import dry_option, loss_option, yes_option
from cleveragents.cli.plan_effects import (
    as_ended,
    not_compensated,
    outside_blocks,
    outside_text,
)
from cleveragents.cli.plan_run import plan_reply
from cleveragents.cli.render import Block, Panel, Reply, Table
from cleveragents.context import Context
from cleveragents.errors import UsageError
from cleveragents.execution.use import read_child, read_plan
from cleveragents.history.append import append
from cleveragents.history.correct import Outlook, Request, correct, preview
from cleveragents.lookup import find_decision
from cleveragents.model.decision import Decision
from cleveragents.model.units import plural


@command("plan correct")
@click.argument("decision")
@click.option(
    "--mode",
    type=click.Choice(("revert", "append")),
    default="revert",
    help="Choose what to do: revert (default) undoes and redoes it, append keeps it and adds work.",
)
@click.option(
    "--guidance", required=True, help="Say what to do differently; tools and actors see it."
)
@click.option("--plan-file", help="Use a plan file with changed steps.")
@click.option("--cascade", is_flag=True, help="Redo every later decision too.")
@loss_option
@yes_option
@dry_option
def correct_command(
    ctx: Context,
    options: Options,
    decision: str,
    mode: str,
    guidance: str,
    plan_file: str | None,
    cascade: bool,
    accept_loss: bool,
    yes: bool,
    dry_run: bool,
) -> Reply:
    """Redo one decision and everything that depends on it; nothing else runs again.

    DECISION is the id that `agents plan tree PLAN` shows, or its beginning or end.
    """
    if not guidance.strip():
        raise UsageError("--guidance is empty", "say what to do differently")
    one = find_decision(ctx.store, decision)
    if mode == "append":
        return _append(ctx, one, guidance, plan_file, dry_run)
    read = read_plan(ctx, plan_file) if plan_file else None
    request = Request(guidance=guidance, plan_file=read, cascade=cascade, accept_loss=accept_loss)
    outlook = preview(ctx, one, request)
    if dry_run:
        return _would(ctx, outlook, guidance)
    require_accepted(outlook.effects, accept_loss, f"agents plan correct {decision}")
    if not yes:
        options.confirm(
            f"{outside_text(outlook.effects)}roll back"
            f" {plural(len(outlook.superseded), 'decision')} and"
            f" {plural(len(outlook.changes), 'change')},"
            f" keep {plural(len(outlook.kept), 'decision')},"
            f" run {plural(len(outlook.steps), 'step')}?",
            f"agents plan correct {decision} --yes",
        )
    done = correct(ctx, one, request)
    ended = as_ended(ctx, outlook.effects)
    reply = plan_reply(ctx, one.plan_id)
    about = {
        **_data(ctx, outlook),
        "dry_run": False,
        "correction_id": done.correction_id,
        "mode": str(done.mode),
        "guidance": done.guidance,
    }
    hint = f"correction {done.correction_id}; agents plan diff {one.plan_id} --correction last"
    told = msgspec.structs.replace(
        reply,
        data={**reply.data, **about, "effects": reports.outlook_data(ended)},
        blocks=(*_blocks(outlook), *outside_blocks(ended), *reply.blocks),
        messages=(*reply.messages, hint),
    )
    return not_compensated(told, ctx.store.plans.get(one.plan_id), ended)


def _append(
    ctx: Context, one: Decision, guidance: str, plan_file: str | None, dry_run: bool
) -> Reply:
    plan = ctx.store.plans.get(one.plan_id)
    read = read_child(ctx, plan, plan_file) if plan_file else None
    if dry_run:
        steps = [step.id for step in read.spec.steps] if read else []
        data = {
            "plan_id": one.plan_id,
            "decision_id": one.decision_id,
            "dry_run": True,
            "mode": "append",
            "guidance": guidance,
            "superseded": [],
            "steps_again": steps,
        }
        rows = (("keeps", "everything"), ("child plan's steps", ", ".join(steps)))
        return Reply(data=data, blocks=(Panel("Would append", rows),))
    done = append(ctx, one, Request(guidance=guidance, plan_file=read))
    reply = plan_reply(ctx, one.plan_id)
    about = {
        "correction_id": done.correction_id,
        "decision_id": one.decision_id,
        "mode": str(done.mode),
        "guidance": done.guidance,
        "child_plan_id": done.child_plan_id,
        "dry_run": False,
    }
    return msgspec.structs.replace(reply, data={**reply.data, **about})


def _would(ctx: Context, outlook: Outlook, guidance: str) -> Reply:
    data = {**_data(ctx, outlook), "dry_run": True, "mode": "revert", "guidance": guidance}
    return Reply(data=data, blocks=(*_blocks(outlook), *outside_blocks(outlook.effects)))


def _data(ctx: Context, outlook: Outlook) -> dict[str, Any]:
    return {
        "plan_id": outlook.plan_id,
        "decision_id": outlook.decision_id,
        "superseded": msgspec.to_builtins(outlook.superseded),
        "kept": list(outlook.kept),
        "steps_again": list(outlook.steps),
        "child_plans_cancelled": list(outlook.children),
        "from_group": outlook.group_id,
        "changes": [reports.change_data(change) for change in outlook.changes],
        "effects": reports.outlook_data(outlook.effects),
    }


def _blocks(outlook: Outlook) -> tuple[Block, ...]:
    return (
        Table(
            ("superseded", "steps", "why"),
            tuple(
                (f"{d.question}: {d.chosen}", ", ".join(d.steps), d.why) for d in outlook.superseded
            ),
            "Decisions",
        ),
        Table(
            ("action", "resource", "file"),
            tuple(
                (item["action"], item["resource"], item["file"])
                for item in map(reports.change_data, outlook.changes)
            ),
            "Files to roll back",
        ),
        Panel(
            "Correction",
            (
                ("decisions kept", str(len(outlook.kept))),
                ("child plans cancelled", ", ".join(outlook.children) or "none"),
                ("steps to run", ", ".join(outlook.steps) or "none"),
            ),
        ),
    )
