"""Small drawings: a plan in one line, the overview beside the rail, what a child plan wrote."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from cleveragents.web.view.fold import Divider, Fold, Item
from cleveragents.web.view.rows import Row

GAP, EDGE, WIDEST = 17, 12, 256


class Sign(msgspec.Struct, frozen=True):
    """One mark of a line. `kind`: a, p, u, l, s, g, f, sys or hair."""

    kind: str
    here: bool = False
    groups: frozenset[str] = frozenset()
    """The moments that it stands for."""


def signs_of(items: Sequence[Item], ahead: int = 0) -> list[Sign]:
    """A plan's rows as marks: what is in force, and what is to be done."""
    found: list[Sign] = []
    for item in items:
        if isinstance(item, Divider):
            continue
        if isinstance(item, Fold):
            groups = (name for row in item.rows for name in (*row.groups, row.group_id) if name)
            found.append(Sign("hair", groups=frozenset(groups)))
        elif not item.is_aside:
            groups = (name for name in (*item.groups, item.group_id) if name)
            found.append(Sign(sign(item), item.is_here, frozenset(groups)))
    return found + [Sign("g")] * ahead


def sign(row: Row) -> str:
    if row.is_aside:
        return "f" if row.mark == "failed" else "s"
    return SIGNS.get(row.mark, "a")


SIGNS = {
    "person": "p",
    "turn": "p",
    "unknown": "u",
    "looked": "l",
    "system": "sys",
    "failed": "f",
}


def halves(x: float, y: float, half: float) -> str:
    """Round on the agent's side and square on the person's: it may have been either."""
    return (
        f'<path class="a" d="M{x:g} {y - half:g}a{half:g} {half:g} 0 0 0 0 {2 * half:g}z"/>'
        f'<path class="p" d="M{x:g} {y - half:g}h{half:g}v{2 * half:g}h-{half:g}z"/>'
    )


def mini(
    signs: Sequence[Sign],
    *,
    is_running: bool = False,
    classes: str = "mini",
    span: tuple[int, int] | None = None,
) -> Markup:
    """The line as one picture; `span`: the first and the last of what is compared."""
    places = list(range(len(signs)))
    if len(signs) > 18:
        first = next((n for n, s in enumerate(signs) if s.kind == "g"), len(signs))
        cut = max(6, first - 8)
        places = [*places[:6], -1, *places[cut:][:11]]
        signs = [Sign("hair") if n < 0 else signs[n] for n in places]
    gap = min(GAP, (WIDEST - 2 * EDGE) / max(1, len(signs) - 1))
    at = [EDGE + number * gap for number in range(len(signs))]
    done = [x for x, one in zip(at, signs, strict=True) if one.kind != "g"]
    width = (at[-1] if at else 0) + EDGE
    parts: list[str] = []
    if done and at and at[-1] > done[-1]:
        parts.append(f'<path class="todo" d="M{done[-1]:g} 12H{at[-1]:g}"/>')
    if done:
        parts.append(f'<path class="rail" d="M{done[0]:g} 12H{done[-1]:g}"/>')
    for x, one in zip(at, signs, strict=True):
        parts.append(_drawn(one, x, 12.0, is_running))
    height = 24
    if span is not None and at:
        height = 30
        left, right = (at[_place(places, number)] for number in span)
        parts.append(f'<path class="range" d="M{left - 6:g} 22v4H{right + 6:g}v-4"/>')
    return Markup(
        f'<svg class="{classes}" viewBox="0 0 {width:g} {height}" width="{width:g}"'
        f' height="{height}"'
        f' aria-hidden="true">{"".join(parts)}</svg>'
    )


def _place(places: list[int], number: int) -> int:
    """Where a mark is drawn; one that was left out is where the cut is."""
    return places.index(number) if number in places else places.index(-1)


