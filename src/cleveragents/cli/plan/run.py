"""Commands that begin a plan or continue it: use, run, execute, resume."""

from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cleveragents.cli import data as reports
from cleveragents.cli import rollback_data
from cleveragents.cli.common import Options, command, found
from cleveragents.cli.conversation import resumed
from cleveragents.cli.options import (
    Consent,
    consent_options,
    plan_argument,
    repeat_option,
    stream_option,
)
from cleveragents.cli.plan.read_data import last_lines
from cleveragents.cli.plan.status import status_blocks
from cleveragents.cli.render import Panel, Reply, Text
from cleveragents.errors import UsageError
from cleveragents.lookup import short_group, typed_plan
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.plan import Phase, Plan, State
from cleveragents.model.plan_spec import OBSERVED
from cleveragents.model.resource import IN_PLACE
from cleveragents.model.tool import Attach
from cleveragents.model.units import plural
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.execution.reconcile import Resumption

OWN_FAILURE = 125
"""Of `agents run`, as of `env`: what is none of the command's own exit codes."""


def plan_reply(
    ws: Workspace,
    handle: PlanHandle,
    *,
    resumed_from: str | None = None,
    notes: tuple[str, ...] = (),
) -> Reply:
    """The plan's status after a verb; exit code 5 if it failed."""
    plan = handle.plan
    data = reports.plan_data(ws.ctx, plan, resumed_from)
    failed = plan.state is State.ERRORED and plan.error is not None
    if failed:
        data["error"] = reports.error_data(plan)
    blocks = list(status_blocks(ws, plan, reports.status_data(ws.ctx, plan))[:2])
    if plan.state is State.COMPLETE:
        name = quote(typed_plan(ws.ctx.store, plan))
        in_place = all(one.get("strategy") == IN_PLACE for one in plan.spec["resources"])
        then = "undo" if in_place else "apply"  # in place nothing waits to be applied
        blocks.append(Text(f"next: agents plan diff {name}, agents plan {then} {name}"))
    elif plan.state is State.QUEUED and plan.spec["actor"]["kind"] != OBSERVED:
        blocks.append(Text(f"next: agents plan execute {plan.plan_id}"))
    messages = (plan.error.message,) if failed and plan.error else ()
    return Reply(
        data=data,
        blocks=tuple(blocks),
        messages=(*notes, *messages),
        exit_code=5 if failed else 0,
        said=last_lines(ws.ctx, plan) if failed else (),
    )


@command("plan use")
@click.argument("file", type=click.Path())
def use(ws: Workspace, options: Options, file: str) -> Reply:
    """Register a plan file without running it."""
    return plan_reply(ws, ws.use(file))


@command("plan run")
@click.argument("file", type=click.Path())
@stream_option
def run(ws: Workspace, options: Options, file: str) -> Reply:
    """Register a plan file and execute it."""
    return plan_reply(ws, ws.run(file))


