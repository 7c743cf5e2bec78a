"""Shared by kinds whose state is one whole: kept, rolled back and merged as such."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cleveragents.content.packs import Batch
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Change
from cleveragents.sandbox.protocol import Conflict, Merged, Place

ABSENT = "absent"


class WholeState:
    """The methods of `Sandbox` that follow from that, or have nothing to do."""

    changed_meanwhile = "it was changed since the child plan's copy was made of it"
    """Why a child plan's work conflicts with its parent's."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def mark(self, state: SandboxCheckpoint) -> str:
        """Equal for states that are the same to the users of the resource."""
        return state.state_hash

    def grafted(
        self,
        now: SandboxCheckpoint,
        then: SandboxCheckpoint,
        paths: frozenset[bytes],
        batch: Batch,
    ) -> SandboxCheckpoint:
        return then if paths else now

    def merged(
        self,
        base: SandboxCheckpoint,
        ours: SandboxCheckpoint,
        theirs: SandboxCheckpoint,
        batch: Batch,
        scratch: str,
    ) -> Merged:
        """One side's state or a conflict: two versions of one whole are not merged."""
        start, wanted, now = (self.mark(state) for state in (base, ours, theirs))
        if wanted in (start, now):
            return Merged(state=theirs)
        return Merged(
            state=self.adopted(ours, theirs.resource_id, batch),
            files=self.parts(base, ours),
            conflicts=() if now == start else self.conflicts(base, ours, theirs),
        )

    def adopted(
        self, state: SandboxCheckpoint, resource_id: str, batch: Batch
    ) -> SandboxCheckpoint:
        """A child plan's state as one of this sandbox."""
        return msgspec.structs.replace(state, resource_id=resource_id, added_bytes=0)

    def parts(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[str, ...]:
        """The parts of a difference, for display."""
        return tuple(change.shown for change in self.changes(before, after))

    def held(self, state: SandboxCheckpoint) -> Mapping[str, str]:
        """Part -> its description in that state, for people who choose between two."""
        raise NotImplementedError

    def conflicts(
        self, base: SandboxCheckpoint, ours: SandboxCheckpoint, theirs: SandboxCheckpoint
    ) -> tuple[Conflict, ...]:
        """One for each part that somebody else changed."""
        start, wanted, now = (self.held(state) for state in (base, ours, theirs))
        return tuple(
            Conflict(
                resource=self.place.resource.name,
                path=part,
                base=start.get(part, ABSENT),
                ours=wanted.get(part, ABSENT),
                theirs=now.get(part, ABSENT),
                reason=self.changed_meanwhile,
            )
            for part in self.parts(base, theirs)
        )

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        raise NotImplementedError

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        raise NotImplementedError

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        return self.capture(batch, None, strict=False)

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        return frozenset()

    def follow(self) -> None: ...

    def drain(self) -> int:
        return 0

    def doubt(self) -> None: ...

    def discard_apply(self, staging: str) -> None: ...

    def finish_apply(self, staged: dict[str, Any]) -> None: ...

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None: ...

    def close(self) -> None: ...
