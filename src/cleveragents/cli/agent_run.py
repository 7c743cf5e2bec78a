"""`agents run -- claude ...`: a known agent in a sandbox, and the review of its work."""

from contextlib import suppress
from shlex import quote, split
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cleveragents.cli import data as reports
from cleveragents.cli.common import Options
from cleveragents.cli.conversation import going_of
from cleveragents.cli.plan.apply import apply_question, dropped_backups, listed
from cleveragents.cli.plan.read import groups_table
from cleveragents.cli.plan.read_data import timeline_data
from cleveragents.cli.render import Block, Reply, Table, Text, plain_lines
from cleveragents.errors import AgentsError, NotFound, UsageError
from cleveragents.integrations.conversation import current
from cleveragents.integrations.launch import AgentRequest, Ran, run_agent
from cleveragents.model.decision import DecisionState
from cleveragents.model.triggers import nearest
from cleveragents.model.units import plural
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace

if TYPE_CHECKING:
    from cleveragents.workspace import Proposal

NOT_HEARD = "the agent never called its hooks: what it did is one group"
Paths = tuple[tuple[str, str], ...]
"""Each with the name of its resource."""
CHOICES, NOTHING = ("all", "some", "roll back"), "nothing"


def run_known(
    ws: Workspace, options: Options, agent: str, request: AgentRequest
) -> tuple[Reply, int | None]:
    """Run a known agent; returns the reply and the agent's exit code."""
    ran, left_out = run_agent(ws, agent, request), ()
    if options.interactive and any(item["files"] for item in prompts_of(ws, ran.plan)):
        # Ctrl-C at the review applies nothing, and the reply says how to continue.
        with suppress(click.Abort):
            left_out = _review(ws, options, ran.plan)
    return _reply(ws, ran, prompts_of(ws, ran.plan), left_out), ran.result.exit_code


def named_paths(resources: tuple[str, ...]) -> dict[str, str]:
    """Name -> path, of `--resource db=app.db`."""
    found: dict[str, str] = {}
    for text in resources:
        name, _, path = text.partition("=")
        if not name or not path:
            raise UsageError(f"--resource is NAME=PATH, not {text!r}", "--resource db=app.db")
        found[name] = path
    return found


def prompts_of(ws: Workspace, plan: PlanHandle) -> list[dict[str, Any]]:
    """The person's prompts, each with the calls still in force and what they changed."""
    store = ws.ctx.store
    decisions = store.plans.decisions(plan.plan_id)
    above = {item.decision_id: item.parent_id for item in decisions}
    root = next((item.decision_id for item in decisions if item.parent_id is None), None)

    def prompt_of(decision_id: str | None) -> str | None:
        while decision_id is not None and above.get(decision_id) not in (root, None):
            decision_id = above[decision_id]
        return decision_id

    there = store.plans.steps(plan.plan_id)
    made = {(prompt_of(step.decision_id), step.step_id) for step in there}
    files: dict[str | None, set[bytes]] = {}
    for decision_id, write in store.calls.writes_by_decision(plan.plan_id):
        prompt = prompt_of(decision_id)
        if (prompt, write.step_id) in made:  # it was not rolled back
            files.setdefault(prompt, set()).add(write.path)
    steps = [prompt_of(step.decision_id) for step in there]
    return [
        {
            "decision_id": item.decision_id,
            "prompt": item.question,
            "tool_calls": steps.count(item.decision_id),
            "files": len(files.get(item.decision_id, ())),
        }
        for item in decisions
        if item.parent_id == root and root is not None and item.state is DecisionState.ACTIVE
    ]


def _reply(
    ws: Workspace, ran: Ran, prompts: list[dict[str, Any]], left_out: tuple[str, ...]
) -> Reply:
    plan, result = ran.plan.plan, ran.result
    data = {
        **reports.plan_data(ws.ctx, plan, None),
        "prompts": prompts,
        "exit_code": result.exit_code,
        "output": result.output,
        "not_rolled_back": list(ran.state),
    }
    own = quote(plan.plan_id)
    # The agent's own line names settings that are gone, and would leave the sandbox.
    going = ("resume",) if current(ws.ctx, plan.plan_id) else ()
    verbs = [f"agents plan {verb} {own}" for verb in ("diff", "apply", "undo", *going)]
    applied = ["the plan is applied", *([f"left out: {listed(left_out)}"] if left_out else [])]
    following = applied if plan.is_final else verbs
    notes = () if ran.heard else (result.error or NOT_HEARD,)
    kept = ", ".join(ran.state)
    ends = [Text(f"{'      ' if n else 'next: '}{line}") for n, line in enumerate(following)]
    blocks = (*_prompts(prompts), Text(f"not rolled back: {kept}"), *ends)
    return Reply(data=data, blocks=blocks, messages=notes)


