"""Commands that end a plan, or drop what it holds: cancel, delete, prune."""

from shlex import quote

import click
import msgspec

from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import (
    dry_option,
    named_plan_argument,
    of_plan,
    plan_argument,
    yes_option,
)
from cleveragents.cli.plan.apply import ENDS_IN_PLACE
from cleveragents.cli.plan.run import plan_reply
from cleveragents.cli.render import Reply, Table, Text
from cleveragents.cli.upkeep import backups_dropped
from cleveragents.model.units import plural
from cleveragents.workspace import Workspace


@command("plan cancel")
@named_plan_argument
@yes_option
def cancel(ws: Workspace, options: Options, plan: str, yes: bool) -> Reply:
    """End a plan without applying it; its sandbox and checkpoints stay."""
    one, notes = found(ws, plan)
    resources = ws.ctx.store.resources.of_plan(one.plan_id)
    if not yes and not one.plan.is_final and any(item.is_in_place for item in resources):
        question = of_plan(one.plan.name, notes, f"end the plan? Its{ENDS_IN_PLACE}")
        options.confirm(question, f"agents plan cancel {quote(plan)} --yes")
    if ws.ctx.store.is_shared:
        from cleveragents.cluster.submit import withdraw

        withdraw(ws.ctx, one.plan_id)
    one.cancel()
    return plan_reply(ws, one, notes=notes)


@command("plan delete")
@named_plan_argument
@yes_option
def delete(ws: Workspace, options: Options, plan: str, yes: bool) -> Reply:
    """Delete a plan with its sandboxes and checkpoints; ask if work was never applied."""
    one, notes = found(ws, plan)
    name = one.plan.name
    if not yes and options.interactive and (count := one.unapplied()):
        options.confirm(
            f"{plural(count, 'change was', 'changes were')} never applied; delete the plan?",
            f"agents plan delete {quote(plan)} --yes",
        )
        yes = True
    dropped = [{**msgspec.to_builtins(held), "state": "gone"} for held in ws.backups(one)]
    lost = one.delete(force=yes)
    data = {
        "plan_id": one.plan_id,
        "name": name,
        "deleted": True,
        "unapplied_changes": lost,
        "databases": dropped,
    }
    notes += tuple(
        f"{held['name']}, the backup of {held['where']}, was dropped" for held in dropped
    )
    text = f"deleted {name} {one.plan_id}; agents gc frees the disk"
    return Reply(data=data, blocks=(Text(text),), messages=notes)


@command("plan prune")
@plan_argument
@click.option(
    "--databases", is_flag=True, help="Delete the database backups kept for revert-applied too."
)
@dry_option
def prune(ws: Workspace, options: Options, plan: str, databases: bool, dry_run: bool) -> Reply:
    """Delete checkpoint groups that the retention policy does not keep; say why for each."""
    one, notes = found(ws, plan)
    held, told = backups_dropped(ws, one, dry_run) if databases else ([], ())
    verdicts = one.preview_prune() if dry_run else one.prune()
    rows = tuple((v.group_id, "keep" if v.keep else "drop", v.reason) for v in verdicts)
    data = {
        "plan_id": one.plan_id,
        "dry_run": dry_run,
        "keep": [msgspec.to_builtins(v) for v in verdicts if v.keep],
        "drop": [msgspec.to_builtins(v) for v in verdicts if not v.keep],
        "databases": [msgspec.to_builtins(item) for item in held],
    }
    return Reply(data=data, blocks=(Table(("group", "", "why"), rows),), messages=(*notes, *told))
