"""`agents`: the group of all commands; a module is imported when its command is used."""

import importlib
import sys
from typing import Any

import click

from cleveragents import __version__
from cleveragents.cli.again import TYPED

__all__ = ["main", "root"]

Row = tuple[str, str]
"""Where a command is, below this package, and its help; a group is nowhere."""
TABLES: dict[str, dict[str, Row]] = {
    "": {
        "init": ("start.files:init", "Write settings and a first plan to begin with."),
        "run": ("plan.run:run_command", "Run a command in a sandbox of the current directory."),
        "do": ("do:do", "Have a language model work towards a goal in a sandbox."),
        "mcp": ("serve:mcp", "Serve checkpoints and rollback to an agent (MCP)."),
        "web": ("serve:web", "Show plans in a browser."),
        "plan": ("", "Work with plans: run, inspect, roll back, correct, resume, apply."),
        "status": ("plan.status:status", "Show the status of this directory's newest plan."),
        "diff": ("plan.diff:diff", "Show what that plan changed."),
        "log": ("plan.read:log", "List every operation on it."),
        "rollback": ("plan.rollback:rollback", "Roll it back to a checkpoint."),
        "undo": ("plan.rollback:undo", "Undo its last operation."),
        "redo": ("plan.rollback:redo", "Redo what was undone."),
        "apply": ("plan.apply:apply", "Apply its work to its targets."),
        "hook": ("", "Follow the sessions of agents that you start yourself."),
        "config": ("", "Show and change settings."),
        "worker": ("cluster.work:worker", "Run plans that were submitted, until SIGTERM."),
        "cluster": ("", "Show workers, queues and schedules."),
        "store": ("", "Show where plans are kept, and share them between machines."),
        "check": ("upkeep:check", "Check the integrity of the store."),
        "du": ("upkeep:du", "Show disk usage: per plan, and per part of the store."),
        "gc": ("upkeep:gc", "Free content that no plan refers to."),
        "doctor": (
            "doctor:doctor",
            "Show what this machine supports, what is not confined and what is left over.",
        ),
        "demo": ("demo:demo", "Run a short demonstration on throw-away data."),
        "schema": (
            "start.schema:schema",
            "Print the JSON Schema of plan files or of a command's output.",
        ),
        "completion": (
            "completion:completion",
            "Print the completion script for a shell.",
        ),
    },
    "plan": {
        "new": ("start.files:new", "Write a plan file, from commands if you have them."),
        "lint": ("start.files:lint", "Show everything that is wrong with a plan file."),
        "use": ("plan.run:use", "Register a plan file without running it."),
        "run": ("plan.run:run", "Register a plan file and execute it."),
        "submit": ("cluster.work:submit_plan", "Hand a plan to the workers."),
        "execute": ("plan.run:execute", "Execute a plan, or continue it."),
        "resume": ("plan.run:resume", "Continue with the first step that is not done."),
        "status": ("plan.status:status", "Show a plan's status."),
        "list": ("plan.read:list_plans", "List all plans, newest first."),
        "tree": ("plan.read:tree", "Show the decisions of a plan as a tree."),
        "explain": ("plan.read:explain", "Explain one decision."),
        "checkpoints": ("plan.read:checkpoints", "List the checkpoints of a plan, oldest first."),
        "checkpoint": ("", "Create, show, pin and delete single checkpoints."),
        "diff": (
            "plan.diff:diff",
            "Show what changed between two checkpoints of a plan.",
        ),
        "rollback": ("plan.rollback:rollback", "Roll back sandboxes and plan to a checkpoint."),
        "undo": ("plan.rollback:undo", "Undo the last operation."),
        "redo": ("plan.rollback:redo", "Redo what was undone."),
        "correct": (
            "plan.correct:correct_command",
            "Redo one decision and everything that depends on it.",
        ),
        "effects": (
            "plan.effects:effects",
            "List what a plan did outside the sandboxes.",
        ),
        "apply": (
            "plan.apply:apply",
            "Apply the plan's work to its targets, all of them or none.",
        ),
        "revert-applied": (
            "plan.after:revert_applied",
            "Create a plan that reverts an applied one.",
        ),
        "shell": (
            "plan.look_inside:shell",
            "Open a shell in a plan's sandbox; what it changes is one step.",
        ),
        "open": (
            "plan.look_inside:open_checkpoint",
            "Write a checkpoint as read-only files to look at.",
        ),
        "export": (
            "plan.after:export",
            "Export the checkpoints as commits on a branch, or as patches.",
        ),
        "report": (
            "plan.after:report",
            "Write a plan as one page, or as the text of a pull request.",
        ),
        "cancel": ("plan.keep:cancel", "End a plan without applying it."),
        "delete": ("plan.keep:delete", "Delete a plan and everything it holds."),
        "output": ("plan.read:output", "Show what the steps of a plan printed."),
        "errors": (
            "plan.read:errors",
            "Show why a plan stopped and how to inspect the failed state.",
        ),
        "log": ("plan.read:log", "List every operation on a plan."),
        "prune": ("plan.keep:prune", "Delete checkpoints that the retention policy does not keep."),
    },
    "plan checkpoint": {
        "create": ("plan.checkpoint:create", "Create a checkpoint now."),
        "show": ("plan.checkpoint:show", "Show a checkpoint and the group it belongs to."),
        "pin": ("plan.checkpoint:pin", "Keep a checkpoint from being pruned."),
        "delete": ("plan.checkpoint:delete", "Delete a checkpoint group."),
    },
    "config": {
        "list": ("upkeep:config_list", "List all settings and where each comes from."),
        "get": ("upkeep:config_get", "Show a setting."),
        "set": ("upkeep:config_set", "Change a setting, in your own file or the project's."),
        "unset": ("upkeep:config_unset", "Remove a setting."),
    },
    "hook": {
        "install": ("hook_settings:install", "Add our hooks to an agent's settings."),
        "uninstall": ("hook_settings:uninstall", "Remove our hooks from an agent's settings."),
        "status": ("hook_settings:status", "Show which agents call us, and when one last did."),
        "event": ("hook:event", "Note one event of an agent's session (for programs)."),
        "sidecar": ("hook:sidecar", "Answer the events of one session (for programs)."),
    },
    "store": {
        "init": (
            "cluster.store:init",
            "Create the store's tables in the database that store.url names.",
        ),
        "status": (
            "cluster.store:status",
            "Show where the store's rows are, and who works on plans.",
        ),
        "migrate": ("cluster.store:migrate", "Bring the tables of a shared store up to date."),
        "copy": (
            "cluster.store:copy",
            "Copy all plans into a shared database or back, and compare them.",
        ),
    },
    "cluster": {
        "status": (
            "cluster.work:cluster_status",
            "Show workers, queues, schedules and what waits.",
        ),
        "unschedule": ("cluster.work:unschedule", "Stop submitting a plan file."),
    },
}
"""The words of a group -> its commands."""
FOR_PROGRAMS = {"hook": ("event", "sidecar")}
"""What nobody types: never suggested."""


