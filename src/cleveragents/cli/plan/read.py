"""Commands that only look."""

from typing import Any

import click

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options, command, found, lines
from cleveragents.cli.options import (
    complete_with,
    decision_argument,
    plan_argument,
)
from cleveragents.cli.plan.effects import outside_line
from cleveragents.cli.plan.read_data import output_data, timeline_data
from cleveragents.cli.render import Block, Panel, Reply, Table, Text
from cleveragents.errors import NotFound
from cleveragents.lookup import named_decision, short_ids
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.triggers import nearest
from cleveragents.model.units import show_bytes, show_duration, show_when
from cleveragents.workspace import Workspace


@command("plan list")
def list_plans(ws: Workspace, options: Options) -> Reply:
    """List all plans, newest first."""
    plans = reports.list_data(ws.ctx)
    short = short_ids([plan["plan_id"] for plan in plans])
    rows = tuple(
        (short[p["plan_id"]], p["name"], f"{p['phase']}/{p['state']}", show_when(p["updated_at"]))
        for p in plans
    )
    blocks: tuple[Block, ...] = (Table(("id", "name", "state", "changed"), rows),)
    if not plans:
        blocks = (Text("no plan yet: agents run -- COMMAND, agents plan run FILE, or agents demo"),)
    return Reply(data={"plans": plans}, blocks=blocks)


@command("plan checkpoints")
@plan_argument
def checkpoints(ws: Workspace, options: Options, plan: str) -> Reply:
    """List the checkpoints of a plan, oldest first; rows of one group were taken together."""
    one, notes = found(ws, plan)
    rows = reports.checkpoints_data(ws.ctx, one.plan)
    groups = timeline_data(ws.ctx, one.plan)
    legend = Text("> where the plan stands   x not on the way there   * pinned", "dim")
    blocks: tuple[Block, ...] = (
        (groups_table(groups), legend) if groups else (Text("no checkpoint yet"),)
    )
    if (machine := reports.content_on(ws.ctx, one.plan)) is not None:
        notes = (*notes, f"what each of them changed is only on {machine}")
    return Reply(data={"checkpoints": rows, "groups": groups}, blocks=blocks, messages=notes)


def groups_table(groups: list[dict[str, Any]]) -> Table:
    """A table of the groups to return to."""
    short = short_ids([group["group_id"] for group in groups])
    first = {group["decision_id"]: group["group_id"] for group in reversed(groups)}
    return Table(
        ("", "group", "when", "step", "changed", "added", "about"),
        tuple(
            (
                ">" if group["here"] else "" if group["in_force"] else "x",
                short[group["group_id"]] + ("*" if group["pinned"] else ""),
                show_when(group["created_at"]),
                group["step"] or "",
                _counts(group["changes"]),
                show_bytes(group["size_bytes"]) if group["size_bytes"] else "",
                _about(group, first[group["decision_id"]] == group["group_id"]),
            )
            for group in groups
        ),
        shortened="about",
        styles=tuple("" if group["in_force"] else "dim" for group in groups),
    )


def _counts(changes: list[dict[str, Any]]) -> str:
    """How many paths were added, changed and removed: `+1 ~2 -3`."""
    signs = {"added": "+", "changed": "~", "removed": "-"}
    counts = {sign: sum(c["action"] == word for c in changes) for word, sign in signs.items()}
    return " ".join(f"{sign}{count}" for sign, count in counts.items() if count)


def _about(group: dict[str, Any], is_first: bool) -> str:
    """A group's trigger and label; for a decision, its question once."""
    said = group["label"] or (is_first and (group["question"] or "").partition("\n")[0]) or ""
    if len(said) > LONGEST_ABOUT:
        said = said[: LONGEST_ABOUT - 3] + "..."
    if not said or said == group["step"]:
        return group["type"]
    return said if group["type"] == CheckpointType.ON_DECISION else f"{group['type']}: {said}"


LONGEST_ABOUT = 40


