"""Three-way merge of states: a child plan's changes into its parent's state as it is now.

Only manifests and content in the store are read, so a merge repeated after a crash gives the same
answer, and nothing is half merged.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from cleveragents.content import attributes, trees
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    Tree,
)
from cleveragents.content.files import CHUNK, NO_TIME, content_blocks, hash_as, store_blocks
from cleveragents.content.packs import Batch
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.model.resource import show_path
from cleveragents.sandbox.merge import merge_mode, merge_texts
from cleveragents.sandbox.protocol import Conflict

Reader = Callable[[bytes], bytes]
Known = Callable[[bytes], tuple[bytes, int] | None]
"""Path -> key and size of content that need not be stored."""


class StateMerge(msgspec.Struct):
    wanted: dict[bytes, Entry | None] = {}
    """Path -> what is to be there, for `graft`."""
    conflicts: list[Conflict] = []


def merge_states(
    resource: str,
    work: Iterable[Difference],
    ours: Tree,
    theirs: Tree,
    known: Known,
    read: Reader,
    batch: Batch,
    scratch: str,
) -> StateMerge:
    merge = StateMerge()
    manifests = trees.reading(read)
    work = list(work)
    seen = {item.path for item in work}
    for item in work:
        there = trees.find(manifests, theirs, item.path)
        if _same(there, item.after):
            continue
        if there is None and _blocked(manifests, theirs, item, merge):
            _conflict(merge, resource, item, there, "its folder is no longer a directory")
        elif _buries(manifests, there, item, seen):
            _conflict(merge, resource, item, there, "there is something in it that is new")
        elif _same(there, item.before):
            merge.wanted[item.path] = item.after
        elif _is_dir(item.after) and _is_dir(there):
            continue
        elif item.after is None and _is_dir(item.before) and (there is None or _is_dir(there)):
            merge.wanted[item.path] = None
        elif (both := merged_entry(item, there, known, read, batch, scratch)) is not None:
            merge.wanted[item.path] = both
        else:
            _conflict(merge, resource, item, there, "changed on both sides")
    merge.wanted |= missing_folders(manifests, ours, theirs, merge.wanted)
    return merge


def _folders(path: bytes) -> Iterator[bytes]:
    parts = path.split(b"/")
    return (b"/".join(parts[:depth]) for depth in range(1, len(parts)))


def _blocked(load: trees.Loader, theirs: Tree, item: Difference, merge: StateMerge) -> bool:
    """Whether a folder above the path is something other than a directory now."""
    for path in _folders(item.path):
        above = trees.find(load, theirs, path)
        if above is None:
            return False
        if not _is_dir(above) and not _is_dir(merge.wanted.get(path)):
            return item.after is not None
    return False


def _buries(load: trees.Loader, there: Entry | None, item: Difference, seen: set[bytes]) -> bool:
    """Whether replacing a directory would drop entries below it that the child did not know."""
    if there is None or not _is_dir(there) or item.after is None or _is_dir(item.after):
        return False
    below = trees.walk(load, there.tree)
    return any(item.path + b"/" + path not in seen for path, _ in below)


def missing_folders(
    load: trees.Loader, ours: Tree, theirs: Tree, wanted: dict[bytes, Entry | None]
) -> dict[bytes, Entry | None]:
    """Missing folders of the wanted paths, as they were."""
    above = {path for name, entry in wanted.items() if entry for path in _folders(name)}
    return {
        path: trees.find(load, ours, path)
        for path in above - wanted.keys()
        if trees.find(load, theirs, path) is None
    }


def merged_entry(
    item: Difference, there: Entry | None, known: Known, read: Reader, batch: Batch, scratch: str
) -> Entry | None:
    """The file with both changes; None on a conflict."""
    before, after = item.before, item.after
    if before is None or after is None or there is None:
        return None
    if not before.kind is after.kind is there.kind is EntryKind.FILE:
        return None
    mode = merge_mode(before.mode, after.mode, there.mode)
    one_sided = there if after.key == before.key else after
    if mode is None or before.key in (after.key, there.key) or after.key == there.key:
        xattrs = _merged_xattrs(before, after, there)
        return None if mode is None else msgspec.structs.replace(one_sided, mode=mode, state=xattrs)
    base, ours, theirs = (b"".join(content_blocks(read, e.key)) for e in (before, after, there))
    binary = any(b"\0" in text for text in (base, ours, theirs))
    text = None if binary else merge_texts(ours, base, theirs, scratch)
    if text is None:
        return None
    return Entry(
        there.name,
        EntryKind.FILE,
        mode,
        len(text),
        NO_TIME,
        _key(text, known(item.path), batch),
        _merged_xattrs(before, after, there),
    )


def _merged_xattrs(before: Entry, after: Entry, there: Entry) -> bytes:
    """Merge extended attributes name by name; the child's changes win."""
    changes = attributes.changes(before.xattrs, after.xattrs)
    return attributes.packed({**attributes.unpacked(there.xattrs), **changes})


def _key(text: bytes, known: tuple[bytes, int] | None, batch: Batch) -> bytes:
    """The key of merged text; the base's key if the base commit has that text."""
    blocks = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    if known is not None and hash_as(iter(blocks), len(text), known[0]) == known[0]:
        return known[0]
    return store_blocks(iter(blocks), batch)[0]


def _conflict(
    merge: StateMerge, resource: str, item: Difference, there: Entry | None, reason: str
) -> None:
    merge.conflicts.append(
        Conflict(
            resource=resource,
            path=show_path(item.path),
            base=item.before.described if item.before else "absent",
            ours=item.after.described if item.after else "removed",
            theirs=there.described if there else "removed",
            reason=reason,
        )
    )


def _same(left: Entry | None, right: Entry | None) -> bool:
    """Whether both are in the same state; directories without what is in them."""
    if left is None or right is None:
        return left is right
    if left.kind is right.kind is EntryKind.DIRECTORY:
        return left.mode == right.mode and left.xattrs == right.xattrs
    return left.same_state(right)


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIRECTORY
