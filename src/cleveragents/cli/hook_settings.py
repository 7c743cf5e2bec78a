"""`agents hook install|uninstall|status`: our hooks in the settings of agents."""

import difflib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from cleveragents.cli.common import Options, command
from cleveragents.cli.render import Block, Reply, Table, Text
from cleveragents.errors import ConfigError
from cleveragents.integrations.agent import MODULES, SettingsChange, agent_named
from cleveragents.integrations.files.settings_files import MARK, write_change
from cleveragents.integrations.hook import hook_command
from cleveragents.model.units import plural, show_when
from cleveragents.workspace import Workspace, settings_here

if TYPE_CHECKING:
    from cleveragents.cli.options import Decorator

SCOPES = ("user", "project")
NEVER = "never"
UNENDED = "\n\\ No newline at end of file\n"
TRUST = "codex runs hooks only when they are trusted: see /hooks in codex"
"""What nobody but Codex knows, said where it matters."""

agent_argument: "Decorator" = click.argument("agent", type=click.Choice(tuple(MODULES)))
scope_option: "Decorator" = click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="user",
    help="Choose whose settings: yours (user, default) or this project's.",
)
dry_run_option: "Decorator" = click.option(
    "--dry-run", is_flag=True, help="Show the change and make none."
)


@command("hook install", context=False)
@agent_argument
@scope_option
@dry_run_option
def install(options: Options, agent: str, scope: str, dry_run: bool) -> Reply:
    """Add our hooks to an agent's settings; everything else in them stays as it is.

    From then on every session of the agent is followed by a plan that works in place.
    """
    hook = hook_command(settings_here(overrides=options.settings), agent)
    return _changed(agent, scope, _changes(agent, scope, hook), dry_run, "installed")


@command("hook uninstall", context=False)
@agent_argument
@scope_option
@dry_run_option
def uninstall(options: Options, agent: str, scope: str, dry_run: bool) -> Reply:
    """Remove our hooks from an agent's settings, and nothing else."""
    return _changed(agent, scope, _changes(agent, scope, None), dry_run, "removed")


def _changes(agent: str, scope: str, hook: Sequence[str] | None) -> tuple[SettingsChange, ...]:
    home, here = os.path.expanduser("~"), os.getcwd()
    return agent_named(agent).settings(scope, home, here, hook)


def _changed(
    agent: str, scope: str, changes: tuple[SettingsChange, ...], dry_run: bool, word: str
) -> Reply:
    files: list[dict[str, Any]] = []
    for change in changes:
        differs = change.before != change.after if dry_run else write_change(change)
        files.append({"path": change.path, "changed": differs, "remark": change.remark or None})
    made = sum(file["changed"] for file in files)
    told = f"{plural(made, 'file')} would change" if dry_run else f"hooks of {agent} {word}"
    lines: list[Block] = [Text(told if made else f"nothing to do: {agent} is as wanted")]
    lines += [Text(f"{file['path']}") for file in files if file["changed"]]
    if dry_run:
        lines += [Text(d, "patch", verbatim=True) for change in changes if (d := _diff(change))]
    remarks = tuple(change.remark for change in changes if change.remark)
    data = {"agent": agent, "scope": scope, "dry_run": dry_run, "files": files}
    return Reply(data=data, blocks=tuple(lines), messages=remarks)


def _diff(change: SettingsChange) -> str:
    """A patch for `patch -p1 -d /`."""
    sides = ("a", change.before), ("b", change.after)
    old, new = ("/dev/null" if content is None else f"{top}{change.path}" for top, content in sides)
    texts = ((content or b"").decode("utf-8", "replace") for _, content in sides)
    before, after = (re.findall("[^\n]*\n|[^\n]+", text) for text in texts)
    lines = difflib.unified_diff(before, after, old, new)
    return "".join(one if one[-1] == "\n" else f"{one}{UNENDED}" for one in lines)


@command("hook status")
@click.argument("agent", required=False, type=click.Choice(tuple(MODULES)))
def status(ws: Workspace, options: Options, agent: str | None) -> Reply:
    """Show for each agent where our hooks are and when it last called us."""
    rows = [_status(ws, name) for name in ([agent] if agent else MODULES)]
    remarks = tuple(row["remark"] for row in rows if row["remark"])
    return Reply(data={"agents": rows}, blocks=(_table(rows),), messages=remarks)


def installed_hooks(ws: Workspace) -> tuple[Block, ...]:
    """Rows on whether agents with our hooks really call them; none if no agent has them."""
    rows = [row for name in MODULES if (row := _status(ws, name))["installed"]]
    remarks = [Text(row["remark"], "yellow") for row in rows if row["remark"]]
    return (_table(rows), *remarks) if rows else ()


def _table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        ("agent", "installed", "last session", "plan"),
        tuple(
            (
                row["agent"],
                ", ".join(row["installed"]) or "no",
                show_when(row["last_session"]) if row["last_session"] else NEVER,
                row["plan"] or "",
            )
            for row in rows
        ),
        "Hooks",
    )


def _outdated(ws: Workspace, agent: str, scope: str) -> list[str]:
    """Whether installed hooks run something else than new ones: another Python, store or client."""
    today = _changes(agent, scope, hook_command(ws.ctx.settings, agent))
    if all(change.before == change.after for change in today):
        return []
    where = "" if scope == "user" else f" --scope {scope}"
    told = f"the hooks of {agent} run another installation, store or setting"
    return [f"{told}; agents hook install {agent}{where} renews them"]


def _status(ws: Workspace, agent: str) -> dict[str, Any]:
    installed: list[str] = []
    problems: list[str] = []
    for scope in SCOPES:
        try:
            changes = _changes(agent, scope, None)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if any(MARK.encode() in (change.before or b"") for change in changes):
            installed.append(scope)
            problems += _outdated(ws, agent, scope)
    last = ws.ctx.store.sessions.newest(agent)
    silent = bool(installed) and last is None
    if silent:
        never = f"{agent} has not called us yet: start a session"
        problems.append(TRUST if agent == "codex" else never)
    remark = "; ".join(problems)
    return {
        "agent": agent,
        "installed": installed,
        "last_session": last.created_at if last else None,
        "plan": last.plan_id if last else None,
        "remark": remark or None,
    }
