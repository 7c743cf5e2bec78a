"""Completes hints that name the command just typed with all of its options.

A verb suggests the command and the option that would help. Pasted without the other options that
were given, it would do something else.
"""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

TYPED = "cleveragents.typed"
"""Where click's context has the words of the command line."""
WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^'" ])+|['"]""")
"""What spaces stand between in a hint, quotes and all."""
FLAG_AWAY = {"--branch": "--patch", "--patch": "--branch"}
"""Options of which only one can be given."""


def again(typed: Sequence[str], command: "click.Command", more: Sequence[str]) -> str:
    """The command as typed, with `more` options, which replace those they exclude."""
    words, rest = _split(list(typed))
    for option, value in _pairs(more, command):
        words = _without(words, option, command)
        if option in FLAG_AWAY:
            words = _without(words, FLAG_AWAY[option], command)
        words += [option] if value is None else [option, value]
    return shlex.join(["agents", *words, *rest])


def as_typed(hint: str, name: str, without: str = "") -> str:
    """A hint to repeat the command with another option, keeping all typed options but one."""
    if f"agents {name} " not in hint:
        return hint
    import click

    here = click.get_current_context(silent=True)
    if here is None:
        return hint
    typed = [word for word in here.meta[TYPED] if word != without]
    return completed(hint, name, typed, here.command)


def completed(hint: str, name: str, typed: Sequence[str], command: "click.Command") -> str:
    """The hint; where it repeats the command, with the options that were typed."""
    before, found, after = hint.partition(f"agents {name} ")
    if not found:
        return hint
    command_line, stop, remark = after.partition("; ")
    words = WORD.findall(command_line)
    position = sum(_is_argument(param) for param in command.params)
    more: list[str] = []
    while position < len(words) and words[position].startswith("--"):
        takes = _takes_value(words[position], command)
        more += words[position : position + 1 + takes]
        position += 1 + takes
    if not more:
        return hint
    tail = " ".join(words[position:])
    said = f"{again(typed, command, more)}{' ' if tail else ''}{tail}"
    return f"{before}{said}{stop}{remark}"


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at:]


def _pairs(words: Sequence[str], command: "click.Command") -> list[tuple[str, str | None]]:
    rest = iter(words)
    return [(word, next(rest, "") if _takes_value(word, command) else None) for word in rest]


def _without(words: list[str], option: str, command: "click.Command") -> list[str]:
    """The words without an earlier use of the option, unless it may be repeated."""
    param = _option(option, command)
    if param is None or getattr(param, "multiple", False):
        return words
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in (*param.opts, *param.secondary_opts):
            if _takes_value(option, command):
                next(rest, None)
        elif not any(word.startswith(f"{one}=") for one in param.opts):
            kept.append(word)
    return kept


def _option(word: str, command: "click.Command") -> "click.Parameter | None":
    return next((p for p in command.params if word in (*p.opts, *p.secondary_opts)), None)


def _takes_value(word: str, command: "click.Command") -> bool:
    param = _option(word, command)
    return param is not None and not getattr(param, "is_flag", False)


def _is_argument(param: "click.Parameter") -> bool:
    return param.param_type_name == "argument"
