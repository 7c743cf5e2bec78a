"""Three-way merge of the plan's changes into the target as it is now."""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from cleveragents.content import attributes, fsio
from cleveragents.content.entry import (
    Entry,
    EntryKind,
    kind_of,
)
from cleveragents.content.files import NO_TIME, content_blocks, hash_file_as, store_blocks
from cleveragents.content.fsio import inode_of
from cleveragents.content.packs import Batch
from cleveragents.content.tree_diff import (
    Difference,
)
from cleveragents.model.resource import show_path
from cleveragents.sandbox.git import command
from cleveragents.sandbox.protocol import Conflict

if TYPE_CHECKING:
    import subprocess

Reader = Callable[[bytes], bytes]


class Work(msgspec.Struct):
    """The changes to make in the target."""

    differences: list[Difference] = []
    expected: dict[bytes, tuple[int, int, int]] = {}


class Merge(msgspec.Struct):
    work: Work
    files: list[str] = []
    merged: list[str] = []
    conflicts: list[Conflict] = []


def staging_beside(target: str, name: str) -> str:
    """A staging directory on the target's file system: renames must not cross one."""
    plain, inside = staging_places(target, name)
    return inside if has_git_folder(target) else plain


def has_git_folder(root: str) -> bool:
    """A link is not followed: it may lead to another file system."""
    return os.path.isdir(f"{root}/.git") and not os.path.islink(f"{root}/.git")


def staging_places(target: str, name: str) -> tuple[str, str]:
    """Both directories it may be."""
    return f"{target}/.cleveragents-{name}", f"{target}/.git/.cleveragents-{name}"


def merge_into(
    root: str,
    resource: str,
    wanted: list[Difference],
    read: Reader,
    batch: Batch,
    scratch: str,
) -> Merge:
    """Compare every path of the plan's work with the target; changes nothing."""
    merge = Merge(Work())
    with fsio.directory(root) as fd:
        one = _Target(fd, resource, read, batch, scratch, merge)
        for item in wanted:
            one.consider(item)
        one.drop_kept_directories()
    merge.work.differences.sort(key=lambda item: item.path)
    return merge


class _Target:
    def __init__(
        self, root: int, resource: str, read: Reader, batch: Batch, scratch: str, merge: Merge
    ) -> None:
        self._root = root
        self._resource = resource
        self._read = read
        self._batch = batch
        self._scratch = scratch
        self._merge = merge

    def consider(self, item: Difference) -> None:
        try:
            with fsio.parent_of(self._root, item.path) as (fd, name):
                self._at(fd, name, item)
        except FileNotFoundError:
            self._without_parent(item)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if not self._made_directory(item.path):
                self._conflict(item, "?", "its folder is no longer a directory")
            elif item.after is not None:
                self._take(Difference(item.path, None, item.after))

    def _made_directory(self, path: bytes) -> bool:
        """Whether the plan itself turns a file above this path into a directory."""
        parts = path.split(b"/")
        above = {b"/".join(parts[:depth]) for depth in range(1, len(parts))}
        return any(i.path in above and _is_dir(i.after) for i in self._merge.work.differences)

    def _without_parent(self, item: Difference) -> None:
        """The target lost the folder: a new file brings it back, a changed one conflicts."""
        if item.after is None:
            return
        if item.before is not None and not _is_dir(item.before):
            self._conflict(item, "removed", "changed by the plan, removed in the target")
            return
        known = {found.path for found in self._merge.work.differences}
        parts = item.path.split(b"/")
        for depth in range(1, len(parts)):
            parent = b"/".join(parts[:depth])
            if parent not in known and not self._exists(parent):
                entry = Entry(parts[depth - 1], EntryKind.DIRECTORY, 0o755)
                self._merge.work.differences.append(Difference(parent, None, entry))
        self._take(Difference(item.path, None, item.after))

    def _exists(self, path: bytes) -> bool:
        try:
            with fsio.parent_of(self._root, path) as (fd, name):
                return fsio.lstat_at(fd, name) is not None
        except OSError:
            return False

    def _at(self, fd: int, name: bytes, item: Difference) -> None:
        found = fsio.lstat_at(fd, name)
        if holds(fd, name, found, item.after) and _has_attributes(fd, name, item):
            return
        if holds(fd, name, found, item.before):
            self._take(item, found)
        elif _is_dir(item.before) or _is_dir(item.after):
            self._directory(item, found)
        else:
            self._both_changed(fd, name, item, found)

    def _take(self, item: Difference, found: os.stat_result | None = None) -> None:
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self._merge.work.expected[item.path] = inode_of(found)
        self._merge.work.differences.append(item)
        self._merge.files.append(show_path(item.path))

    def _directory(self, item: Difference, found: os.stat_result | None) -> None:
        is_there = found is not None and stat.S_ISDIR(found.st_mode)
        if item.after is None and (found is None or is_there):
            if is_there:
                self._take(item, found)
        elif _is_dir(item.after) and (is_there or (found is None and item.before is not None)):
            return
        else:
            self._conflict(item, _describe(found), "a directory on one side only")

    def _both_changed(
        self, fd: int, name: bytes, item: Difference, found: os.stat_result | None
    ) -> None:
        before, after = item.before, item.after
        if found is None and after is None:
            return
        if (
            found is None
            or before is None
            or after is None
            or not stat.S_ISREG(found.st_mode)
            or not before.kind is after.kind is EntryKind.FILE
        ):
            self._conflict(item, _describe(found), "changed on both sides")
            return
        mode = merge_mode(before.mode, after.mode, stat.S_IMODE(found.st_mode))
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        with os.fdopen(source, "rb") as target:
            theirs = target.read()
        text = self._merge_text(theirs, before, after)
        if text is None or mode is None:
            self._conflict(item, _describe(found), "changed on both sides in the same place")
            return
        its_mode, own = stat.S_IMODE(found.st_mode), before.xattrs
        if (text, mode) == (theirs, its_mode) and _has_attributes(fd, name, item):
            return  # the target has the plan's change beside its own, as after an apply
        key, size = store_blocks(iter(_blocks(text)), self._batch)
        there = Entry(name, EntryKind.FILE, its_mode, found.st_size, state=own)
        result = Entry(name, EntryKind.FILE, mode, size, NO_TIME, key, after.xattrs)
        self._take(Difference(item.path, there, result), found)
        self._merge.merged.append(show_path(item.path))

    def _merge_text(self, theirs: bytes, before: Entry, after: Entry) -> bytes | None:
        """The merged text; None if one is binary or both changed the same lines."""
        base = b"".join(content_blocks(self._read, before.key))
        ours = b"".join(content_blocks(self._read, after.key))
        if theirs == base:
            return ours
        if ours == base:
            return theirs
        if any(b"\0" in text for text in (base, ours, theirs)):
            return None
        return merge_texts(ours, base, theirs, self._scratch)

    def _conflict(self, item: Difference, theirs: str, reason: str) -> None:
        self._merge.conflicts.append(
            Conflict(
                resource=self._resource,
                path=show_path(item.path),
                base=item.before.described if item.before else "absent",
                ours=item.after.described if item.after else "removed",
                theirs=theirs,
                reason=reason,
            )
        )

    def drop_kept_directories(self) -> None:
        """Keep a directory that the plan removed but the target has other files in."""
        gone = {item.path for item in self._merge.work.differences if item.after is None}
        for item in sorted(self._merge.work.differences, key=lambda item: item.path, reverse=True):
            if item.after is not None or not _is_dir(item.before):
                continue
            with fsio.parent_of(self._root, item.path + b"/.") as (fd, _):
                names = [os.fsencode(name) for name in os.listdir(fd)]
            if any(item.path + b"/" + name not in gone for name in names):
                gone.discard(item.path)
                self._merge.work.differences.remove(item)
                self._merge.files.remove(show_path(item.path))


