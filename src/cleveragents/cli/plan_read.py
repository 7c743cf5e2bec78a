"""Commands that only look."""

from typing import Any

import click

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command, found, lines
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.errors import UsageError
from cleveragents.lookup import find_decision, short_ids
from cleveragents.model.units import plural
from cleveragents.workspace import Workspace

plan_argument = click.argument("plan", default="last")


@command("plan status")
@plan_argument
def status(ws: Workspace, options: Options, plan: str) -> Reply:
    """Show a plan's status: steps, checkpoints, sandboxes, and why it stopped."""
    one, notes = found(ws, plan)
    data = reports.status_data(ws.ctx, one.plan)
    return Reply(data=data, blocks=status_blocks(data), messages=notes)


def _so_far(counts: dict[str, int]) -> str:
    calls, paths = (
        plural(counts["tool_calls"], "tool call"),
        plural(counts["files_modified"], "path"),
    )
    return f"{calls}, {paths} changed, {plural(counts['checkpoints'], 'group')}"


def status_blocks(data: dict[str, Any]) -> tuple[Block, ...]:
    rows = [
        ("plan", f"{data['name']}  {data['plan_id']}"),
        ("state", f"{data['phase']}/{data['state']}, attempt {data['attempt']}"),
        ("last checkpoint", data["last_checkpoint_id"] or "none"),
        ("so far", _so_far(data["execution"])),
        *((f"sandbox {name}", path) for name, path in data["sandboxes"].items()),
        *((f"never captured in {n}", ", ".join(r)) for n, r in data["exclude"].items()),
    ]
    if not data["rollback_enabled"]:
        rows.append(("undo", "nothing can be undone: rollback_enabled is false"))
    rows += [(f"resource {n}", "has no sandbox: not rolled back") for n in data["not_rolled_back"]]
    for one in data["databases"]:
        rows.append((f"database {one['resource']}", f"{one['strategy']}: {one['cost']}"))
        rows += [("not captured", text) for text in one["not_captured"]]
    if (confinement := data["confinement"])["in_force"] == "off":
        whose = "the plan file" if confinement["setting"] != "off" else "sandbox.confine"
        rows.append(("confinement", f"off by {whose}: tools can write wherever you can"))
    rows += [("tools may write", f"{path}: not rolled back") for path in data["writable"]]
    rows += outside_rows(data["effects"], data["plan_id"])
    if data["held_by"]:
        rows.append(("held by", data["held_by"]))
    blocks: list[Block] = [Panel("Plan", tuple(rows))]
    if data["progress"]:
        steps = tuple((item["step"], item["status"]) for item in data["progress"])
        blocks.append(Table(("step", "status"), steps))
    if "error" in data:
        error = data["error"]
        blocks.append(Text(f"stopped: {error['message']}", "red"))
        if error["hint"]:
            blocks.append(Text(f"next: {error['hint']}", "red"))
    return tuple(blocks)


def outside_rows(counts: dict[str, int], plan_id: str) -> list[tuple[str, str]]:
    """What was done outside the sandboxes, if anything was."""
    words = {
        "compensable": "can be compensated",
        "irreversible": "cannot be undone",
        "unknown": "not known",
        "not_compensated": "NOT COMPENSATED",
    }
    said = [f"{counts[name]} {text}" for name, text in words.items() if counts[name]]
    return [("outside", f"{', '.join(said)} (agents plan effects {plan_id})")] if said else []


@command("plan list")
def list_plans(ws: Workspace, options: Options) -> Reply:
    """List all plans, newest first."""
    plans = reports.list_data(ws.ctx)
    short = short_ids([plan["plan_id"] for plan in plans])
    rows = tuple(
        (short[p["plan_id"]], p["name"], f"{p['phase']}/{p['state']}", p["updated_at"][:19])
        for p in plans
    )
    blocks: tuple[Block, ...] = (Table(("id", "name", "state", "changed"), rows),)
    if not plans:
        blocks = (Text("no plan yet: agents plan run FILE, or agents demo"),)
    return Reply(data={"plans": plans}, blocks=blocks)


