"""`in_place` of a SQLite file: read while nobody can change it, written in one transaction.

Others may have the database open. A rollback is a transaction like theirs, by SQLite's own backup
into the file that they have open; only a file that is no database is replaced.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import files, fsio, removal
from cleveragents.content.capture.statcache import proves_from
from cleveragents.content.packs import Batch
from cleveragents.errors import ApplyRefused, CheckpointFailed, ContentDamaged, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import IN_PLACE
from cleveragents.model.units import show_bytes
from cleveragents.sandbox.in_place import AGAIN, OURS, NothingToApply
from cleveragents.sandbox.protocol import Making
from cleveragents.sandbox.sqlite import image as sqlite_image
from cleveragents.sandbox.sqlite.image import Image, Known
from cleveragents.sandbox.sqlite.live import (
    SIDES,
    ChangedWhileRead,
    copy_into_live,
    copy_live,
    held,
    live_logical,
    opened,
)
from cleveragents.sandbox.sqlite.pages import Watch
from cleveragents.sandbox.sqlite.snapshot import ABSENT, SqliteSnapshot
from cleveragents.sandbox.sqlite.tables import LARGEST, table_changes, two_sides

_MAGIC = b"SQLite format 3\0"


class SqliteInPlace(NothingToApply, SqliteSnapshot):
    strategy = IN_PLACE

    def create(self, making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.ours)
        return {"path": self.live}

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        return NothingToApply.create_from(self, source, origin, making)

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        before = batch.added_bytes
        if not os.path.lexists(self.file):
            return self._state(Image(ABSENT, ABSENT.decode(), 0), 0)
        if not os.path.isfile(self.file) or os.path.islink(self.file):
            raise CheckpointFailed(
                f"something else is where the database {self.file} was",
                "put the database back, or move away what is there",
            )
        if self._known is not None and sqlite_image.is_at(self.file, self._known):
            batch.rely_on(self._known.image.root)
            return self._state(self._known.image, 0)
        image = self._read(batch, previous.root if previous else b"")
        return self._state(image, batch.added_bytes - before)

    def _read(self, batch: Batch, old: bytes) -> Image:
        try:
            began = time.time_ns()
            image = seen = None
            with held(self.file) as fd:
                if fd is not None:
                    seen = files.stamp(os.fstat(fd))
                    image = self._image(fd, batch, old)
            if image is not None and seen is not None:
                if self._proves(seen, began):
                    known = Known(seen, image)
                    batch.after_commit.append(lambda: self._remember(known))
                return image
        except (ChangedWhileRead, sqlite3.Error):
            pass
        return self._read_copy(batch, old)

    def _proves(self, seen: files.Stamp, began: int) -> bool:
        """The user's mtime is not touched, so only stat data of some age proves no later write."""
        settled = proves_from(max(seen[2], seen[3])) <= began
        return settled and sqlite_image.shows_mapped_writes(self.place.root)

    def _read_copy(self, batch: Batch, old: bytes) -> Image:
        """Read through SQLite what waits in a WAL or for a transaction to end."""
        if not _is_database(self.file):
            with opened(self.file, os.O_RDONLY) as fd:
                return self._image(fd, batch, old)
        copy = f"{self.place.ours}/copy-{os.getpid()}"
        try:
            fsio.unlink_if_there(copy)
            copy_live(self.file, copy)
            with opened(copy, os.O_RDONLY) as fd:
                return self._image(fd, batch, old)
        except SandboxError as error:
            raise CheckpointFailed(error.message, error.hint) from error
        finally:
            fsio.unlink_if_there(copy)

    def _state(self, image: Image, added: int) -> SandboxCheckpoint:
        """The state; equal for images that differ only in what SQLite itself updates."""
        state = super()._state(image, added)
        there = os.path.exists(self.file)
        mode = os.stat(self.file).st_mode & 0o777 if there else 0o644
        return msgspec.structs.replace(
            state,
            state_hash=blake3(b"logical " + image.logical.encode()).hexdigest(),
            metadata={**state.metadata, "mode": mode},
        )

    def watch(self) -> Watch | None:
        return None

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        staged: dict[str, Any] = {"staging": staging, "target": msgspec.to_builtins(target)}
        if current.state_hash == target.state_hash:
            return {**staged, "move": False}
        removal.remove_tree(staging)
        fsio.make_private_dir(staging)
        if target.root:
            self.write_image(target.root, staging, target.metadata.get("mode", 0o644))
        start, end = self._logical(current), self._logical(target)
        if self._now(staging) != start:
            raise _changed(self.file)
        if current.root:
            self._copy_old(f"{staging}/old")
        return {**staged, "move": True, "start": start, "end": end}

    def _logical(self, state: SandboxCheckpoint) -> str:
        return state.metadata["logical"]

    def _copy_old(self, target: str) -> None:
        if _is_database(self.file):
            copy_live(self.file, target)
        else:
            shutil.copyfile(self.file, target)
        fsio.write_new(f"{target}.done", b"")

    def _now(self, scratch: str) -> str:
        if not os.path.lexists(self.file):
            return ABSENT.decode()
        if _is_database(self.file):
            return live_logical(self.file, scratch)
        with opened(self.file, os.O_RDONLY) as fd:
            return sqlite_image.logical_of_file(fd)

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        if staged["move"]:
            self._move(staged, staged["start"], staged["end"], "image")

    def undo_switch(self, staged: dict[str, Any]) -> None:
        if staged["move"]:
            self._move(staged, staged["end"], staged["start"], "old")

    def discard_staged(self) -> None:
        fsio.unlink_if_there(self._beside)

    @property
    def _beside(self) -> str:
        """A temporary folder on the database's file system."""
        return f"{self.place.root}/{OURS.decode()}{self.place.resource.resource_id}"

    def _move(self, staged: dict[str, Any], start: str, end: str, image: str) -> None:
        """Go from one state to the other in one step; refuse if the file is in neither."""
        now = self._now(staged["staging"])
        source = f"{staged['staging']}/{image}"
        if now != end:
            if now != start:
                raise _changed(self.file)
            fsio.point("backup")
            if end == ABSENT.decode():
                self._remove_file()
            elif now != ABSENT.decode() and _is_database(self.file) and _is_database(source):
                self._write(source, now, staged["staging"])
            else:
                self._put(source)
        fsio.sync_dir(self.place.root)

    def _write(self, source: str, now: str, scratch: str) -> None:
        try:
            copy_into_live(source, self.file, now, scratch)
        except ApplyRefused as error:
            raise SandboxError(error.message, "end what is using it, then run it again") from error

    def _put(self, source: str) -> None:
        """Write the file where there is no database, so nobody can have it open."""
        self._remove_sides()
        fsio.unlink_if_there(self._beside)
        shutil.copyfile(source, self._beside)
        shutil.copymode(source, self._beside)
        with fsio.directory(self.place.root) as fd:
            fsio.sync_file(os.fsencode(os.path.basename(self._beside)), fd)
        fsio.point("rename")
        os.rename(self._beside, self.file)

    def _remove_file(self) -> None:
        self._remove_sides()
        fsio.unlink_if_there(self.file)

    def _remove_sides(self) -> None:
        for side in SIDES:
            fsio.unlink_if_there(self.file + side)

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        """The staged state: it was compared in its transaction, and others may write since."""
        return codec.convert(staged["target"], SandboxCheckpoint)

    def by_owner(
        self, states: Sequence[SandboxCheckpoint], batch: Batch, scratch: str
    ) -> "OwnedDatabase":
        return OwnedDatabase(self, states, scratch)

    def remove(self) -> None:
        self.discard_staged()
        super().remove()