def _prompts(prompts: list[dict[str, Any]]) -> tuple[Table, ...]:
    rows = [
        (
            (item["prompt"].strip().splitlines() or [""])[0][:60],
            plural(item["tool_calls"], "call"),
            plural(item["files"], "file"),
        )
        for item in prompts
    ]
    return (Table(("prompt", "calls", "changed"), tuple(rows)),) if rows else ()


def _review(ws: Workspace, options: Options, plan: PlanHandle) -> tuple[str, ...]:
    """Show the work by prompt; apply all, some paths or nothing, or roll back and ask again.

    Returns the paths that were left out of what was applied.
    """
    while True:
        # The agent's last line may have no line feed.
        _show(Text(""), *_prompts(prompts_of(ws, plan)))
        chosen = click.prompt(
            "apply all, some or nothing, or roll back",
            value_proc=_choice,
            default=NOTHING,
            err=True,
        )
        if chosen == NOTHING:
            return ()
        try:
            if chosen == "roll back":
                _roll_back(ws, plan)
                continue
            others = _all_but_typed(plan) if chosen == "some" else ()
            todo = tuple(_without(item, others) for item in plan.preview_apply())
            left_out = tuple(path for _, path in others)
            question = apply_question(todo, dropped_backups(ws, plan, todo), left_out)
            try:
                options.confirm(question, "")
            except KeyboardInterrupt:
                return ()
            if others:  # earlier groups keep them
                plan.restore("first", *(f"{resource}:{path}" for resource, path in others))
            plan.apply()
            return left_out
        except AgentsError as error:
            _show(Text(f"error: {error.message}"))
            _show(*([Text(f"hint: {error.hint}")] if error.hint else ()))


def _choice(typed: str) -> str:
    """The choice for a word or its beginning."""
    found = [word for word in (*CHOICES, NOTHING) if typed and word.startswith(typed.lower())]
    if not found:
        raise click.UsageError(f"type {', '.join(CHOICES)} or {NOTHING}, or the first letter")
    return found[0]


def _all_but_typed(plan: PlanHandle) -> Paths:
    """What is left out: all that changed but the typed paths, and the folders these are in."""
    files = plan.diff().files
    _show(Table(("change", "path"), tuple((file.status, file.path) for file in files)))
    typed = click.prompt("paths or folders, with spaces between", err=True)
    chosen = [word.rstrip("/") for word in split(typed)]
    names = [file.path for file in files]
    for word in chosen:
        if not any(_names(word, name) for name in names):
            raise NotFound(f"nothing changed at {word!r}{nearest(word, names)}")
    kept = {
        (file.resource, path)
        for file in files
        if any(_names(word, file.path) for word in chosen)
        for path in (file.renamed_from, file.path)
        if path is not None
    }

    def is_left_out(resource: str, path: str) -> bool:
        """Not what is kept, nor a folder above it, which would take it along."""
        return not any(name == resource and _names(path, keeps) for name, keeps in kept)

    return tuple(
        (file.resource, path)
        for file in files
        for path in (file.renamed_from, file.path)
        if path not in (None, ".") and is_left_out(file.resource, path)
    )


def _without(item: "Proposal", others: Paths) -> "Proposal":
    """The proposal as it will be without these paths."""

    def kept(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if (item.resource, path) not in others)

    return replace(item, files=kept(item.files), control_files=kept(item.control_files))


def _names(word: str, path: str) -> bool:
    return path == word or path.startswith(f"{word}/")


def _roll_back(ws: Workspace, plan: PlanHandle) -> None:
    _show(groups_table(timeline_data(ws.ctx, plan.plan)))
    group = plan.group(click.prompt("roll back to checkpoint", err=True))
    plan.rollback(group.group_id, remember=going_of(ws, plan).remember)


def _show(*blocks: Block) -> None:
    for block in blocks:
        for line in plain_lines(block):
            click.echo(line, err=True)
