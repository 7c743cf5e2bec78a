"""`agents completion`, and completion of commands' arguments."""

import os

import click
from click.shell_completion import CompletionItem, get_completion_class

from cleveragents.cli.common import Options, command
from cleveragents.cli.render import Reply, Text
from cleveragents.errors import AgentsError
from cleveragents.lookup import find_decisions
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace, open_workspace, settings_here

SHELLS = ("bash", "zsh", "fish")
NEWEST = 50
"""So many plans, and so many checkpoints of one, are offered by their ids."""


@command("completion", context=False)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(options: Options, shell: str) -> Reply:
    """Print the completion script for a shell.

    In bash and zsh: eval "$(agents completion bash)", in fish: agents completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "agents", "_AGENTS_COMPLETE").source()
    # Bash would insert a label with blanks as several words.
    script = script.replace("COMPREPLY+=($value)", 'COMPREPLY+=("$(printf %q "$value")")')
    return Reply(data={"shell": shell, "script": script}, blocks=(Text(script, verbatim=True),))


def offered(kind: str, plan: str, begun: str) -> list[CompletionItem]:
    """Completions with a short help for each; none without a store."""
    try:
        settings = settings_here()
        if not os.path.isdir(settings.home):
            return []  # completion must not create a store
        with open_workspace(settings=settings, recover=False) as ws:
            found = _named(ws, kind, plan, begun)
    except AgentsError:
        return []  # a shell that completes shows no errors
    names: dict[str, CompletionItem] = {}
    for item in found:
        # The shells are told one name per line.
        if item.value.startswith(begun) and item.value.isprintable():
            item.help = (item.help or "").partition("\n")[0] or None
            names.setdefault(item.value, item)
    return list(names.values())


def _named(ws: Workspace, kind: str, plan: str, begun: str) -> list[CompletionItem]:
    if kind == "plan":
        return _plans(ws, begun)
    if kind == "plan or checkpoint":
        newest = _checkpoints(ws.find("")) if ws.plans() else []
        return [*newest, *_plans(ws, begun)]
    one = ws.find(plan)
    if kind == "checkpoint":
        return _checkpoints(one)
    if kind == "step":
        return [CompletionItem(name) for name in dict.fromkeys(c.step_id for c in one.tool_calls())]
    if kind == "resource":
        return [CompletionItem(name) for name in one.sandboxes]
    return [
        CompletionItem(item.decision_id, help=f"{item.question}: {item.chosen}")
        for item in find_decisions(ws.ctx.store, one.plan_id)
    ]


def _plans(ws: Workspace, begun: str) -> list[CompletionItem]:
    """By name; by id where one was begun, or where a newer plan has the same name."""
    plans = ws.plans()[:NEWEST]
    newest = {plan.name: plan.plan_id for plan in reversed(plans)}
    return [
        *(CompletionItem(plan.name, help=f"{plan.phase}/{plan.state}") for plan in plans),
        *(
            CompletionItem(plan.plan_id, help=plan.name)
            for plan in plans
            if begun or newest[plan.name] != plan.plan_id
        ),
    ]


def _checkpoints(plan: PlanHandle) -> list[CompletionItem]:
    rows = plan.checkpoints()
    done = [call.step_id for call in plan.tool_calls() if call.state == "ok"]
    groups = {row.group_id: str(row.checkpoint_type) for row in rows}
    return [
        CompletionItem("first", help="before the first step"),
        CompletionItem("last", help="the newest"),
        *(CompletionItem(row.label, help="label") for row in rows if row.label),
        *(CompletionItem(name, help="after this step") for name in dict.fromkeys(done)),
        *(CompletionItem(name, help=about) for name, about in list(groups.items())[-NEWEST:]),
    ]


def settings_named(begun: str) -> list[CompletionItem]:
    from cleveragents.model.settings import KEYS

    return [CompletionItem(k.name, help=k.help) for k in KEYS if k.name.startswith(begun)]


def values_of(name: str, begun: str) -> list[CompletionItem]:
    """The values of a setting that has only a few."""
    from cleveragents.model.settings import BY_NAME

    key = BY_NAME.get(name)
    words = ("true", "false") if key and key.kind == "flag" else key.choices if key else ()
    return [CompletionItem(word) for word in words if word.startswith(begun)]
