"""`agents doctor`."""

import click
import msgspec

from cleveragents.cli.common import Options, command
from cleveragents.cli.hook_settings import installed_hooks
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.cli.upkeep import kept_table
from cleveragents.maintenance.borrowed import Loose
from cleveragents.maintenance.doctor import Confinement, Leftover, Report
from cleveragents.model.units import plural, show_bytes
from cleveragents.workspace import Workspace


@command("doctor")
@click.option("--fix", is_flag=True, help="Remove what deleted plans left; restore missing refs.")
@click.option(
    "--adopt", is_flag=True, help="Adopt a store that was moved here, or put back from a backup."
)
def doctor(ws: Workspace, options: Options, fix: bool, adopt: bool) -> Reply:
    """Show what this machine supports, what is not confined and what is left over."""
    if adopt:
        return _adopted(ws)
    report = ws.doctor(fix=fix)
    blocks = (*_blocks(report, fix), *installed_hooks(ws))
    return Reply(data=msgspec.to_builtins(report), blocks=blocks)


def _adopted(ws: Workspace) -> Reply:
    result = ws.adopt()
    if result.moved_from:
        said = f"the store from {result.moved_from} was adopted at {ws.ctx.settings.home}"
    elif result.sandboxes:
        count = plural(len(result.sandboxes), "sandbox", "sandboxes")
        said = f"{count} put back from a backup: adopted"
    else:
        said = "the store was not moved: there is nothing to adopt"
    lost = tuple(f"sandbox {root} was not moved with it" for root in result.missing)
    blocks = tuple(Text(line) for line in (said, *lost))
    return Reply(data=msgspec.to_builtins(result), blocks=blocks, messages=lost)


def _blocks(report: Report, fixed: bool) -> tuple[Block, ...]:
    limits = ", ".join(f"{name} {value}" for name, value in report.inotify.items())
    rows = (
        ("git", report.git),
        ("SQLite", report.sqlite),
        ("store", report.store),
        ("sandboxes", f"{report.sandboxes}, {show_bytes(report.free_bytes)} free"),
        ("copies", "share blocks (reflink)" if report.reflink else "are full copies: no reflink"),
        ("inotify", limits or "not available"),
        *((("bucket", report.bucket),) if report.bucket else ()),
    )
    blocks: list[Block] = [Panel("Machine", rows), _confinement(report.confinement)]
    blocks += kept_table(report.databases)
    if report.loose:
        blocks.append(_loose(report.loose, fixed))
    if report.leftovers:
        blocks.append(_leftovers(report.leftovers))
    else:
        blocks.append(Text("nothing is left over"))
    open_ones = [one for one in report.leftovers if not (one.removed or one.kept_because)]
    if not fixed and (open_ones or report.loose):
        blocks.append(Text("next: agents doctor --fix"))
    return tuple(blocks)


def _confinement(found: Confinement) -> Panel:
    wrap = found.bwrap
    lacking = "" if found.bwrap_cuts_network else ", cannot cut the network"
    able = f"works ({found.bwrap_version}{lacking})"
    rows = [
        ("sandbox.confine", found.setting),
        ("in force", found.problem or found.in_force),
        ("bwrap", able if wrap.works else f"no: {wrap.reason}"),
        ("Landlock", f"ABI {found.landlock_abi}" if found.landlock_abi else "no"),
        *(("under Landlock tools can", text) for text in found.landlock_cannot),
        *(("tools can still", text) for text in found.not_confined),
        *(("not rolled back", path) for path in found.writable),
    ]
    return Panel("Confinement", tuple(rows))


def _loose(found: tuple[Loose, ...], fixed: bool) -> Table:
    rows = tuple((one.plan_id, one.where, one.commit[:12], _held(one, fixed)) for one in found)
    return Table(("plan", "repository", "commit", "then"), rows, "Not held by a ref of ours")


def _held(one: Loose, fixed: bool) -> str:
    if one.kept:
        return "held again" if not one.is_gone else "brought into the store"
    if fixed:
        what = "not there, and not all of it could be kept: bring the repository back"
        return what if one.is_gone else "not held: the plan is in use"
    return "not there: --fix keeps what the sandbox has" if one.is_gone else "can be held again"


def _leftovers(found: tuple[Leftover, ...]) -> Table:
    rows = tuple(
        (one.kind, f"{one.where} {one.name}" if one.kind != "sandbox" else one.where, _fate(one))
        for one in found
    )
    return Table(("kind", "what", "then"), rows, "Left over")


def _fate(one: Leftover) -> str:
    if one.removed:
        return "removed"
    return f"kept: {one.kept_because}" if one.kept_because else "can be removed"
