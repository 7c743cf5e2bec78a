"""`agents plan apply`."""

from typing import Any

import click
import msgspec

from cleveragents.cli.common import Options, command
from cleveragents.cli.options import dry_option, yes_option
from cleveragents.cli.plan_read import found
from cleveragents.cli.render import Block, Reply, Table, Text
from cleveragents.context import Context
from cleveragents.model.plan import Plan
from cleveragents.model.units import plural


@command("plan apply")
@click.argument("plan")
@click.option("--as", "mode", type=click.Choice(("commit", "changes", "branch")))
@click.option("--ignored", is_flag=True, help="Apply ignored files too.")
@click.option("--hooks", is_flag=True, help="Run the repository's hooks, as git commit does.")
@yes_option
@dry_option
def apply(
    ctx: Context,
    options: Options,
    plan: str,
    mode: str | None,
    ignored: bool,
    hooks: bool,
    yes: bool,
    dry_run: bool,
) -> Reply:
    """Apply the plan's work to its targets: every resource or none, exactly once."""
    from cleveragents.apply import apply as verb
    from cleveragents.apply.database_backups import left_behind, replaced_by, told_after_apply

    one, notes = found(ctx, plan)
    request = verb.Request(mode=mode, ignored=ignored, hooks=hooks)
    if one.result is None and (dry_run or not yes):
        proposals = verb.preview_apply(ctx, one, request)
        lost = tuple(left_behind(held) for held in replaced_by(ctx, one, proposals))
        if dry_run:
            return _proposal_reply(one, proposals, (*notes, *lost))
        controls = [name for item in proposals for name in item.control_files]
        warning = f" It changes control files: {', '.join(controls)}." if controls else ""
        warning += "".join(f" Also, {text}." for text in lost)
        count = sum(len(item.files) for item in proposals)
        options.confirm(
            f"apply {plural(count, 'change')}?{warning}", f"agents plan apply {plan} --yes"
        )
    result = verb.apply(ctx, one, request)
    rows = tuple(
        (item["resource"], item["mode"], str(item["files"]), item["commit"] or "")
        for item in result["applied"]
    )
    blocks: tuple[Block, ...] = (
        Table(("resource", "as", "files", "commit"), rows),
        Text(f"applied at {result['applied_at']}"),
    )
    told = told_after_apply(ctx, ctx.store.plans.get(one.plan_id))
    lost = [note for item in result["applied"] for note in item.get("notes", ())]
    named = [
        f"{item['resource']}: control files were changed: {', '.join(item['control_files'])}"
        for item in result["applied"]
        if item.get("control_files")
    ]
    return Reply(data=result, blocks=blocks, messages=(*notes, *named, *lost, *told))


def _proposal_reply(plan: Plan, proposals: tuple[Any, ...], notes: tuple[str, ...]) -> Reply:
    data = {
        "plan_id": plan.plan_id,
        "dry_run": True,
        "would_apply": [
            {
                "resource": item.resource,
                "as": item.mode,
                "files": list(item.files),
                "merged": list(item.merged),
                "ignored": item.ignored_count,
                "control_files": list(item.control_files),
            }
            for item in proposals
        ],
        "conflicts": [msgspec.to_builtins(c) for item in proposals for c in item.conflicts],
    }
    rows = tuple((item.resource, item.mode, file) for item in proposals for file in item.files)
    blocks: list[Block] = [Table(("resource", "as", "file"), rows)]
    for item in proposals:
        if item.ignored_count:
            blocks.append(
                Text(f"{item.resource}: {plural(item.ignored_count, 'ignored path')} left out")
            )
        if item.control_files:
            shown = ", ".join(item.control_files)
            blocks.append(Text(f"{item.resource}: control files: {shown}", "yellow"))
        blocks += [Text(f"conflict: {c.path}: {c.reason}", "red") for c in item.conflicts]
    return Reply(data=data, blocks=tuple(blocks), messages=notes)