def _drawn(one: Sign, x: float, y: float, is_running: bool) -> str:
    beat = " beat" if is_running and one.here else ""
    here = f'<circle class="h" cx="{x:g}" cy="{y:g}" r="8"/>' if one.here else ""
    if one.kind == "p":
        shape = f'<rect class="p" x="{x - 4:g}" y="{y - 4:g}" width="8" height="8" rx="1"/>'
    elif one.kind == "u":
        shape = halves(x, y, 4)
    elif one.kind == "sys":
        shape = f'<rect class="sysm" x="{x - 1:g}" y="{y - 6:g}" width="2" height="12"/>'
    elif one.kind == "f":
        shape = (
            f'<circle class="b" cx="{x:g}" cy="{y:g}" r="7"/>'
            f'<path class="f" d="m{x - 3.5:g} {y - 3.5:g} 7 7m0-7-7 7"/>'
        )
    elif one.kind == "hair":
        hairs = "".join(f"M{x - 7 + 3 * n:g} {y - 3 - n % 3:g}h1.4v7h-1.4z" for n in range(5))
        shape = f'<rect class="b" x="{x - 8:g}" y="3" width="16" height="18"/>'
        shape += f'<path class="hair" d="{hairs}"/>'
    else:
        radius = 4.5 if one.kind == "a" else 3.5
        shape = f'<circle class="{one.kind}{beat}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>'
    return shape + here


FEW = 100
"""Groups of a child plan below which hairs do not become wider."""


def spark(sizes: Sequence[int], again: Sequence[int] = ()) -> Markup:
    """One hair for each group, as high as what it wrote; `again`: places of second attempts."""
    most = max(sizes, default=0) or 1
    thin = f"{min(0.8, len(sizes) / FEW):g}"
    hairs = "".join(
        f"M{n} {24 - 22 * (size / most) ** 0.5:.1f}h{thin}V26h-{thin}z"
        for n, size in enumerate(sizes)
        if size
    )
    wide = f"{min(3, 3 * len(sizes) / FEW):g}"
    twice = "".join(f"M{n} 0h{wide}v3h-{wide}z" for n in again)
    width = max(1, len(sizes))
    more = f'<path class="again" d="{twice}"/>' if twice else ""
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} 26" preserveAspectRatio="none"'
        f' aria-hidden="true"><path d="{hairs}M0 25.5h{width}v.5H0z"/>{more}</svg>'
    )


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the overview."""

    anchor: str
    title: str
    kind: str
    here: bool
    outside: bool
    y: float
    height: float
    hairs: str = ""

    @property
    def middle(self) -> float:
        return self.y + 12.5

    @property
    def halves(self) -> Markup:
        return Markup(halves(12, self.middle, 4))


class Map(msgspec.Struct, frozen=True, kw_only=True):
    height: float
    view: float
    end: float
    spots: tuple[Spot, ...]


def overview(items: Sequence[Item], sizes: dict[str, int]) -> Map:
    """One mark for each row, one hair for each group of what is folded."""
    spots: list[Spot] = []
    y = 10.0
    for item in items:
        if isinstance(item, Divider):
            continue
        height, hairs = 25.0, ""
        if isinstance(item, Fold):
            groups = [group for row in item.rows for group in row.groups]
            height, hairs = _hairs(groups, sizes, y)
        spots.append(
            Spot(
                anchor=f"m-{item.key}",
                title=item.text if isinstance(item, Fold) else item.title,
                kind="hair" if isinstance(item, Fold) else sign(item),
                here=isinstance(item, Row) and item.is_here,
                outside=isinstance(item, Row) and item.stays,
                y=y,
                height=height,
                hairs=hairs,
            )
        )
        y += height
    return Map(height=y + 10, view=min(y, 250.0), end=max(22.0, y - 12), spots=tuple(spots))


def _hairs(groups: list[str], sizes: dict[str, int], y: float) -> tuple[float, str]:
    most = max((sizes.get(group, 0) for group in groups), default=0) or 1
    height = min(180.0, max(40.0, len(groups) * 0.35))
    step = height / max(1, len(groups))
    drawn = [
        f"M22 {y + 2 + n * step:.1f}h{4 + 22 * (sizes[group] / most) ** 0.5:.1f}v.9H22z"
        for n, group in enumerate(groups)
        if sizes.get(group)
    ]
    return height + 8, f"M21 {y + 2:.1f}h1v{height:.1f}h-1z" + "".join(drawn)
