"""Resources' own paths and the sandboxes mounted there, as a tool sees them."""

import os
from collections.abc import Iterable

import msgspec


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of the plan and its private copy."""

    name: str
    own: str
    """The path of the resource itself; empty or a URL when it is no file."""
    root: str
    """The directory (or, without a sandbox, the resource) that tools may write to."""
    path: str
    """What tools are given: the root, or a file in it."""
    links: dict[str, str] = {}
    """Places in it (relative) where an inner resource's sandbox (absolute) is linked in."""
    borrowed: dict[str, str] = {}
    """Git directories in it (relative) and the user's object directory that each reads."""

    @property
    def is_copy(self) -> bool:
        return os.path.isabs(self.own) and self.own != self.path

    @property
    def is_folder(self) -> bool:
        return self.path == self.root

    @property
    def folder(self) -> str:
        """The path to make writable: for a database without a sandbox, its folder."""
        return os.path.dirname(self.root) if os.path.isfile(self.root) else self.root


class Seen(msgspec.Struct, frozen=True):
    """The resources that a tool finds at their own path: mounted, or linked from a mounted one."""

    mounted: tuple[Mount, ...] = ()
    linked: tuple[Mount, ...] = ()
    elsewhere: tuple[Mount, ...] = ()
    """Copies that are found only at the sandbox's path, inner ones first."""

    def at(self, path: str) -> str:
        """A path in a sandbox, as the tool sees it."""
        return _moved(path, ((one.path, one.own) for one in (*self.mounted, *self.linked)))

    def real(self, path: str) -> str:
        """Our path for a path that the tool sees."""
        return _moved(path, ((one.own, one.path) for one in _deepest(*self.linked, *self.mounted)))

    def to_copies(self, path: str) -> str:
        """A path inside the original of a resource that is not mounted, moved to the copy."""
        return _moved(path, ((one.own, one.path) for one in self.elsewhere))

    def original_of(self, path: str) -> Mount | None:
        """The resource whose untouched original a path lies in."""
        return next((one for one in self.elsewhere if is_inside(path, one.own)), None)


def mounted_at_own_paths(stand_ins: Iterable[Mount]) -> Seen:
    """The resources that can be mounted at their own path, outer before inner.

    A sandbox with relative links to inner ones, as older versions made, is not mounted: the links
    would break. Nor is a database outside of other resources: its side files are beside it, not
    in it. Through a link they are beside the link's target.
    """
    mounted: list[Mount] = []
    linked: list[Mount] = []
    elsewhere: list[Mount] = []
    for one in sorted((s for s in stand_ins if s.is_copy), key=lambda s: len(s.own)):
        if any(_links_to(outer, one) for outer in (*mounted, *linked)):
            linked.append(one)
        elif (
            one.is_folder
            and os.path.isdir(one.own)
            and os.path.isdir(one.root)
            and _links_hold(one)
        ):
            mounted.append(one)
        else:
            elsewhere.append(one)
    return Seen(tuple(mounted), tuple(linked), _deepest(*elsewhere))


def not_mounted(stand_ins: Iterable[Mount]) -> Seen:
    """Nothing is mounted."""
    return Seen(elsewhere=_deepest(*(one for one in stand_ins if one.is_copy)))


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _deepest(*stand_ins: Mount) -> tuple[Mount, ...]:
    """Inner before outer, so that the nearest is found first."""
    return tuple(sorted(stand_ins, key=lambda one: -len(one.own)))


def _links_to(outer: Mount, inner: Mount) -> bool:
    """Whether the inner resource is at its own path once the outer one is mounted."""
    if inner.is_folder:
        return is_inside(inner.own, outer.own)
    return inner.path in outer.links.values()


def _links_hold(one: Mount) -> bool:
    for place in one.links:
        try:
            if not os.path.isabs(os.readlink(f"{one.root}/{place}")):
                return False
        except OSError:
            continue  # a tool replaced it; that is reported after the call
    return True


def _moved(path: str, ways: Iterable[tuple[str, str]]) -> str:
    for start, end in ways:
        if is_inside(path, start):
            return end + path[len(start) :]
    return path
