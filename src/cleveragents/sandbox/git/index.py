"""The user's index, read and changed without running their filters.

A commit of ours takes only the plan's paths. If the user has staged something at one of them, or
has an unfinished merge or rebase, there is no commit.
"""

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager

from cleveragents.content import fsio
from cleveragents.content.entry import (
    Entry,
    EntryKind,
)
from cleveragents.content.files import hash_as, hash_file_as
from cleveragents.content.keys import (
    GIT,
)
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.model.resource import show_path
from cleveragents.sandbox.git import command

OBJECTS = (EntryKind.FILE, EntryKind.LINK)
LINK, PLAIN, PROGRAM = b"120000", b"100644", b"100755"
_MIDDLES = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply/applying": "am",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "sequencer": "cherry-pick or revert",
    "BISECT_LOG": "bisect",
}
_FLAGS = {"skip-worktree": b"Ss", "assume-unchanged": b"hsmrck?"}
"""Bits of an index entry that are the user's, and how `ls-files -v` tells them."""
Tracked = Mapping[bytes, tuple[bytes, bytes]]
"""Path -> mode and object name in a commit."""


def unfinished_operation(repository: command.Repository) -> str | None:
    """The merge, rebase or the like that the user has not finished."""
    for name, what in _MIDDLES.items():
        if os.path.exists(f"{repository.git_dir}/{name}"):
            return what
    return None


def trusts(repository: command.Repository, what: str) -> bool:
    """Whether git trusts the work tree's modes (`fileMode`) or links (`symlinks`)."""
    found = command.user_config(repository.top, "--type=bool", "--get", f"core.{what}")
    return found != ["false"]


def committed_mode(
    before: Entry | None, after: Entry, known: bytes | None, links: bool = True
) -> bytes:
    """The mode of a path in our commit: as `known` unless the plan changed it."""
    if after.kind is EntryKind.LINK:
        return LINK
    wanted = PROGRAM if after.mode & 0o100 else PLAIN
    if known is None or before is None or before.kind is not EntryKind.FILE:
        return wanted
    if known == LINK:
        return wanted if links else LINK
    return known if (before.mode ^ after.mode) & 0o100 == 0 else wanted


def staged_paths(repository: command.Repository, tip: str | None) -> list[bytes]:
    """Paths whose index entry differs from the commit; files are not read."""
    tip = tip or repository.git("hash-object", "-t", "tree", "--stdin", stdin=b"").decode().strip()
    found = repository.git("diff-index", "--cached", "--name-only", "--no-renames", "-z", tip)
    return sorted({path for path in found.split(b"\0") if path})


def staged_conflict(staged: Iterable[bytes], work: Iterable[Difference]) -> bytes | None:
    """A staged path that committing this work would replace or drop."""
    wanted = {item.path for item in work if _is_object(item.before) or _is_object(item.after)}
    above = {folder for path in wanted for folder in _folders(path)}
    for path in staged:
        if path in wanted or path in above or any(up in wanted for up in _folders(path)):
            return path
    return None


def own_change(
    root: str, item: Difference, work: set[bytes], tracked: Tracked, modes: bool, links: bool
) -> str | None:
    """How a path of the target differs from its tip commit; None if it does not."""
    uncommitted = f"{show_path(item.path)} has uncommitted changes of your own"
    known = tracked.get(item.path)
    if any(path in tracked and path not in work for path in _folders(item.path)):
        return uncommitted
    old = item.before
    if old is None:
        missing = f"{show_path(item.path)} is in the commit and was not in the work tree"
        return missing if known else None
    if old.kind not in OBJECTS:
        return uncommitted if known else None
    if known is None or not _same_kind(root, item.path, old, known[0], modes, links):
        return uncommitted
    like = GIT + bytes.fromhex(known[1].decode())
    with fsio.directory(root) as top, fsio.parent_of(top, item.path) as (fd, name):
        if old.kind is EntryKind.LINK:
            text = os.readlink(name, dir_fd=fd)
            same = hash_as(iter([text]), len(text), like) == like
        else:
            same = hash_file_as(fd, name, like) == like
    return None if same else uncommitted


