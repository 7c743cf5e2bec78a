"""Commands for the store and the settings."""

import os
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from cleveragents.cli.common import Options, command
from cleveragents.cli.render import Block, Reply, Table, Text
from cleveragents.model.units import parse_duration, plural, show_bytes
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cleveragents.apply.database_backups import Held
    from cleveragents.cli.options import Decorator


@command("check")
@click.option("--read-data", is_flag=True, help="Read all content and compare it with its hash.")
def check(ws: Workspace, options: Options, read_data: bool) -> Reply:
    """Check the integrity of the store: its structure, and on request every byte."""
    result = ws.check(read_data=read_data)
    data = msgspec.to_builtins(result)
    blocks: list[Block] = [
        Text(
            f"{plural(result.plans, 'plan')}, {plural(result.checkpoints, 'checkpoint')},"
            f" {plural(result.objects, 'object')}"
            + (f", {show_bytes(result.bytes_read)} read" if read_data else "")
        )
    ]
    if result.problems:
        message = f"{plural(len(result.problems), 'problem')} found"
        hint = "restore from a backup" if result.damaged else "do what is said with each problem"
        data["error"] = {"type": "StoreError", "message": message, "hint": hint}
        blocks += [Text(problem, "red") for problem in result.problems]
        return Reply(data=data, blocks=tuple(blocks), messages=(message,), exit_code=6)
    return Reply(data=data, blocks=(*blocks, Text("no problem found")))


@command("gc")
@click.option("--dry-run", is_flag=True, help="Show what would happen and change nothing.")
@click.option("--grace", metavar="DURATION", help="Keep unused content this long, e.g. 0s or 2h.")
@click.option(
    "--databases", is_flag=True, help="Delete the database backups kept for revert-applied too."
)
def gc(ws: Workspace, options: Options, dry_run: bool, grace: str | None, databases: bool) -> Reply:
    """Free content that no plan refers to, once its grace period is over."""
    from cleveragents.errors import UsageError

    try:
        seconds = parse_duration(grace) if grace is not None else None
    except ValueError as error:
        raise UsageError(f"--grace: {error}", "agents gc --grace 1h") from error
    held, told = backups_dropped(ws, None, dry_run) if databases else ([], ())
    result = ws.gc(grace=seconds, dry_run=dry_run)
    word = "would be" if dry_run else "were"
    text = (
        f"{plural(result.live, 'object')} in use; {result.removed} {word} removed, "
        f"{show_bytes(result.freed_bytes)} {word} freed; "
        f"{result.waiting} waiting for the end of the grace period"
    )
    for count, what, done in (
        (result.plans_swept, "deleted plan", "removed from the bucket"),
        (result.put_back, "lost segment", "put back into the bucket"),
    ):
        if count:
            verb = "was" if count == 1 and not dry_run else word
            text += f"; {plural(count, what)} {verb} {done}"
    data = {**msgspec.to_builtins(result), "databases": [msgspec.to_builtins(one) for one in held]}
    return Reply(data=data, blocks=(Text(text),), messages=told)


def backups_dropped(
    ws: Workspace, plan: PlanHandle | None, dry_run: bool
) -> "tuple[list[Held], tuple[str, ...]]":
    """Drop the database backups, of one plan or of all, and say what that means."""
    from cleveragents.apply.database_backups import left_behind, told_of

    if dry_run:
        kept = ws.backups(plan)
        return kept, tuple(left_behind(one) for one in kept)
    dropped = ws.drop_backups(plan)
    return dropped, told_of(dropped)


@command("du")
def du(ws: Workspace, options: Options) -> Reply:
    """Show disk usage: per plan, and per part of the store."""
    result = ws.disk_usage()
    rows = tuple(
        (
            plan.name,
            plan.plan_id,
            show_bytes(plan.sandbox),
            show_bytes(plan.bytes),
            show_bytes(plan.alone),
            str(plan.groups),
        )
        for plan in sorted(result.plans, key=lambda plan: -plan.alone - plan.sandbox)
    )
    parts = tuple((part.name, show_bytes(part.bytes), part.path) for part in result.disk)
    total = show_bytes(sum(part.bytes for part in result.disk))
    blocks: tuple[Block, ...] = (
        Table(("plan", "id", "sandbox", "holds", "alone", "groups"), rows),
        Table(("part", "on disk", "where"), (*parts, ("total", total, ""))),
        Text(f"{show_bytes(result.packs)} content, {show_bytes(result.unused)} that no plan needs"),
        *kept_table(result.databases),
    )
    return Reply(data=msgspec.to_builtins(result), blocks=blocks)


def kept_table(found: "tuple[Held, ...]") -> tuple[Block, ...]:
    """A table of database backups from before an apply."""
    rows = tuple(
        (
            one.name,
            show_bytes(one.bytes) if one.state == "kept" else "is not there",
            one.where,
            one.plan_id,
        )
        for one in found
    )
    columns = ("database", "size", "is the backup of", "plan")
    return (Table(columns, rows, "Kept for agents plan revert-applied"),) if rows else ()


@command("config list", context=False)
def config_list(options: Options) -> Reply:
    """List all settings, their values, and where each comes from."""
    from cleveragents.config import explain

    values = explain(os.getcwd(), os.environ, options.settings)
    rows = tuple((v.key, _shown(v.value), v.source) for v in values)
    data = {"settings": [msgspec.to_builtins(v) for v in values]}
    return Reply(data=data, blocks=(Table(("key", "value", "from"), rows),))


def complete_key(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> "list[CompletionItem]":
    from cleveragents.cli.completion import settings_named

    return settings_named(begun)


def complete_value(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> "list[CompletionItem]":
    from cleveragents.cli.completion import values_of

    return values_of(context.params.get("key") or "", begun)


key_argument: "Decorator" = click.argument("key", shell_complete=complete_key)


@command("config get", context=False)
@key_argument
def config_get(options: Options, key: str) -> Reply:
    """Show a setting."""
    from cleveragents.config import explain
    from cleveragents.errors import ConfigError
    from cleveragents.model.settings import BY_NAME
    from cleveragents.model.triggers import nearest

    if key not in BY_NAME:
        raise ConfigError(f"unknown setting {key!r}{nearest(key, BY_NAME)}", "agents config list")
    name = BY_NAME[key].name
    values = explain(os.getcwd(), os.environ, options.settings)
    value = next(v for v in values if v.key == name)
    return Reply(data=msgspec.to_builtins(value), blocks=(Text(_shown(value.value)),))


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in cast(list[object], value))
    return str(value)


@command("config set", context=False)
@key_argument
@click.argument("value", shell_complete=complete_value)
@click.option("--project", is_flag=True, help="Use the project's .cleveragents.toml.")
def config_set(options: Options, key: str, value: str, project: bool) -> Reply:
    """Change a setting, in your own file or the project's."""
    from cleveragents.config import set_value

    path = set_value(key, value, project=project, cwd=os.getcwd(), environ=os.environ)
    data = {"key": key, "value": value, "file": path}
    return Reply(data=data, blocks=(Text(f"{key} = {value} in {path}"),))


@command("config unset", context=False)
@key_argument
@click.option("--project", is_flag=True, help="Use the project's .cleveragents.toml.")
def config_unset(options: Options, key: str, project: bool) -> Reply:
    """Remove a setting."""
    from cleveragents.config import unset_value

    path = unset_value(key, project=project, cwd=os.getcwd(), environ=os.environ)
    return Reply(data={"key": key, "file": path}, blocks=(Text(f"{key} unset in {path}"),))
