"""`plan status`, which programs and people ask for most."""

from typing import Any

from cleveragents.cli import data as reports
from cleveragents.cli import in_place
from cleveragents.cli.common import Options, command, found
from cleveragents.cli.options import plan_argument
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.lookup import short_group
from cleveragents.model.plan import Plan
from cleveragents.model.units import plural, show_bytes, show_duration
from cleveragents.workspace import Workspace


@command("plan status")
@plan_argument
def status(ws: Workspace, options: Options, plan: str) -> Reply:
    """Show a plan's status: steps, checkpoints, sandboxes, and why it stopped."""
    one, notes = found(ws, plan)
    data = reports.status_data(ws.ctx, one.plan)
    return Reply(data=data, blocks=status_blocks(ws, one.plan, data), messages=notes)


def _so_far(counts: dict[str, int | None]) -> str:
    names = {"tool_calls": "tool call", "files_modified": "path", "checkpoints": "checkpoint"}
    known = {name: n for name in names if (n := counts[name]) is not None}
    said = {name: plural(n, names[name]) for name, n in known.items()}
    if "files_modified" in said:
        said["files_modified"] += " changed"
    return ", ".join(said.values())


def status_blocks(ws: Workspace, plan: Plan, data: dict[str, Any]) -> tuple[Block, ...]:
    head = plan.head_group_id
    last = short_group(ws.ctx.store, plan.plan_id, head) if head else "none"
    rows = [
        ("plan", f"{data['name']}  {data['plan_id']}"),
        ("state", f"{data['phase']}/{data['state']}, attempt {data['attempt']}"),
        ("last checkpoint", last),
        ("so far", _so_far(data["execution"])),
        *in_place.places(data),
        *((f"never captured in {n}", ", ".join(r)) for n, r in data["exclude"].items()),
    ]
    if not data["rollback_enabled"]:
        rows.append(("undo", "nothing can be undone: rollback_enabled is false"))
    rows += [(f"resource {n}", "has no sandbox: not rolled back") for n in data["not_rolled_back"]]
    for name, lacking in data["not_copied"].items():
        rows += [(f"not copied of {name}", text) for text in lacking]
    for one in data["databases"]:
        rows.append((f"database {one['resource']}", f"{one['strategy']}: {one['cost']}"))
        rows += [("not captured", text) for text in one["not_captured"]]
    if (confinement := data["confinement"])["in_force"] == "off":
        whose = "the plan file" if confinement["setting"] != "off" else "sandbox.confine"
        rows.append(("confinement", f"off by {whose}: tools can write wherever you can"))
    rows += [("tools may write", f"{path}: not rolled back") for path in data["writable"]]
    rows += outside_rows(data["effects"], data["plan_id"])
    if (bucket := data["bucket"]) is not None:
        rows.append(("bucket", _in_bucket(bucket)))
    if (machine := data["content_on"]) is not None:
        others = "with content.url others have it too"
        rows.append(("content", f"only on {machine}, not in this store's home; {others}"))
    if data["held_by"]:
        rows.append(("held by", data["held_by"]))
    blocks: list[Block] = [Panel("Plan", tuple(rows))]
    if data["progress"]:
        blocks.append(_steps(data["progress"]))
    if "error" in data:
        error = data["error"]
        blocks.append(Text(f"stopped: {error['message']}", "red"))
        if error["hint"]:
            blocks.append(Text(f"next: {error['hint']}", "red"))
    return tuple(blocks)


STYLES = {"errored": "red", "interrupted": "red", "processing": "cyan", "queued": "dim"}


def _steps(progress: list[dict[str, Any]]) -> Table:
    rows = tuple(
        (
            item["step"],
            item["status"],
            "" if item["duration_ms"] is None else show_duration(item["duration_ms"] / 1000),
        )
        for item in progress
    )
    styles = tuple(STYLES.get(item["status"], "") for item in progress)
    return Table(("step", "status", "took"), rows, styles=styles)


def _in_bucket(bucket: dict[str, Any]) -> str:
    url, there, size = bucket["url"], bucket["groups"], show_bytes(bucket["bytes"])
    behind = bucket["behind_groups"]
    if not behind:
        return f"{url} has {plural(there, 'group')}, {size}: nothing is missing there"
    missing = plural(behind, "group is", "groups are")
    since = f"{bucket['behind_seconds']:.1f} s"
    return f"{url} has {plural(there, 'group')}, {size}; {missing} only here, for {since}"


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
