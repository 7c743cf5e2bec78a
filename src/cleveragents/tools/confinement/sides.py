"""Originals that a mounted sandbox hides and the tool still has to read.

What to mount was recorded when the sandbox was made, never read from it: a tool can write there.
"""

import os
from collections.abc import Iterable, Sequence

import msgspec

from cleveragents.tools.confinement.mounts import Mount, Seen, is_inside


class Sides(msgspec.Struct, frozen=True):
    mounts: tuple[tuple[str, str], ...]
    """(original, where it appears)."""
    files: tuple[tuple[str, str], ...]
    """(where, text) of files that are replaced to point there."""
    plan_dir: str


def beside(seen: Seen, plan_dir: str, hidden: Sequence[str], lent: Iterable[str]) -> Sides:
    """The plan file's folder, and the git objects that a sandbox borrows from the user's.

    Mount points can be made in the first of the hidden directories. `lent`: object directories; our
    own, which are hidden, appear at their own path.
    """
    place, closed = os.path.realpath(hidden[0]), [os.path.realpath(path) for path in hidden]
    own = {os.path.realpath(path) for path in lent if os.path.isdir(path)}
    mounts = [(path, path) for path in sorted(own) if any(is_inside(path, c) for c in closed)]
    files: list[tuple[str, str]] = []
    covered = [one.own for one in (*seen.mounted, *seen.linked)]
    if os.path.isdir(plan_dir) and any(is_inside(plan_dir, own) for own in covered):
        mounts.append((plan_dir, f"{place}/.beside/plan"))
        plan_dir = mounts[-1][1]
    for one in (*seen.mounted, *seen.linked):
        for git_dir, objects in one.borrowed.items():
            listing = f"{git_dir}/objects/info/alternates"
            lines = _lines(one, listing)
            if objects not in lines or not any(is_inside(objects, own) for own in covered):
                continue
            mounts.append((objects, f"{place}/.beside/objects-{len(mounts)}"))
            moved = [mounts[-1][1] if line == objects else line for line in lines]
            tops = [one.root, one.own] if one in seen.mounted else [one.root]
            text = "\n".join(moved) + "\n"
            files += [(f"{os.path.realpath(top)}/{listing}", text) for top in tops]
    return Sides(tuple(mounts), tuple(files), plan_dir)


def _lines(one: Mount, listing: str) -> list[str]:
    """The file's lines; none if a tool has put a link on its path."""
    path = one.root
    for name in listing.split("/"):
        path = f"{path}/{name}"
        if os.path.islink(path):
            return []
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()
