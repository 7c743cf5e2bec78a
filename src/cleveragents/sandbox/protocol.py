"""What every kind of sandbox promises. A new kind is one module that keeps this contract."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from cleveragents.content.packs import Batch, Packs
from cleveragents.content.scope import Scope
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Change, Resource

SWAP, STATEMENTS = "swap", "statements"
"""How a PostgreSQL database is applied."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a sandbox needs to know to find itself again."""

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


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """How to make a sandbox: limits, who to ask above them, and whom to tell of progress."""

    limit_bytes: int
    limit_files: int
    confirm: Callable[[str, str], None]
    """Called above the limit with what is wrong and what to do; returns to continue, or raises."""
    progress: Callable[[str, int], None]
    """Called for each file with the resource's name and the size."""
    piece: Callable[[str, int], None] = lambda _name, _size: None
    """Called for each piece of a large file, before `progress` is called for the whole."""
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
    work: dict[str, Any] = {}
    """The kind's own notes for `stage_apply`."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    files: int
    commit: str | None = None
    mode: str = "changes"
    notes: tuple[str, ...] = ()
    """What of the target could not be kept."""


class Sandbox(Protocol):
    """The plan's private copy of one resource.

    Methods return the result or raise; none returns a flag. `capture` writes content into the
    batch and nothing else; what it returns names the state exactly, and equal states have equal
    `state_hash`. `stage` may fail and leaves the live state alone; `switch` may be repeated after
    a crash and then brings about the same end. The same holds for the three `apply` steps, and
    `undo_apply` undoes whatever part of `switch_apply` happened. No method but these touches
    the user's own resource, and `capture`, `changes`, `stage` and `switch` never do.
    """

    place: Place

    def create(self, making: Making) -> dict[str, Any]:
        """Make the private copy; returns what it was made from, as plain data."""
        ...

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        """Make the private copy of a child plan from its parent's: at `source`, of that origin."""
        ...

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        """The exact state now. `previous` is the newest checkpoint of this sandbox.

        A state that a tool broke (a link to an inner resource replaced, a database that is none)
        is refused if `strict`; else it is taken as it is, so that one can roll back from it.
        """
        ...

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        """The state after `switch`: reads what the switch touched, however small a part that is."""
        ...

    def follow(self) -> None:
        """This process will capture several times: begin to follow what changes."""
        ...

    def drain(self) -> None:
        """Called often while a tool runs: take in what was told meanwhile."""
        ...

    def doubt(self) -> None:
        """Trust nothing that was only told: the next capture looks at everything."""
        ...

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        """Every file, link, directory and mode that differs."""
        ...

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        """Those of the changed paths that `diff` and `apply` leave out."""
        ...

    def grafted(
        self,
        now: SandboxCheckpoint,
        then: SandboxCheckpoint,
        paths: frozenset[bytes],
        batch: Batch,
    ) -> SandboxCheckpoint:
        """The state now with those paths as they were then; a database is rolled back whole."""
        ...

    def merged(
        self,
        base: SandboxCheckpoint,
        ours: SandboxCheckpoint,
        theirs: SandboxCheckpoint,
        batch: Batch,
        scratch: str,
    ) -> "Merged":
        """`theirs`, the state now, with what a child plan made of `base`: `ours`.

        All three are states in the terms of this sandbox. Where both changed the same thing there
        is a conflict, and then the state is of no use.
        """
        ...

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        """Prepare the way from current to target in the staging directory, verified."""
        ...

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        """Go that way."""
        ...

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes], target: str) -> None:
        """Write those paths of a state below the directory `target`, for showing differences."""
        ...

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        """What apply would do, looking at the target as it is now; changes nothing."""
        ...

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]: ...

    def switch_apply(self, staged: dict[str, Any]) -> None: ...

    def undo_apply(self, staged: dict[str, Any]) -> None: ...

    def discard_apply(self, staging: str) -> None:
        """Remove whatever `stage_apply` left for that staging directory; may be repeated."""
        ...

    def applied(self, staged: dict[str, Any]) -> Applied:
        """What the switch did, in words and numbers."""
        ...

    def finish_apply(self, staged: dict[str, Any]) -> None:
        """Remove what staging left in the target's neighbourhood."""
        ...

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None:
        """Before `remove`: put what these states need and the store lacks into the batch."""
        ...

    def remove(self) -> None:
        """Remove the private copy and whatever else `create` left anywhere."""
        ...

    def close(self) -> None:
        """Release processes and descriptors."""
        ...