@command("plan checkpoints")
@plan_argument
def checkpoints(ws: Workspace, options: Options, plan: str) -> Reply:
    """List the checkpoints of a plan, oldest first; rows of one group were taken together."""
    one, notes = found(ws, plan)
    rows = reports.checkpoints_data(ws.ctx, one.plan)
    short = short_ids([row["group_id"] for row in rows])
    table = Table(
        ("group", "type", "step", "resource", "label", "added", "state"),
        tuple(
            (
                short[row["group_id"]],
                row["type"] + (" *" if row["pinned"] else ""),
                str(row["step_index"]),
                row["resource"],
                row["label"] or "",
                str(row["size_bytes"]),
                row["state_hash"][:10],
            )
            for row in rows
        ),
    )
    return Reply(data={"checkpoints": rows}, blocks=(table,), messages=notes)


@command("plan checkpoint show")
@click.argument("plan")
@click.argument("checkpoint")
def checkpoint_show(ws: Workspace, options: Options, plan: str, checkpoint: str) -> Reply:
    """Show a checkpoint and the group it belongs to."""
    one, notes = found(ws, plan)
    data = reports.group_data(ws.ctx, one.plan, one.group(checkpoint))
    rows = (
        ("group", data["group_id"]),
        ("type", f"{data['type']} (found by {', '.join(data['triggers'])})"),
        ("label", data["label"] or "none"),
        ("made", data["created_at"]),
        ("steps done", ", ".join(data["steps_done"]) or "none"),
        *((f"resource {row['resource']}", _member(row)) for row in data["checkpoints"]),
    )
    return Reply(data=data, blocks=(Panel("Checkpoint", rows),), messages=notes)


def _member(row: dict[str, Any]) -> str:
    where = "" if row["own"] else " (of an earlier group)"
    return f"{row['state_hash'][:16]}, {row['checkpoint_id']}{where}"


@command("plan diff")
@plan_argument
@click.option(
    "--from",
    "start",
    metavar="CHECKPOINT",
    help="Compare from this checkpoint; default: the start of the plan.",
)
@click.option(
    "--to",
    "end",
    metavar="CHECKPOINT",
    help="Compare to this checkpoint; default: the sandboxes now.",
)
@click.option(
    "--correction",
    metavar="ID",
    help="Compare the attempt before a correction with the one after; `last` for the latest.",
)
@click.option("--stat", is_flag=True, help="List the files only.")
@click.option("--ignored", is_flag=True, help="Include ignored files.")
def diff(
    ws: Workspace,
    options: Options,
    plan: str,
    start: str | None,
    end: str | None,
    correction: str | None,
    stat: bool,
    ignored: bool,
) -> Reply:
    """Show what changed between two checkpoints of a plan."""
    import msgspec

    one, notes = found(ws, plan)
    if not correction:
        result = one.diff(start, end, ignored=ignored)
    elif start or end:
        raise UsageError("--correction goes without --from and --to")
    else:
        result = one.diff_of_correction(correction, ignored=ignored)
    blocks: list[Block] = [
        Table(
            ("file", "status", "+", "-"),
            tuple(
                (f"{f.resource}: {f.path}", f.status, str(f.insertions), str(f.deletions))
                for f in result.files
            ),
        ),
        Text(
            f"{plural(result.files_changed, 'file')} changed,"
            f" {plural(result.insertions, 'insertion')},"
            f" {plural(result.deletions, 'deletion')}"
        ),
    ]
    rows = tuple(_table_row(f.resource, one) for f in result.files for one in f.tables)
    if rows:
        blocks.insert(1, Table(("database", "what", "status", "rows", "+", "-"), rows))
    if result.ignored:
        blocks.append(
            Text(f"{plural(result.ignored, 'ignored path')} left out (--ignored shows them)")
        )
    if not stat and result.patch:
        blocks.append(Text(result.patch, verbatim=True))
    return Reply(data=msgspec.to_builtins(result), blocks=tuple(blocks), messages=notes)


def _table_row(resource: str, one: Any) -> tuple[str, ...]:
    status = f"{one.status}, definition too" if one.definition_changed else one.status
    counts = (one.rows_before, one.rows_after)
    rows = " -> ".join(str(count) for count in counts if count is not None)
    shown = ("" if n is None else str(n) for n in (one.rows_added, one.rows_removed))
    return (resource, f"{one.kind} {one.name}", status, rows, *shown)


