"""Commands to look around in: a shell in the sandboxes, a checkpoint as files."""

import os

import click
import msgspec

from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import (
    CheckpointCommand,
    checkpoint_argument,
    first_argument,
    plan_argument,
    resource_option,
)
from cleveragents.cli.plan.run import OWN_FAILURE, shell_code
from cleveragents.cli.render import Reply, Table, Text
from cleveragents.errors import UsageError
from cleveragents.model.tool import Attach
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace


@command("plan shell", own_failure=OWN_FAILURE)
@plan_argument
@resource_option(help="Start in the sandbox of this resource.")
def shell(ws: Workspace, options: Options, plan: str, on: str | None) -> Reply:
    """Open a shell ($SHELL) in a plan's sandbox, confined as its tools are.

    What you change is one step of the plan, with a checkpoint after it; agents undo discards it.
    The shell's exit code is returned; 125 is a failure of agents itself.
    """
    one, notes = found(ws, plan)
    attach = Attach.ALL if options.form in ("rich", "plain") else Attach.INPUT
    talk = msgspec.structs.replace(ws.ctx.talk, attach=attach)
    attached = PlanHandle(msgspec.structs.replace(ws.ctx, talk=talk), one.plan_id)
    if options.interactive:  # under bubblewrap its folder is called as one's own is
        said = f"this shell is in the sandbox of plan {one.plan.name}; exit ends it"
        ws.ctx.talk.tell("remark", {"message": said})
    done = attached.shell(os.environ.get("SHELL") or "/bin/sh", on=on)
    said = f"step {done.step_id} has what you changed; agents undo discards it"
    text = Text(said if done.step_id else "nothing was changed")
    data = {
        "plan_id": one.plan_id,
        "step": done.step_id or None,
        "group_id": done.group_id or None,
        "exit_code": done.exit_code,
        "output": done.output,
    }
    code = shell_code(done.exit_code)
    return Reply(data=data, blocks=(text,), messages=notes, exit_code=code, on_stderr=True)


@command("plan open", cls=CheckpointCommand)
@first_argument
@checkpoint_argument
@click.argument("folder", default="", metavar="[DIR]", type=click.Path())
def open_checkpoint(
    ws: Workspace, options: Options, plan: str, checkpoint: str, folder: str
) -> Reply:
    """Write a checkpoint into DIR as files to look at, read-only; no sandbox is touched.

    Without DIR they go to a folder of the store, until the plan is deleted. Where PLAN is left out,
    DIR has to have a slash, as in ./DIR.
    """
    if not plan:
        raise UsageError("no checkpoint was named", "agents plan checkpoints")
    if not folder and ("/" in checkpoint or not checkpoint):
        plan, checkpoint, folder = "", plan, checkpoint
    one, notes = found(ws, plan)
    done = one.open(checkpoint, folder or None)
    rows = tuple((item.resource, str(item.files), item.path) for item in done.resources)
    blocks = (Table(("resource", "files", "where"), rows), Text(f"opened in {done.folder}"))
    return Reply(data=msgspec.to_builtins(done), blocks=blocks, messages=notes)
