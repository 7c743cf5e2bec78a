"""Paths that cannot leave the sandbox.

A path is walked name by name, each directory opened relative to the one before and never through a
link. A link is read and its text walked in the same way, so one that leads outside is refused, and
nothing swapped in meanwhile is followed. The only way into another root is the place of a nested
resource.
"""

import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from cleveragents.errors import ToolFailed
from cleveragents.model.resource import show_path
from cleveragents.tools.limits import Deadline

MAX_LINKS = 40
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def shown(path: str) -> str:
    """The path as one line of text."""
    return show_path(os.fsencode(path)).replace("\n", "\\n").replace("\r", "\\r")


class Spot(NamedTuple):
    """A name in an open directory, which may not exist yet."""

    dir_fd: int
    name: str
    rel: str
    """The path from the sandbox's root, with no link in it; empty: the root itself."""
    place: bool
    """Whether another resource is linked in just here."""
    trail: tuple[int, ...]
    """The open directories from the root down to the one that holds the name."""

    def stat(self) -> os.stat_result | None:
        try:
            return os.stat(self.name, dir_fd=self.dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def list_fd(self) -> int:
        return os.open(self.name, LIST, dir_fd=self.dir_fd)

    def __str__(self) -> str:
        return shown(self.rel) or "."


class Root:
    """A sandbox's directory and the places in it where other sandboxes are linked in."""

    def __init__(self, path: str, links: Mapping[str, str]) -> None:
        self.path: str = os.path.abspath(path)
        self.links: dict[str, str] = {
            place.strip("/"): os.path.abspath(to) for place, to in links.items()
        }

    @contextmanager
    def at(self, path: str, *, follow: bool = True, parents: bool = False) -> Generator[Spot]:
        """The spot of a path; `follow` a link at its end, make missing `parents`."""
        walk = _Walk(self, path)
        try:
            yield walk.run(follow, parents)
        finally:
            walk.close()

    @contextmanager
    def child(self, dir_fd: int, name: str, rel: str) -> Generator[Spot]:
        """A name found in an open directory; it may be a nested resource."""
        if rel not in self.links:
            yield Spot(dir_fd, name, rel, False, ())
            return
        fd, spot = self.place(rel)
        try:
            yield spot
        finally:
            os.close(fd)

    def place(self, rel: str) -> tuple[int, Spot]:
        folder, name = os.path.split(self.links[rel])
        fd = os.open(folder, _STEP)
        return fd, Spot(fd, name, rel, True, (fd,))

    def holds_place(self, rel: str) -> bool:
        return any(place.startswith(f"{rel}/" if rel else "") for place in self.links)

    def inside(self, path: str) -> str | None:
        """An absolute path as one from the root, or None if it is outside."""
        for base, place in [(self.path, ""), *((to, place) for place, to in self.links.items())]:
            for spelled in (base, os.path.realpath(base)):
                if path == spelled or path.startswith(f"{spelled}/"):
                    return f"{place}/{path[len(spelled) :]}"
        return None


class _Walk:
    """The walk of one path; holds the directories it has opened."""

    def __init__(self, root: Root, path: str) -> None:
        self.root = root
        self.path = path
        self.names: list[str] = []
        self.fds: list[int] = []
        self.places: list[int] = []
        self.todo: list[str] = []
        self.links_read = 0
        self.link = ""
        """The last link that was met, for the error if it leads outside."""

    def run(self, follow: bool, parents: bool) -> Spot:
        self.fds.append(self.open_root())
        self.turn(self.path)
        while self.todo:
            name = self.todo.pop()
            rel = "/".join([*self.names, name])
            if name == "..":
                self.up()
            elif rel in self.root.links:
                if not self.todo:
                    return self.at_place(rel)
                self.enter(os.open(self.root.links[rel], _STEP), name)
            elif (mode := self.mode(name)) and stat.S_ISLNK(mode) and (follow or self.todo):
                self.read_link(name, rel)
            elif self.todo:
                self.down(name, rel, mode, parents)
            else:
                return Spot(self.fds[-1], name, rel, False, tuple(self.fds))
        return self.here()

    def close(self) -> None:
        for fd in (*self.fds, *self.places):
            os.close(fd)

    def open_root(self) -> int:
        try:
            return os.open(self.root.path, _STEP)
        except (FileNotFoundError, NotADirectoryError):
            raise ToolFailed(f"the sandbox {shown(self.root.path)} is missing") from None

    def turn(self, path: str) -> None:
        """Continue with `path`: the given one, or a link's text."""
        if path.startswith("/"):
            inside = self.root.inside(path)
            if inside is None:
                raise self.outside()
            while self.names:
                self.up()
            path = inside
        self.todo += [name for name in reversed(path.split("/")) if name not in ("", ".")]

    def read_link(self, name: str, rel: str) -> None:
        self.links_read += 1
        if self.links_read > MAX_LINKS:
            raise ToolFailed(f"{shown(self.path)} has too many links in it")
        text = os.readlink(name, dir_fd=self.fds[-1])
        self.link = f" by the link {shown(rel)} -> {shown(text)}"
        self.turn(text)

    def mode(self, name: str) -> int:
        """Type and mode of a name in the last directory; 0 if it is missing."""
        try:
            return os.stat(name, dir_fd=self.fds[-1], follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0

    def down(self, name: str, rel: str, mode: int, parents: bool) -> None:
        if not mode and not parents:
            raise ToolFailed(f"no such directory: {shown(rel)}")
        if mode and not stat.S_ISDIR(mode):
            raise ToolFailed(f"{shown(rel)} is not a directory")
        if not mode:
            os.mkdir(name, dir_fd=self.fds[-1])
        self.enter(os.open(name, _STEP | os.O_NOFOLLOW, dir_fd=self.fds[-1]), name)

    def enter(self, fd: int, name: str) -> None:
        self.fds.append(fd)
        self.names.append(name)

    def up(self) -> None:
        if not self.names:
            raise self.outside()
        os.close(self.fds.pop())
        self.names.pop()

    def at_place(self, rel: str) -> Spot:
        fd, spot = self.root.place(rel)
        self.places.append(fd)
        return spot

    def here(self) -> Spot:
        """The spot for a path that ends on an open directory, like `.` or `a/..`."""
        rel = "/".join(self.names)
        if rel in self.root.links:
            return self.at_place(rel)
        if not rel:
            return Spot(self.fds[-1], ".", "", False, tuple(self.fds))
        return Spot(self.fds[-2], self.names[-1], rel, False, tuple(self.fds[:-1]))

    def outside(self) -> ToolFailed:
        return ToolFailed(
            f"{shown(self.path)} leads outside the sandbox{self.link}",
            "a step works in the sandbox of its resource; declare the other place as a resource",
        )


def walk(
    root: Root, top: Spot, deadline: Deadline, deep: bool
) -> Generator[tuple[Spot, os.stat_result]]:
    """Everything in a directory by name; `deep`: also below, except in links and `.git`."""
    fd = top.list_fd()
    try:
        for name in sorted(os.listdir(fd)):
            deadline.check()
            rel = f"{top.rel}/{name}" if top.rel else name
            with root.child(fd, name, rel) as spot:
                info = spot.stat()
                if info is None:
                    continue
                yield spot, info
                if deep and name != ".git" and stat.S_ISDIR(info.st_mode):
                    yield from walk(root, spot, deadline, deep)
    finally:
        os.close(fd)
