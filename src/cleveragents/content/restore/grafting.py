"""A tree with some of its paths as they are in another, sharing all the rest."""

from collections.abc import Mapping

from cleveragents.content import trees
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.packs import Batch
from cleveragents.content.trees import (
    Listing,
    Loader,
)

NEW_FOLDER = 0o755


class _Node:
    """What to do at one name (leave it, remove it, or put that entry) and below it."""

    __slots__ = ("below", "named", "wanted")

    def __init__(self) -> None:
        self.named = False
        self.wanted: Entry | None = None
        self.below: dict[bytes, _Node] = {}


def graft(load: Loader, tree: Tree, wanted: Mapping[bytes, Entry | None], batch: Batch) -> Tree:
    """The tree with each path as wanted: an entry, or None for nothing.

    A directory's entry does not include what is below it; a removed directory stays while it has
    entries that were not named.
    """
    if not wanted:
        return tree
    top = _Node()
    for path, entry in wanted.items():
        node = top
        for part in path.split(b"/"):
            node = node.below.setdefault(part, _Node())
        node.named, node.wanted = True, entry
    return trees.store_directory(_entries(load, tree, top, batch), batch)


def _entries(load: Loader, tree: Tree | None, work: _Node, batch: Batch) -> Listing:
    listing = Listing() if tree is None else load(tree.key)
    before = listing.some(work.below)
    return listing.changed(
        {
            name: _entry(load, name, before.get(name), node, batch)
            for name, node in work.below.items()
        }
    )


def _entry(
    load: Loader, name: bytes, current: Entry | None, node: _Node, batch: Batch
) -> Entry | None:
    if node.named and node.wanted is not None and node.wanted.kind is not EntryKind.DIRECTORY:
        return node.wanted
    is_directory = current is not None and current.kind is EntryKind.DIRECTORY
    if not is_directory and not node.named and current is not None:
        return current
    tree = current.tree if current is not None and is_directory else None
    inside = _entries(load, tree, node, batch)
    if node.named and node.wanted is None and not inside:
        return None
    if not node.named and not inside and not is_directory:
        return None
    mode, xattrs = NEW_FOLDER, b""
    if node.wanted is not None:
        mode, xattrs = node.wanted.mode, node.wanted.xattrs
    elif current is not None and is_directory:
        mode, xattrs = current.mode, current.xattrs
    made = trees.store_directory(inside, batch)
    return Entry(name, EntryKind.DIRECTORY, mode, key=made.key, state=made.state + xattrs)