@runtime_checkable
class KeepsElsewhere(Protocol):
    """A kind that keeps states outside of the content store, and has to be told which to keep."""

    def keep_only(self, roots: frozenset[bytes]) -> None:
        """Release every other state; called after the commit that dropped them, repeatable."""
        ...


@runtime_checkable
class LastsLater(Protocol):
    """A kind whose switch can be brought to disk afterwards.

    A rollback that is committed is done again if the machine goes down before that.
    """

    def switch_now(self, staged: dict[str, Any], staging: str) -> None:
        """Like `switch`, but perhaps not yet on disk."""
        ...

    def make_last(self, staged: dict[str, Any]) -> None:
        """Bring to disk what was switched; may run in another thread."""
        ...


@runtime_checkable
class LearnsWhileMade(Protocol):
    """A kind whose `create` learns what the first capture then need not read."""

    def inherit(self, made: Any) -> None:
        """Continue with what another object of the same sandbox learned when it made it."""
        ...


@runtime_checkable
class TellsApart(Protocol):
    """A kind of which two states can have other bytes and yet be the same to its users."""

    def mark(self, state: SandboxCheckpoint) -> str:
        """Equal for such states."""
        ...


@runtime_checkable
class WatchesSql(Protocol):
    """A kind that the built-in `sql` tells when its transaction begins and ends."""

    def watch(self) -> Any:
        """A `tools.sql.Watch` for one script; None if it would be of no use."""
        ...


@runtime_checkable
class KeepsBackup(Protocol):
    """A kind that can leave the state from before an apply where it is, when the sandbox goes."""

    def holding(self, state: SandboxCheckpoint) -> tuple[str, int] | None:
        """The name of what holds a state and its size in bytes; None if that is not there."""
        ...

    def remove_but(self, kept: str) -> None:
        """As `remove`, but for what has this name; a later `remove` takes that as well."""
        ...


@runtime_checkable
class CommitsLast(Protocol):
    """A kind whose `switch_apply` is a commit somewhere else.

    It goes after every kind that can simply be undone, and once it has happened the whole
    apply has. Of several each is prepared first: a prepared one cannot fail any more.
    """

    def prepare_apply(self, staged: dict[str, Any]) -> None: ...

    def is_applied(self, staged: dict[str, Any]) -> bool:
        """Whether the commit happened; raises if that cannot be found out now."""
        ...


@runtime_checkable
class TakesSql(Protocol):
    """A database that tools reach by an address, and the built-in `sql` through this."""

    def tool_address(self) -> tuple[str, str]:
        """What tools are given, and the secret in it; both may be empty."""
        ...

    def run_sql(self, script: str, params: Any, out: Any, limit: Any, read_only: bool) -> None:
        """Run a script all or nothing; rows and the number of changes go to `out.line`."""
        ...


def scope_of(place: Place) -> Scope:
    """What a capture of the sandbox covers."""
    import os

    links = {
        os.fsencode(spot): os.fsencode(
            os.path.relpath(inner, os.path.dirname(f"{place.path}/{spot}"))
        )
        for spot, inner in place.links.items()
    }
    return Scope(tuple(os.fsencode(rule) for rule in place.resource.exclude), links)


def source_scope(place: Place, *own: bytes) -> Scope:
    """What of the user's own tree belongs to the resource."""
    import os

    inner = tuple(os.fsencode(spot) for spot in place.inner)
    sides = tuple(spot + side for spot in inner for side in (b"-wal", b"-shm", b"-journal"))
    excluded = tuple(os.fsencode(rule) for rule in place.resource.exclude)
    return Scope(excluded, {}, (*own, *inner, *sides))