@command("plan log")
@plan_argument
def log(ws: Workspace, options: Options, plan: str) -> Reply:
    """List every operation on a plan, oldest first."""
    one, notes = found(ws, plan)
    entries = one.log()
    moments = [moment.group_id for e in entries for moment in (e.before, e.after) if moment]
    kept = [group.group_id for group in ws.ctx.store.checkpoints.groups(one.plan_id)]
    groups = short_ids([*kept, *filter(None, moments)])
    rows = tuple(
        (
            e.entry_id[-6:],
            str(e.operation),
            e.shown_state,
            groups.get(e.before.group_id or "", "-"),
            groups.get((e.after and e.after.group_id) or "", "-"),
            show_when(e.started_at),
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
    steps = ws.ctx.store.plans.steps(one.plan_id)
    states = reports.step_states(ws.ctx, one.plan, steps)
    return Reply(data={"tree": nodes}, blocks=lines(*_branches(nodes, states)), messages=notes)


def _branches(nodes: list[dict[str, Any]], states: dict[str, str], depth: int = 0) -> list[str]:
    """A line for each decision, with the state of its incomplete steps."""
    found: list[str] = []
    for node in nodes:
        gone = " (superseded)" if node["state"] == "superseded" else ""
        named = [
            name if states.get(name, "complete") == "complete" else f"{name}: {states[name]}"
            for name in node["steps"]
        ]
        steps = f"  [{', '.join(named)}]" if named else ""
        said = ": ".join(filter(None, (node["question"], node["chosen"])))
        text = f"{said}{gone}{steps}  {node['decision_id'][-6:]}"
        found.append("  " * depth + text)
        found += _branches(node["children"], states, depth + 1)
    return found


@command("plan explain")
@decision_argument
def explain(ws: Workspace, options: Options, decision: str) -> Reply:
    """Explain one decision: why, the alternatives, what it wrote."""
    one, notes = named_decision(ws.ctx.store, decision)
    data = reports.explain_data(ws.ctx, one)
    # An observed plan no longer has its rolled-back steps.
    there = {step.step_id for step in ws.ctx.store.plans.steps(one.plan_id)}
    steps = {s["id"]: s["state"] if s["id"] in there else "rolled back" for s in data["steps"]}
    rows = (
        ("question", data["question"]),
        ("chosen", data["chosen"]),
        ("state", data["state"]),
        ("alternatives", ", ".join(data["alternatives"]) or "none"),
        ("rationale", data["rationale"] or "none given"),
        ("confidence", "not given" if data["confidence"] is None else str(data["confidence"])),
        ("steps", ", ".join(f"{step} ({state})" for step, state in steps.items()) or "none"),
        ("wrote", ", ".join(w["path"] for w in data["wrote"]) or "nothing"),
    )
    return Reply(data=data, blocks=(Panel("Decision", rows),), messages=notes)


@command("plan output")
@plan_argument
@click.argument("step", default="", shell_complete=complete_with("step"))
def output(ws: Workspace, options: Options, plan: str, step: str) -> Reply:
    """Show what the steps of a plan printed, or one of them: every call of it, oldest first."""
    try:
        one, notes = found(ws, plan)
    except NotFound:
        one, notes = found(ws, "")
        steps = {call.step_id for call in one.tool_calls()}
        if step:
            raise
        if plan not in steps:
            near = nearest(plan, (*steps, *(other.name for other in ws.ctx.store.plans.all())))
            neither = f"no plan {plan!r}, and plan {one.plan.name!r} has no step {plan!r}{near}"
            raise NotFound(neither, "agents plan list") from None
        step = plan
    calls = output_data(ws.ctx, one.plan, step)
    blocks: list[Block] = []
    for call in calls:
        left_out = call["output_bytes"] - len(call["output"].encode())
        cut = f", {left_out} bytes not kept" if left_out > 0 else ""
        said = f"{call['step']} ({call['tool']}): {call['state']}"
        took = show_duration(call["duration_ms"] / 1000)
        blocks.append(Text(f"{said}, {took}{cut}", "bold"))
        if call["output"]:
            blocks.append(Text(call["output"].rstrip("\n"), verbatim=True))
        if call["error"] and call["error"].strip() not in call["output"]:
            blocks.append(Text(f"error: {call['error'].strip()}", "red", verbatim=True))
    return Reply(data={"calls": calls}, blocks=tuple(blocks), messages=notes)


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
        *(() if data["exit_code"] is None else (("exit code", str(data["exit_code"])),)),
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
        blocks.append(Text(failed["patch"], "patch", verbatim=True))
    return Reply(data=data, blocks=tuple(blocks), messages=notes)
