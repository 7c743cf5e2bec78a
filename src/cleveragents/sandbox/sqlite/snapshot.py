"""`snapshot` of a SQLite file: a private copy, captured byte for byte.

In the sandbox nobody else writes, so a checkpoint locks the file, folds its WAL in and reads the
bytes that may have changed; a rollback writes the chunks that differ, or replaces the file, and
removes its side files. The live file is only read under SQLite's locks and written through SQLite
itself, so that open connections see what happens.
"""

import functools
import os
import sqlite3
import stat
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import msgspec
from blake3 import blake3

from cleveragents.content import files, fsio, removal
from cleveragents.content.keys import (
    BLOB,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import ApplyRefused, CheckpointFailed, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change
from cleveragents.sandbox.protocol import (
    Applied,
    ApplyOptions,
    Conflict,
    Making,
    Merged,
    Place,
    Proposal,
)
from cleveragents.sandbox.sqlite import image as sqlite_image
from cleveragents.sandbox.sqlite.image import Image, Known, Touched
from cleveragents.sandbox.sqlite.live import (
    SIDES,
    copy_into_live,
    copy_live,
    copy_still,
    file_logical,
    live_logical,
    opened,
)
from cleveragents.sandbox.sqlite.pages import Watch
from cleveragents.sandbox.sqlite.tables import hardened, is_sound

ABSENT = b"absent"
FEW = 4
"""A rollback writes into the file if at most one chunk in so many differs."""


class SqliteSnapshot:
    strategy = "snapshot"

    def __init__(self, place: Place) -> None:
        self.place = place
        self._known = self._noted = sqlite_image.load(place.cache)
        """What the file held when it was last looked at, if the store has that."""
        self._seen: Known | None = None
        """The same, whether or not the store has it."""
        self._touched: Touched | None = None
        self._put_bytes = 0
        """What `create` put into the store, and the first checkpoint is told to have added."""

    @property
    def _live(self) -> str:
        return self.place.resource.path

    @property
    def _file(self) -> str:
        return self.place.path

    @property
    def _name(self) -> bytes:
        return os.fsencode(os.path.basename(self._file))

    def create(self, making: Making) -> dict[str, Any]:
        return self.create_from(self._live, {"path": self._live}, making)

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.root)
        name, batch = self.place.resource.name, making.batch
        before = batch.added_bytes if batch else 0
        image = copy_still(source, self._file, batch, lambda size: making.piece(name, size))
        if image is None:
            copy_live(source, self._file)
        os.chmod(self._file, os.stat(source).st_mode & 0o777)
        if image is not None and batch is not None:
            self._put_bytes = batch.added_bytes - before
            self._learn(image)
        making.progress(name, os.stat(self._file).st_size)
        return origin

    def _learn(self, image: Image) -> None:
        """The file, which nobody has written to since, holds an image that the store has."""
        with opened(self._file, os.O_RDONLY) as fd:
            stamp = sqlite_image.mark(fd)
        self._known = self._seen = Known(stamp, image) if stamp else None

    def inherit(self, made: Any) -> None:
        """Continue with what another object of the same sandbox learned when it made it."""
        assert isinstance(made, SqliteSnapshot)
        self._known, self._put_bytes = made._known, made._put_bytes

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        before = batch.added_bytes
        if not _is_regular(self._file):
            if strict:
                raise CheckpointFailed(
                    f"a tool removed the database {self._file}, or put something else there",
                    "empty it with SQL instead",
                )
            return self._state(Image(ABSENT, ABSENT.decode(), 0), 0)
        if not self._stat_proves:
            self.doubt()
        if self._known is not None and sqlite_image.is_at(self._file, self._known):
            self._seen = self._known
            return self._same(batch, previous)
        with _locked(self._file) if strict else _raw(self._file) as (fd, is_sound):
            if is_sound and self._known and files.stamp(os.fstat(fd)) == self._known.stamp:
                self._seen = self._known
                return self._same(batch, previous)
            image = self._take(fd, batch, previous, is_sound)
        return self._state(image, batch.added_bytes - before)

    def _same(self, batch: Batch, previous: SandboxCheckpoint | None) -> SandboxCheckpoint:
        assert self._known is not None
        image, known = self._known.image, self._known
        batch.rely_on(image.root)
        batch.after_commit.append(lambda: self._remember(known))
        return self._state(image, 0 if previous else self._put_bytes)

    def _take(
        self, fd: int, batch: Batch, previous: SandboxCheckpoint | None, is_sound: bool
    ) -> Image:
        """Read what may have changed; remembered if nobody wrote meanwhile."""
        known, touched, self._seen = self._known, self._touched, None
        ranges = None
        if known and touched and touched.before == known.stamp:
            ranges = touched.ranges if files.stamp(os.fstat(fd)) == touched.after else None
        old = known.image.root if known else previous.root if previous else b""
        stamp = sqlite_image.mark(fd)
        image = sqlite_image.take(fd, batch, old, self.place.packs.get, ranges)
        proves = is_sound and self._stat_proves
        if proves and stamp and files.stamp(os.fstat(fd)) == stamp:
            seen = self._seen = Known(stamp, image)
            if self.place.packs.index.has(image.root):
                self._remember(seen)
            else:
                batch.after_commit.append(lambda: self._remember(seen))
        return image

    @functools.cached_property
    def _stat_proves(self) -> bool:
        return sqlite_image.shows_mapped_writes(os.path.dirname(self.place.root))

    def _remember(self, seen: Known) -> None:
        self._known = seen
        if seen is not self._noted:
            sqlite_image.keep(self.place.cache, seen)
            self._noted = seen

    def _state(self, image: Image, added: int) -> SandboxCheckpoint:
        key = image.root
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id,
            root=b"" if key == ABSENT else key,
            state_hash=blake3(key).hexdigest(),
            added_bytes=added,
            metadata={"logical": image.logical, "bytes": image.size},
        )

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        if sqlite_image.is_at(self._file, self._seen):
            assert self._seen is not None
            return self._state(self._seen.image, 0)
        return self.capture(batch, None, strict=False)

    def follow(self) -> None: ...

    def drain(self) -> None: ...

    def doubt(self) -> None:
        self._known = self._seen = self._touched = None

    def watch(self) -> Watch | None:
        """Be told by the built-in `sql` which pages it changes."""
        self._touched = None
        if self._known is None:
            return None

        def tell(touched: Touched) -> None:
            self._touched = touched

        return Watch(self._file, self._known, tell)

    def mark(self, state: SandboxCheckpoint) -> str:
        """What is equal for states that differ only in what SQLite changes by itself."""
        if not state.root:
            return ABSENT.decode()
        return sqlite_image.logical_of_root(state.root, self.place.packs.get)

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        if before.state_hash == after.state_hash:
            return ()
        action = Action.CHANGED
        if not before.root or not after.root:
            action = Action.REMOVED if before.root else Action.ADDED
        name = self.place.resource.name
        return (Change(name, self._name, action, before.state_hash, after.state_hash),)

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        return frozenset()

    def grafted(
        self,
        now: SandboxCheckpoint,
        then: SandboxCheckpoint,
        paths: frozenset[bytes],
        batch: Batch,
    ) -> SandboxCheckpoint:
        return then if paths else now

    def merged(
        self,
        base: SandboxCheckpoint,
        ours: SandboxCheckpoint,
        theirs: SandboxCheckpoint,
        batch: Batch,
        scratch: str,
    ) -> Merged:
        """All of it or a conflict: rows of two copies are not merged."""
        name, shown = self.place.resource.name, os.fsdecode(self._name)
        start, wanted, now = (self.mark(state) for state in (base, ours, theirs))
        if wanted in (start, now):
            return Merged(state=theirs)
        rid = theirs.resource_id
        conflict = Conflict(
            resource=name,
            path=shown,
            base=start,
            ours=wanted,
            theirs=now,
            reason="the database was changed since the child plan's copy was made of it",
        )
        return Merged(
            state=msgspec.structs.replace(ours, resource_id=rid, added_bytes=0),
            files=(shown,),
            conflicts=() if now == start else (conflict,),
        )

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        if current.state_hash == target.state_hash:
            return {"image": False}
        if not target.root:
            return {"image": False, "absent": True}
        if (few := self._few(current, target)) is not None:
            return {"image": True, "target": target.root.hex(), "chunks": few}
        self._write_image(target.root, staging, self._mode())
        return {"image": True}

    def _few(self, current: SandboxCheckpoint, target: SandboxCheckpoint) -> list[int] | None:
        """The chunks to write to get there, each looked at in the store; None if they are many."""
        read = self.place.packs.get
        if self._seen is None or self._seen.image.root != current.root:
            return None
        chunks = sqlite_image.differing(current.root, target.root, read)
        if chunks is None or len(chunks) * FEW * files.CHUNK > target.metadata.get("bytes", 0):
            return None
        digests = sqlite_image.digests_of(target.root, read)
        for at in {*chunks, len(digests) - 1}:
            read(BLOB + digests[at])
        return chunks

    def _mode(self) -> int:
        there = self._file if _is_regular(self._file) else self._live
        return os.stat(there).st_mode & 0o777

    def _write_image(self, root: bytes, directory: str, mode: int = 0o600) -> None:
        fsio.make_private_dir(directory)
        with fsio.directory(directory) as fd:
            files.write_content(self.place.packs.get, root, fd, b"image", mode)
            fsio.sync(fd)

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        image = f"{staging}/image"
        if staged.get("absent"):
            for side in SIDES:
                fsio.unlink_if_there(self._file + side)
            self._clear()
        if "chunks" in staged:
            root = bytes.fromhex(staged["target"])
            if self._write_few(root, staged["chunks"]):
                return
            if not os.path.exists(image):
                self._write_image(root, staging, self._mode())
        if not staged["image"] or not os.path.exists(image):
            return
        # A stale -wal or -journal beside the new file would silently undo the restore.
        for side in SIDES:
            fsio.unlink_if_there(self._file + side)
        self._clear()
        fsio.point("rename")
        os.rename(image, self._file)
        fsio.sync_dir(self.place.root)

    def _write_few(self, root: bytes, chunks: list[int]) -> bool:
        """Write chunks into the file, if it is still what was looked at and is only ours.

        A crash in between leaves a mixture, which recovery looks at and finishes: the intent is
        on record, and both states are in the store.
        """
        seen = self._seen
        if seen is None or not sqlite_image.is_at(self._file, seen):
            return False
        try:
            with opened(self._file, os.O_RDWR) as fd, _locked(self._file):
                found = os.fstat(fd)
                if files.stamp(found) != seen.stamp or found.st_nlink != 1:
                    return False
                self._known = self._seen = None
                sqlite_image.write(fd, root, chunks, self.place.packs.get)
                if stamp := sqlite_image.mark(fd):
                    logical = sqlite_image.logical_of_root(root, self.place.packs.get)
                    self._seen = Known(stamp, Image(root, logical, os.fstat(fd).st_size))
        except CheckpointFailed:
            return False
        for side in SIDES:
            fsio.unlink_if_there(self._file + side)
        fsio.sync_dir(self.place.root)
        if self._seen is not None:
            self._remember(self._seen)
        return True

    def _clear(self) -> None:
        """Whatever a tool put in the file's place; a file itself is replaced by the rename."""
        if os.path.isdir(self._file) and not os.path.islink(self._file):
            removal.remove_tree(self._file)
        elif not _is_regular(self._file):
            fsio.unlink_if_there(self._file)

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes], target: str) -> None:
        if not state.root:
            return
        with fsio.directory(target) as fd:
            files.write_content(
                self.place.packs.get, state.root, fd, self._name, 0o600, durable=False
            )

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        fsio.make_private_dir(options.staging)
        now = live_logical(self._live, options.staging)
        base, wanted = self.mark(origin), self.mark(result)
        name, shown = self.place.resource.name, os.fsdecode(self._name)
        if wanted in (base, now):
            return Proposal(resource=name, mode="changes", files=())
        conflict = Conflict(
            resource=name,
            path=shown,
            base=base,
            ours=wanted,
            theirs=now,
            reason="the database was changed since the sandbox was made of it",
        )
        return Proposal(
            resource=name,
            mode="changes",
            files=(shown,),
            conflicts=() if now == base else (conflict,),
            work={"root": result.root.hex(), "logical": wanted, "before": now},
        )

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0}
        staging = f"{options.staging}/{self.place.resource.resource_id}"
        removal.remove_tree(staging)
        self._write_image(bytes.fromhex(proposal.work["root"]), staging)
        if wrong := is_sound(f"{staging}/image"):
            raise ApplyRefused(
                f"the database in the sandbox is damaged: {wrong}", "agents plan rollback PLAN last"
            )
        copy_live(self._live, f"{staging}/old")
        _sync_file(f"{staging}/old")
        before, wanted = proposal.work["before"], proposal.work["logical"]
        if file_logical(f"{staging}/old") != before:
            raise ApplyRefused(f"{self._live} changed while it was being applied", "run it again")
        return {"files": 1, "staging": staging, "before": before, "wanted": wanted}

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"]:
            self._move(staged, staged["before"], staged["wanted"], "image")

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"] and os.path.exists(f"{staged['staging']}/old"):
            self._move(staged, staged["wanted"], staged["before"], "old")

    def _move(self, staged: dict[str, Any], start: str, end: str, image: str) -> None:
        """Write an image into the live file in one transaction, if it is at the start."""
        now = live_logical(self._live, staged["staging"])
        if now == end:
            # Perhaps only in memory, if whoever wrote it died.
            self._make_last()
            return
        if now != start:
            raise ApplyRefused(f"{self._live} changed while it was being applied", "run it again")
        fsio.point("backup")
        copy_into_live(f"{staged['staging']}/{image}", self._live, start, staged["staging"])
        if live_logical(self._live, staged["staging"]) != end:
            raise SandboxError(f"{self._live} does not hold what was written to it")
        self._make_last()

    def _make_last(self) -> None:
        """Else a journal that SQLite removed may come back, and undo the transaction."""
        fsio.sync_dir(os.path.dirname(self._live))

    def finish_apply(self, staged: dict[str, Any]) -> None: ...

    def discard_apply(self, staging: str) -> None: ...

    def applied(self, staged: dict[str, Any]) -> Applied:
        return Applied(resource=self.place.resource.name, files=staged["files"])

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None: ...

    def remove(self) -> None:
        removal.remove_tree(self.place.root)
        if self.place.cache is not None:
            with suppress(OSError):
                fsio.unlink_if_there(self.place.cache)

    def close(self) -> None: ...


@contextmanager
def _raw(path: str) -> Generator[tuple[int, bool]]:
    """The file as it is, whatever a tool made of it; a WAL that can be folded in is."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(_locked(path))
        except CheckpointFailed:
            found = stack.enter_context(opened(path, os.O_RDONLY)), False
        yield found


@contextmanager
def _locked(path: str) -> Generator[tuple[int, bool]]:
    """A descriptor on the database file while every writer is shut out and the WAL is folded in.

    And that it is so, for whoever may also get one without.
    """
    try:
        with closing(hardened(path, isolation_level=None, timeout=5)) as db:
            busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if busy:
                raise CheckpointFailed(f"{path} is being written to", "end the process that does")
            db.execute("BEGIN IMMEDIATE")
            # Closing any descriptor of ours drops SQLite's locks: so this one closes last.
            with opened(path, os.O_RDONLY) as fd:
                yield fd, True
                db.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise CheckpointFailed(f"{path} is not a usable SQLite database: {error}") from error


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fsio.sync(fd)
    finally:
        os.close(fd)