EVERYWHERE = {"--format": 2, "--json": 1, "--quiet": 1, "-q": 1, "--debug": 1, "--set": 2}
"""Options of every command -> how many words each is."""
COMMON = [
    click.Option([name], hidden=True, expose_value=False, is_flag=words == 1 or None)
    for name, words in EVERYWHERE.items()
]
"""The same for a group, which has nothing to do with them: `behind_command` hands them on."""


class LazyGroup(click.Group):
    """Knows its commands by name and help; imports one when it is called."""

    def __init__(self, words: str, name: str = "", **attributes: Any) -> None:
        super().__init__(name or words.rpartition(" ")[2], **attributes)
        self._words = words
        self._table = TABLES[words]
        self.params.extend(COMMON)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # click would raise an error, and the help would look like one.
            sys.stderr.write(f"{ctx.get_help()}\n")
            ctx.exit(2)
        if ctx.parent is None:
            ctx.meta[TYPED] = tuple(args)
            args = behind_command(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        where, help_ = self._table[cmd_name]
        if not where:
            return LazyGroup(f"{self._words} {cmd_name}".strip(), help=help_)
        module, _, attribute = where.partition(":")
        return getattr(importlib.import_module(f"cleveragents.cli.{module}"), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._table and not args[0].startswith("-"):
            raise click.UsageError(f"no such command: {args[0]}{_meant(args[0], self._words)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None  # else click prints an empty line


def _meant(word: str, group: str) -> str:
    """The nearest command: in this group, else in its parents, at the top in all groups."""
    from cleveragents.model.triggers import closest

    words = group.split()
    around = [[" ".join(words[:n])] for n in range(len(words), -1, -1)]
    for groups in around if group else [*around, list(TABLES)]:
        paths: dict[str, str] = {}
        for one in reversed(groups):  # the first one wins
            names = TABLES[one].keys() - FOR_PROGRAMS.get(one, ())
            paths |= {name: " ".join(("agents", *one.split(), name)) for name in names}
        if found := closest(word, paths):
            return f", did you mean {paths[found]!r}?"
    return ""


def behind_command(args: list[str]) -> list[str]:
    """Move common options from before or within a command's name to its end (pure)."""
    names: list[str] = []
    before: list[str] = []
    rest = list(args)
    while rest and (group := TABLES.get(" ".join(names))) is not None:
        if (option := rest[0].partition("=")[0]) in EVERYWHERE:
            words = 1 if "=" in rest[0] else EVERYWHERE[option]
            before, rest = before + rest[:words], rest[words:]
        elif rest[0] in group:
            names.append(rest.pop(0))
        else:
            break
    return [*names, *before, *rest]


def _typed_command(args: list[str]) -> str:
    """The command that the words begin with."""
    names: list[str] = []
    for word in behind_command(args):
        if word not in TABLES.get(" ".join(names), ()):
            break
        names.append(word)
    return " ".join(("agents", *names))


root: LazyGroup = LazyGroup(
    "",
    "agents",
    help="Undo what AI agents do: files, databases and the conversation are rolled back together.",
    epilog="Begin with: agents demo; with your agent: agents hook install claude-code",
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
        from cleveragents.cli.terminal.usage import fail_usage

        return fail_usage(error, sys.argv[1:], _typed_command(sys.argv[1:]))
    except click.Abort:
        raise KeyboardInterrupt from None
