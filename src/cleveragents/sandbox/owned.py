"""States of a tree in place, path by path: as text, merged, and assembled again."""

import os
from collections.abc import Mapping, Sequence

from cleveragents.content import trees
from cleveragents.content.entry import Entry, EntryKind
from cleveragents.content.files import content_blocks
from cleveragents.content.keys import shown_key
from cleveragents.content.packs import Batch
from cleveragents.content.restore.grafting import graft
from cleveragents.content.tree_diff import Difference
from cleveragents.errors import ContentDamaged
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.units import show_bytes
from cleveragents.sandbox.git.index_entries import meaning_of
from cleveragents.sandbox.merge import shown_conflict
from cleveragents.sandbox.merge_states import merged_entry, missing_folders
from cleveragents.sandbox.tree import TreeSandbox, tree_of


class OwnedTree:
    """What `history/owners` needs of a directory; `states` are those a path may have had."""

    def __init__(
        self,
        sandbox: TreeSandbox,
        states: Sequence[SandboxCheckpoint],
        batch: Batch,
        scratch: str,
    ) -> None:
        self._sandbox = sandbox
        self._states = states
        self._batch = batch
        self._scratch = scratch
        self._made: dict[tuple[bytes, str], Entry] = {}
        self._plain: dict[tuple[bytes, str], str] = {}
        """What means something -> the first state that was found to mean it."""

    def at(self, state: SandboxCheckpoint, path: bytes) -> str:
        """The state of one path as text; empty if nothing is there."""
        entry = trees.find(self._sandbox.manifests, tree_of(state), path)
        return entry.described if entry is not None else ""

    def is_merged(self, path: bytes) -> bool:
        """Files of git's own cannot be merged."""
        return not _is_gits(path)

    def meaning(self, path: bytes, text: str) -> str:
        """Equal for equivalent states: even `git status` rewrites the index."""
        if not text or not (path.endswith(b"/index") and _is_gits(path)):
            return text
        try:
            entry = self._entry(path, text)
        except ContentDamaged:
            # Of a write whose checkpoint was pruned; its content stays until somebody runs gc.
            entry = None
        try:
            found = meaning_of(self._read(entry.key if entry else _key_in(text)))
        except ContentDamaged:
            return text
        if found is None:
            return text
        if entry is not None:
            self._plain.setdefault((path, found), text)
        return found

    def merge(self, path: bytes, base: str, ours: str, theirs: str) -> str | None:
        """The merged file, remembered for `assembled`."""
        try:
            entries = [self._entry(path, text) for text in (base, theirs, ours)]
            work = Difference(path, entries[0], entries[1])
            known = self._sandbox.base().get
            read = self._sandbox.read
            made = merged_entry(work, entries[2], known, read, self._batch, self._scratch)
        except ContentDamaged:
            return None
        if made is None:
            return None
        self._made[path, made.described] = made
        return made.described

    def sides(self, path: bytes, base: str, ours: str, theirs: str) -> tuple[str, str]:
        """The conflicting lines of the checkpoint and somebody else, if they are text."""
        try:
            entries = [self._entry(path, text) for text in (ours, base, theirs)]
            if all(e is not None and e.kind is EntryKind.FILE for e in entries):
                contents = [self._content(entry) for entry in entries if entry]
                if not any(b"\0" in text for text in contents):
                    return shown_conflict(contents[0], contents[1], contents[2], self._scratch)
            return _in_words(entries[0]), _in_words(entries[2])
        except ContentDamaged:
            return ours or "nothing", theirs or "nothing"

    def assembled(
        self, now: SandboxCheckpoint, target: SandboxCheckpoint, wanted: Mapping[bytes, str]
    ) -> SandboxCheckpoint:
        """The state now, with those paths as wanted."""
        manifests = self._sandbox.manifests
        entries = {path: self._entry(path, text) for path, text in wanted.items()}
        entries |= missing_folders(manifests, tree_of(target), tree_of(now), entries)
        tree = graft(manifests, tree_of(now), entries, self._batch)
        return self._sandbox.state_of(tree, now)

    def _entry(self, path: bytes, text: str) -> Entry | None:
        if not text:
            return None
        text = self._plain.get((path, text), text)
        if (made := self._made.get((path, text))) is not None:
            return made
        for state in self._states:
            entry = trees.find(self._sandbox.manifests, tree_of(state), path)
            if entry is not None and entry.described == text:
                return entry
        raise ContentDamaged("no checkpoint is kept that has this content")

    def _content(self, entry: Entry) -> bytes:
        return self._read(entry.key)

    def _read(self, key: bytes) -> bytes:
        return b"".join(content_blocks(self._sandbox.read, key))


def _in_words(entry: Entry | None) -> str:
    """Describe what is not text; the key distinguishes content of equal size."""
    if entry is None:
        return "nothing"
    if entry.kind is EntryKind.FILE:
        return f"a file of {show_bytes(entry.size)}, mode {entry.mode:o} ({entry.key.hex()[2:10]})"
    if entry.kind is EntryKind.LINK:
        return f"a symlink to {os.fsdecode(entry.key)}"
    return "a directory" if entry.kind is EntryKind.DIRECTORY else "a special file"


def _key_in(text: str) -> bytes:
    """Of what describes an entry: where its content lies, if it is a file."""
    kind, _, key, *_ = text.split(":")
    if kind != EntryKind.FILE:
        raise ContentDamaged(f"{text} has no content")
    return shown_key(key)


def _is_gits(path: bytes) -> bool:
    """Whether a path is in the git directory of the repository, a submodule or a nested one."""
    return b".git" in path.split(b"/")[:-1]
