"""Apply to a SQLite file: read under SQLite's locks, and written through SQLite itself.

Open connections see the change, and a crash leaves the file old or new, never a mixture.
"""

import os
from typing import Any

from cleveragents.content import files, fsio, removal
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import ApplyRefused, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.sandbox.protocol import (
    Applied,
    ApplyOptions,
    Conflict,
    Proposal,
)
from cleveragents.sandbox.sqlite import image as sqlite_image
from cleveragents.sandbox.sqlite.live import (
    copy_into_live,
    copy_live,
    file_logical,
    live_logical,
)
from cleveragents.sandbox.sqlite.tables import damage_in, same_content
from cleveragents.sandbox.whole_state import WholeState

ABSENT = b"absent"


class SqliteTarget(WholeState):
    """The user's own file."""

    @property
    def live(self) -> str:
        return self.place.resource.path

    @property
    def file(self) -> str:
        return self.place.path

    @property
    def name(self) -> bytes:
        return os.fsencode(os.path.basename(self.file))

    def mark(self, state: SandboxCheckpoint) -> str:
        """Equal for states that differ only in what SQLite itself updates."""
        if not state.root:
            return ABSENT.decode()
        return sqlite_image.logical_of_root(state.root, self.place.packs.get)

    def held(self, state: SandboxCheckpoint) -> dict[str, str]:
        return {os.fsdecode(self.name): self.mark(state)}

    def write_image(self, root: bytes, directory: str, mode: int = 0o600) -> None:
        fsio.make_private_dir(directory)
        with fsio.directory(directory) as fd:
            files.write_content(self.place.packs.get, root, fd, b"image", mode)
            fsio.sync(fd)

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        fsio.make_private_dir(options.staging)
        now = live_logical(self.live, options.staging)
        base, wanted = self.mark(origin), self.mark(result)
        name, shown = self.place.resource.name, os.fsdecode(self.name)
        if wanted in (base, now):
            return Proposal(resource=name, mode="changes", files=())
        conflict = Conflict(
            resource=name,
            path=shown,
            base=base,
            ours=wanted,
            theirs=now,
            reason="the database was changed since the sandbox was made of it",
        )
        return Proposal(
            resource=name,
            mode="changes",
            files=(shown,),
            conflicts=() if now == base or self._holds_again(origin, now, options) else (conflict,),
            work={"root": result.root.hex(), "logical": wanted, "before": now},
        )

    def _holds_again(self, origin: SandboxCheckpoint, now: str, options: ApplyOptions) -> bool:
        """Whether the live file, in the state `now`, holds what the sandbox was made of.

        A row that was inserted and deleted again leaves other pages behind.
        """
        if not origin.root or not os.path.exists(self.live):
            return False
        scratch = f"{options.staging}/{self.place.resource.resource_id}-again"
        removal.remove_tree(scratch)
        try:
            self.write_image(origin.root, scratch)
            copy_live(self.live, f"{scratch}/now")
            same = same_content(f"{scratch}/image", f"{scratch}/now")
            return same and file_logical(f"{scratch}/now") == now
        finally:
            removal.remove_tree(scratch)

    def lost(
        self,
        applied: Applied,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> list[str]:
        return self.compare(origin, result, options, batch).left_to_do

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0}
        staging = f"{options.staging}/{self.place.resource.resource_id}"
        removal.remove_tree(staging)
        self.write_image(bytes.fromhex(proposal.work["root"]), staging)
        if wrong := damage_in(f"{staging}/image"):
            raise ApplyRefused(
                f"the database in the sandbox is damaged: {wrong}", "agents plan rollback PLAN last"
            )
        copy_live(self.live, f"{staging}/old")
        _sync_file(f"{staging}/old")
        before, wanted = proposal.work["before"], proposal.work["logical"]
        if file_logical(f"{staging}/old") != before:
            raise ApplyRefused(f"{self.live} changed while it was being applied", "run it again")
        return {"files": 1, "staging": staging, "before": before, "wanted": wanted}

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"]:
            self._move(staged, staged["before"], staged["wanted"], "image")

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"] and os.path.exists(f"{staged['staging']}/old"):
            self._move(staged, staged["wanted"], staged["before"], "old")

    def _move(self, staged: dict[str, Any], start: str, end: str, image: str) -> None:
        """Write an image into the live file in one transaction, if it is in the start state."""
        now = live_logical(self.live, staged["staging"])
        if now == end:
            # Perhaps not yet on disk, if the process that wrote it died.
            self._make_last()
            return
        if now != start:
            raise ApplyRefused(f"{self.live} changed while it was being applied", "run it again")
        fsio.point("backup")
        copy_into_live(f"{staged['staging']}/{image}", self.live, start, staged["staging"])
        if live_logical(self.live, staged["staging"]) != end:
            raise SandboxError(f"{self.live} does not hold what was written to it")
        self._make_last()

    def _make_last(self) -> None:
        """Sync the folder: else a removed journal may come back and undo the transaction."""
        fsio.sync_dir(os.path.dirname(self.live))

    def applied(self, staged: dict[str, Any]) -> Applied:
        return Applied(resource=self.place.resource.name, files=staged["files"])


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fsio.sync(fd)
    finally:
        os.close(fd)