class OwnedDatabase:
    """A database as one whole state: rows are not merged."""

    def __init__(
        self, sandbox: SqliteInPlace, states: Sequence[SandboxCheckpoint], scratch: str
    ) -> None:
        self._sandbox = sandbox
        self._states = {state.state_hash: state for state in reversed(states)}
        self._scratch = scratch

    def at(self, state: SandboxCheckpoint, path: bytes) -> str:
        return state.state_hash

    def is_merged(self, path: bytes) -> bool:
        return True

    def meaning(self, path: bytes, text: str) -> str:
        return text

    def merge(self, path: bytes, base: str, ours: str, theirs: str) -> str | None:
        return None

    def sides(self, path: bytes, base: str, ours: str, theirs: str) -> tuple[str, str]:
        """The rows that differ between the checkpoint and now; for a file without rows its size."""
        try:
            before, after = self._file(ours, "checkpoint"), self._file(theirs, "now")
        except ContentDamaged:
            before = after = None
        shown = two_sides(table_changes(before, after)) if before and after else None
        return shown or (self._shown(ours), self._shown(theirs))

    def _file(self, text: str, side: str) -> str | None:
        state = self._states.get(text)
        if state is None or not state.root or state.metadata["bytes"] > LARGEST:
            return None
        folder = f"{self._scratch}/{self._sandbox.place.resource.resource_id}-{side}"
        self._sandbox.write_image(state.root, folder)
        return f"{folder}/image"

    def _shown(self, text: str) -> str:
        state = self._states.get(text)
        if state is None or not state.root:
            return "no database"
        return f"a database of {show_bytes(state.metadata['bytes'])}, state {text[:12]}"

    def assembled(
        self, now: SandboxCheckpoint, target: SandboxCheckpoint, wanted: Mapping[bytes, str]
    ) -> SandboxCheckpoint:
        return next((self._states[text] for text in wanted.values()), now)


def _is_database(path: str) -> bool:
    with open(path, "rb") as found:
        return found.read(16) in (b"", _MAGIC)


def _changed(path: str) -> SandboxError:
    return SandboxError(f"{path} changed while it was being rolled back", AGAIN)
