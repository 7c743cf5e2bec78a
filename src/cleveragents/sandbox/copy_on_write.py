"""`copy_on_write`: a copy of the directory, sharing its blocks where the file system can."""

from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Change
from cleveragents.sandbox.tree import TreeSandbox


class CopyOnWrite(TreeSandbox):
    strategy = "copy_on_write"


class GitCopy(TreeSandbox):
    """A git checkout copied whole, its `.git` like any other bytes; applied as changes only."""

    strategy = "copy_on_write"

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        """A tool's changes to the copy of `.git` never reach the user's."""
        return frozenset(c.path for c in changes if c.path.split(b"/")[0] == b".git")