LINES_SHOWN = 12


def shown_conflict(ours: bytes, base: bytes, theirs: bytes, scratch: str) -> tuple[str, str]:
    """The conflicting lines of both sides, cut to what is shown."""
    text = _merged(ours, base, theirs, scratch).stdout.decode("utf-8", "replace")
    sides: list[list[str]] = [[], []]
    at = -1
    for line in text.splitlines():
        if line.startswith("<<<<<<<"):
            at = 0
        elif line.startswith("=======") and at == 0:
            at = 1
        elif line.startswith(">>>>>>>") and at == 1:
            at = -1
        elif at >= 0:
            sides[at].append(line)
    mine, other = ("\n".join(side[:LINES_SHOWN]) for side in sides)
    return mine, other


def merge_texts(ours: bytes, base: bytes, theirs: bytes, scratch: str) -> bytes | None:
    """A three-way merge by git; None on a conflict."""
    done = _merged(ours, base, theirs, scratch)
    return done.stdout if done.returncode == 0 else None


def _merged(
    ours: bytes, base: bytes, theirs: bytes, scratch: str
) -> "subprocess.CompletedProcess[bytes]":
    import subprocess

    fsio.make_private_dir(scratch)
    paths = [f"{scratch}/merge-{side}" for side in ("ours", "base", "theirs")]
    for path, text in zip(paths, (ours, base, theirs), strict=True):
        with open(path, "wb") as target:
            target.write(text)
    done = subprocess.run(
        ["git", "merge-file", "-p", "-q", *paths],
        capture_output=True,
        env=command.environment(),
        cwd=scratch,
        check=False,
    )
    for path in paths:
        os.unlink(path)
    return done


def _blocks(text: bytes) -> Iterable[bytes]:
    from cleveragents.content.files import CHUNK

    return (text[start : start + CHUNK] for start in range(0, len(text), CHUNK))


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIRECTORY


def holds(fd: int, name: bytes, found: os.stat_result | None, entry: Entry | None) -> bool:
    """Whether a file is in the state of the entry; a directory without what is in it."""
    if found is None or entry is None:
        return found is None and entry is None
    if kind_of(found.st_mode) is not entry.kind:
        return False
    if entry.kind is EntryKind.LINK:
        return os.readlink(name, dir_fd=fd) == entry.key
    if stat.S_IMODE(found.st_mode) != entry.mode:
        return False
    return entry.kind is not EntryKind.FILE or hash_file_as(fd, name, entry.key) == entry.key


def changed_attributes(item: Difference) -> dict[bytes, bytes | None]:
    """Extended attributes that the plan set, or removed (None).

    Attributes that vanished with the old content do not count: a tool wrote a new file.
    """
    before, after = item.before, item.after
    if after is None:
        return {}
    same_kind = before is not None and before.kind is after.kind
    found = attributes.changes(before.xattrs if before and same_kind else b"", after.xattrs)
    if before is not None and before.key != after.key and not _is_dir(after):
        return {name: data for name, data in found.items() if data is not None}
    return found


def _has_attributes(fd: int, name: bytes, item: Difference) -> bool:
    where = attributes.where(fd, name)
    changed = changed_attributes(item)
    return all(attributes.value(where, one) == data for one, data in changed.items())


def merge_mode(base: int, ours: int, theirs: int) -> int | None:
    if ours in (base, theirs):
        return theirs
    return ours if theirs == base else None


def _describe(found: os.stat_result | None) -> str:
    if found is None:
        return "removed"
    return f"{kind_of(found.st_mode)}:{stat.S_IMODE(found.st_mode):o}:{found.st_size} bytes"
