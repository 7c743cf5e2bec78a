"""Values that go in and out of a sandbox, and the scope of a resource."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from cleveragents.content.packs import Batch, Packs
from cleveragents.content.scope import Scope
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Resource

SWAP, STATEMENTS = "swap", "statements"
"""How a PostgreSQL database is applied."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to open a sandbox."""

    plan_id: str
    resource: Resource
    root: str
    """The directory that is ours, made by `create` and removed by `remove`."""
    path: str
    """What tools are given: the root, or a file in it."""
    packs: Packs
    links: dict[str, str] = {}
    """Places of inner resources in this one -> paths of their sandboxes."""
    inner: tuple[str, ...] = ()
    """Places of inner resources that are left out when copying."""
    origin: dict[str, Any] = {}
    """What `create` returned; empty before."""
    cache: str | None = None
    """A file the kind may keep notes in between processes, which it may lose at any time."""
    own: str = ""
    """In place: the directory that is ours, for then `root` is the user's; empty: `root` is."""

    @property
    def ours(self) -> str:
        return self.own or self.root


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """How to make a sandbox: limits, confirmation above them, and progress."""

    limit_bytes: int
    limit_files: int
    confirm: Callable[[str, str], None]
    """Called above the limit with what is wrong and what to do; returns to continue, or raises."""
    progress: Callable[[str, int], None]
    """Called for each file with the resource's name and the size."""
    total: Callable[[str, int], None] = lambda _name, _size: None
    """Called once, if it is known how many bytes there are, before any of them is copied."""
    piece: Callable[[str, int], None] = lambda _name, _size: None
    """Called for each piece of a large file, before `progress` is called for the whole."""
    cover_limit: int = 1 << 62
    """In place: bytes of ignored files that are covered."""
    is_portable: bool = False
    """Another machine may have to make the sandbox, from the store alone."""
    batch: Batch | None = None
    """Content that is read while it is copied may go here: it is committed with the sandbox."""


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path both the plan and somebody else changed."""

    resource: str
    path: str
    base: str
    ours: str
    theirs: str
    reason: str


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A child plan's work on one resource brought into the parent's state."""

    state: SandboxCheckpoint
    files: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    ignored_count: int = 0


class ApplyOptions(msgspec.Struct, frozen=True, kw_only=True):
    mode: str | None
    """commit | changes | branch, or None: whatever fits the target."""
    ignored: bool
    message: str
    branch: str
    staging: str
    hooks: bool = False
    """Whether the target's own hooks run, as they would if the user did this."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What apply would do to one target."""

    resource: str
    mode: str
    files: tuple[str, ...]
    conflicts: tuple[Conflict, ...] = ()
    merged: tuple[str, ...] = ()
    ignored_count: int = 0
    control_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What of the plan's work is not applied."""
    work: dict[str, Any] = {}
    """The kind's own notes for `stage_apply`."""

    @property
    def left_to_do(self) -> list[str]:
        """Paths still to be applied."""
        return sorted({*self.files, *(conflict.path for conflict in self.conflicts)})


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    files: int
    commit: str | None = None
    mode: str = "changes"
    notes: tuple[str, ...] = ()
    """What of the plan's work is not applied, or of the target could not be kept."""


class CheckpointCost(msgspec.Struct, frozen=True, kw_only=True):
    """Space that checkpoints of a resource use outside the store."""

    clones: int
    """Clones on a server that hold checkpoints."""
    bytes: int
    said: str
    not_captured: tuple[str, ...]
    """What of the resource no checkpoint holds."""


def scope_of(place: Place) -> Scope:
    """What a capture of the sandbox covers."""
    # Absolute links also work where the sandbox is mounted at its resource's own path.
    links = {os.fsencode(spot): os.fsencode(inner) for spot, inner in place.links.items()}
    rules = (*place.resource.exclude, *place.origin.get("machine_files", ()))
    return Scope(tuple(os.fsencode(rule) for rule in rules), links)


def source_scope(place: Place, *own: bytes) -> Scope:
    """The part of the user's tree that belongs to the resource."""
    inner = tuple(os.fsencode(spot) for spot in place.inner)
    sides = tuple(spot + side for spot in inner for side in (b"-wal", b"-shm", b"-journal"))
    excluded = tuple(os.fsencode(rule) for rule in place.resource.exclude)
    return Scope(excluded, {}, (*own, *inner, *sides))
