"""`agents`: the group of all commands; each module is imported when one of its commands is used."""

import importlib
import sys
from typing import Any

import click

from cleveragents import __version__
from cleveragents.cli.again import TYPED

__all__ = ["main", "root"]

RUN = "cleveragents.cli.plan.run"
BACK = "cleveragents.cli.plan.rollback"
ONE = "cleveragents.cli.plan.checkpoint"
KEEP = "cleveragents.cli.plan.keep"
READ = "cleveragents.cli.plan.read"
STATUS = "cleveragents.cli.plan.status"
DIFF = "cleveragents.cli.plan.diff"
AFTER = "cleveragents.cli.plan.after"
INSIDE = "cleveragents.cli.plan.look_inside"
STORE = "cleveragents.cli.upkeep"
START = "cleveragents.cli.start.files"
HOOK = "cleveragents.cli.hook"
SETTINGS = "cleveragents.cli.hook_settings"
WORK = "cleveragents.cli.cluster.work"
ROWS = "cleveragents.cli.cluster.store"
COMMANDS: dict[str, tuple[str, str]] = {
    "init": (f"{START}:init", "Write settings and a first plan to begin with."),
    "run": (f"{RUN}:run_command", "Run a command in a sandbox of the current directory."),
    "do": ("cleveragents.cli.do:do", "Have a language model work towards a goal in a sandbox."),
    "mcp": ("cleveragents.cli.serve:mcp", "Serve checkpoints and rollback to an agent (MCP)."),
    "web": ("cleveragents.cli.serve:web", "Show plans in a browser."),
    "plan": ("", "Work with plans: run, inspect, roll back, correct, resume, apply."),
    "status": (f"{STATUS}:status", "Show the status of this directory's newest plan."),
    "diff": (f"{DIFF}:diff", "Show what that plan changed."),
    "log": (f"{READ}:log", "List every operation on it."),
    "rollback": (f"{BACK}:rollback", "Roll it back to a checkpoint."),
    "undo": (f"{BACK}:undo", "Undo its last operation."),
    "redo": (f"{BACK}:redo", "Redo what was undone."),
    "apply": ("cleveragents.cli.plan.apply:apply", "Apply its work to its targets."),
    "hook": ("", "Follow the sessions of agents that you start yourself."),
    "config": ("", "Show and change settings."),
    "worker": (f"{WORK}:worker", "Run plans that were submitted, until SIGTERM."),
    "cluster": ("", "Show workers, queues and schedules."),
    "store": ("", "Show where plans are kept, and share them between machines."),
    "check": (f"{STORE}:check", "Check the integrity of the store."),
    "du": (f"{STORE}:du", "Show disk usage per plan."),
    "gc": (f"{STORE}:gc", "Free content that no plan refers to."),
    "doctor": (
        "cleveragents.cli.doctor:doctor",
        "Show what this machine supports, what is not confined and what is left over.",
    ),
    "demo": ("cleveragents.cli.demo:demo", "Run a short demonstration on throw-away data."),
    "schema": (
        "cleveragents.cli.start.schema:schema",
        "Print the JSON Schema of plan files or of a command's output.",
    ),
    "completion": (
        "cleveragents.cli.completion:completion",
        "Print the completion script for a shell.",
    ),
}
PLAN_COMMANDS: dict[str, tuple[str, str]] = {
    "new": (f"{START}:new", "Write a plan file, from commands if you have them."),
    "lint": (f"{START}:lint", "Show everything that is wrong with a plan file."),
    "use": (f"{RUN}:use", "Register a plan file without running it."),
    "run": (f"{RUN}:run", "Register a plan file and execute it."),
    "submit": (f"{WORK}:submit_plan", "Hand a plan to the workers."),
    "execute": (f"{RUN}:execute", "Execute a plan, or continue it."),
    "resume": (f"{RUN}:resume", "Continue with the first step that is not done."),
    "status": (f"{STATUS}:status", "Show a plan's status."),
    "list": (f"{READ}:list_plans", "List all plans, newest first."),
    "tree": (f"{READ}:tree", "Show the decisions of a plan as a tree."),
    "explain": (f"{READ}:explain", "Explain one decision."),
    "checkpoints": (f"{READ}:checkpoints", "List the checkpoints of a plan, oldest first."),
    "checkpoint": ("", "Create, show, pin and delete single checkpoints."),
    "diff": (
        f"{DIFF}:diff",
        "Show what changed between two checkpoints of a plan.",
    ),
    "rollback": (f"{BACK}:rollback", "Roll back sandboxes and plan to a checkpoint."),
    "undo": (f"{BACK}:undo", "Undo the last operation."),
    "redo": (f"{BACK}:redo", "Redo what was undone."),
    "correct": (
        "cleveragents.cli.plan.correct:correct_command",
        "Redo one decision and everything that depends on it.",
    ),
    "effects": (
        "cleveragents.cli.plan.effects:effects",
        "List what a plan did outside the sandboxes.",
    ),
    "apply": (
        "cleveragents.cli.plan.apply:apply",
        "Apply the plan's work to its targets, all of them or none.",
    ),
    "revert-applied": (f"{AFTER}:revert_applied", "Create a plan that reverts an applied one."),
    "shell": (f"{INSIDE}:shell", "Open a shell in a plan's sandbox; what it changes is one step."),
    "open": (f"{INSIDE}:open_checkpoint", "Write a checkpoint as read-only files to look at."),
    "export": (f"{AFTER}:export", "Export the checkpoints as commits on a branch, or as patches."),
    "report": (f"{AFTER}:report", "Write a plan as one page, or as the text of a pull request."),
    "cancel": (f"{KEEP}:cancel", "End a plan without applying it."),
    "delete": (f"{KEEP}:delete", "Delete a plan and everything it holds."),
    "output": (f"{READ}:output", "Show what the steps of a plan printed."),
    "errors": (f"{READ}:errors", "Show why a plan stopped and how to inspect the failed state."),
    "log": (f"{READ}:log", "List every operation on a plan."),
    "prune": (f"{KEEP}:prune", "Delete checkpoints that the retention policy does not keep."),
}
CHECKPOINT_COMMANDS: dict[str, tuple[str, str]] = {
    "create": (f"{ONE}:create", "Create a checkpoint now."),
    "show": (f"{ONE}:show", "Show a checkpoint and the group it belongs to."),
    "pin": (f"{ONE}:pin", "Keep a checkpoint from being pruned."),
    "delete": (f"{ONE}:delete", "Delete a checkpoint group."),
}
CONFIG_COMMANDS: dict[str, tuple[str, str]] = {
    "list": (f"{STORE}:config_list", "List all settings and where each comes from."),
    "get": (f"{STORE}:config_get", "Show a setting."),
    "set": (f"{STORE}:config_set", "Change a setting, in your own file or the project's."),
    "unset": (f"{STORE}:config_unset", "Remove a setting."),
}

