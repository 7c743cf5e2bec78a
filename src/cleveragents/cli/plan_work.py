"""Commands that change a plan: each parses, calls one verb, and renders what it returned."""

from shlex import quote
from typing import Any

import click
import msgspec

from cleveragents.cli import data as reports
from cleveragents.cli import quick
from cleveragents.cli.common import Options, command
from cleveragents.cli.plan_effects import not_compensated, outside_blocks, outside_text
from cleveragents.cli.plan_read import found, status_blocks
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.context import Context
from cleveragents.lookup import find_group
from cleveragents.model.checkpoint import CheckpointGroup, RollbackResult
from cleveragents.model.plan import Phase, Plan, State
from cleveragents.model.tool import Attach
from cleveragents.workspace import Workspace

OWN_FAILURE = 125
"""Of `agents run`, as of `env`: what is none of the command's own exit codes."""

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
loss_option = click.option(
    "--accept-loss", is_flag=True, help="Roll back even past effects that cannot be undone."
)
repeat_option = click.option(
    "--repeat",
    multiple=True,
    metavar="STEP",
    help="Repeat this step even if its effects outside the sandboxes may have happened.",
)
dry_option = click.option(
    "--dry-run", is_flag=True, help="Show what would happen and change nothing."
)


def plan_reply(
    ctx: Context, plan_id: str, *, resumed_from: str | None = None, notes: tuple[str, ...] = ()
) -> Reply:
    """How the plan stands after a verb; exit code 5 if it failed."""
    plan = ctx.store.plans.get(plan_id)
    data = reports.plan_data(ctx, plan, resumed_from)
    failed = plan.state is State.ERRORED and plan.error is not None
    if failed:
        data["error"] = reports.error_data(plan)
    blocks = list(status_blocks(reports.status_data(ctx, plan))[:2])
    if plan.state is State.COMPLETE:
        name = quote(plan.name)
        blocks.append(Text(f"next: agents plan diff {name}, agents plan apply {name}"))
    elif plan.state is State.QUEUED:
        blocks.append(Text(f"next: agents plan execute {plan.plan_id}"))
    messages = (plan.error.message,) if failed and plan.error else ()
    return Reply(
        data=data,
        blocks=tuple(blocks),
        messages=(*notes, *messages) if not failed else notes,
        exit_code=5 if failed else 0,
    )


def take_in(ctx: Context, file: str) -> str:
    return Workspace(ctx).use(file).plan_id


@command("plan use")
@click.argument("file")
def use(ctx: Context, options: Options, file: str) -> Reply:
    """Register a plan file without running it."""
    return plan_reply(ctx, take_in(ctx, file))


@command("plan run")
@click.argument("file")
def run(ctx: Context, options: Options, file: str) -> Reply:
    """Register a plan file and execute it."""
    from cleveragents.execution.run import execute_plan

    plan_id = take_in(ctx, file)
    execute_plan(ctx, plan_id, verb="plan run")
    return plan_reply(ctx, plan_id)


