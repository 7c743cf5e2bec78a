"""What becomes of the paths of each resource when a plan goes back."""

import msgspec

from cleveragents.model.resource import Change
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.view.changes import table_back_words
from cleveragents.web.view.facts import Facts
from cleveragents.web.view.words import listed, one_line


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the paths of one resource."""

    name: str
    said: str
    restored: int
    removed: int
    recreated: int


def shown(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    return tuple(change for change in changes if not change.path.startswith(b".git/"))


def sums_of(changes: tuple[Change, ...]) -> tuple[Sum, ...]:
    """How many paths of each resource are restored, removed and made again."""
    names = list(dict.fromkeys(change.resource for change in shown(changes)))
    return tuple(_sum(name, [c for c in shown(changes) if c.resource == name]) for name in names)


def with_tables(
    handle: PlanHandle, group_id: str, facts: Facts, sums: tuple[Sum, ...]
) -> tuple[Sum, ...]:
    """Of databases it is said what becomes of their tables."""
    if facts.in_place:
        return sums  # what somebody else did to them stays
    with handle.compare(group_id, on=tuple(one.name for one in sums)) as found:
        tables = found.tables()
    said = {name: [table_back_words(one) for one in own] for name, own in tables.items()}
    return tuple(
        msgspec.structs.replace(one, said=", ".join(told[:4]) + ", …" * (len(told) > 4))
        if (told := said.get(one.name))
        else one
        for one in sums
    )


def _sum(name: str, own: list[Change]) -> Sum:
    actions = [str(change.action) for change in own]
    folders: dict[str, int] = {}
    for change in own:
        top, _, rest = change.shown.partition("/")
        folders[top if rest else "."] = folders.get(top if rest else ".", 0) + 1
    inside = {one_line(top): number for top, number in folders.items() if top != "."}
    said = listed([f"{number:,} in {top}" for top, number in inside.items()][:4])
    return Sum(
        name=name,
        said=said if len(own) > 3 else listed([one_line(change.shown) for change in own]),
        restored=actions.count("changed"),
        removed=actions.count("removed"),
        recreated=actions.count("added"),
    )
