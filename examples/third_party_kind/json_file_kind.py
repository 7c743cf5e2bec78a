"""`json-file`: one JSON document as a resource, applied key by key.

Two programs that change different settings in one file do not conflict, on whichever lines the
settings stand. Everything the `Sandbox` protocol asks for is here; `test_json_file.py` proves it.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Any

from blake3 import blake3

from cleveragents.content import files, fsio, removal
from cleveragents.content.packs import Batch
from cleveragents.errors import ApplyRefused, CheckpointFailed, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change
from cleveragents.sandbox.protocol import (
    Applied,
    ApplyOptions,
    Conflict,
    Making,
    Place,
    Proposal,
)

ABSENT = object()


def merge(base: Any, ours: Any, theirs: Any, at: str = "") -> tuple[Any, list[str]]:
    """What both sides made of the base, and the places where they disagree."""
    if theirs in (ours, base):
        return ours, []
    if base == ours:
        return theirs, []
    if not all(isinstance(each, dict) for each in (base, ours, theirs)):
        return ours, [at or "/"]
    merged: dict[str, Any] = {}
    clashes: list[str] = []
    for key in dict.fromkeys([*theirs, *ours]):
        sides = (side.get(key, ABSENT) for side in (base, ours, theirs))
        value, found = merge(*sides, at=f"{at}/{key}")
        clashes += found
        if value is not ABSENT:
            merged[key] = value
    return merged, clashes


class JsonFile:
    strategy = "by_key"

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def _live(self) -> str:
        return self.place.resource.path

    @property
    def _name(self) -> bytes:
        return os.fsencode(os.path.basename(self.place.path))

    # The private copy and its states.

    def create(self, making: Making) -> dict[str, Any]:
        _parsed(_read(self._live), self._live)
        fsio.make_private_dir(self.place.root)
        shutil.copy2(self._live, self.place.path)
        making.progress(self.place.resource.name, os.stat(self.place.path).st_size)
        return {"path": self._live}

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        before = batch.added_bytes
        if not _is_file(self.place.path):
            if strict:
                raise CheckpointFailed(f"a tool removed {self.place.path}")
            return self._state(b"", 0, 0)
        data = _read(self.place.path)
        if strict:
            _parsed(data, self.place.path)
        key, _ = files.store_blocks(_blocks(data), batch)
        return self._state(key, _mode(self.place.path), batch.added_bytes - before)

    def _state(self, key: bytes, mode: int, added: int) -> SandboxCheckpoint:
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id,
            root=key,
            state_hash=blake3(b"%o " % mode + key).hexdigest(),
            added_bytes=added,
            metadata={"mode": mode},
        )

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        return self.capture(batch, None, strict=False)

    def follow(self) -> None: ...

    def drain(self) -> int:
        return 0  # nothing is told of: a change is seen when it is looked for

    def doubt(self) -> None: ...

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

    def content(self, state: SandboxCheckpoint) -> bytes:
        return b"".join(files.content_blocks(self.place.packs.get, state.root))

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        if state.root:
            with open(os.path.join(os.fsencode(target), self._name), "wb") as file:
                file.write(self.content(state))

    # Going back.

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        if current.state_hash == target.state_hash:
            return {"do": "nothing"}
        if not target.root:
            return {"do": "remove"}
        fsio.make_private_dir(staging)
        with fsio.directory(staging) as fd:
            mode = target.metadata["mode"]
            files.write_content(self.place.packs.get, target.root, fd, b"new", mode)
            fsio.sync(fd)
        return {"do": "replace"}

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        new = f"{staging}/new"
        if staged["do"] == "remove":
            fsio.unlink_if_there(self.place.path)
        elif staged["do"] == "replace" and os.path.exists(new):
            fsio.point("replace")
            os.rename(new, self.place.path)
            fsio.sync_dir(self.place.root)

    # Making it real.

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        name, shown = self.place.resource.name, os.fsdecode(self._name)
        base, ours, theirs = self.content(origin), self.content(result), _read(self._live)
        mode = result.metadata["mode"]
        if origin.state_hash == result.state_hash or (theirs, _mode(self._live)) == (ours, mode):
            return Proposal(resource=name, mode="changes", files=())
        text, clashes = self._merged(base, ours, theirs)
        key, _ = files.store_blocks(_blocks(text), batch)
        return Proposal(
            resource=name,
            mode="changes",
            files=(shown,),
            merged=(shown,) if theirs != base else (),
            conflicts=tuple(self._conflict(shown, at, base, ours, theirs) for at in clashes),
            work={"key": key.hex(), "mode": mode, "before": _hash(theirs, _mode(self._live))},
        )

    def _merged(self, base: bytes, ours: bytes, theirs: bytes) -> tuple[bytes, list[str]]:
        if base == theirs:
            return ours, []
        value, clashes = merge(*(_parsed(text, self._live) for text in (base, ours, theirs)))
        return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n", clashes

    def _conflict(self, shown: str, at: str, base: bytes, ours: bytes, theirs: bytes) -> Conflict:
        return Conflict(
            resource=self.place.resource.name,
            path=f"{shown}#{at}",
            base=_value(base, at),
            ours=_value(ours, at),
            theirs=_value(theirs, at),
            reason="changed on both sides",
        )

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0}
        staging, work = self._beside(options.staging), proposal.work
        removal.remove_tree(staging)
        fsio.make_private_dir(staging)
        with fsio.directory(staging) as fd:
            key = bytes.fromhex(work["key"])
            files.write_content(self.place.packs.get, key, fd, b"new", work["mode"])
            fsio.sync(fd)
        wanted = _hash(_read(f"{staging}/new"), work["mode"])
        return {"files": 1, "staging": staging, "before": work["before"], "wanted": wanted}

    def _beside(self, staging: str) -> str:
        """On the target's own file system, for renames must not cross one."""
        return f"{os.path.dirname(self._live)}/.cleveragents-{os.path.basename(staging)}"

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"]:
            self._exchange(staged, staged["before"], staged["wanted"])

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"] and os.path.isdir(staged["staging"]):
            self._exchange(staged, staged["wanted"], staged["before"])
            removal.remove_tree(staged["staging"])

    def _exchange(self, staged: dict[str, Any], start: str, end: str) -> None:
        """Swap the target with what is staged: what was there stays, to be put back."""
        now = _hash(_read(self._live), _mode(self._live))
        if now == end:
            return
        if now != start:
            raise ApplyRefused(f"{self._live} changed while it was being applied", "run it again")
        fsio.point("exchange")
        with (
            fsio.directory(staged["staging"]) as here,
            fsio.directory(os.path.dirname(self._live)) as there,
        ):
            fsio.exchange(b"new", here, self._name, there)
            taken = f"{staged['staging']}/new"
            if _hash(_read(taken), _mode(taken)) != start:
                fsio.exchange(b"new", here, self._name, there)
                raise ApplyRefused(f"{self._live} changed just now", "run it again")
            fsio.sync(here)
            fsio.sync(there)

    def applied(self, staged: dict[str, Any]) -> Applied:
        return Applied(resource=self.place.resource.name, files=staged["files"])

    def finish_apply(self, staged: dict[str, Any]) -> None:
        if staged["files"]:
            removal.remove_tree(staged["staging"])

    def discard_apply(self, staging: str) -> None:
        removal.remove_tree(self._beside(staging))

    # The end.

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None: ...

    def remove(self) -> None:
        removal.remove_tree(self.place.root)

    def close(self) -> None: ...


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parsed(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise SandboxError(f"{path} is not JSON: {error}") from error


def _value(data: bytes, at: str) -> str:
    """What stands at a place, as text."""
    value = json.loads(data)
    for key in at.split("/")[1:]:
        if key and isinstance(value, dict):
            value = value.get(key, ABSENT)
    return "absent" if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def _hash(data: bytes, mode: int) -> str:
    return blake3(b"%o " % mode + data).hexdigest()


def _blocks(data: bytes) -> Iterator[bytes]:
    return (data[start : start + files.CHUNK] for start in range(0, len(data), files.CHUNK))