@command("plan log")
@plan_argument
def log(ws: Workspace, options: Options, plan: str) -> Reply:
    """List every operation on a plan, oldest first."""
    one, notes = found(ws, plan)
    entries = one.log()
    rows = tuple(
        (
            e.entry_id[-6:],
            str(e.operation),
            e.shown_state,
            (e.before.group_id or "-")[-6:],
            ((e.after.group_id if e.after else None) or "-")[-6:],
            e.started_at[:19],
        )
        for e in entries
    )
    table = Table(("entry", "operation", "state", "before", "after", "started"), rows)
    return Reply(data={"entries": reports.log_data(entries)}, blocks=(table,), messages=notes)


@command("plan tree")
@plan_argument
@click.option(
    "--show-superseded", is_flag=True, help="Include decisions that are no longer in force."
)
def tree(ws: Workspace, options: Options, plan: str, show_superseded: bool) -> Reply:
    """Show the decisions of a plan as a tree."""
    one, notes = found(ws, plan)
    nodes = reports.tree_data(ws.ctx, one.plan, show_superseded)
    return Reply(data={"tree": nodes}, blocks=lines(*_branches(nodes)), messages=notes)


def _branches(nodes: list[dict[str, Any]], depth: int = 0) -> list[str]:
    found: list[str] = []
    for node in nodes:
        gone = " (superseded)" if node["state"] == "superseded" else ""
        steps = f"  [{', '.join(node['steps'])}]" if node["steps"] else ""
        said = ": ".join(filter(None, (node["question"], node["chosen"])))
        text = f"{said}{gone}{steps}  {node['decision_id'][-6:]}"
        found.append("  " * depth + text)
        found += _branches(node["children"], depth + 1)
    return found


@command("plan explain")
@click.argument("decision")
def explain(ws: Workspace, options: Options, decision: str) -> Reply:
    """Explain one decision: why, the alternatives, what it wrote."""
    data = reports.explain_data(ws.ctx, find_decision(ws.ctx.store, decision))
    rows = (
        ("question", data["question"]),
        ("chosen", data["chosen"]),
        ("state", data["state"]),
        ("alternatives", ", ".join(data["alternatives"]) or "none"),
        ("rationale", data["rationale"] or "none given"),
        ("confidence", "not given" if data["confidence"] is None else str(data["confidence"])),
        ("steps", ", ".join(f"{s['id']} ({s['state']})" for s in data["steps"]) or "none"),
        ("wrote", ", ".join(w["path"] for w in data["wrote"]) or "nothing"),
    )
    return Reply(data=data, blocks=(Panel("Decision", rows),))


@command("plan errors")
@plan_argument
def errors(ws: Workspace, options: Options, plan: str) -> Reply:
    """Show why a plan stopped: the step, its output, and how to get the failed state back."""
    one, notes = found(ws, plan)
    data = reports.failed_step(ws.ctx, one.plan)
    failed = one.diff_of_failure()
    data["diff"] = failed
    back = f"agents plan rollback {one.plan_id} {data['failed_state']}"
    data["get_back"] = back if data["failed_state"] else None
    rows = (
        ("step", data["step"] or "none"),
        ("error", data["error"]["message"] if data["error"] else "none"),
        ("exit code", "none" if data["exit_code"] is None else str(data["exit_code"])),
        ("failed state", data["get_back"] or "not kept"),
        *(("outside", outside_line(effect)) for effect in data["effects"]),
        *(("not compensated", outside_line(effect)) for effect in data["not_compensated"]),
    )
    blocks: list[Block] = [Panel("Error", rows)]
    if data["not_compensated"]:
        blocks.append(Text(f"next: agents plan effects {one.plan_id} --retry", "red"))
    if data["output"]:
        blocks.append(Text(f"output:\n{data['output'].rstrip()}"))
    if failed and failed["patch"]:
        blocks.append(Text(failed["patch"], verbatim=True))
    return Reply(data=data, blocks=tuple(blocks), messages=notes)


def outside_line(effect: dict[str, Any]) -> str:
    what = ", ".join(effect["side_effects"]) or "not known"
    why = f": {effect['error']}" if effect["error"] else ""
    return f"step {effect['step']}, {effect['tool']}: {what}, {WORDS[effect['state']]}{why}"


WORDS = {
    "intended": "may have happened",
    "happened": "happened",
    "compensating": "waiting for its compensation",
    "compensated": "compensated",
    "failed": "its compensation failed",
    "accepted": "accepted as lost",
    "lost": "could not be undone",
}
