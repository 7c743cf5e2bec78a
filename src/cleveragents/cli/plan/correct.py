"""`agents plan correct`: redo one decision and everything that depends on it."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from cleveragents.cli import rollback_data
from cleveragents.cli.common import Options, command
from cleveragents.cli.conversation import going_of, with_conversation
from cleveragents.cli.options import (
    Consent,
    consent_options,
    decision_argument,
    of_plan,
    stream_option,
)
from cleveragents.cli.plan.effects import (
    as_ended,
    not_compensated,
    outside_blocks,
    outside_text,
)
from cleveragents.cli.plan.run import plan_reply
from cleveragents.cli.render import Block, Panel, Reply, Table
from cleveragents.errors import UsageError
from cleveragents.lookup import named_decision
from cleveragents.model.decision import Correction, Decision
from cleveragents.model.units import plural
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.history.affected import Outlook


@command("plan correct")
@decision_argument
@click.option(
    "--mode",
    type=click.Choice(("revert", "append")),
    default="revert",
    help="Choose what to do: revert (default) undoes and redoes it, append keeps it and adds work.",
)
@click.option(
    "--guidance", required=True, help="Say what to do differently; tools and actors see it."
)
@click.option("--plan-file", type=click.Path(), help="Use a plan file with changed steps.")
@click.option("--cascade", is_flag=True, help="Redo every later decision too.")
@stream_option
@consent_options("accept_loss", "yes", "dry_run")
def correct_command(
    ws: Workspace,
    options: Options,
    decision: str,
    mode: str,
    guidance: str,
    plan_file: str | None,
    cascade: bool,
    consent: Consent,
) -> Reply:
    """Redo one decision and everything that depends on it; nothing else runs again.

    DECISION is the id that `agents plan tree` shows, or its beginning or end, or a step.
    """
    if not guidance.strip():
        raise UsageError("--guidance is empty", "say what to do differently")
    one, notes = named_decision(ws.ctx.store, decision)
    plan = PlanHandle(ws.ctx, one.plan_id)
    if mode == "append":
        return _append(ws, plan, one, guidance, plan_file, consent.dry_run)
    file = ws.read(plan_file) if plan_file else None
    outlook = plan.preview_correct(one.decision_id, guidance, plan_file=file, cascade=cascade)
    command = f"agents plan correct {decision}"
    if not consent.dry_run:
        consent.require_accepted(outlook.effects, command)

    def do() -> Reply:
        going = going_of(ws, plan)
        done = plan.correct(
            one.decision_id,
            guidance,
            plan_file=file,
            cascade=cascade,
            accept_loss=consent.accept_loss,
            remember=going.remember,
        )
        return with_conversation(_corrected(ws, plan, outlook, done), going.conversation)

    reply = consent.preview_ask_do(
        options,
        command,
        preview=lambda: outlook,
        show=lambda todo: _would(todo, guidance),
        question=lambda todo: of_plan(plan.plan.name, notes, _question(todo)),
        do=do,
    )
    return msgspec.structs.replace(reply, messages=(*notes, *reply.messages))


def _question(outlook: "Outlook") -> str:
    return (
        f"{outside_text(outlook.effects)}roll back"
        f" {plural(len(outlook.superseded), 'decision')} and"
        f" {plural(len(outlook.changes), 'change')},"
        f" keep {plural(len(outlook.kept), 'decision')},"
        f" run {plural(len(outlook.steps), 'step')}?"
    )


def _corrected(ws: Workspace, plan: PlanHandle, outlook: "Outlook", done: Correction) -> Reply:
    ended = as_ended(ws, outlook.effects)
    reply = plan_reply(ws, plan)
    about = {
        **_data(outlook),
        "dry_run": False,
        "correction_id": done.correction_id,
        "mode": str(done.mode),
        "guidance": done.guidance,
    }
    hint = f"correction {done.correction_id}; agents plan diff {plan.plan_id} --correction last"
    told = msgspec.structs.replace(
        reply,
        data={**reply.data, **about, "effects": rollback_data.outlook_data(ended)},
        blocks=(*_blocks(outlook, done=True), *outside_blocks(ended), *reply.blocks),
        messages=(*reply.messages, hint),
    )
    return not_compensated(told, plan.plan, ended)


def _append(
    ws: Workspace,
    plan: PlanHandle,
    one: Decision,
    guidance: str,
    plan_file: str | None,
    dry_run: bool,
) -> Reply:
    if dry_run:
        steps = list(plan.preview_append(plan_file))
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
    done = plan.append(one.decision_id, guidance, plan_file=plan_file)
    reply = plan_reply(ws, plan)
    about = {
        "correction_id": done.correction_id,
        "decision_id": one.decision_id,
        "mode": str(done.mode),
        "guidance": done.guidance,
        "child_plan_id": done.child_plan_id,
        "dry_run": False,
    }
    return msgspec.structs.replace(reply, data={**reply.data, **about})


def _would(outlook: "Outlook", guidance: str) -> Reply:
    data = {**_data(outlook), "dry_run": True, "mode": "revert", "guidance": guidance}
    return Reply(data=data, blocks=(*_blocks(outlook), *outside_blocks(outlook.effects)))


def _data(outlook: "Outlook") -> dict[str, Any]:
    return {
        "plan_id": outlook.plan_id,
        "decision_id": outlook.decision_id,
        "superseded": msgspec.to_builtins(outlook.superseded),
        "kept": list(outlook.kept),
        "steps_again": list(outlook.steps),
        "child_plans_cancelled": list(outlook.children),
        "from_group": outlook.group_id,
        "changes": [rollback_data.change_data(change) for change in outlook.changes],
        "effects": rollback_data.outlook_data(outlook.effects),
    }


def _blocks(outlook: "Outlook", done: bool = False) -> tuple[Block, ...]:
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
                for item in map(rollback_data.change_data, outlook.changes)
            ),
            "Files rolled back" if done else "Files to roll back",
        ),
        Panel(
            "Correction",
            (
                ("decisions kept", str(len(outlook.kept))),
                ("child plans cancelled", ", ".join(outlook.children) or "none"),
                ("steps run" if done else "steps to run", ", ".join(outlook.steps) or "none"),
            ),
        ),
    )
