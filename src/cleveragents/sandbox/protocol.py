"""The contract of every kind of sandbox. A new kind is one module that keeps it.

`Sandbox` has three parts: it `Captures` and restores states, it `Merges` them, it `Applies` one.
A kind whose state is one whole gets `Merges` from `WholeState`. Optional abilities are small
protocols below; what a kind *is*, it declares (`Traits`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cleveragents.content.packs import Batch
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Change
from cleveragents.sandbox.anywhere import CreatesFromState, ReportsContents
from cleveragents.sandbox.values import (
    STATEMENTS,
    SWAP,
    Applied,
    ApplyOptions,
    CheckpointCost,
    Conflict,
    Making,
    Merged,
    Place,
    Proposal,
    scope_of,
    source_scope,
)

if TYPE_CHECKING:
    from cleveragents.content.tree_diff import Difference

__all__ = [
    "STATEMENTS",
    "SWAP",
    "Applied",
    "Applies",
    "ApplyOptions",
    "Captures",
    "CheckpointCost",
    "CommitsLast",
    "Conflict",
    "CreatesFromState",
    "HasEqualStates",
    "InPlace",
    "KeepsBackup",
    "KeepsElsewhere",
    "LastsLater",
    "LearnsFromCreate",
    "Making",
    "Merged",
    "Merges",
    "Owned",
    "PathByPath",
    "Place",
    "Prepares",
    "Proposal",
    "ReportsContents",
    "ReportsCost",
    "ReportsLost",
    "Sandbox",
    "TakesSql",
    "WatchesSql",
    "scope_of",
    "source_scope",
]


class Captures(Protocol):
    """Captures and restores states of the private copy, never touching the user's resource.

    `capture` only writes content into the batch; it returns the exact state, and equal states have
    equal `state_hash`. `stage` may fail and leaves the live state alone; `switch` may be repeated
    after a crash, with the same result.
    """

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        """The exact state now. `previous` is the newest checkpoint of this sandbox.

        A state that a tool broke (a replaced link to an inner resource, a file that is no database)
        is refused if `strict`; else it is captured as is, so that one can roll back from it.
        """
        ...

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        """The state after `switch`; reads only what the switch touched."""
        ...

    def follow(self) -> None:
        """Begin to follow changes: this process will capture several times."""
        ...

    def drain(self) -> int:
        """Read pending events, often, while a tool runs; a new number means new changes."""
        ...

    def doubt(self) -> None:
        """Trust no events: the next capture looks at everything."""
        ...

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        """Every file, link, directory and mode that differs."""
        ...

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        """The changed paths that `diff` and `apply` leave out."""
        ...

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        """Write those paths of a state, or all of it, below the directory `target`.

        All content is checked against its hash.
        """
        ...

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        """Prepare the switch from current to target in the staging directory, verified."""
        ...

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        """Do the staged switch."""
        ...

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None:
        """Before `remove`: put what these states need and the store lacks into the batch."""
        ...


class Merges(Protocol):
    """Makes one state of several; the private copy is not touched."""

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
    ) -> Merged:
        """`theirs`, the state now, with what a child plan made of `base`: `ours`.

        All three are states of this sandbox. If both changed the same thing there is a conflict,
        and the state must not be used.
        """
        ...


class Applies(Protocol):
    """The user's own resource gets what the plan did.

    Only `switch_apply`, `undo_apply` and `finish_apply` change it. Each may be repeated after a
    crash, and `undo_apply` undoes whatever part of `switch_apply` happened.
    """

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


class Sandbox(Captures, Merges, Applies, Protocol):
    """The plan's private copy of one resource.

    Methods return the result or raise. Only those of `Applies` touch the user's own resource.
    """

    place: Place

    def create(self, making: Making) -> dict[str, Any]:
        """Make the private copy; returns its origin, as plain data."""
        ...

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        """Make a child plan's private copy from its parent's at `source`, with that origin."""
        ...

    def remove(self) -> None:
        """Remove the private copy and whatever else `create` left anywhere."""
        ...

    def close(self) -> None:
        """Release processes and descriptors."""
        ...


@runtime_checkable
class KeepsElsewhere(Protocol):
    """A kind that keeps states outside the content store, and must be told which to keep."""

    def keep_only(self, roots: frozenset[bytes]) -> None:
        """Release every other state; called after the commit that dropped them, may be repeated."""
        ...


@runtime_checkable
class LastsLater(Protocol):
    """A kind whose switch can be synced later: it is repeated after a power cut."""

    def switch_now(self, staged: dict[str, Any], staging: str) -> None:
        """Like `switch`, without waiting for the disk."""
        ...

    def make_last(self, staged: dict[str, Any]) -> None:
        """Sync what was switched; may run in another thread."""
        ...


class Owned(Protocol):
    """States of a resource in place, path by path as text, to roll back one owner's changes."""

    def at(self, state: SandboxCheckpoint, path: bytes) -> str:
        """The state of one path as text; empty if nothing is there."""
        ...

    def is_merged(self, path: bytes) -> bool:
        """Whether changes of both sides may be merged."""
        ...

    def meaning(self, path: bytes, text: str) -> str:
        """Equal for equivalent states of a path."""
        ...

    def merge(self, path: bytes, base: str, ours: str, theirs: str) -> str | None:
        """The state with both changes; None if there is none."""
        ...

    def sides(self, path: bytes, base: str, ours: str, theirs: str) -> tuple[str, str]:
        """The conflicting parts of both, for people to read."""
        ...

    def assembled(
        self, now: SandboxCheckpoint, target: SandboxCheckpoint, wanted: Mapping[bytes, str]
    ) -> SandboxCheckpoint:
        """The state now, with these paths as wanted."""
        ...


