"""Commands that begin a plan or continue it: use, run, execute, resume."""

from shlex import quote

import click
import msgspec

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command
from cleveragents.cli.options import dry_option, loss_option, repeat_option
from cleveragents.cli.plan_read import found, status_blocks
from cleveragents.cli.render import Panel, Reply, Text
from cleveragents.context import Context
from cleveragents.model.plan import Phase, Plan, State
from cleveragents.model.tool import Attach
from cleveragents.model.units import plural
from cleveragents.workspace import Workspace

OWN_FAILURE = 125
"""Of `agents run`, as of `env`: what is none of the command's own exit codes."""


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
                options.confirm(f"repeat this? {shown(effect)}", "")
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
        notes = (*notes, "all steps are already done: nothing was run")
    if done.reconciled is not Reconciled.NOTHING:
        noun, what = {
            Reconciled.ADOPTED: ("manual edit", "adopted"),
            Reconciled.DISCARDED: ("manual edit", "discarded, kept in a pre_rollback group"),
            Reconciled.RESIDUE: ("change", "of an interrupted step rolled back, kept in a group"),
        }[done.reconciled]
        notes = (*notes, f"{plural(len(done.changes), noun)} {what}")
    return plan_reply(ctx, plan.plan_id, resumed_from=done.resumed_from, notes=notes)
