"""The difference between two trees; equal subtrees are not read."""

from collections.abc import Iterator

import msgspec

from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.native.manifests import (
    unequal,
)
from cleveragents.content.trees import (
    EMPTY,
    Listing,
    Loader,
)
from cleveragents.model.resource import Action


class Difference(msgspec.Struct, frozen=True):
    """One path at which two trees differ; a directory without what is below it."""

    path: bytes
    before: Entry | None
    after: Entry | None

    @property
    def action(self) -> Action:
        if self.before is None:
            return Action.ADDED
        return Action.REMOVED if self.after is None else Action.CHANGED

    @property
    def is_directory(self) -> bool:
        return all(side.kind is EntryKind.DIRECTORY for side in (self.before, self.after) if side)


def diff(
    load: Loader, before: Tree, after: Tree, touched: list[Difference] | None = None
) -> Iterator[Difference]:
    """Paths that differ, parents before what is below them; equal directories are not opened.

    Paths with only another mtime go into `touched`.
    """
    todo: list[Difference | tuple[bytes, Tree, Tree]] = [(b"", before, after)]
    while todo:
        item = todo.pop()
        if isinstance(item, Difference):
            yield item
            continue
        prefix, one, other = item
        if one.state == other.state and (touched is None or one.key == other.key):
            continue
        for name, left, right in reversed(_unequal(load(one.key), load(other.key))):
            same = left is not None and left.same_state(right)
            if same and touched is None:
                continue
            todo.append((prefix + name + b"/", _tree(left), _tree(right)))
            if same and touched is not None and not _is_directory(left):
                touched.append(Difference(prefix + name, left, right))
            elif not same and not _only_below(left, right):
                todo.append(Difference(prefix + name, left, right))


def diff_entries(load: Loader, before: Entry | None, after: Entry | None) -> Iterator[Difference]:
    """The same below two entries."""
    return diff(load, _tree(before), _tree(after))


def _unequal(old: Listing, new: Listing) -> list[tuple[bytes, Entry | None, Entry | None]]:
    """Names whose entries differ between two directories, sorted."""
    names = unequal(old.data, new.data)
    before, after = old.some(names), new.some(names)
    return [(name, before.get(name), after.get(name)) for name in names]


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIRECTORY


def _only_below(left: Entry | None, right: Entry | None) -> bool:
    """Whether both are directories with the same mode, so the difference is below."""
    if left is None or right is None or left.mode != right.mode:
        return False
    return left.kind is right.kind is EntryKind.DIRECTORY and left.xattrs == right.xattrs


def _tree(entry: Entry | None) -> Tree:
    if entry is None or entry.kind is not EntryKind.DIRECTORY:
        return EMPTY
    return entry.tree
