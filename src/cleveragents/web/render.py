"""Templates: everything is escaped, except markup of our own, which is marked."""

import shlex
import stat
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from cleveragents.model.resource import show_path
from cleveragents.model.tool import ToolCall
from cleveragents.web.view import words
from cleveragents.web.view.changes import table_words
from cleveragents.web.view.cluster import seconds


@cache
def environment(is_report: bool = False) -> Environment:
    """Of a report, which is read on another day, the times are dates."""
    made = Environment(
        loader=PackageLoader("cleveragents.web"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=_Empty,
        finalize=words.straight,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "ago": words.minute if is_report else words.ago,
        "clock": words.dated if is_report else words.clock,
        "count": words.count,
        "listed": words.listed,
        "spelled": words.spelled,
        "first_upper": words.first_upper,
        "table_words": table_words,
        "path": show_path,
        "one_line": words.one_line,
        "printed": words.printed,
        "quoted": shlex.quote,
        "cell": shown_cell,
        "mode": shown_mode,
        "mode_words": mode_words,
        "took": took,
        "seconds": seconds,
    }
    made.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    return made


class _Empty(StrictUndefined):
    """A missing value: it may be tested, but not used."""

    def __bool__(self) -> bool:
        return False


def took(call: ToolCall) -> str:
    return words.lasted(call.started_at, call.ended_at or call.started_at)


def shown_cell(value: Any) -> str:
    """A value of a database."""
    if value is None:
        return "NULL"
    return f"{len(value)} bytes" if isinstance(value, bytes) else words.shortened(str(value), 200)


def shown_mode(mode: str) -> str:
    """`100755` as `rwxr-xr-x`."""
    return stat.filemode(int(mode, 8))[1:]


def mode_words(modes: tuple[str, str]) -> str:
    """The change of mode in words, where there are any."""
    before, after = (bool(int(mode, 8) & 0o111) for mode in modes)
    if before == after:
        return ""
    return ": it may be executed" if after else ": it may not be executed any more"


def render(template: str, **values: Any) -> str:
    is_report = values.get("is_report", False)
    return environment(is_report).get_template(template).render(**values)
