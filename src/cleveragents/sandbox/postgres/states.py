"""States of a PostgreSQL database: read as digests, and kept as clones on its server."""

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import fsio
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import (
    CheckpointFailed,
    StoreError,
)
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change
from cleveragents.sandbox.postgres import address, server
from cleveragents.sandbox.postgres.clones import working_name
from cleveragents.sandbox.postgres.digest import Manifest, decoded, digest, encoded
from cleveragents.sandbox.postgres.server import Moment, Server
from cleveragents.sandbox.protocol import (
    Place,
)
from cleveragents.sandbox.whole_state import ABSENT, WholeState

if TYPE_CHECKING:
    from psycopg import Connection


class _Known(NamedTuple):
    """The state of the working clone, valid while its counters stay the same."""

    root: bytes
    moment: Moment


class CloneStates(WholeState):
    """The database's state now, and the clones that hold earlier ones."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.server: Server = Server(place.resource.path)
        self.target: str = address.database_of(place.resource.path)
        self.work: str = working_name(place.resource.resource_id)
        self.purpose: str = f"agents {place.resource.resource_id}"
        self.manifests: dict[bytes, Manifest] = {}
        self._known: _Known | None = None

    # names

    def named(self, suffix: str) -> str:
        return f"{self.work}_{suffix}"

    def clone_of(self, root: bytes) -> str:
        return self.named(root[1:13].hex())

    def _mark(self, what: str) -> str:
        home = os.path.dirname(self.place.packs.directory)
        return (
            f"cleveragents: {what} of plan {self.place.plan_id}, resource"
            f" {self.place.resource.name}; store {socket.gethostname()}:{home}"
        )

    def make(self, db: "Connection[Any]", name: str, template: str, what: str) -> int:
        server.drop(db, name)
        oid = server.clone(db, name, template)
        server.mark(db, name, self._mark(what))
        return oid

    # looking

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        with self.server.maintenance() as db:
            there = {one.name: one.size for one in server.databases(db, self.work)}
            if self.work not in there:
                return self._absent(strict)
            root = self._root_now(db)
        batch.put(BLOB, encoded(self.manifests[root]))
        size = there[self.work]
        kept = self.clone_of(root) in there
        if not kept:
            batch.before_seal.append(lambda: self._keep(root))
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id,
            root=root,
            state_hash=blake3(root).hexdigest(),
            added_bytes=0 if kept else size,
            metadata={"clone": self.clone_of(root), "database_bytes": size},
        )

    def _absent(self, strict: bool) -> SandboxCheckpoint:
        if strict:
            raise CheckpointFailed(
                f"database {self.work!r} is no longer on {self.server.shown}",
                "a tool dropped or renamed it; roll back to restore it",
            )
        resource_id = self.place.resource.resource_id
        return SandboxCheckpoint(resource_id=resource_id, root=b"", state_hash=ABSENT)

    def _root_now(self, db: "Connection[Any]") -> bytes:
        """The state now; the known one is valid if nobody connected and nothing was written.

        One session more than before is our own, so what we read is the state.
        """
        before = server.moment_when_idle(db, self.work)
        known = self._known or self._load_note()
        if known is not None and before == known.moment and self.manifest(known.root) is not None:
            self._known = known
            return known.root
        root = self.read(self.work)
        after = server.moment_when_idle(db, self.work)
        self._known = None
        if before and after and after == before._replace(sessions=before.sessions + 1):
            self._known = _Known(root, after)
            self._save_note(self._known)
        return root

    def read(self, name: str) -> bytes:
        with self.server.connect(name) as db:
            manifest = digest(db)
        root = key_of(BLOB, encoded(manifest))
        self.manifests[root] = manifest
        return root

    def manifest(self, root: bytes) -> Manifest | None:
        """The digest of a state, from memory or the store."""
        if root not in self.manifests and self.place.packs.has(root):
            self.manifests[root] = decoded(self.place.packs.get(root))
        return self.manifests.get(root)

    def _load_note(self) -> _Known | None:
        if self.place.cache is None:
            return None
        try:
            with open(self.place.cache, "rb") as file:
                return codec.from_json(file.read(), _Known)
        except (OSError, msgspec.MsgspecError):
            return None

    def _save_note(self, known: _Known) -> None:
        if self.place.cache is None:
            return
        with suppress(OSError, StoreError):  # only a cache: failing to write it is no error
            fsio.make_private_dir(os.path.dirname(self.place.cache))
            fsio.unlink_if_there(f"{self.place.cache}.new")
            fsio.write_new(f"{self.place.cache}.new", msgspec.json.encode(known))
            os.replace(f"{self.place.cache}.new", self.place.cache)

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        self.doubt()
        return self.capture(batch, None, strict=False)

    def doubt(self) -> None:
        self._known = None
        if self.place.cache is not None:
            fsio.unlink_if_there(self.place.cache)

    # keeping

    def _keep(self, root: bytes) -> None:
        """Make the clone of a state that was just read, ending all connections."""
        fresh = self.named("new")
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            server.end_sessions(db, self.work)
            known = self._known
            fsio.point("clone")
            self.make(db, fresh, self.work, "checkpoint")
            now = server.moment(db, self.work)
            # If somebody connected since it was read, read what was really cloned.
            if known != (root, now) and self.read(fresh) != root:
                server.drop(db, fresh)
                raise CheckpointFailed(
                    f"database {self.work!r} was written to while it was being captured",
                    "end what writes to it, then run the command again",
                )
            fsio.point("keep")
            self._seal_clone(db, fresh, self.clone_of(root))

    def _seal_clone(self, db: "Connection[Any]", fresh: str, name: str) -> None:
        """Give the clone its name; from now on nobody can connect to it."""
        server.end_sessions(db, fresh)
        with db.transaction():
            if server.oid_of(db, name) is None:
                server.rename(db, fresh, name)
                statement = "ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false"
                server.named(db, statement, name=name)
        server.drop(db, fresh)

    # comparing

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        if before.state_hash == after.state_hash:
            return ()
        old, new = self.held(before), self.held(after)
        return tuple(
            Change(
                self.place.resource.name,
                path.encode(),
                _action(path, old, new),
                old.get(path, ""),
                new.get(path, ""),
            )
            for path in differing(old, new)
        )

    def held(self, state: SandboxCheckpoint) -> Manifest:
        if not state.root:
            return {}
        found = self.manifest(state.root)
        return decoded(self.place.packs.get(state.root)) if found is None else found

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        """Write one line for each table and sequence; rows are not exported."""
        held = self.held(state)
        for name in held if paths is None else map(bytes.decode, paths):
            if (found := held.get(name)) is not None:
                fsio.write_new(f"{target}/{name.replace('/', '_')}", f"{found}\n".encode())

    def adopted(
        self, state: SandboxCheckpoint, resource_id: str, batch: Batch
    ) -> SandboxCheckpoint:
        clone = self.clone_of(state.root)
        batch.before_seal.append(lambda: self._adopt(str(state.metadata["clone"]), clone))
        own = super().adopted(state, resource_id, batch)
        return msgspec.structs.replace(own, metadata={**state.metadata, "clone": clone})

    def _adopt(self, theirs: str, mine: str) -> None:
        """Clone a child plan's state as one of ours."""
        fresh = self.named("new")
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            fsio.point("clone")
            self.make(db, fresh, theirs, "checkpoint")
            self._seal_clone(db, fresh, mine)


def differing(old: Manifest, new: Manifest) -> list[str]:
    return [path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)]


def _action(path: str, old: Manifest, new: Manifest) -> Action:
    if path not in old:
        return Action.ADDED
    return Action.CHANGED if path in new else Action.REMOVED
