"""Commands that keep or drop what a plan holds: checkpoints, prune, cancel, delete."""

import click
import msgspec

from cleveragents.cli import quick
from cleveragents.cli.common import Options, command
from cleveragents.cli.options import dry_option, yes_option
from cleveragents.cli.plan_read import found
from cleveragents.cli.plan_run import plan_reply
from cleveragents.cli.render import Reply, Table, Text
from cleveragents.context import Context
from cleveragents.lookup import find_group
from cleveragents.model.units import plural


@command("plan cancel")
@click.argument("plan")
def cancel(ctx: Context, options: Options, plan: str) -> Reply:
    """End a plan without applying it; its sandbox and checkpoints stay."""
    from cleveragents.maintenance import delete as ending

    one, notes = found(ctx, plan)
    ending.cancel(ctx, one)
    return plan_reply(ctx, one.plan_id, notes=notes)


@command("plan delete")
@click.argument("plan")
@yes_option
def delete(ctx: Context, options: Options, plan: str, yes: bool) -> Reply:
    """Delete a plan with its sandboxes and checkpoints; ask if work was never applied."""
    from cleveragents.apply.database_backups import kept_of
    from cleveragents.maintenance import delete as ending

    one, notes = found(ctx, plan)
    if not yes and options.interactive and (count := ending.unapplied(ctx, one)):
        options.confirm(
            f"{plural(count, 'change was', 'changes were')} never applied; delete the plan?",
            f"agents plan delete {plan} --yes",
        )
        yes = True
    dropped = [{**msgspec.to_builtins(held), "state": "gone"} for held in kept_of(ctx, one)]
    lost = ending.delete(ctx, one, force=yes)
    data = {
        "plan_id": one.plan_id,
        "name": one.name,
        "deleted": True,
        "unapplied_changes": lost,
        "databases": dropped,
    }
    notes += tuple(
        f"{held['name']}, the backup of {held['where']}, was dropped" for held in dropped
    )
    text = f"deleted {one.name} {one.plan_id}; agents gc frees the disk"
    return Reply(data=data, blocks=(Text(text),), messages=notes)


@command("plan prune")
@click.argument("plan")
@click.option(
    "--databases", is_flag=True, help="Delete the database backups kept for revert-applied too."
)
@dry_option
def prune(ctx: Context, options: Options, plan: str, databases: bool, dry_run: bool) -> Reply:
    """Delete checkpoint groups that the retention policy does not keep; say why for each."""
    from cleveragents.apply.database_backups import kept_of, left_behind, let_go, told_of
    from cleveragents.history.checkpoints import preview_prune, prune_plan

    one, notes = found(ctx, plan)
    held = kept_of(ctx, one) if databases else []
    told = tuple(left_behind(item) for item in held)
    if not dry_run:
        held = [let_go(ctx, item, "agents plan prune --databases") for item in held]
        told = told_of(held)
    verdicts = (preview_prune if dry_run else prune_plan)(ctx, one)
    rows = tuple((v.group_id, "keep" if v.keep else "drop", v.reason) for v in verdicts)
    data = {
        "plan_id": one.plan_id,
        "dry_run": dry_run,
        "keep": [msgspec.to_builtins(v) for v in verdicts if v.keep],
        "drop": [msgspec.to_builtins(v) for v in verdicts if not v.keep],
        "databases": [msgspec.to_builtins(item) for item in held],
    }
    return Reply(data=data, blocks=(Table(("group", "", "why"), rows),), messages=(*notes, *told))


@command("plan checkpoint create")
@click.argument("plan")
@click.option("--label", help="Label the checkpoint; labelled groups are never pruned.")
def checkpoint_create(ctx: Context, options: Options, plan: str, label: str | None) -> Reply:
    """Create a checkpoint group of the sandboxes as they are now."""
    return quick.create(ctx, options, plan, label)


@command("plan checkpoint pin")
@click.argument("plan")
@click.argument("checkpoint")
@click.option("--off", is_flag=True, help="Remove the pin.")
def checkpoint_pin(ctx: Context, options: Options, plan: str, checkpoint: str, off: bool) -> Reply:
    """Keep a checkpoint group from being pruned."""
    one, notes = found(ctx, plan)
    group = find_group(ctx.store, one, checkpoint)
    with ctx.store.transaction():
        ctx.store.checkpoints.pin(group.group_id, not off)
    data = {"group_id": group.group_id, "pinned": not off}
    text = f"{'unpinned' if off else 'pinned'} {group.group_id}"
    return Reply(data=data, blocks=(Text(text),), messages=notes)


@command("plan checkpoint delete")
@click.argument("plan")
@click.argument("checkpoint")
@yes_option
def checkpoint_delete(
    ctx: Context, options: Options, plan: str, checkpoint: str, yes: bool
) -> Reply:
    """Delete a checkpoint group; the first, the current and reachable ones stay."""
    from cleveragents.history.checkpoints import delete_group

    one, notes = found(ctx, plan)
    group = find_group(ctx.store, one, checkpoint)
    if not yes:
        options.confirm(
            f"drop group {group.group_id}?",
            f"agents plan checkpoint delete {plan} {checkpoint} --yes",
        )
    delete_group(ctx, one, group)
    data = {"group_id": group.group_id, "deleted": True}
    return Reply(data=data, blocks=(Text(f"dropped {group.group_id}"),), messages=notes)
