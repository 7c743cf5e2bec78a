"""`plan diff`: a patch with rows of databases, shown while it is computed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import complete_with, plan_argument
from cleveragents.cli.render import Block, Reply, Table, Text, plain_lines, safe_cell
from cleveragents.errors import UsageError
from cleveragents.model.units import plural, show_row, show_value

if TYPE_CHECKING:
    from cleveragents.history.diff import Comparison, FileDiff
    from cleveragents.model.resource import Change
    from cleveragents.plan_handle import PlanHandle
    from cleveragents.workspace import Workspace

SIGNS = {"added": ("+", "green"), "changed": ("~", "yellow"), "removed": ("-", "red")}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    start: str | None
    end: str | None
    correction: str | None
    on: tuple[str, ...]
    stat: bool
    name_only: bool
    ignored: bool
    pager: bool


@command("plan diff")
@plan_argument
@click.option(
    "--from",
    "start",
    metavar="CHECKPOINT",
    shell_complete=complete_with("checkpoint"),
    help="Compare from this checkpoint; default: the start of the plan.",
)
@click.option(
    "--to",
    "end",
    metavar="CHECKPOINT",
    shell_complete=complete_with("checkpoint"),
    help="Compare to this checkpoint; default: the sandboxes now.",
)
@click.option(
    "--correction",
    metavar="ID",
    help="Compare the attempt before a correction with the one after; `last` for the latest.",
)
@click.option(
    "--on",
    multiple=True,
    metavar="RESOURCE",
    shell_complete=complete_with("resource"),
    help="Show only this resource; repeatable.",
)
@click.option("--stat", is_flag=True, help="List the files, with how much changed in each.")
@click.option("--name-only", is_flag=True, help="List the names of the files only.")
@click.option("--ignored", is_flag=True, help="Include ignored files.")
@click.option(
    "--pager/--no-pager", default=True, help="Use $PAGER if it is longer than the screen."
)
def diff(ws: "Workspace", options: Options, plan: str, **given: Any) -> Reply:
    """Show what changed between two checkpoints of a plan."""
    wanted = Wanted(**given)
    one, notes = found(ws, plan)
    if wanted.correction is not None and (wanted.start or wanted.end):
        raise UsageError("--correction cannot be combined with --from or --to")
    with _compared(one, wanted) as comparison:
        if options.form in ("json", "yaml"):
            from cleveragents.history.timeline import with_owners

            return Reply(data=msgspec.to_builtins(with_owners(comparison)), messages=notes)
        if not options.quiet:
            _show(comparison, wanted, options.form == "rich")
    return Reply(data={}, messages=notes)


def _compared(one: "PlanHandle", wanted: Wanted) -> Any:
    return one.compare(
        wanted.start,
        wanted.end,
        ignored=wanted.ignored,
        on=wanted.on,
        correction=wanted.correction,
    )


def _show(comparison: "Comparison", wanted: Wanted, rich: bool) -> None:
    """Write the comparison as it comes."""
    from cleveragents.cli.terminal.pager import paged

    with paged(wanted.pager and rich) as out:
        for line in _lines(comparison, wanted, out, rich):
            out.write(line + "\n")
        out.flush()


def _lines(comparison: "Comparison", wanted: Wanted, out: TextIO, rich: bool) -> Iterator[str]:
    if wanted.name_only:
        yield from (safe_cell(_named(one, comparison.is_named)) for one in comparison.names())
        return
    files: list[FileDiff] = []
    for piece in comparison.pieces():
        files += piece.files
        if not wanted.stat:
            yield from _shown(Text(piece.patch, "patch", verbatim=True), out, rich)
            for file in piece.files:
                if file.modes:
                    text = safe_cell(f"  {_moved(file)}: {_mode(file)}")
                    yield from _shown(Text(text, "yellow"), out, rich)
                for table in file.tables:
                    yield from _table_lines(table, out, rich)
    if wanted.stat:
        for block in stat_blocks(files):
            yield from _shown(block, out, rich)
    yield from _shown(Text(summary(files)), out, rich)
    if comparison.ignored:
        left = f"{plural(comparison.ignored, 'ignored path')} left out (--ignored shows them)"
        yield from _shown(Text(left), out, rich)


def _shown(block: Block, out: TextIO, rich: bool) -> Iterator[str]:
    if isinstance(block, Text) and not block.text:
        return
    if rich:
        from cleveragents.cli.terminal.screen import lines_of

        yield from lines_of(block, out)
    else:
        yield from plain_lines(block)


def _named(change: "Change", with_resource: bool) -> str:
    return f"{change.resource}: {change.shown}" if with_resource else change.shown


def summary(files: "list[FileDiff]") -> str:
    added = sum(file.insertions for file in files)
    removed = sum(file.deletions for file in files)
    folders = sum(file.is_directory for file in files)
    also = f", {plural(folders, 'directory', 'directories')}" if folders else ""
    return (
        f"{plural(len(files) - folders, 'file')}{also} changed, {plural(added, 'insertion')},"
        f" {plural(removed, 'deletion')}"
    )


def stat_blocks(files: "list[FileDiff]") -> list[Block]:
    rows = tuple(
        (f"{f.resource}: {_moved(f)}", _status(f), str(f.insertions), str(f.deletions))
        for f in files
    )
    blocks: list[Block] = [Table(("file", "status", "+", "-"), rows)]
    tables = tuple(_table_row(f.resource, one) for f in files for one in f.tables)
    if tables:
        blocks.append(Table(("database", "what", "status", "rows", "+", "-"), tables))
    return blocks


def _status(file: "FileDiff") -> str:
    return f"{file.status}, {_mode(file)}" if file.modes else file.status


def _mode(file: "FileDiff") -> str:
    """`mode 755 -> 4755`; only the new one of an added file."""
    return f"mode {' -> '.join(mode for mode in file.modes or () if mode)}"


def _moved(file: "FileDiff") -> str:
    return f"{file.renamed_from} => {file.path}" if file.renamed_from else file.path


def _table_row(resource: str, one: Any) -> tuple[str, ...]:
    status = f"{one.status}, definition too" if one.definition_changed else one.status
    rows = _counts(one)
    shown = ("" if n is None else str(n) for n in (one.rows_added, one.rows_removed))
    return (resource, _table_name(one), status, rows, *shown)


def _counts(one: Any) -> str:
    """`3 -> 4`; `3` where it stayed the same."""
    counts = (one.rows_before, one.rows_after)
    return " -> ".join(dict.fromkeys(str(count) for count in counts if count is not None))


def _table_name(one: Any) -> str:
    was = f", was {one.renamed_from}" if one.renamed_from else ""
    return f"{one.kind} {one.name}{was}"


def _table_lines(one: Any, out: TextIO, rich: bool) -> Iterator[str]:
    """A table, and the first of its rows that differ."""
    counts = _counts(one)
    rows = f", {counts} {'row' if counts == '1' else 'rows'}" if counts else ""
    new = [column for column in one.columns if column not in one.columns_before]
    columns = f", new: {', '.join(new)}" if new and one.columns_before else ""
    status = f"{one.status}, definition too" if one.definition_changed else one.status
    text = f"  {_table_name(one)}: {status}{columns}{rows}"
    yield from _shown(Text(safe_cell(text), "bold"), out, rich)
    for row in one.rows:
        sign, style = SIGNS[row.action]
        line = safe_cell(f"  {sign} {_row_text(one, row)}")
        yield from _shown(Text(line, style), out, rich)
    if one.rows_left_out:
        yield from _shown(Text("  more rows differ"), out, rich)


def _row_text(one: Any, row: Any) -> str:
    if row.before is None:
        return show_row(one.columns, row.after)
    if row.after is None:
        return show_row(one.columns_before, row.before)
    before = dict(zip(one.columns_before, row.before, strict=True))
    after = dict(zip(one.columns, row.after, strict=True))
    changed = [
        f"{name}: {show_value(before[name])} -> {show_value(value)}"
        if name in before
        else f"{name}: {show_value(value)}"
        for name, value in after.items()
        if name not in before or before[name] != value
    ]
    key = "".join(f"{name}={show_value(after[name])}  " for name in one.key)
    return key + ", ".join(changed)
