"""Commands for what comes after the work: export, revert-applied."""

import base64
import os
import sys
from typing import Any

import click
import msgspec

from cleveragents.cli.common import Options, command, found, require_web
from cleveragents.cli.options import plan_argument, resource_option
from cleveragents.cli.plan.run import plan_reply
from cleveragents.cli.render import Reply, Table, Text, safe
from cleveragents.errors import NotAllowed, UsageError
from cleveragents.model.units import plural
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace


@command("plan revert-applied")
@plan_argument
def revert_applied(ws: Workspace, options: Options, plan: str) -> Reply:
    """Create a plan that reverts what an applied plan did; review it, then apply it."""
    one, notes = found(ws, plan)
    left = one.preview_revert()
    made = one.revert_applied()
    reply = plan_reply(ws, made, notes=(*notes, *left))
    data = {**reply.data, "reverts": one.plan_id, "left_alone": list(left)}
    return msgspec.structs.replace(reply, data=data)


@command("plan export")
@plan_argument
@click.option("--branch", metavar="NAME", help="Export commits on a new branch of the repository.")
@click.option(
    "--patch",
    is_flag=False,
    flag_value="-",
    metavar="[DIR|-]",
    help="Export patches: files in DIR, or all on stdout.",
)
@resource_option(help="Choose the resource, if the plan has several.")
@click.option("--force", is_flag=True, help="Replace the branch or the files if they exist.")
def export(
    ws: Workspace,
    options: Options,
    plan: str,
    branch: str | None,
    patch: str | None,
    on: str | None,
    force: bool,
) -> Reply:
    """Export the checkpoints that led here as commits or as patches, one for each group."""
    if (branch is None) == (patch is None):
        raise UsageError(
            "choose one: --branch NAME or --patch [DIR|-]", "agents plan export --help"
        )
    one, notes = found(ws, plan)
    if branch is not None:
        return _branch(one, branch, on, force, notes)
    return _patches(options, one, patch or "-", on, force, notes)


@command("plan report")
@plan_argument
@click.option("--html", metavar="FILE", help="Write one self-contained page.")
@click.option(
    "--markdown",
    is_flag=False,
    flag_value="-",
    metavar="[FILE|-]",
    help="Write the text of a pull request: to FILE, or to stdout.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def report(
    ws: Workspace, options: Options, plan: str, html: str | None, markdown: str | None, force: bool
) -> Reply:
    """Write what a plan decided and changed as one page, or as the text of a pull request."""
    if (html is None) == (markdown is None):
        raise UsageError("choose one: --html FILE or --markdown [FILE|-]", "agents plan report -h")
    require_web("agents plan report")
    from cleveragents.web.report import html_report, markdown_report

    one, notes = found(ws, plan)
    path = html or markdown or "-"
    if path != "-" and os.path.isdir(path):
        raise UsageError(
            f"{path} is a directory",
            f"name a file: {os.path.join(path, 'plan')}.{'html' if html else 'md'}",
        )
    if path != "-" and os.path.lexists(path) and not force:
        raise NotAllowed(f"{path} already exists", "choose another file, or --force")
    if path != "-" and not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise UsageError(f"no such directory: {folder}", "choose another place")
    text = markdown_report(ws, one) if html is None else html_report(ws, one)
    data = {"plan_id": one.plan_id, "form": "markdown" if html is None else "html", "path": path}
    if path == "-":
        block = Text(text.rstrip("\n"), verbatim=True)
        return Reply(data={**data, "text": text}, blocks=(block,), messages=notes)
    with open(path, "w", encoding="utf-8") as target:
        target.write(text)
    return Reply(data=data, blocks=(Text(f"wrote {path}"),), messages=notes)


def _branch(
    plan: PlanHandle, branch: str, on: str | None, force: bool, notes: tuple[str, ...]
) -> Reply:
    done = plan.export_branch(branch, on=on, force=force)
    rows = tuple((c.commit[:12], c.type, str(c.files), c.subject) for c in done.commits)
    words = f"branch {branch}: {plural(len(done.commits), 'commit')} on {done.base[:12]}"
    return Reply(
        data=msgspec.to_builtins(done),
        blocks=(Table(("commit", "type", "files", "decision"), rows), Text(words)),
        messages=notes,
    )


def _patches(
    options: Options,
    plan: PlanHandle,
    folder: str,
    on: str | None,
    force: bool,
    notes: tuple[str, ...],
) -> Reply:
    to_stdout = folder == "-"
    if to_stdout:
        patches = [(patch, None) for patch in plan.export_patches(on=on)]
        if len({patch.resource for patch, _ in patches}) > 1:
            names = ", ".join(sorted({patch.resource for patch, _ in patches}))
            raise UsageError(f"patches of {names} cannot be mixed", "--on RESOURCE, or --patch DIR")
    else:
        patches = plan.write_patches(folder, on=on, force=force)
    listed: list[dict[str, Any]] = [
        {
            "resource": item.resource,
            "group_id": item.group_id,
            "decision_id": item.decision_id,
            "subject": item.subject,
            "files": item.files,
            "path": path,
            **(_text(item.text) if to_stdout else {}),
        }
        for item, path in patches
    ]
    data = {"plan_id": plan.plan_id, "patches": listed}
    if to_stdout and options.form in ("rich", "plain"):
        for item, _ in patches:
            # A terminal does not need every byte.
            text = item.text
            if sys.stdout.isatty():
                text = safe(text.decode("utf-8", "backslashreplace")).encode()
            sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return Reply(data=data, messages=notes)
    rows = tuple((str(item["files"]), item["path"] or "", item["subject"]) for item in listed)
    return Reply(data=data, blocks=(Table(("files", "patch", "decision"), rows),), messages=notes)


def _text(patch: bytes) -> dict[str, str]:
    """The patch as text, or as bytes if text would not be the same."""
    try:
        return {"patch": patch.decode("utf-8")}
    except UnicodeDecodeError:
        return {
            "patch": patch.decode("utf-8", "backslashreplace"),
            "patch_b64": base64.b64encode(patch).decode("ascii"),
        }
