"""What every kind of sandbox promises. A new kind is one module that keeps this contract.

`Sandbox` is three small promises: it `Captures` states and goes back to them, it `Merges` two of
them, it `Applies` one. A kind that is one whole state has the middle one from `WholeState`. What
else a kind can do is a small protocol of its own below; what it *is*, it declares (`Traits`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cleveragents.content.packs import Batch
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Change
from cleveragents.sandbox.anywhere import MadeAnywhere, TellsContents
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
    "InPlace",
    "KeepsBackup",
    "KeepsElsewhere",
    "LastsLater",
    "LearnsWhileMade",
    "MadeAnywhere",
    "Making",
    "Merged",
    "Merges",
    "Owned",
    "PathByPath",
    "Place",
    "Prepares",
    "Proposal",
    "Sandbox",
    "TakesSql",
    "TellsApart",
    "TellsContents",
    "TellsCost",
    "TellsLost",
    "WatchesSql",
    "scope_of",
    "source_scope",
]


class Captures(Protocol):
    """States of the private copy, and the way back to them. None touches the user's own resource.

    `capture` writes content into the batch and nothing else; what it returns names the state
    exactly, and equal states have equal `state_hash`. `stage` may fail and leaves the live state
    alone; `switch` may be repeated after a crash and then brings about the same end.
    """

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

    def drain(self) -> int:
        """Called often while a tool runs: take in what was told; another number: it was more."""
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

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        """Write those paths of a state, or all of it, below the directory `target`, to be read.

        Every byte is compared with its hash on the way.
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

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None:
        """Before `remove`: put what these states need and the store lacks into the batch."""
        ...


class Merges(Protocol):
    """One state made of several; the private copy is not touched."""

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

        All three are states in the terms of this sandbox. Where both changed the same thing there
        is a conflict, and then the state is of no use.
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
        """Make the private copy; returns what it was made from, as plain data."""
        ...

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        """Make the private copy of a child plan from its parent's: at `source`, of that origin."""
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
    """A kind whose switch can be brought to disk afterwards: it is repeated after a power cut."""

    def switch_now(self, staged: dict[str, Any], staging: str) -> None:
        """Like `switch`, but perhaps not yet on disk."""
        ...

    def make_last(self, staged: dict[str, Any]) -> None:
        """Bring to disk what was switched; may run in another thread."""
        ...


class Owned(Protocol):
    """States of a resource in place, path by path and as text, for a rollback by owners."""

    def at(self, state: SandboxCheckpoint, path: bytes) -> str:
        """What is at a path in a state; empty if nothing is."""
        ...

    def is_merged(self, path: bytes) -> bool:
        """Whether both sides' changes of it may be joined."""
        ...

    def meaning(self, path: bytes, text: str) -> str:
        """Equal for states of a path that mean the same."""
        ...

    def merge(self, path: bytes, base: str, ours: str, theirs: str) -> str | None:
        """The state with both changes; None if there is none."""
        ...

    def sides(self, path: bytes, base: str, ours: str, theirs: str) -> tuple[str, str]:
        """Where ours and theirs disagree, to be read by people."""
        ...

    def assembled(
        self, now: SandboxCheckpoint, target: SandboxCheckpoint, wanted: Mapping[bytes, str]
    ) -> SandboxCheckpoint:
        """The state now with these paths as they are wanted."""
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
        """The resource path by path; `states` are those that a path may have had."""
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
    """A kind whose `switch_apply` is a commit somewhere else: if it happened, the apply has.

    It goes after every kind that can simply be undone. All but one of several are `Prepares`.
    """

    def is_applied(self, staged: dict[str, Any]) -> bool:
        """Whether the commit happened; raises if that cannot be found out now."""
        ...


@runtime_checkable
class Prepares(CommitsLast, Protocol):
    """One that can be prepared, and then cannot fail any more: so it may go after another."""

    def prepare_apply(self, staged: dict[str, Any]) -> None: ...


@runtime_checkable
class TakesSql(Protocol):
    """A database that tools reach by an address, and the built-in `sql` through this."""

    def tool_address(self) -> tuple[str, str]:
        """What tools are given, and the secret in it; both may be empty."""
        ...

    def run_sql(self, script: str, params: Any, out: Any, limit: Any, read_only: bool) -> None:
        """Run a script all or nothing; rows and the number of changes go to `out.line`."""
        ...


@runtime_checkable
class PathByPath(Protocol):
    """A kind of many paths, each merged, reverted and exported by itself."""

    def visible(
        self, origin: SandboxCheckpoint, result: SandboxCheckpoint, ignored: bool
    ) -> "tuple[list[Difference], int]":
        """The plan's work on this resource, and how many ignored paths were left out of it."""
        ...

    def read(self, key: bytes) -> bytes:
        """Content by its key, wherever it is kept."""
        ...


@runtime_checkable
class TellsLost(Protocol):
    """A kind that can tell later what of an applied plan its target no longer has."""

    def lost(
        self,
        applied: Applied,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> list[str]:
        """In words or paths; changes nothing."""
        ...


@runtime_checkable
class TellsCost(Protocol):
    """A kind whose checkpoints cost something that the store does not count."""

    def cost(self, states: list[dict[str, Any]], is_removed: bool) -> CheckpointCost:
        """From the metadata of the plan's checkpoints, oldest first; connects to nothing."""
        ...
