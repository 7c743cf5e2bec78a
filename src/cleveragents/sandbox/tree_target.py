"""Apply to a directory: the plan's changes are merged into the user's, name by name."""

import os
from typing import Any

import msgspec

from cleveragents import codec, machine
from cleveragents.content import attributes, fsio, removal
from cleveragents.content.packs import Batch
from cleveragents.content.restore.operation import Op
from cleveragents.content.restore.staging import stage
from cleveragents.content.restore.switch import Switch
from cleveragents.content.tree_diff import Difference
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import show_path
from cleveragents.sandbox import merge as merging
from cleveragents.sandbox.control import control_files_of
from cleveragents.sandbox.protocol import Applied, ApplyOptions, Proposal
from cleveragents.sandbox.tree_states import TreeStates


class TreeTarget(TreeStates):
    """The user's own directory."""

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        wanted, left_out = self.visible(origin, result, options.ignored)
        merge = merging.merge_into(
            self.place.resource.path, self.name, wanted, self.read, batch, options.staging
        )
        return Proposal(
            resource=self.name,
            mode="changes",
            files=tuple(merge.files),
            conflicts=tuple(merge.conflicts),
            merged=tuple(merge.merged),
            ignored_count=left_out,
            control_files=control_files_of(wanted),
            notes=self.not_applied(origin, result),
            work=msgspec.to_builtins(merge.work),
        )

    def lost(
        self,
        applied: Applied,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> list[str]:
        # Not the subclass's `compare`: another branch may be checked out by now.
        return TreeTarget.compare(self, origin, result, options, batch).left_to_do

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        work = codec.convert(proposal.work, merging.Work)
        staging = merging.staging_beside(
            self.place.resource.path, os.path.basename(options.staging)
        )
        ops, notes = self._stage_target(work, staging)
        return {
            "staging": staging,
            "ops": msgspec.to_builtins(ops),
            "notes": notes,
            "files": len(proposal.files),
            "directories": sum(item.is_directory for item in work.differences),
            "mode": proposal.mode,
        }

    def _stage_target(self, work: merging.Work, staging: str) -> tuple[tuple[Op, ...], list[str]]:
        """Give staged files the owner and attributes of what they replace; returns what failed."""
        notes: list[str] = []
        remove_staging(staging)
        with machine.at(os.path.dirname(staging)):
            fsio.make_private_dir(staging)

        def inherit_attributes(fd: int, new: bytes, item: Difference) -> None:
            assert item.after is not None
            try:
                with fsio.parent_of(root, item.path) as (parent, name):
                    found = fsio.lstat_at(parent, name)
                    changed = merging.changed_attributes(item)
                    lost = attributes.inherit(
                        fd, new, item.after.mode, parent, name, found, changed
                    )
            except (FileNotFoundError, NotADirectoryError):
                return  # its folder is new as well
            notes.extend(f"{show_path(item.path)}: {text}" for text in lost)

        with fsio.directory(self.place.resource.path) as root:
            expected = dict(work.expected)
            return stage(
                self.read, work.differences, staging, expected, finish=inherit_attributes
            ), notes

    def switch_apply(self, staged: dict[str, Any]) -> None:
        self._target_switch(staged).forward()

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if os.path.isdir(staged["staging"]):
            self._target_switch(staged).backward()
            remove_staging(staged["staging"])

    def finish_apply(self, staged: dict[str, Any]) -> None:
        remove_staging(staged["staging"])

    def discard_apply(self, staging: str) -> None:
        if os.path.isdir(self.place.resource.path):
            name = os.path.basename(staging)
            remove_staging(merging.staging_beside(self.place.resource.path, name))

    def applied(self, staged: dict[str, Any]) -> Applied:
        notes = tuple(staged.get("notes", ()))
        files = staged["files"] - staged.get("directories", 0)
        return Applied(resource=self.name, files=files, mode=staged["mode"], notes=notes)

    def _target_switch(self, staged: dict[str, Any]) -> Switch:
        ops = codec.convert(staged["ops"], tuple[Op, ...])
        return Switch(self.place.resource.path, staged["staging"], ops)


def remove_staging(staging: str) -> None:
    """Remove and sync: else it may reappear in the user's folder after a power cut."""
    if os.path.isdir(staging):
        removal.remove_tree(staging)
        fsio.sync_dir(os.path.dirname(staging))
