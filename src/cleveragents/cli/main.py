"""`agents`: the group of all commands; each module is imported when one of its commands is used."""

import importlib
import sys
from typing import Any

import click

from cleveragents import __version__
from cleveragents.cli.again import TYPED

__all__ = ["main", "root"]

RUN = "cleveragents.cli.plan_run"
BACK = "cleveragents.cli.plan_rollback"
KEEP = "cleveragents.cli.plan_keep"
READ = "cleveragents.cli.plan_read"
AFTER = "cleveragents.cli.plan_after"
STORE = "cleveragents.cli.upkeep"
COMMANDS: dict[str, tuple[str, str]] = {
    "run": (f"{RUN}:run_command", "Run a command in a sandbox of the current directory."),
    "plan": ("", "Work with plans: run, inspect, roll back, correct, resume, apply."),
    "config": ("", "Show and change settings."),
    "check": (f"{STORE}:check", "Check the integrity of the store."),
    "du": (f"{STORE}:du", "Show disk usage per plan."),
    "gc": (f"{STORE}:gc", "Free content that no plan refers to."),
    "doctor": (
        "cleveragents.cli.doctor:doctor",
        "Show what this machine supports, what is not confined and what is left over.",
    ),
    "demo": ("cleveragents.cli.demo:demo", "Run a short demonstration on throw-away data."),
}
PLAN_COMMANDS: dict[str, tuple[str, str]] = {
    "use": (f"{RUN}:use", "Register a plan file without running it."),
    "run": (f"{RUN}:run", "Register a plan file and execute it."),
    "execute": (f"{RUN}:execute", "Execute a plan, or continue it."),
    "resume": (f"{RUN}:resume", "Continue with the first step that is not done."),
    "status": (f"{READ}:status", "Show a plan's status."),
    "list": (f"{READ}:list_plans", "List all plans, newest first."),
    "tree": (f"{READ}:tree", "Show the decisions of a plan as a tree."),
    "explain": (f"{READ}:explain", "Explain one decision."),
    "checkpoints": (f"{READ}:checkpoints", "List the checkpoints of a plan, oldest first."),
    "checkpoint": ("", "Create, show, pin and delete single checkpoints."),
    "diff": (f"{READ}:diff", "Show what changed between two checkpoints of a plan."),
    "rollback": (f"{BACK}:rollback", "Roll back sandboxes and plan to a checkpoint."),
    "undo": (f"{BACK}:undo", "Undo the last operation."),
    "redo": (f"{BACK}:redo", "Redo what was undone."),
    "correct": (
        "cleveragents.cli.plan_correct:correct_command",
        "Redo one decision and everything that depends on it.",
    ),
    "effects": (
        "cleveragents.cli.plan_effects:effects",
        "List what a plan did outside the sandboxes.",
    ),
    "apply": (
        "cleveragents.cli.plan_apply:apply",
        "Apply the plan's work to its targets, all of them or none.",
    ),
    "revert-applied": (f"{AFTER}:revert_applied", "Create a plan that reverts an applied one."),
    "export": (f"{AFTER}:export", "Export the checkpoints as commits on a branch, or as patches."),
    "cancel": (f"{KEEP}:cancel", "End a plan without applying it."),
    "delete": (f"{KEEP}:delete", "Delete a plan and everything it holds."),
    "errors": (f"{READ}:errors", "Show why a plan stopped and how to inspect the failed state."),
    "log": (f"{READ}:log", "List every operation on a plan."),
    "prune": (f"{KEEP}:prune", "Delete checkpoints that the retention policy does not keep."),
}
CHECKPOINT_COMMANDS: dict[str, tuple[str, str]] = {
    "create": (f"{KEEP}:checkpoint_create", "Create a checkpoint now."),
    "show": (f"{READ}:checkpoint_show", "Show a checkpoint and the group it belongs to."),
    "pin": (f"{KEEP}:checkpoint_pin", "Keep a checkpoint from being pruned."),
    "delete": (f"{KEEP}:checkpoint_delete", "Delete a checkpoint group."),
}
CONFIG_COMMANDS: dict[str, tuple[str, str]] = {
    "list": (f"{STORE}:config_list", "List all settings and where each comes from."),
    "get": (f"{STORE}:config_get", "Show a setting."),
    "set": (f"{STORE}:config_set", "Change a setting, in your own file or the project's."),
    "unset": (f"{STORE}:config_unset", "Remove a setting."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and help; imports one when it is called."""

    def __init__(self, name: str, table: dict[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(name, no_args_is_help=True, **attributes)
        self._table = table

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.parent is None:
            ctx.meta[TYPED] = tuple(args)
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
            from cleveragents.model.triggers import nearest

            raise click.UsageError(
                f"no such command: {args[0]}{nearest(args[0], self._table)}", ctx
            )
        return super().resolve_command(ctx, args)


GROUPS: dict[str, LazyGroup] = {
    "plan": LazyGroup("plan", PLAN_COMMANDS, help=COMMANDS["plan"][1]),
    "checkpoint": LazyGroup("checkpoint", CHECKPOINT_COMMANDS, help=PLAN_COMMANDS["checkpoint"][1]),
    "config": LazyGroup("config", CONFIG_COMMANDS, help=COMMANDS["config"][1]),
}

root = LazyGroup(
    "agents",
    COMMANDS,
    help="Run an agent's plan in sandboxes; checkpoint, roll back, resume and apply it as a whole.",
    epilog="Begin with: agents demo",
)
click.version_option(__version__, prog_name="agents", message="%(prog)s %(version)s")(root)


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    from cleveragents.cli.common import fail_usage

    try:
        return root.main(prog_name="agents", standalone_mode=False) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        return fail_usage(error, sys.argv[1:])
    except click.Abort:
        sys.stderr.write("aborted\n")
        return 130