@runtime_checkable
class InPlace(Protocol):
    """A strategy that works on the resource itself, which somebody else may change as well."""

    def undo_switch(self, staged: dict[str, Any]) -> None:
        """Undo whatever part of `switch` happened; may be repeated."""
        ...

    def discard_staged(self) -> None:
        """Remove what staging left beside the user's files; may be repeated."""
        ...

    def by_owner(self, states: Sequence[SandboxCheckpoint], batch: Batch, scratch: str) -> Owned:
        """The resource path by path; `states`: every state a path may be taken from."""
        ...


@runtime_checkable
class LearnsFromCreate(Protocol):
    """A kind whose `create` learns what the first capture need not read again."""

    def inherit(self, made: Any) -> None:
        """Take over what the object that created this sandbox has learned."""
        ...


@runtime_checkable
class HasEqualStates(Protocol):
    """A kind whose states can differ in bytes and still be the same to its users."""

    def mark(self, state: SandboxCheckpoint) -> str:
        """Equal for such states."""
        ...


@runtime_checkable
class WatchesSql(Protocol):
    """A kind that the built-in `sql` notifies when its transaction begins and ends."""

    def watch(self) -> Any:
        """A `tools.sql.Watch` for one script; None if it would be of no use."""
        ...


@runtime_checkable
class KeepsBackup(Protocol):
    """A kind that can keep the state from before an apply when the sandbox is removed."""

    def holding(self, state: SandboxCheckpoint) -> tuple[str, int] | None:
        """Name and size in bytes of the backup that holds a state; None if there is none."""
        ...

    def remove_but(self, kept: str) -> None:
        """Like `remove`, but keeps the backup of this name; a later `remove` removes that too."""
        ...


@runtime_checkable
class CommitsLast(Protocol):
    """A kind whose `switch_apply` is a commit somewhere else, which cannot simply be undone.

    It goes after every kind that can be undone. All but one of several must be `Prepares`.
    """

    def is_applied(self, staged: dict[str, Any]) -> bool:
        """Whether the commit happened; raises if that cannot be determined now."""
        ...


@runtime_checkable
class Prepares(CommitsLast, Protocol):
    """A kind that can be prepared and then cannot fail, so it may commit after another."""

    def prepare_apply(self, staged: dict[str, Any]) -> None: ...


@runtime_checkable
class TakesSql(Protocol):
    """A database that tools reach by an address, and the built-in `sql` through this."""

    def tool_address(self) -> tuple[str, str]:
        """The address for tools, and the secret in it; both may be empty."""
        ...

    def run_sql(self, script: str, params: Any, out: Any, limit: Any, read_only: bool) -> None:
        """Run a script all or nothing; rows and the number of changes go to `out.line`."""
        ...


@runtime_checkable
class PathByPath(Protocol):
    """A kind of many paths, each merged, reverted and exported on its own."""

    def visible(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, ignored: bool
    ) -> "tuple[list[Difference], int]":
        """The plan's work on this resource, and the number of ignored paths left out."""
        ...

    def read(self, key: bytes) -> bytes:
        """Content by key, wherever it is stored."""
        ...


@runtime_checkable
class ReportsLost(Protocol):
    """A kind that can report which applied changes its target has lost since."""

    def lost(
        self,
        applied: Applied,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> list[str]:
        """The lost changes, as paths or text; changes nothing."""
        ...


@runtime_checkable
class ReportsCost(Protocol):
    """A kind whose checkpoints use space outside the store."""

    def cost(self, states: list[dict[str, Any]], is_removed: bool) -> CheckpointCost:
        """From the metadata of the plan's checkpoints, oldest first; connects to nothing."""
        ...
