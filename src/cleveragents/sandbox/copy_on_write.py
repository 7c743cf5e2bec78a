"""`copy_on_write`: a copy of the directory, sharing its blocks where the file system can."""

from cleveragents.sandbox.tree import TreeSandbox


class CopyOnWrite(TreeSandbox):
    strategy = "copy_on_write"


class GitCopy(TreeSandbox):
    """A git checkout copied whole, its `.git` like any other bytes; applied as changes only."""

    strategy = "copy_on_write"
