"""A row's changes in words: quickly from the trees of two groups, exactly from their contents.

Groups never change, so the difference between two is computed once and cached.
"""

import posixpath
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from cleveragents.errors import AgentsError
from cleveragents.history.diff import Diff
from cleveragents.model.resource import Action, Change
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.view.words import count, first_upper, listed, one_line
from cleveragents.workspace import Workspace

MOST_KEPT = 2000
NAMED = 2
"""Up to so many paths are called by their names."""
FIRST = 4
"""Of many paths that are counted, so many are called by their names below."""


class Did(msgspec.Struct, frozen=True):
    """What happened to the resources, for one line."""

    text: str
    insertions: int = 0
    deletions: int = 0
    counts: dict[str, int] = {}
    """Resource -> paths that changed."""
    exact: bool = False
    names: str = ""
    """What was touched, without saying how."""
    below: str = ""
    """What is left to say below a title that has these names."""


class Shelf:
    """A cache of differences between groups."""

    def __init__(self) -> None:
        self._quick: dict[tuple[str, str], Did] = {}
        self._exact: dict[tuple[str, str], Did] = {}
        self._peeks: dict[tuple[str, str], Any] = {}
        self.contents: dict[str, str] = {}
        """Group that a plan began with -> what it holds, in words."""

    def count(self, handle: PlanHandle, group_id: str) -> None:
        """Look what a plan began with."""
        if group_id not in self.contents:
            self.contents[group_id] = contents_words(handle.contents(group_id))

    def peek(self, before: str, after: str, look: Callable[[], Any]) -> Any:
        """What the panel shows of it."""
        pair = before, after
        if pair not in self._peeks:
            self._keep(self._peeks, pair, look())
        return self._peeks[pair]

    def known(self, before: str, after: str) -> Did | None:
        pair = before, after
        return self._exact.get(pair) or self._quick.get(pair)

    def quick(self, ws: Workspace, plan_id: str, before: str, after: str) -> Did:
        """From names and hashes alone: no content is read."""
        found = self.known(before, after)
        if found is None:
            found = _quick(ws, plan_id, before, after)
            self._keep(self._quick, (before, after), found)
        return found

    def exact(self, handle: PlanHandle, before: str, after: str) -> Did:
        """With lines and tables."""
        found = self._exact.get((before, after))
        if found is None:
            found = summary(handle.diff(before, after))
            self._keep(self._exact, (before, after), found)
        return found

    @staticmethod
    def _keep(where: dict[tuple[str, str], Any], pair: tuple[str, str], found: Any) -> None:
        if len(where) >= MOST_KEPT:
            where.clear()
        where[pair] = found


def contents_words(contents: dict[str, dict[str, int]]) -> str:
    """`236 files in app, 2 tables with 46 rows in db`; the name is left out where there is one."""
    said: list[str] = []
    for name, held in contents.items():
        numbers = [count(number, what.removesuffix("s")) for what, number in held.items()]
        where = f" in {name}" if len(contents) > 1 else ""
        said.append(f"{' with '.join(numbers)}{where}" if numbers else name)
    return listed(said)


def _quick(ws: Workspace, plan_id: str, before: str, after: str) -> Did:
    groups = ws.ctx.store.checkpoints
    states = ws.ctx.checkpoints.states
    try:
        found = ws.ctx.checkpoints.diff(
            plan_id, states(groups.group(before)), states(groups.group(after))
        )
    except AgentsError as error:  # a group that cannot be read any more is still on the line
        return Did(error.message)
    return summary_of_changes(found)


def summary_of_changes(changes: Iterable[Change]) -> Did:
    """Changes as they come from two trees; folders and git's own files are not told of."""
    shown = [c for c in changes if not c.path.startswith(b".git/") and not c.is_directory]
    counts: dict[str, int] = {}
    for change in shown:
        counts[change.resource] = counts.get(change.resource, 0) + 1
    removed = {c.before for c in shown if c.action is Action.REMOVED}
    moved = {c.after for c in shown if c.action is Action.ADDED} & removed
    rest = [c for c in shown if not ({c.before, c.after} & moved)]
    text = _summary(
        [c.shown for c in rest if c.action is Action.CHANGED],
        [c.shown for c in rest if c.action is Action.ADDED],
        [c.shown for c in rest if c.action is Action.REMOVED],
        sum(c.action is Action.ADDED and c.after in moved for c in shown),
    )
    paths = [c.shown for c in shown]
    below = "" if _names(paths) else _beginning(paths)
    return Did(text, counts=counts, names=_named(paths), below=below)


