"""How `status` and a rollback show resources in place."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cleveragents.cli.again import as_typed
from cleveragents.cli.render import Block, Table, Text
from cleveragents.context import Context
from cleveragents.errors import UsageError
from cleveragents.model.checkpoint import RollbackResult
from cleveragents.model.plan import Plan
from cleveragents.model.resource import show_path
from cleveragents.model.units import show_bytes

ALL = "*"
"""Every conflict: what an option without a path means."""


def choices_options(run: Callable[..., Any]) -> Callable[..., Any]:
    """Options for changes that are not the agent's, passed on as `choices`."""

    @wraps(run)
    def chosen(
        *given: Any,
        keep_mine: tuple[str, ...],
        take_checkpoint: tuple[str, ...],
        everything: bool,
        **options: Any,
    ) -> Any:
        from cleveragents.history.owners import Choices

        if set(keep_mine) & set(take_checkpoint):
            raise UsageError(
                "--keep-mine and --take-checkpoint are given for the same paths",
                "name the paths: --keep-mine=PATH --take-checkpoint=PATH",
            )
        choices = Choices(
            everything=everything,
            keep_mine=_paths(keep_mine),
            take_checkpoint=_paths(take_checkpoint),
        )
        return run(*given, choices=choices, **options)

    for name, text in (
        (
            "--take-checkpoint",
            "In place: in conflicts, or for PATH, take the version of the checkpoint.",
        ),
        ("--keep-mine", "In place: in conflicts, or for PATH, keep the version that is there now."),
    ):
        option = click.option(
            name, multiple=True, is_flag=False, flag_value=ALL, metavar="[=PATH]", help=text
        )
        chosen = option(chosen)
    whole = "In place: restore every byte, even what somebody else changed."
    return click.option("--everything", is_flag=True, help=whole)(chosen)


def _paths(given: tuple[str, ...]) -> frozenset[bytes]:
    return frozenset(b"" if path == ALL else os.fsencode(os.path.normpath(path)) for path in given)


def owned_data(result: RollbackResult) -> list[dict[str, Any]]:
    return [
        {
            "resource": item.resource,
            "file": show_path(item.path),
            "owner": item.owner,
            "action": item.action,
            "reason": item.reason,
        }
        for item in result.in_place
    ]


def owner_blocks(result: RollbackResult, command: str) -> tuple[Block, ...]:
    """Who changed what; git's own files are described in words."""
    shown = [item for item in result.in_place if not item.path.startswith(b".git/")]
    if not shown:
        return ()
    rows = tuple((i.action, i.owner, i.resource, show_path(i.path)) for i in shown)
    blocks: list[Block] = [Table(("action", "changed by", "resource", "file"), rows, "In Place")]
    for conflict in result.conflicts:
        told = f"{conflict.resource}: {conflict.path}: {conflict.reason}"
        blocks.append(Text(f"conflict: {told}", "red"))
        blocks += [Text(line) for line in sides_text(conflict.ours, conflict.theirs).splitlines()]
    return (*blocks, *_refused(result, command))


def _refused(result: RollbackResult, command: str) -> tuple[Block, ...]:
    """The refusal as a preview, with the choices there are."""
    if not result.conflicts:
        return ()
    from cleveragents.history.rollback_in_place import refusal

    error = refusal(result.conflicts, result.plan_id, result.group_id)
    return (
        Text(f"it would be refused: {error.message}", "red"),
        Text(f"hint: {as_typed(error.hint, command, without='--dry-run')}"),
    )


def sides_text(checkpoint: str, mine: str) -> str:
    lines = [f"  checkpoint | {line}" for line in checkpoint.splitlines() or [""]]
    return "\n".join([*lines, *(f"  now        | {line}" for line in mine.splitlines() or [""])])


def data_of(ctx: Context, plan: Plan) -> list[dict[str, Any]]:
    """The resources in place, and which of their files no checkpoint covers."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    return [
        {
            "resource": sandboxes.resources[rid].name,
            "path": sandboxes.resources[rid].path,
            "not_covered": sandboxes[rid].place.origin.get("not_covered", {}),
        }
        for rid in sandboxes.in_place
    ]


def places(data: dict[str, Any]) -> list[tuple[str, str]]:
    in_place = {item["resource"]: item for item in data["in_place"]}
    rows = [
        (f"in place {name}" if name in in_place else f"sandbox {name}", path)
        for name, path in data["sandboxes"].items()
    ]
    return [*rows, *((f"not covered in {n}", t) for n, t in not_covered(data["in_place"]))]


def not_covered(in_place: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Per resource the ignored files no checkpoint covers, and the setting that would."""
    found: list[tuple[str, str]] = []
    for item in in_place:
        if sizes := item["not_covered"]:
            shown = ", ".join(f"{path} ({show_bytes(size)})" for path, size in sizes.items())
            line = f"agents config set session.cover-limit {show_limit(sum(sizes.values()))}"
            found.append((item["resource"], f"{shown}: ignored and large; {line}"))
    return found


def show_limit(size: int) -> str:
    """A limit large enough to cover everything."""
    return f"{max(1, -(-size // 1_000_000_000) + 1)}GB"
