"""`none`: the tool works on the resource itself; nothing is captured or rolled back."""

from typing import Any

from cleveragents.content.packs import Batch
from cleveragents.errors import SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Change
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Making, Proposal
from cleveragents.sandbox.whole_state import WholeState


class NoSandbox(WholeState):
    strategy = "none"
    has_copy = False
    is_captured = False

    def create(self, making: Making) -> dict[str, Any]:
        if self.place.resource.require_sandbox:
            raise SandboxError(
                f"resource {self.place.resource.name!r} asks for no sandbox:"
                " what is done to it cannot be rolled back",
                "set require_sandbox: false if you mean it",
            )
        return {"path": self.place.resource.path}

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        return origin

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id, root=b"", state_hash="none"
        )

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        return ()

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        return {}

    def switch(self, staged: dict[str, Any], staging: str) -> None: ...

    def export(
        self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str
    ) -> None: ...

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        return Proposal(resource=self.place.resource.name, mode="none", files=())

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        return {}

    def switch_apply(self, staged: dict[str, Any]) -> None: ...

    def undo_apply(self, staged: dict[str, Any]) -> None: ...

    def applied(self, staged: dict[str, Any]) -> Applied:
        return Applied(resource=self.place.resource.name, files=0, mode="none")

    def remove(self) -> None: ...