def summary(diff: Diff) -> Did:
    """The same from a difference with lines and tables."""
    counts: dict[str, int] = {}
    files = [file for file in diff.files if not file.is_directory]
    for file in files:
        counts[file.resource] = counts.get(file.resource, 0) + 1
    told = [file for file in files if not file.tables]
    text = _summary(
        [f.path for f in told if f.status == "changed"],
        [f.path for f in told if f.status == "added"],
        [f.path for f in told if f.status == "removed"],
        sum(f.status == "renamed" for f in told),
    )
    tables = [first_upper(table_words(t)) for file in diff.files for t in file.tables]
    if len(tables) > 3:
        tables = [*tables[:3], count(len(tables) - 3, "more table")]
    paths = [file.path for file in files]
    some = _beginning([file.path for file in told]) if not _names(paths) else ""
    words = ". ".join([*tables, text] if text and told else tables)
    return Did(
        words or text,
        diff.insertions,
        diff.deletions,
        counts,
        exact=True,
        names=_named(paths),
        below=". ".join([*tables, some] if some else tables),
    )


def table_words(table: Any) -> str:
    """One table, in a sentence without its full stop."""
    name = f"{table.kind} {table.name}"
    if table.status == "added":
        rows = f", {count(table.rows_after, 'row')}" if table.rows_after else ""
        return f"{name} is new{rows}"
    if table.status == "removed":
        rows = f", with {count(table.rows_before, 'row')}" if table.rows_before else ""
        return f"{name} is gone{rows}"
    said = _columns(table)
    was = table.renamed_from
    if table.definition_changed and not said and not was:
        said.append("another definition")
    if rows := _rows(table):
        said.append(f"{rows} changed")
    if was:
        return ", ".join([f"{table.kind} {was} is now {table.name}", *said])
    return f"{name}: {', '.join(said) or 'changed'}"


def table_back_words(table: Any) -> str:
    """What becomes of a table that is different now, when its database goes back."""
    name = f"{table.kind} {table.name}"
    rows = table.rows_before if table.status == "removed" else table.rows_after
    held = f", with {count(rows, 'row')}" if rows else ""
    if table.status != "changed":
        return f"{name} {'returns' if table.status == 'removed' else 'goes'}{held}"
    if table.renamed_from:
        return f"{name} is {table.renamed_from} again"
    changed = max(table.rows_added or 0, table.rows_removed or 0)
    if changed and not table.definition_changed:
        return f"{count(changed, 'row')} of {table.name}"
    return f"{name} as it was"


def _rows(table: Any) -> str:
    """The number of changed rows; if columns changed too, of the listed ones."""
    number = max(table.rows_added or 0, table.rows_removed or 0) or len(table.rows)
    if table.rows_left_out and number == len(table.rows):
        return f"more than {count(number, 'row')}"
    return count(number, "row") if number else ""


def _columns(table: Any) -> list[str]:
    """Those that came and went, where both sides are known."""
    if not table.columns or not table.columns_before:
        return []
    came = [one for one in table.columns if one not in table.columns_before]
    went = [one for one in table.columns_before if one not in table.columns]
    said = [f"new {'column' if len(came) == 1 else 'columns'} {listed(came)}"] if came else []
    if went:
        said.append(f"{listed(went)} {'is' if len(went) == 1 else 'are'} gone")
    return said


def _summary(changed: list[str], added: list[str], removed: list[str], renamed: int) -> str:
    said: list[str] = []
    if changed:
        said.append(_names(changed) or count(len(changed), "file"))
    if added:
        names, verb = _names(added), "is" if len(added) == 1 else "are"
        said.append(f"{names} {verb} new" if names else f"{len(added):,} new")
    if renamed:
        said.append(f"{renamed:,} renamed")
    if removed:
        names, verb = _names(removed), "is" if len(removed) == 1 else "are"
        said.append(f"{names} {verb} gone" if names else f"{len(removed):,} gone")
    return ", ".join(said)


def _named(paths: list[str]) -> str:
    if not paths:
        return "folders, or files of git"  # which are not told of
    return _names(paths) or count(len(paths), "file")


def _beginning(paths: list[str]) -> str:
    """The first names of many, which a title only counts."""
    names = [_name(path) for path in paths]
    more = [f"{len(names) - FIRST:,} more"] if len(names) > FIRST else []
    return listed([*names[:FIRST], *more])


def _names(paths: list[str]) -> str:
    """What a few paths are called for short; empty if they are many."""
    if len(paths) > NAMED:
        return ""
    return listed([_name(path) for path in paths])


def _name(path: str) -> str:
    return one_line(posixpath.basename(path.rstrip("/")))