HOOK_COMMANDS: dict[str, tuple[str, str]] = {
    "install": (f"{SETTINGS}:install", "Add our hooks to an agent's settings."),
    "uninstall": (f"{SETTINGS}:uninstall", "Remove our hooks from an agent's settings."),
    "status": (f"{SETTINGS}:status", "Show which agents call us, and when one last did."),
    "event": (f"{HOOK}:event", "Note one event of an agent's session (for programs)."),
    "sidecar": (f"{HOOK}:sidecar", "Answer the events of one session (for programs)."),
}

STORE_COMMANDS: dict[str, tuple[str, str]] = {
    "init": (f"{ROWS}:init", "Create the store's tables in the database that store.url names."),
    "status": (f"{ROWS}:status", "Show where the store's rows are, and who works on plans."),
    "migrate": (f"{ROWS}:migrate", "Bring the tables of a shared store up to date."),
    "copy": (f"{ROWS}:copy", "Copy all plans into a shared database or back, and compare them."),
}
CLUSTER_COMMANDS: dict[str, tuple[str, str]] = {
    "status": (f"{WORK}:cluster_status", "Show workers, queues, schedules and what waits."),
    "unschedule": (f"{WORK}:unschedule", "Submit a plan file no more."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and help; imports one when it is called."""

    def __init__(self, name: str, table: dict[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(name, no_args_is_help=True, **attributes)
        self._table = table

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.parent is None:
            ctx.meta[TYPED] = tuple(args)
            args = behind_command(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        if cmd_name in GROUPS:
            return GROUPS[cmd_name]
        module, _, attribute = self._table[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._table and not args[0].startswith("-"):
            raise click.UsageError(f"no such command: {args[0]}{_meant(args[0])}", ctx)
        return super().resolve_command(ctx, args)


def _meant(word: str) -> str:
    """The nearest command of all groups, as it is typed."""
    from cleveragents.model.triggers import closest

    paths: dict[str, str] = {}
    for group in ("store", "hook", "config", "plan checkpoint", "plan", ""):  # the last one wins
        table = TABLES[group.split()[-1]] if group else COMMANDS
        paths |= {name: " ".join(("agents", *group.split(), name)) for name in table}
    found = closest(word, paths)
    return f", did you mean {paths[found]!r}?" if found else ""


def behind_command(args: list[str]) -> list[str]:
    """Options that every command has may stand before it: they are put behind its name (pure)."""
    before: list[str] = []
    rest = list(args)
    while rest and (option := rest[0].partition("=")[0]) in EVERYWHERE:
        words = 1 if "=" in rest[0] else EVERYWHERE[option]
        before, rest = before + rest[:words], rest[words:]
    names = 0
    table: dict[str, tuple[str, str]] | None = COMMANDS
    while table is not None and names < len(rest) and rest[names] in table:
        table = TABLES.get(rest[names])
        names += 1
    return [*rest[:names], *before, *rest[names:]]


EVERYWHERE = {"--format": 2, "--json": 1, "--quiet": 1, "-q": 1, "--debug": 1, "--set": 2}
"""Options of every command -> how many words each is."""
TABLES = {
    "plan": PLAN_COMMANDS,
    "checkpoint": CHECKPOINT_COMMANDS,
    "config": CONFIG_COMMANDS,
    "hook": HOOK_COMMANDS,
    "store": STORE_COMMANDS,
    "cluster": CLUSTER_COMMANDS,
}
GROUPS: dict[str, LazyGroup] = {
    "plan": LazyGroup("plan", PLAN_COMMANDS, help=COMMANDS["plan"][1]),
    "checkpoint": LazyGroup("checkpoint", CHECKPOINT_COMMANDS, help=PLAN_COMMANDS["checkpoint"][1]),
    "config": LazyGroup("config", CONFIG_COMMANDS, help=COMMANDS["config"][1]),
    "hook": LazyGroup("hook", HOOK_COMMANDS, help=COMMANDS["hook"][1]),
    "store": LazyGroup("store", STORE_COMMANDS, help=COMMANDS["store"][1]),
    "cluster": LazyGroup("cluster", CLUSTER_COMMANDS, help=COMMANDS["cluster"][1]),
}

root: LazyGroup = LazyGroup(
    "agents",
    COMMANDS,
    help="Run an agent's plan in sandboxes; checkpoint, roll back, resume and apply it as a whole.",
    epilog="Begin with: agents demo",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, prog_name="agents", message="%(prog)s %(version)s")(root)


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    try:
        return root.main(prog_name="agents", standalone_mode=False) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        from cleveragents.cli.common import fail_usage

        return fail_usage(error, sys.argv[1:])
    except click.Abort:
        sys.stderr.write("aborted\n")
        return 130