def _same_kind(root: str, path: bytes, old: Entry, known: bytes, modes: bool, links: bool) -> bool:
    if old.kind is EntryKind.LINK:
        return known == LINK
    if known == LINK:
        return not links
    return not modes or known == (PROGRAM if old.mode & 0o100 else PLAIN)


def lines(repository: command.Repository, paths: Iterable[bytes]) -> dict[bytes, bytes]:
    """The paths' index entries now, in the format of `update-index --index-info`."""
    wanted = sorted(set(paths))
    found: dict[bytes, bytes] = {path: nothing(repository, path) for path in wanted}
    listed = repository.git("ls-files", "--stage", "-z").split(b"\0")
    seen = set[bytes]()
    for line in listed:
        path = line.split(b"\t", 1)[-1]
        if line and path in found:
            found[path] = found[path] + b"\0" + line if path in seen else line
            seen.add(path)
    return found


def nothing(repository: command.Repository, path: bytes) -> bytes:
    """The line that removes a path from the index."""
    return b"0 " + b"0" * (40 if repository.object_format == "sha1" else 64) + b"\t" + path


def as_input(found: Iterable[bytes]) -> bytes:
    """The lines in order, removals first: a file may become a folder."""
    return b"".join(line + b"\0" for line in sorted(found, key=lambda one: one[:2] != b"0 "))


def same_line(one: bytes, other: bytes) -> bool:
    """Whether two lines mean the same; git's own name the stage, ours leave out 0."""
    return one.replace(b" 0\t", b"\t", 1) == other.replace(b" 0\t", b"\t", 1)


def flags(repository: command.Repository, paths: Iterable[bytes]) -> dict[str, list[str]]:
    """Flag, in hex -> the paths that have it."""
    wanted = set(paths)
    found: dict[str, list[str]] = {}
    for line in repository.git("ls-files", "-v", "-z").split(b"\0"):
        if line[2:] in wanted:
            for flag, tags in _FLAGS.items():
                if line[:1] in {bytes([tag]) for tag in tags}:
                    found.setdefault(flag, []).append(line[2:].hex())
    return found


def update(
    repository: command.Repository,
    text: bytes,
    commit: str | None,
    flagged: Mapping[str, list[str]],
) -> None:
    """Put these lines into the index, with the files' stat data and the user's flags."""
    fsio.point("index")
    repository.git("update-index", "-z", "--index-info", stdin=text)
    if commit is not None:
        refresh(repository, commit)
    there = {line.split(b"\t", 1)[1] for line in text.split(b"\0") if line and line[:2] != b"0 "}
    for flag, paths in flagged.items():
        names = [path for path in map(bytes.fromhex, paths) if path in there]
        if names:
            names_text = b"".join(name + b"\0" for name in names)
            repository.git("update-index", f"--{flag}", "-z", "--stdin", stdin=names_text)


def refresh(repository: command.Repository, commit: str) -> None:
    """Refresh the index's stat data for files whose content it already has.

    If somebody else holds the index lock, they or the next `git status` will do it.
    """
    with own_git_dir(repository, commit) as here:
        command.run(
            *here,
            "-c", "core.splitIndex=false",
            "update-index", "-q", "--refresh",
            cwd=repository.top,
            extra={"GIT_INDEX_FILE": f"{repository.git_dir}/index"},
            accept=(0, 1, 128),
        )  # fmt: skip


@contextmanager
def own_git_dir(repository: command.Repository, commit: str) -> Generator[tuple[str, ...]]:
    """Arguments for a git with the user's objects, files and index, and without their filters."""
    import glob
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cleveragents-") as scratch:
        command.make_git_dir(f"{scratch}/git", repository, commit)
        for shared in glob.glob(f"{glob.escape(repository.git_dir)}/sharedindex.*"):
            shutil.copy(shared, f"{scratch}/git")
        yield (
            f"--git-dir={scratch}/git",
            f"--work-tree={repository.top}",
            "-c", f"core.fileMode={str(trusts(repository, 'fileMode')).lower()}",
            "-c", f"core.symlinks={str(trusts(repository, 'symlinks')).lower()}",
        )  # fmt: skip


def _is_object(entry: Entry | None) -> bool:
    return entry is not None and entry.kind in OBJECTS


def _folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]
