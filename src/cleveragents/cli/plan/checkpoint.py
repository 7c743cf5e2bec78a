"""`plan checkpoint`: one group of a plan, made, shown, pinned, deleted."""

from shlex import quote
from typing import Any

import click

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import (
    CheckpointCommand,
    of_plan,
    plan_and_checkpoint,
    plan_argument,
    yes_option,
)
from cleveragents.cli.render import Panel, Reply, Text
from cleveragents.lookup import short_group
from cleveragents.model.units import plural, show_moment
from cleveragents.workspace import Workspace


@command("plan checkpoint create")
@plan_argument
@click.option("--label", help="Label the checkpoint; labelled groups are never pruned.")
def create(ws: Workspace, options: Options, plan: str, label: str | None) -> Reply:
    """Create a checkpoint group of the sandboxes as they are now."""
    one, notes = found(ws, plan)
    group = one.checkpoint(label)
    data = reports.group_data(ws.ctx, one.plan, group)
    own = next(row["checkpoint_id"] for row in data["checkpoints"] if row["own"])
    data["checkpoint_id"] = own
    text = f"checkpoint {short_group(ws.ctx.store, one.plan_id, group.group_id)}"
    return Reply(data=data, blocks=(Text(text),), messages=notes)


@command("plan checkpoint show", cls=CheckpointCommand)
@plan_and_checkpoint
def show(ws: Workspace, options: Options, plan: str, checkpoint: str) -> Reply:
    """Show a checkpoint and the group it belongs to."""
    one, notes = found(ws, plan)
    data = reports.group_data(ws.ctx, one.plan, one.group(checkpoint))
    rows = (
        ("group", data["group_id"]),
        ("type", _type(data)),
        ("label", data["label"] or "none"),
        ("made", show_moment(data["created_at"])),
        ("steps done", ", ".join(data["steps_done"]) or "none"),
        *((f"resource {row['resource']}", _member(row)) for row in data["checkpoints"]),
    )
    return Reply(data=data, blocks=(Panel("Checkpoint", rows),), messages=notes)


def _type(data: dict[str, Any]) -> str:
    found = ", ".join(data["triggers"])
    return data["type"] if found in ("", data["type"]) else f"{data['type']} (found by {found})"


def _member(row: dict[str, Any]) -> str:
    where = "" if row["own"] else " (of an earlier group)"
    contents = row["contents"].items()
    held = ", ".join(plural(number, what.removesuffix("s")) for what, number in contents)
    return ", ".join(filter(None, (held, row["state_hash"][:16], f"{row['checkpoint_id']}{where}")))


@command("plan checkpoint pin", cls=CheckpointCommand)
@plan_and_checkpoint
@click.option("--off", is_flag=True, help="Remove the pin.")
def pin(ws: Workspace, options: Options, plan: str, checkpoint: str, off: bool) -> Reply:
    """Keep a checkpoint group from being pruned."""
    one, notes = found(ws, plan)
    group = one.unpin(checkpoint) if off else one.pin(checkpoint)
    data = {"group_id": group.group_id, "pinned": not off}
    short = short_group(ws.ctx.store, one.plan_id, group.group_id)
    text = f"checkpoint {short} {'unpinned' if off else 'pinned'}"
    return Reply(data=data, blocks=(Text(text),), messages=notes)


@command("plan checkpoint delete", cls=CheckpointCommand)
@plan_and_checkpoint
@yes_option
def delete(ws: Workspace, options: Options, plan: str, checkpoint: str, yes: bool) -> Reply:
    """Delete a checkpoint group; the first, the current and reachable ones stay."""
    one, notes = found(ws, plan)
    group = one.group(checkpoint)
    short = short_group(ws.ctx.store, one.plan_id, group.group_id)
    if not yes:
        options.confirm(
            of_plan(one.plan.name, notes, f"delete checkpoint {short}?"),
            f"agents plan checkpoint delete {quote(plan or one.plan_id)} {quote(checkpoint)} --yes",
        )
    one.delete_checkpoint(group.group_id)
    data = {"group_id": group.group_id, "deleted": True}
    return Reply(data=data, blocks=(Text(f"checkpoint {short} deleted"),), messages=notes)
