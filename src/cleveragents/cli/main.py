"""`agents`: the group of all commands; each module is imported when one of its commands is used."""

import importlib
import sys
from typing import Any

import click

from cleveragents import __version__
from cleveragents.cli.again import TYPED

__all__ = ["main", "root"]

PLAN = "cleveragents.cli.plan_work"
READ = "cleveragents.cli.plan_read"
AFTER = "cleveragents.cli.plan_after"
STORE = "cleveragents.cli.upkeep"
COMMANDS: dict[str, tuple[str, str]] = {
    "run": (f"{PLAN}:run_command", "Run one command in a sandbox of where you stand."),
    "plan": ("", "Work with plans: run, look, roll back, correct, resume, apply."),
    "config": ("", "Show and change settings."),
    "check": (f"{STORE}:check", "Check that the store is whole."),
    "du": (f"{STORE}:du", "Which plan holds how much."),
    "gc": (f"{STORE}:gc", "Free what no plan refers to."),
    "doctor": (
        "cleveragents.cli.doctor:doctor",
        "What this machine offers, what is not confined, what is left over.",
    ),
    "demo": ("cleveragents.cli.demo:demo", "See it all happen once, in ten seconds."),
}
PLAN_COMMANDS: dict[str, tuple[str, str]] = {
    "use": (f"{PLAN}:use", "Take a plan file into the store; run nothing yet."),
    "run": (f"{PLAN}:run", "Use a plan file and execute it: the main job."),
    "execute": (f"{PLAN}:execute", "Execute a plan, or go on with it."),
    "resume": (f"{PLAN}:resume", "Go on with the first step that is not done."),
    "status": (f"{READ}:status", "How a plan stands."),
    "list": (f"{READ}:list_plans", "All plans, newest first."),
    "tree": (f"{READ}:tree", "The decisions of a plan."),
    "explain": (f"{READ}:explain", "Everything about one decision."),
    "checkpoints": (f"{READ}:checkpoints", "The checkpoints of a plan, oldest first."),
    "checkpoint": ("", "Create, show, pin and delete single checkpoints."),
    "diff": (f"{READ}:diff", "What changed between two moments of a plan."),
    "rollback": (f"{PLAN}:rollback", "Bring everything back to a checkpoint."),
    "undo": (f"{PLAN}:undo", "Take back the last operation as a whole."),
    "redo": (f"{PLAN}:redo", "Do again what undo took back."),
    "correct": (
        "cleveragents.cli.plan_correct:correct_command",
        "Correct one decision: take it back with what hangs on it, do that again.",
    ),
    "effects": (
        "cleveragents.cli.plan_effects:effects",
        "What a plan did outside the sandboxes.",
    ),
    "apply": (f"{PLAN}:apply", "Make the plan's work real: all of it or none."),
    "revert-applied": (f"{AFTER}:revert_applied", "Make a plan that takes an applied one back."),
    "export": (f"{AFTER}:export", "The checkpoints as commits on a branch, or as patches."),
    "cancel": (f"{PLAN}:cancel", "End a plan without applying it."),
    "delete": (f"{PLAN}:delete", "Remove a plan and all it holds."),
    "errors": (f"{READ}:errors", "Why a plan stopped, and how to get at the failed state."),
    "log": (f"{READ}:log", "Every operation on a plan."),
    "prune": (f"{PLAN}:prune", "Drop checkpoints that the retention rule gives up."),
}
CHECKPOINT_COMMANDS: dict[str, tuple[str, str]] = {
    "create": (f"{PLAN}:checkpoint_create", "Make a checkpoint now."),
    "show": (f"{READ}:checkpoint_show", "One checkpoint and the group it belongs to."),
    "pin": (f"{PLAN}:checkpoint_pin", "Keep a checkpoint from being pruned."),
    "delete": (f"{PLAN}:checkpoint_delete", "Drop one checkpoint group."),
}
CONFIG_COMMANDS: dict[str, tuple[str, str]] = {
    "list": (f"{STORE}:config_list", "All settings and where each comes from."),
    "get": (f"{STORE}:config_get", "One setting."),
    "set": (f"{STORE}:config_set", "Set one, in your own file or the project's."),
    "unset": (f"{STORE}:config_unset", "Take one out again."),
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
