"""`snapshot` of a SQLite file: a private copy, captured byte for byte.

In the sandbox nobody else writes, so a checkpoint locks the file, folds its WAL in and reads the
bytes that may have changed; a rollback writes the chunks that differ, or replaces the file, and
removes its side files. `target` handles the user's file.
"""

import functools
import os
import sqlite3
import stat
from collections.abc import Generator, Iterable
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from blake3 import blake3

from cleveragents.content import files, fsio, removal
from cleveragents.content.keys import (
    BLOB,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import CheckpointFailed
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change
from cleveragents.sandbox.protocol import (
    Making,
    Place,
)
from cleveragents.sandbox.sqlite import image as sqlite_image
from cleveragents.sandbox.sqlite.image import Image, Known, Touched
from cleveragents.sandbox.sqlite.live import (
    SIDES,
    copy_if_complete,
    copy_live,
    opened,
)
from cleveragents.sandbox.sqlite.pages import Watch
from cleveragents.sandbox.sqlite.prints import Prints
from cleveragents.sandbox.sqlite.tables import LARGEST, hardened, require_sqlite, table_counts
from cleveragents.sandbox.sqlite.target import ABSENT, SqliteTarget
from cleveragents.sandbox.traits import Traits

FEW = 4
"""A rollback writes into the file if at most one chunk in so many differs."""


class SqliteSnapshot(SqliteTarget):
    strategy = "snapshot"
    traits: Traits = Traits(is_file=True, is_sqlite=True, require=require_sqlite)
    changed_meanwhile = "the database was changed since the child plan's copy was made of it"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._known = self._noted = sqlite_image.load(place.cache)
        """What the file held when it was last looked at, if the store has that."""
        self._seen: Known | None = None
        """The same, whether or not the store has it."""
        self._touched: Touched | None = None
        self._prints: Prints | None = self._known.prints if self._known else None
        """By which the next scan finds what changed since an image."""
        self._put_bytes = 0
        """What `create` put into the store, and the first checkpoint is told to have added."""

    def create(self, making: Making) -> dict[str, Any]:
        mode = os.stat(self.live).st_mode & 0o777
        return self.create_from(self.live, {"path": self.live, "mode": mode}, making)

    def create_at(self, state: SandboxCheckpoint, staging: str) -> dict[str, Any]:
        """Make the private copy from a state alone, without the user's file."""
        fsio.make_private_dir(self.place.root)
        nothing = self._state(Image(ABSENT, ABSENT.decode(), 0), 0)
        self.switch(self.stage(nothing, state, staging), staging)
        return dict(self.place.origin)

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.root)
        name, batch = self.place.resource.name, making.batch
        before = batch.added_bytes if batch else 0
        with suppress(OSError):  # errors are raised below
            making.total(name, os.stat(source).st_size)
        copy = copy_if_complete(source, self.file, batch, lambda size: making.piece(name, size))
        if copy is None:
            copy_live(source, self.file)
        os.chmod(self.file, os.stat(source).st_mode & 0o777)
        if copy is not None and batch is not None:
            self._put_bytes = batch.added_bytes - before
            image, self._prints = copy
            self._learn(image)
        making.progress(name, os.stat(self.file).st_size)
        return origin

    def _learn(self, image: Image) -> None:
        """Remember that the file holds an image of the store; nobody has written to it since."""
        with opened(self.file, os.O_RDONLY) as fd:
            stamp = sqlite_image.mark(fd)
        self._known = self._seen = Known(stamp, image) if stamp else None

    def inherit(self, made: Any) -> None:
        """Take over what the object that created this sandbox has learned."""
        assert isinstance(made, SqliteSnapshot)
        self._known, self._put_bytes = made._known, made._put_bytes
        self._prints = made._prints

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        before = batch.added_bytes
        if not _is_regular(self.file):
            if strict:
                raise CheckpointFailed(
                    f"a tool removed the database {self.file}, or put something else there",
                    "empty it with SQL instead",
                )
            return self._state(Image(ABSENT, ABSENT.decode(), 0), 0)
        if not self._stat_proves:
            self.doubt()
        if self._known is not None and sqlite_image.is_at(self.file, self._known):
            self._seen = self._known
            return self._same(batch, previous)
        with _locked(self.file) if strict else _raw(self.file) as (fd, is_sound):
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
        """Read what may have changed; remember it if nobody wrote meanwhile."""
        known, touched, self._seen = self._known, self._touched, None
        ranges = None
        if known and touched and touched.before == known.stamp:
            ranges = touched.ranges if files.stamp(os.fstat(fd)) == touched.after else None
        old = known.image.root if known else previous.root if previous else b""
        stamp = sqlite_image.mark(fd)
        image = self._image(fd, batch, old, ranges)
        proves = is_sound and self._stat_proves
        if proves and stamp and files.stamp(os.fstat(fd)) == stamp:
            seen = self._seen = Known(stamp, image)
            if self.place.packs.index.has(image.root):
                self._remember(seen)
            else:
                batch.after_commit.append(lambda: self._remember(seen))
        return image

    def _image(
        self,
        fd: int,
        batch: Batch,
        old: bytes,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> Image:
        read = self.place.packs.get
        image, prints = sqlite_image.take(fd, batch, old, read, ranges, self._prints)
        # A state that was only looked at is never the base of the next capture.
        batch.after_commit.append(lambda: self._have(prints))
        return image

    def _have(self, prints: Prints | None) -> None:
        self._prints = prints

    @functools.cached_property
    def _stat_proves(self) -> bool:
        return sqlite_image.shows_mapped_writes(os.path.dirname(self.place.root))

    def _remember(self, seen: Known) -> None:
        self._known = seen
        if seen is not self._noted:
            sqlite_image.keep(self.place.cache, seen, self._prints)
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
        if sqlite_image.is_at(self.file, self._seen):
            assert self._seen is not None
            return self._state(self._seen.image, 0)
        return self.capture(batch, None, strict=False)

    def doubt(self) -> None:
        self._known = self._seen = self._touched = self._prints = None

    def watch(self) -> Watch | None:
        """Let the built-in `sql` report which pages it changes."""
        self._touched = None
        if self._known is None:
            return None

        def tell(touched: Touched) -> None:
            self._touched = touched

        return Watch(self.file, self._known, tell)

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        if before.state_hash == after.state_hash:
            return ()
        action = Action.CHANGED
        if not before.root or not after.root:
            action = Action.REMOVED if before.root else Action.ADDED
        name = self.place.resource.name
        return (Change(name, self.name, action, before.state_hash, after.state_hash),)

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        if current.state_hash == target.state_hash:
            return {"image": False}
        if not target.root:
            return {"image": False, "absent": True}
        if (few := self._chunks_for(current, target)) is not None:
            return {"image": True, "target": target.root.hex(), "chunks": few}
        self.write_image(target.root, staging, self._mode())
        return {"image": True}

    def _chunks_for(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint
    ) -> list[int] | None:
        """The chunks to write, each checked in the store; None if there are too many."""
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
        """The mode of the copy, or of the user's file when the copy was made."""
        noted = self.place.origin.get("mode")
        if noted is not None and not _is_regular(self.file):
            return noted
        there = self.file if _is_regular(self.file) else self.live
        return os.stat(there).st_mode & 0o777

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        image = f"{staging}/image"
        if staged.get("absent"):
            for side in SIDES:
                fsio.unlink_if_there(self.file + side)
            self._clear()
        if "chunks" in staged:
            root = bytes.fromhex(staged["target"])
            if self._write_few(root, staged["chunks"]):
                return
            if not os.path.exists(image):
                self.write_image(root, staging, self._mode())
        if not staged["image"] or not os.path.exists(image):
            return
        # A stale -wal or -journal beside the new file would silently undo the restore.
        for side in SIDES:
            fsio.unlink_if_there(self.file + side)
        self._clear()
        fsio.point("rename")
        os.rename(image, self.file)
        fsio.sync_dir(self.place.root)

    def _write_few(self, root: bytes, chunks: list[int]) -> bool:
        """Write chunks into the file if it is unchanged and nobody else has it open.

        A crash in between leaves a mixture, which recovery finishes: the intent is on record, and
        both states are in the store.
        """
        seen = self._seen
        if seen is None or not sqlite_image.is_at(self.file, seen):
            return False
        try:
            with opened(self.file, os.O_RDWR) as fd, _locked(self.file):
                found = os.fstat(fd)
                if files.stamp(found) != seen.stamp or found.st_nlink != 1:
                    return False
                self._known = self._seen = None
                read, prints = self.place.packs.get, self._prints
                if prints is not None and prints.root != seen.image.root:
                    prints = None
                self._prints = sqlite_image.write(fd, root, chunks, read, prints)
                if stamp := sqlite_image.mark(fd):
                    logical = sqlite_image.logical_of_root(root, self.place.packs.get)
                    self._seen = Known(stamp, Image(root, logical, os.fstat(fd).st_size))
        except CheckpointFailed:
            return False
        for side in SIDES:
            fsio.unlink_if_there(self.file + side)
        fsio.sync_dir(self.place.root)
        if self._seen is not None:
            self._remember(self._seen)
        return True

    def _clear(self) -> None:
        """Remove anything but a file at the path; a file is replaced by the rename."""
        if os.path.isdir(self.file) and not os.path.islink(self.file):
            removal.remove_tree(self.file)
        elif not _is_regular(self.file):
            fsio.unlink_if_there(self.file)

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        if not state.root:
            return
        with fsio.directory(target) as fd:
            files.write_content(
                self.place.packs.get, state.root, fd, self.name, 0o600, durable=False
            )

    def contents(self, state: SandboxCheckpoint, scratch: str) -> dict[str, int]:
        if not state.root or state.metadata.get("bytes", 0) > LARGEST:
            return {}
        self.export(state, None, scratch)
        return table_counts(os.path.join(scratch, os.fsdecode(self.name)))

    def remove(self) -> None:
        removal.remove_tree(self.place.ours)
        if self.place.cache is not None:
            with suppress(OSError):
                fsio.unlink_if_there(self.place.cache)


@contextmanager
def _raw(path: str) -> Generator[tuple[int, bool]]:
    """The file as it is, database or not; a WAL is folded in if possible."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(_locked(path))
        except CheckpointFailed:
            found = stack.enter_context(opened(path, os.O_RDONLY)), False
        yield found


@contextmanager
def _locked(path: str) -> Generator[tuple[int, bool]]:
    """A descriptor on the database file while writers are locked out and the WAL is folded in.

    Also returns whether that worked, for callers that accept a file that is not.
    """
    try:
        with closing(hardened(path, isolation_level=None, timeout=5)) as db:
            busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if busy:
                raise CheckpointFailed(
                    f"{path} is being written to", "end the process that writes to it"
                )
            db.execute("BEGIN IMMEDIATE")
            # Closed last: closing any descriptor of ours drops SQLite's locks.
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
