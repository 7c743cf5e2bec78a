"""`agents plan apply`."""

from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import Consent, consent_options, of_plan, plan_argument
from cleveragents.cli.render import Block, Reply, Table, Text
from cleveragents.model.resource import IN_PLACE
from cleveragents.model.units import plural, show_when
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.workspace import Proposal


@command("plan apply")
@plan_argument
@click.option(
    "--as",
    "mode",
    type=click.Choice(("commit", "changes", "branch")),
    help="Commit, change the work tree only, or make a branch; default: commit where possible.",
)
@click.option("--ignored", is_flag=True, help="Apply ignored files too.")
@click.option("--hooks", is_flag=True, help="Run the repository's hooks, as git commit does.")
@consent_options("yes", "dry_run")
def apply(
    ws: Workspace,
    options: Options,
    plan: str,
    mode: str | None,
    ignored: bool,
    hooks: bool,
    consent: Consent,
) -> Reply:
    """Apply the plan's work to its targets: every resource or none, exactly once."""
    one, notes = found(ws, plan)

    def do() -> Reply:
        return _applied(ws, one, one.apply(mode, ignored=ignored, hooks=hooks), notes)

    if one.plan.result is not None:
        return do()
    if not consent.dry_run and (host := one.machine_that_applies()):
        if not consent.yes:
            asked = f"agents plan apply {quote(plan or one.plan_id)} --yes"
            question = f"apply it on {host}, which has the target?"
            options.confirm(of_plan(one.plan.name, notes, question), asked)
        return do()
    return consent.preview_ask_do(
        options,
        f"agents plan apply {quote(plan or one.plan_id)}",
        preview=lambda: one.preview_apply(mode, ignored=ignored, hooks=hooks),
        show=lambda todo: _proposal_reply(one, todo, (*notes, *dropped_backups(ws, one, todo))),
        question=lambda todo: of_plan(
            one.plan.name, notes, apply_question(todo, dropped_backups(ws, one, todo))
        ),
        do=do,
    )


def dropped_backups(
    ws: Workspace, plan: PlanHandle, proposals: "tuple[Proposal, ...]"
) -> tuple[str, ...]:
    """The database backups that would be dropped, in words."""
    from cleveragents.apply.database_backups import left_behind

    return tuple(left_behind(one) for one in ws.replaced_backups(plan, proposals))


def apply_question(
    proposals: "tuple[Proposal, ...]", dropped: tuple[str, ...], left_out: tuple[str, ...] = ()
) -> str:
    controls = [name for item in proposals for name in item.control_files]
    warning = f" It changes control files: {', '.join(controls)}." if controls else ""
    warning += "".join(f" Also, {text}." for text in dropped)
    if proposals and all(item.mode == IN_PLACE for item in proposals):
        return f"end the plan? Its{ENDS_IN_PLACE}"
    count = sum(len(item.files) for item in proposals)
    but = f", leave out {listed(left_out)}" if left_out else ""
    return f"apply {plural(count, 'change')}{but}?{warning}"


def listed(paths: tuple[str, ...]) -> str:
    """Some paths by name, many by their number."""
    return ", ".join(paths) if len(paths) <= FEW else plural(len(paths), "path")


FEW = 8
ENDS_IN_PLACE = (
    " work is in place already; once the plan is ended, nothing of it can be rolled back"
)


def _applied(
    ws: Workspace, plan: PlanHandle, result: dict[str, Any], notes: tuple[str, ...]
) -> Reply:
    from cleveragents.apply.database_backups import told_after_apply

    rows = tuple(
        (item["resource"], item["mode"], str(item["files"]), item["commit"] or "")
        for item in result["applied"]
    )
    blocks: tuple[Block, ...] = (
        Table(("resource", "as", "files", "commit"), rows),
        Text(f"applied {show_when(result['applied_at'])}"),
    )
    told = told_after_apply(ws.ctx, plan.plan)
    lost = [note for item in result["applied"] for note in item.get("notes", ())]
    named = [
        f"{item['resource']}: control files were changed: {', '.join(item['control_files'])}"
        for item in result["applied"]
        if item.get("control_files")
    ]
    return Reply(data=result, blocks=blocks, messages=(*notes, *named, *lost, *told))


def _proposal_reply(
    plan: PlanHandle, proposals: "tuple[Proposal, ...]", notes: tuple[str, ...]
) -> Reply:
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
                "notes": list(item.notes),
            }
            for item in proposals
        ],
        "conflicts": [msgspec.to_builtins(c) for item in proposals for c in item.conflicts],
    }
    rows = tuple((item.resource, item.mode, file) for item in proposals for file in item.files)
    ends = bool(proposals) and all(item.mode == IN_PLACE for item in proposals)
    blocks: list[Block] = [] if ends else [Table(("resource", "as", "file"), rows)]
    for item in proposals:
        if item.ignored_count:
            blocks.append(
                Text(f"{item.resource}: {plural(item.ignored_count, 'ignored path')} left out")
            )
        if item.control_files:
            shown = ", ".join(item.control_files)
            blocks.append(Text(f"{item.resource}: control files: {shown}", "yellow"))
        blocks += [Text(note, "yellow") for note in item.notes]
        if item.mode == IN_PLACE:
            blocks.append(Text(f"{item.resource}: its{ENDS_IN_PLACE}", "yellow"))
        blocks += [Text(f"conflict: {c.path}: {c.reason}", "red") for c in item.conflicts]
    return Reply(data=data, blocks=tuple(blocks), messages=notes)
