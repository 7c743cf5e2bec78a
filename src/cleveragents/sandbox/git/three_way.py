"""Merge three trees of one repository without a work tree, as apply merges files."""

from collections.abc import Iterator

import msgspec

from cleveragents.content import fsio
from cleveragents.model.resource import show_path
from cleveragents.sandbox.git import command
from cleveragents.sandbox.git.index import PLAIN, PROGRAM, as_input, nothing
from cleveragents.sandbox.merge import merge_mode, merge_texts
from cleveragents.sandbox.protocol import Conflict

BASE, THEIRS, OURS = 1, 2, 3
Side = tuple[bytes, bytes]
"""Mode and object name."""


class MergedTree(msgspec.Struct, frozen=True):
    tree: str
    merged: tuple[str, ...] = ()
    """Files that have both changes."""
    conflicts: tuple[Conflict, ...] = ()
    """If there are any, the tree is of no use."""


def merge_trees(
    repository: command.Repository, trees: tuple[str, str, str], resource: str, scratch: str
) -> MergedTree:
    """Merge the changes from `base` to `ours` into `theirs`; trees in the order of `BASE` etc."""
    fsio.make_private_dir(scratch)
    with command.scratch_index(scratch) as extra:
        repository.git("read-tree", "-i", "-m", "--aggressive", *trees, extra=extra)
        conflicts: list[Conflict] = []
        lines: list[bytes] = []
        merged: list[str] = []
        for path, sides in _unmerged(repository.git("ls-files", "-u", "-z", extra=extra)):
            found = _both(repository, sides, scratch)
            if found is None:
                conflicts.append(_conflict(resource, path, sides))
                continue
            merged.append(show_path(path))
            lines += [nothing(repository, path), b" ".join(found) + b"\t" + path]
        if conflicts:
            return MergedTree("", tuple(merged), tuple(conflicts))
        text = as_input(lines)
        repository.git("update-index", "-z", "--index-info", stdin=text, extra=extra)
        tree = repository.git("write-tree", extra=extra).decode().strip()
    return MergedTree(tree, tuple(merged))


def _unmerged(listed: bytes) -> Iterator[tuple[bytes, dict[int, Side]]]:
    found: dict[bytes, dict[int, Side]] = {}
    for line in listed.split(b"\0"):
        if line:
            about, path = line.split(b"\t", 1)
            mode, name, stage = about.split()
            found.setdefault(path, {})[int(stage)] = mode, name
    yield from found.items()


def _both(repository: command.Repository, sides: dict[int, Side], scratch: str) -> Side | None:
    """The file with both changes; None if it cannot have both."""
    if len(sides) < OURS or any(mode not in (PLAIN, PROGRAM) for mode, _ in sides.values()):
        return None
    modes = {stage: int(mode, 8) for stage, (mode, _) in sides.items()}
    mode = merge_mode(modes[BASE], modes[OURS], modes[THEIRS])
    texts = {
        stage: repository.git("cat-file", "blob", name.decode())
        for stage, (_, name) in sides.items()
    }
    if mode is None or any(b"\0" in text for text in texts.values()):
        return None
    text = merge_texts(texts[OURS], texts[BASE], texts[THEIRS], scratch)
    if text is None:
        return None
    name = repository.git("hash-object", "-w", "--stdin", "--no-filters", stdin=text)
    return b"%o" % mode, name.strip()


def _conflict(resource: str, path: bytes, sides: dict[int, Side]) -> Conflict:
    shown = {
        stage: f"{mode.decode()}:{name.decode()[:12]}" for stage, (mode, name) in sides.items()
    }
    return Conflict(
        resource=resource,
        path=show_path(path),
        base=shown.get(BASE, "absent"),
        ours=shown.get(OURS, "removed"),
        theirs=shown.get(THEIRS, "removed"),
        reason="changed on both sides",
    )