@command(
    "run",
    own_failure=OWN_FAILURE,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--on", "path", default=".", help="Sandbox this repository or directory.")
@click.option("--name", help="Name the plan; default: the command's name.")
@click.argument("argv", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
def run_command(
    ctx: Context, options: Options, path: str, name: str | None, argv: tuple[str, ...]
) -> Reply:
    """Run a command in a sandbox of the current directory, as a plan of one step.

    It has your terminal, your input and your output, and its exit code is returned; 125 is an
    internal error, 126 a command that cannot be run, 127 one that does not exist.
    """
    from cleveragents.execution.one_shot import one_step_plan
    from cleveragents.execution.run import execute_plan

    attach = Attach.ALL if options.form in ("rich", "plain") else Attach.INPUT
    ctx = msgspec.structs.replace(ctx, talk=msgspec.structs.replace(ctx.talk, attach=attach))
    spec = one_step_plan(path, argv, name)
    folder = spec.resources[0].path
    plan = Workspace(ctx).use_spec(spec, source="agents run", folder=folder)
    execute_plan(ctx, plan.plan_id, verb="run")
    reply = plan_reply(ctx, plan.plan_id)
    calls = ctx.store.calls.of_plan(plan.plan_id)
    code = calls[-1].exit_code if calls else None
    data = {**reply.data, "output": calls[-1].output if calls else "", "exit_code": code}
    return msgspec.structs.replace(
        reply, data=data, exit_code=_passed_on(code, reply.exit_code != 0), on_stderr=True
    )


def _passed_on(code: int | None, failed: bool) -> int:
    """The exit code of the command as a shell has it, or ours if there is none that says enough."""
    if code is None or (failed and code == 0):
        return OWN_FAILURE
    return code if code >= 0 else 128 - code


@command("plan execute")
@click.argument("plan")
@repeat_option
def execute(ctx: Context, options: Options, plan: str, repeat: tuple[str, ...]) -> Reply:
    """Execute a plan, or continue it."""
    return _go_on(ctx, options, plan, "plan execute", False, repeat)


@command("plan resume")
@click.argument("plan")
@click.option("--plan-file", help="Continue with this changed plan file.")
@click.option(
    "--discard-edits", is_flag=True, help="Discard manual edits instead of adopting them."
)
@repeat_option
@loss_option
@dry_option
def resume(
    ctx: Context,
    options: Options,
    plan: str,
    plan_file: str | None,
    discard_edits: bool,
    repeat: tuple[str, ...],
    accept_loss: bool,
    dry_run: bool,
) -> Reply:
    """Continue with the first step that is not done; manual edits are adopted.

    With --plan-file what is done and unchanged stays done; a changed step that was done is
    corrected, with everything that depends on it.
    """
    if not dry_run:
        return _go_on(
            ctx, options, plan, "plan resume", discard_edits, repeat, plan_file, accept_loss
        )
    from cleveragents.checkpoints.effects import (
        shown,
    )
    from cleveragents.execution.run import preview_resume

    one, notes = found(ctx, plan)
    todo = preview_resume(ctx, one, discard_edits)
    rows = (
        ("from", todo.resumed_from or "the beginning"),
        ("differences", f"{len(todo.changes)} ({todo.reconciled})"),
        ("next step", todo.next_step or _nothing_waits(one)),
        *(("compensated first", shown(effect)) for effect in todo.compensable),
        *(("asks before it repeats", shown(effect)) for effect in todo.in_doubt),
    )
    data = {
        "plan_id": one.plan_id,
        "dry_run": True,
        "resumed_from": todo.resumed_from,
        "settled": str(todo.reconciled),
        "changes": [reports.change_data(change) for change in todo.changes],
        "next_step": todo.next_step,
        "compensated": [reports.effect_data(effect) for effect in todo.compensable],
        "in_doubt": [reports.effect_data(effect) for effect in todo.in_doubt],
    }
    return Reply(data=data, blocks=(Panel("Would resume", rows),), messages=notes)


def _nothing_waits(plan: Plan) -> str:
    finished = (plan.phase, plan.state) == (Phase.EXECUTE, State.COMPLETE)
    if not finished and plan.spec["actor"]["kind"] not in ("steps", "caller"):
        return "what the actor asks for"
    return "none: all steps are done"


def _go_on(
    ctx: Context,
    options: Options,
    text: str,
    verb: str,
    discard_edits: bool,
    repeat: tuple[str, ...],
    plan_file: str | None = None,
    accept_loss: bool = False,
) -> Reply:
    from cleveragents.checkpoints.effects import (
        doubtful,
        shown,
    )
    from cleveragents.execution.run import Reconciled, execute_plan
    from cleveragents.execution.use import read_plan
    from cleveragents.history.revise import resume_with

    plan, notes = found(ctx, text)
    if options.interactive:
        for effect in doubtful(ctx.store, plan):
            if effect.step_id not in repeat:
                options.confirm(f"do this a second time? {shown(effect)}", "")
                repeat = (*repeat, effect.step_id)
    if plan_file:
        done = resume_with(
            ctx,
            plan.plan_id,
            read_plan(ctx, plan_file),
            discard_edits=discard_edits,
            repeat=repeat,
            accept_loss=accept_loss,
        )
    else:
        done = execute_plan(
            ctx, plan.plan_id, verb=verb, discard_edits=discard_edits, repeat=repeat
        )
    if done.resumed_from:
        notes = (*notes, f"resumed from checkpoint {done.resumed_from}")
    elif plan.state is State.COMPLETE and not plan_file:
        notes = (*notes, "all steps were done already: nothing was run")
    if done.reconciled is not Reconciled.NOTHING:
        what = {
            Reconciled.ADOPTED: "edits by hand were adopted",
            Reconciled.DISCARDED: "edits by hand were taken back, kept in a pre_rollback group",
            Reconciled.RESIDUE: "changes of a step that died were taken back, kept in a group",
        }[done.reconciled]
        notes = (*notes, f"{len(done.changes)} {what}")
    return plan_reply(ctx, plan.plan_id, resumed_from=done.resumed_from, notes=notes)


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
            f"{outside_text(todo.effects)}take back {len(todo.changes)} changes, "
            f"{todo.decisions_after} decisions and {todo.tool_calls_after} tool calls?",
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
            f"take back {len(todo.changes)} changes, and leave the plan as it is?",
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
    words = (
        ("files_reverted", "files", "file"),
        ("directories_reverted", "directories", "directory"),
        ("git_internals_reverted", "paths in .git", "path in .git"),
    )
    counts = [(summary[key], one if summary[key] == 1 else many) for key, many, one in words]
    told = [f"{count} {word}" for count, word in (counts[0], *(c for c in counts[1:] if c[0]))]
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
            f"{word}: {done.operation}; {len(done.result.changes)} changes; "
            f"the plan is {after['phase']}/{after['state']}"
        ),
        *outside_blocks(done.result.effects),
    )
    reply = Reply(data=data, blocks=blocks, messages=notes)
    return not_compensated(reply, plan, done.result.effects)


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
        options.confirm(f"apply {count} changes?{warning}", f"agents plan apply {plan} --yes")
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
            blocks.append(Text(f"{item.resource}: {item.ignored_count} ignored paths left out"))
        if item.control_files:
            shown = ", ".join(item.control_files)
            blocks.append(Text(f"{item.resource}: control files: {shown}", "yellow"))
        blocks += [Text(f"conflict: {c.path}: {c.reason}", "red") for c in item.conflicts]
    return Reply(data=data, blocks=tuple(blocks), messages=notes)


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
            f"{count} changes were never applied; delete them?", f"agents plan delete {plan} --yes"
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
        f"{held['name']}, which held what {held['where']} held before the plan, was dropped"
        for held in dropped
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