@command(
    "run",
    own_failure=OWN_FAILURE,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--on", "path", default=".", type=click.Path(), help="Sandbox this repository or directory."
)
@click.option("--name", help="Name the plan; default: the command's name.")
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME=PATH",
    help="Cover this database or directory too; for agents.",
)
@click.option(
    "--env", "variables", multiple=True, metavar="NAME", help="Pass this variable on; for agents."
)
@click.option("--plan", help="Continue in the sandboxes of this plan; for agents.")
@click.argument("argv", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
def run_command(
    ws: Workspace,
    options: Options,
    path: str,
    name: str | None,
    resources: tuple[str, ...],
    variables: tuple[str, ...],
    plan: str | None,
    argv: tuple[str, ...],
) -> Reply:
    """Run a command in a sandbox of the current directory, as a plan of one step.

    It has your terminal, your input and your output, and its exit code is returned; 125 is an
    internal error, 126 a command that cannot be run, 127 one that does not exist. An agent that is
    known (claude, codex, gemini, opencode, qwen, copilot) is followed call by call.
    """
    from cleveragents.integrations.agent import COMMANDS, agent_of_command

    if (agent := agent_of_command(argv)) is not None:
        from cleveragents.cli.agent_run import named_paths, run_known
        from cleveragents.integrations.launch import AgentRequest

        request = AgentRequest(
            argv=argv,
            path=path,
            name=name,
            resources=named_paths(resources),
            variables=variables,
            attach=Attach.ALL if options.form in ("rich", "plain") else Attach.INPUT,
            plan=found(ws, plan)[0] if plan else None,
        )
        reply, ended = run_known(ws, options, agent, request)
        return msgspec.structs.replace(reply, exit_code=_passed_on(ended, False), on_stderr=True)
    if resources or variables or plan:
        told = "--resource, --env and --plan are for agents"
        raise UsageError(told, f"known: {', '.join(COMMANDS)}")
    attach = Attach.ALL if options.form in ("rich", "plain") else Attach.INPUT

    def tell(event: str, data: dict[str, Any]) -> None:
        # The user knows that the command begins, and sees its output.
        ws.ctx.talk.tell("made" if event in ("step", "output") else event, data)

    talk = msgspec.structs.replace(ws.ctx.talk, attach=attach, tell=tell)
    attached = Workspace(msgspec.structs.replace(ws.ctx, talk=talk))
    made = attached.run_command(argv, path, name=name)
    reply = plan_reply(ws, made)
    points = sum(one.checkpoint_type is CheckpointType.ON_QUIET for one in made.checkpoints())
    if points:
        where = f"agents plan checkpoints {quote(typed_plan(ws.ctx.store, made.plan))}"
        said = f"{plural(points, 'point')} to roll back to from while it ran: {where}"
        reply = msgspec.structs.replace(reply, blocks=(*reply.blocks, Text(said)))
    calls = made.tool_calls()
    code = calls[-1].exit_code if calls else None
    data = {**reply.data, "output": calls[-1].output if calls else "", "exit_code": code}
    return msgspec.structs.replace(
        reply, data=data, exit_code=_passed_on(code, reply.exit_code != 0), on_stderr=True, said=()
    )


def _passed_on(code: int | None, failed: bool) -> int:
    """The command's exit code as a shell gives it, or ours if that would not say enough."""
    if code is None or (failed and code == 0):
        return OWN_FAILURE
    return shell_code(code)


def shell_code(code: int) -> int:
    """The exit code as a shell gives it: 128 + n for a process ended by signal n."""
    return code if code >= 0 else 128 - code


@command("plan execute")
@plan_argument
@repeat_option
@stream_option
def execute(ws: Workspace, options: Options, plan: str, repeat: tuple[str, ...]) -> Reply:
    """Execute a plan, or continue it."""
    one, notes = found(ws, plan)
    before = one.plan
    done = one.execute(repeat=_confirmed(options, one, repeat))
    return _continued(ws, before, done, notes)


@command("plan resume")
@plan_argument
@click.option("--plan-file", type=click.Path(), help="Continue with this changed plan file.")
@click.option(
    "--discard-edits", is_flag=True, help="Discard manual edits instead of adopting them."
)
@repeat_option
@stream_option
@consent_options("accept_loss", "dry_run")
def resume(
    ws: Workspace,
    options: Options,
    plan: str,
    plan_file: str | None,
    discard_edits: bool,
    repeat: tuple[str, ...],
    consent: Consent,
) -> Reply:
    """Continue with the first step that is not done; manual edits are adopted.

    With --plan-file what is done and unchanged stays done; a changed step that was done is
    corrected, with everything that depends on it.
    """
    if ws.ctx.store.is_shared:
        from cleveragents.cluster.children import handing_out

        ws = Workspace(handing_out(ws.ctx), ws.recovered)
    one, notes = found(ws, plan)
    before = one.plan
    if (agent := resumed(ws, options, one)) is not None:
        return agent
    if consent.dry_run:
        return _would_resume(ws, before, one.preview_resume(discard_edits=discard_edits), notes)
    done = one.resume(
        discard_edits=discard_edits,
        plan_file=plan_file or None,
        repeat=_confirmed(options, one, repeat),
        accept_loss=consent.accept_loss,
    )
    return _continued(ws, before, done, notes, revised=bool(plan_file))


def _from(ws: Workspace, plan: Plan, done: "Resumption") -> str:
    """The step it continued from, as in lists; "" if nothing was done before, or is left."""
    if done.resumed_from is None or done.from_group is None:
        return ""
    return short_group(ws.ctx.store, plan.plan_id, done.from_group)


def _would_resume(ws: Workspace, plan: Plan, todo: "Resumption", notes: tuple[str, ...]) -> Reply:
    from cleveragents.checkpoints.effects import shown

    rows = (
        ("from", _from(ws, plan, todo) or "the beginning"),
        ("differences", f"{len(todo.changes)} ({todo.reconciled})"),
        ("next step", todo.next_step or _nothing_waits(plan)),
        *(("compensated first", shown(effect)) for effect in todo.compensable),
        *(("asks before it repeats", shown(effect)) for effect in todo.in_doubt),
    )
    data = {
        "plan_id": plan.plan_id,
        "dry_run": True,
        "resumed_from": todo.resumed_from,
        "settled": str(todo.reconciled),
        "changes": [rollback_data.change_data(change) for change in todo.changes],
        "next_step": todo.next_step,
        "compensated": [rollback_data.effect_data(effect) for effect in todo.compensable],
        "in_doubt": [rollback_data.effect_data(effect) for effect in todo.in_doubt],
    }
    return Reply(data=data, blocks=(Panel("Would resume", rows),), messages=notes)


def _nothing_waits(plan: Plan) -> str:
    finished = (plan.phase, plan.state) == (Phase.EXECUTE, State.COMPLETE)
    if not finished and plan.spec["actor"]["kind"] not in ("steps", "caller"):
        return "what the actor asks for"
    return "none: all steps are done"


def _confirmed(options: Options, plan: PlanHandle, repeat: tuple[str, ...]) -> tuple[str, ...]:
    """The steps that may be repeated: named ones, and those the user confirms."""
    from cleveragents.checkpoints.effects import shown

    for effect in plan.in_doubt() if options.interactive else ():
        if effect.step_id not in repeat:
            options.confirm(f"repeat this? {shown(effect)}", "")
            repeat = (*repeat, effect.step_id)
    return repeat


def _continued(
    ws: Workspace,
    plan: Plan,
    done: "Resumption",
    notes: tuple[str, ...],
    revised: bool = False,
) -> Reply:
    from cleveragents.execution.reconcile import Reconciled

    if short := _from(ws, plan, done):
        notes = (*notes, f"resumed from checkpoint {short}")
    elif plan.state is State.COMPLETE and not revised:
        notes = (*notes, "all steps are already done: nothing was run")
    if done.reconciled is not Reconciled.NOTHING:
        noun, what = {
            Reconciled.ADOPTED: ("manual edit", "adopted"),
            Reconciled.DISCARDED: ("manual edit", "discarded, kept in a pre_rollback group"),
            Reconciled.RESIDUE: ("change", "of an interrupted step rolled back, kept in a group"),
        }[done.reconciled]
        notes = (*notes, f"{plural(len(done.changes), noun)} {what}")
    handle = PlanHandle(ws.ctx, plan.plan_id)
    return plan_reply(ws, handle, resumed_from=done.resumed_from, notes=notes)
