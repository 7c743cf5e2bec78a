"""The command that a form of the page stands for (pure).

User input is part of an option's own argument, so it can never become another option.
"""

from collections.abc import Callable

from cleveragents.errors import UsageError

Fields = dict[str, list[str]]


def argv_of(verb: str, plan_id: str, fields: Fields) -> list[str]:
    """The words after `agents`."""
    return COMMANDS[verb](plan_id, _First(fields), fields)


class _First:
    """The first value of each field; empty where there is none."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return (self._fields.get(name) or [""])[0]

    def id(self, name: str) -> str:
        found = self[name]
        if not (found.isascii() and found.isalnum()):
            raise UsageError(f"the form does not say which {name}", "open the page again")
        return found

    def option(self, name: str, field: str) -> list[str]:
        return [f"{name}={self[field]}"] if self[field] else []

    def flag(self, name: str, field: str) -> list[str]:
        return [name] if self[field] else []

    @property
    def loss(self) -> list[str]:
        return self.flag("--accept-loss", "accept_loss")


def _rollback(plan_id: str, one: _First, fields: Fields) -> list[str]:
    chosen = [f"--keep-mine={path}" for path in fields.get("keep", [])]
    chosen += [f"--take-checkpoint={path}" for path in fields.get("take", [])]
    for name, values in fields.items():
        if name.startswith("clash-") and values[0].partition(":")[0] in ("keep", "take"):
            side, _, path = values[0].partition(":")
            option = "--keep-mine" if side == "keep" else "--take-checkpoint"
            chosen.append(f"{option}={path}")
    whole = one.flag("--everything", "everything")
    return ["plan", "rollback", plan_id, one.id("to"), "--yes", *one.loss, *chosen, *whole]


def _correct(_plan_id: str, one: _First, _fields: Fields) -> list[str]:
    said = f"--guidance={one['guidance']}"
    more = [*one.flag("--cascade", "cascade"), *one.option("--plan-file", "plan_file"), *one.loss]
    return ["plan", "correct", one.id("decision"), said, "--yes", *more]


def _resume(plan_id: str, one: _First, fields: Fields) -> list[str]:
    again = [f"--repeat={step}" for step in fields.get("repeat", [])]
    edits = ["--discard-edits"] if one["edits"] == "discard" else []
    return ["plan", "resume", plan_id, *edits, *again, *one.loss]


def _apply(plan_id: str, one: _First, _fields: Fields) -> list[str]:
    more = [*one.option("--as", "as"), *one.flag("--ignored", "ignored")]
    return ["plan", "apply", plan_id, "--yes", *more]


COMMANDS: dict[str, Callable[[str, _First, Fields], list[str]]] = {
    "rollback": _rollback,
    "undo": lambda plan_id, one, _: ["plan", "undo", plan_id, *one.loss],
    "redo": lambda plan_id, one, _: ["plan", "redo", plan_id, *one.loss],
    "correct": _correct,
    "resume": _resume,
    "apply": _apply,
    "keep": lambda plan_id, one, _: [
        *("plan", "checkpoint", "create", plan_id),
        *one.option("--label", "label"),
    ],
    "cancel": lambda plan_id, _one, _: ["plan", "cancel", plan_id, "--yes"],
}
