"""What a kind of resource declares about itself, so that no code asks for a kind by name."""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cleveragents.model.plan_spec import PlanSpec, ResourceSpec


class Left(msgspec.Struct, frozen=True):
    """A database with a name of ours, and its comment."""

    name: str
    comment: str


class OnServer(Protocol):
    """A module that knows what a kind keeps on the servers of its resources."""

    def working_name(self, resource_id: str, /) -> str:
        """The sandbox's name there; the names of its checkpoints start with it."""
        ...

    def shown(self, address: str, /) -> str:
        """The address without what is secret in it."""
        ...

    def ours(self, address: str, /) -> list[Left]:
        """Databases with names of ours on the server of that address."""
        ...

    def drop(self, address: str, name: str, /) -> None: ...


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The same for every strategy: a kind declares them as `traits` of its first strategy's class.

    The default is a file or a directory, whichever its path is, and one whole state.
    """

    is_directory: bool = False
    """Many paths, each of them merged and rolled back by itself; else it is one whole state."""
    is_file: bool = False
    is_repository: bool = False
    """Has files of git's own in `.git`, and a ref of ours while a plan works on it."""
    is_sqlite: bool = False
    """The built-in `sql` opens it by its path, and differences are shown by table."""
    has_address: bool = False
    """Reached from every machine by its `path`, a URL; else that is a place on one of them."""
    server: OnServer | None = None
    """Who knows its server, if the sandbox is there as well: no power cut here damages it."""
    require: Callable[[str], object] | None = None
    """Raises if what is at that path is not of this kind."""
    problems: Callable[[PlanSpec, Sequence[ResourceSpec]], list[str]] | None = None
    """What keeps a plan from running with these resources of the kind; may connect to them."""

    def is_file_at(self, path: str) -> bool:
        return self.is_file or os.path.isfile(path)

    def is_folder_at(self, path: str) -> bool:
        return not self.has_address and not self.is_file_at(path)
