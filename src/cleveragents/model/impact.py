"""The dependents of a decision: worked out from the tree, influence, `needs` and what was written.

Pure. An influence ties two decisions; what was decided later depends on what was decided earlier.
"""

from collections.abc import Iterable, Sequence

import msgspec

Spot = tuple[str, bytes]
"""A resource and a path in it; an empty path is all of it, as for a database."""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """A decision in force with what the rule needs to know of it.

    One whose later steps wrote after others had decided is there a second time, for those.
    """

    decision_id: str
    parent_id: str | None = None
    steps: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    """Ids of the steps that its steps need."""
    influences: frozenset[str] = frozenset()
    """Ids of the steps it names as tied to it."""
    wrote: frozenset[Spot] = frozenset()
    is_record: bool = False
    """It only says what somebody did; `cascade` leaves it alone."""


class Touched:
    """A set of spots that can tell whether another lies on, above or below one of them."""

    def __init__(self) -> None:
        self._spots: set[Spot] = set()
        self._above: set[Spot] = set()

    def add(self, spots: Iterable[Spot]) -> None:
        for resource, path in spots:
            self._spots.add((resource, path))
            self._above.update((resource, above) for above in _folders(path))

    def overlaps(self, spots: Iterable[Spot]) -> bool:
        return any(self._meets(*spot) for spot in spots)

    def _meets(self, resource: str, path: bytes) -> bool:
        if (resource, path) in self._spots or (resource, path) in self._above:
            return True
        return any((resource, above) in self._spots for above in _folders(path))


def _folders(path: bytes) -> list[bytes]:
    """Everything a path lies in, the whole resource first."""
    if not path:
        return []
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(len(parts))]


def affected(
    deeds: Sequence[Deed], roots: Iterable[str], *, cascade: bool = False
) -> dict[str, str]:
    """Decision -> why it has to go with the roots; `deeds` are those in force, oldest first."""
    found = dict.fromkeys(roots, "corrected")
    while True:
        first = min((n for n, deed in enumerate(deeds) if deed.decision_id in found), default=0)
        new = _next(deeds[first:], found, cascade)
        if not new:
            return {d.decision_id: found[d.decision_id] for d in deeds if d.decision_id in found}
        found |= new


def _next(later: Sequence[Deed], found: dict[str, str], cascade: bool) -> dict[str, str]:
    inside = [deed for deed in later if deed.decision_id in found]
    steps = {step for deed in inside for step in deed.steps}
    touched = Touched()
    for deed in inside:
        touched.add(deed.wrote)
    has_written = False
    new: dict[str, str] = {}
    seen_steps: set[str] = set()
    named: set[str] = set()
    for deed in later:
        if deed.decision_id in found:
            named |= deed.influences
            seen_steps.update(deed.steps)
            has_written = has_written or bool(deed.wrote)
            continue
        why = _why(deed, found, steps, named, seen_steps, cascade)
        if not why and has_written and touched.overlaps(deed.wrote):
            why = "wrote the same paths"
        if why:
            new.setdefault(deed.decision_id, why)
    return new


def _why(
    deed: Deed,
    found: dict[str, str],
    steps: set[str],
    named: set[str],
    seen_steps: set[str],
    cascade: bool,
) -> str:
    if deed.parent_id in found:
        return "decided below it"
    if deed.needs & steps:
        return "needs " + ", ".join(sorted(deed.needs & steps))
    if named.intersection(deed.steps) or deed.influences & seen_steps:
        return "influenced by it"
    return "later (--cascade)" if cascade and not deed.is_record else ""
