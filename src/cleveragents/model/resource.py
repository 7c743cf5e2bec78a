"""What a plan may change, the private copy it works on, and how two states of it differ."""

from enum import StrEnum
from typing import Any

import msgspec

from cleveragents import codec


class Kind(StrEnum):
    GIT_CHECKOUT = "git-checkout"
    GIT_REMOTE = "git-remote"
    FS_DIRECTORY = "fs-directory"
    SQLITE = "sqlite"
    POSTGRES = "postgres"


IN_PLACE = "in_place"
"""The strategy that works on the resource itself: nothing is copied, and nothing is applied."""


class Carry(StrEnum):
    ALL = "all"
    TRACKED = "tracked"
    COMMITTED = "committed"


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    resource_id: str
    plan_id: str
    name: str
    kind: str
    path: str
    strategy: str
    carry: Carry = Carry.ALL
    exclude: tuple[str, ...] = ()
    require_sandbox: bool = True
    outer: str = ""
    """Name of the resource this one lies inside of, or empty."""
    place: str = ""
    """Path inside the outer resource where this one is linked in."""
    source: str = ""
    """For a child plan: the parent's sandbox, which the child's is made from."""

    @property
    def is_in_place(self) -> bool:
        return self.strategy == IN_PLACE


class SandboxState(StrEnum):
    CREATING = "creating"
    READY = "ready"
    REMOVED = "removed"


class BackupState(StrEnum):
    KEPT = "kept"
    RELEASED = "let_go"
    """Not to be counted on any more; what holds it may still have to be removed."""
    GONE = "gone"


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What holds, outside of the store, the state a target had before its plan was applied."""

    name: str
    bytes: int
    state: BackupState = BackupState.KEPT
    by: str = ""
    """The plan whose apply let it go, or the command."""


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `sandboxes`: where the private copy is and what it was made from."""

    sandbox_id: str
    plan_id: str
    resource_id: str
    strategy: str
    path: str
    root: str
    state: SandboxState
    identity: str
    """Device and inode of the root when we made it: a guard against restoring over a stranger."""
    origin: dict[str, Any]
    created_at: str

    @property
    def boot_id(self) -> str | None:
        """The boot, and mount, in which it was made or last found to be what its group says."""
        return self.origin.get("boot_id")

    def with_boot_id(self, boot_id: str) -> "SandboxRecord":
        return msgspec.structs.replace(self, origin={**self.origin, "boot_id": boot_id})

    @property
    def earlier(self) -> Backup | None:
        found = self.origin.get("earlier")
        return codec.convert(found, Backup) if found else None

    def with_earlier(self, earlier: Backup) -> "SandboxRecord":
        origin = {**self.origin, "earlier": msgspec.to_builtins(earlier)}
        return msgspec.structs.replace(self, origin=origin)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a sandbox is: the id of a store, and the place it was made or adopted at.

    An empty home fits any place.
    """

    store: str
    home: str


class Action(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class Change(msgspec.Struct, frozen=True):
    """One file, link, directory or mode that differs between two states of a resource."""

    resource: str
    path: bytes
    action: Action
    before: str = ""
    after: str = ""

    @property
    def shown(self) -> str:
        return show_path(self.path)

    @property
    def is_directory(self) -> bool:
        return all(side.startswith("d:") for side in (self.before, self.after) if side)

    @property
    def makes_way(self) -> bool:
        """Whether a directory becomes something else or the other way round: one goes first."""
        sides = {side.startswith("d:") for side in (self.before, self.after) if side}
        return len(sides) > 1


def show_path(path: bytes) -> str:
    """The path as text; bytes that are not UTF-8 appear as \\xNN."""
    return path.decode("utf-8", "backslashreplace")
