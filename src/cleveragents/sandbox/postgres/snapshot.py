"""`snapshot` of a PostgreSQL database: a private clone on the same server.

A state is a manifest of what the database holds (`postgres.digest`), kept in the content store, and
a clone nobody can connect to. A rollback makes a clone of that clone and swaps two names in one
transaction; apply does the same with the user's own name. What happened is told by object ids.
"""

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from blake3 import blake3

from cleveragents import codec
from cleveragents.content import fsio, removal
from cleveragents.content.keys import (
    BLOB,
    key_of,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import (
    ApplyRefused,
    CheckpointFailed,
    ContentDamaged,
    SandboxError,
    StoreError,
    ToolFailed,
)
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change
from cleveragents.sandbox.postgres import address, server
from cleveragents.sandbox.postgres.digest import Manifest, decoded, digest, encoded
from cleveragents.sandbox.postgres.properties import copy_properties
from cleveragents.sandbox.postgres.script import limited, require_local, show, split, tell_changed
from cleveragents.sandbox.postgres.server import Moment, Server
from cleveragents.sandbox.protocol import (
    SWAP,
    Applied,
    ApplyOptions,
    Conflict,
    Making,
    Merged,
    Place,
    Proposal,
)

if TYPE_CHECKING:
    from psycopg import Connection

PREFIX = "agents_"
ABSENT = "absent"
TRIES = 3
NOT_CAPTURED = (
    "roles, tablespaces and everything else that belongs to the server",
    "other databases, also through foreign tables and dblink",
    "statistics of the planner (run ANALYZE), replication slots and subscriptions",
)


class _Known(NamedTuple):
    """What is known of the working clone: this state, as long as its counters stay."""

    root: bytes
    moment: Moment


def working_name(resource_id: str) -> str:
    return PREFIX + resource_id.lower()


class PostgresSnapshot:
    strategy = "snapshot"

    def __init__(self, place: Place) -> None:
        self.place = place
        self._server = Server(place.resource.path)
        self._target = address.database_of(place.resource.path)
        self._work = working_name(place.resource.resource_id)
        self._purpose = f"agents {place.resource.resource_id}"
        self._manifests: dict[bytes, Manifest] = {}
        self._known: _Known | None = None

    # names

    def _named(self, suffix: str) -> str:
        return f"{self._work}_{suffix}"

    def _clone_of(self, root: bytes) -> str:
        return self._named(root[1:13].hex())

    def _mark(self, what: str) -> str:
        home = os.path.dirname(self.place.packs.directory)
        return (
            f"cleveragents: {what} of plan {self.place.plan_id}, resource"
            f" {self.place.resource.name}; store {socket.gethostname()}:{home}"
        )

    # making and removing

    def create(self, making: Making) -> dict[str, Any]:
        return self._create(self._target, {"url": self._server.shown}, making)

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        parent = address.database_of(source)
        with self._server.maintenance(self._purpose) as db:
            server.end_sessions(db, parent)
        return self._create(parent, origin, making)

    def _create(self, template: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.root)
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            oid = self._make(db, self._work, template, "sandbox")
            size = server.one(db, "SELECT pg_database_size(%s::oid)", (oid,))[0]
        making.progress(self.place.resource.name, size)
        return origin

    def _make(self, db: "Connection[Any]", name: str, template: str, what: str) -> int:
        server.drop(db, name)
        oid = server.clone(db, name, template)
        server.mark(db, name, self._mark(what))
        return oid

    def remove(self) -> None:
        """Everything but an original that an apply has put aside and not yet released."""
        self._remove_others()

    def remove_but(self, kept: str) -> None:
        self._remove_others(kept)

    def _remove_others(self, *kept: str) -> None:
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            for found in server.databases(db, self._work):
                if found.name in kept:
                    server.mark(db, found.name, self._mark("state before the apply"))
                elif found.name != self._named("aside"):
                    fsio.point("drop")
                    server.drop(db, found.name)
        removal.remove_tree(self.place.root)

    def holding(self, state: SandboxCheckpoint) -> tuple[str, int] | None:
        name = str(state.metadata["clone"])
        with self._server.maintenance() as db:
            sizes = {found.name: found.size for found in server.databases(db, name)}
        return (name, sizes[name]) if name in sizes else None

    def keep_only(self, roots: frozenset[bytes]) -> None:
        kept = {self._work, self._named("aside"), *(self._clone_of(root) for root in roots if root)}
        with self._server.maintenance(self._purpose) as db:
            for found in server.databases(db, self._work):
                if found.name not in kept:
                    server.drop(db, found.name)

    def keep_borrowed(self, roots: list[bytes], batch: Batch) -> None: ...

    def close(self) -> None: ...

    # looking

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        with self._server.maintenance() as db:
            there = {one.name: one.size for one in server.databases(db, self._work)}
            if self._work not in there:
                return self._absent(strict)
            root = self._root_now(db)
        batch.put(BLOB, encoded(self._manifests[root]))
        size = there[self._work]
        kept = self._clone_of(root) in there
        if not kept:
            batch.before_seal.append(lambda: self._keep(root))
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id,
            root=root,
            state_hash=blake3(root).hexdigest(),
            added_bytes=0 if kept else size,
            metadata={"clone": self._clone_of(root), "database_bytes": size},
        )

    def _absent(self, strict: bool) -> SandboxCheckpoint:
        if strict:
            raise CheckpointFailed(
                f"database {self._work!r} is no longer on {self._server.shown}",
                "a tool dropped or renamed it; roll back to restore it",
            )
        resource_id = self.place.resource.resource_id
        return SandboxCheckpoint(resource_id=resource_id, root=b"", state_hash=ABSENT)

    def _root_now(self, db: "Connection[Any]") -> bytes:
        """The state now; what is known of it holds while nobody connected and nothing was written.

        One session more than before, and that was ours: so what we read is what is there.
        """
        before = server.moment_when_quiet(db, self._work)
        known = self._known or self._noted()
        if known is not None and before == known.moment and self._manifest(known.root) is not None:
            self._known = known
            return known.root
        root = self._read(self._work)
        after = server.moment_when_quiet(db, self._work)
        self._known = None
        if before and after and after == before._replace(sessions=before.sessions + 1):
            self._known = _Known(root, after)
            self._note(self._known)
        return root

    def _read(self, name: str) -> bytes:
        with self._server.connect(name) as db:
            manifest = digest(db)
        root = key_of(BLOB, encoded(manifest))
        self._manifests[root] = manifest
        return root

    def _manifest(self, root: bytes) -> Manifest | None:
        """What a state holds, if that is known here or in the store."""
        if root not in self._manifests and self.place.packs.has(root):
            self._manifests[root] = decoded(self.place.packs.get(root))
        return self._manifests.get(root)

    def _noted(self) -> _Known | None:
        if self.place.cache is None:
            return None
        try:
            with open(self.place.cache, "rb") as file:
                return codec.from_json(file.read(), _Known)
        except (OSError, msgspec.MsgspecError):
            return None

    def _note(self, known: _Known) -> None:
        if self.place.cache is None:
            return
        with suppress(OSError, StoreError):  # it may be lost, and a failed one fails nothing
            fsio.make_private_dir(os.path.dirname(self.place.cache))
            fsio.unlink_if_there(f"{self.place.cache}.new")
            fsio.write_new(f"{self.place.cache}.new", msgspec.json.encode(known))
            os.replace(f"{self.place.cache}.new", self.place.cache)

    def recapture(self, batch: Batch, staged: dict[str, Any]) -> SandboxCheckpoint:
        self.doubt()
        return self.capture(batch, None, strict=False)

    def follow(self) -> None: ...

    def drain(self) -> None: ...

    def doubt(self) -> None:
        self._known = None
        if self.place.cache is not None:
            fsio.unlink_if_there(self.place.cache)

    # keeping

    def _keep(self, root: bytes) -> None:
        """Make the clone of a state that was just read; whoever is connected is sent away."""
        fresh = self._named("new")
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            server.end_sessions(db, self._work)
            known = self._known
            fsio.point("clone")
            self._make(db, fresh, self._work, "checkpoint")
            now = server.moment(db, self._work)
            # If somebody was connected since it was read, look at what was really cloned.
            if known != (root, now) and self._read(fresh) != root:
                server.drop(db, fresh)
                raise CheckpointFailed(
                    f"database {self._work!r} was written to while it was being captured",
                    "end what writes to it, then run the command again",
                )
            fsio.point("keep")
            self._put_away(db, fresh, self._clone_of(root))

    def _put_away(self, db: "Connection[Any]", fresh: str, name: str) -> None:
        """Give it its name; from now on nobody can connect to it."""
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
        old, new = self._held(before), self._held(after)
        return tuple(
            Change(
                self.place.resource.name,
                path.encode(),
                _action(path, old, new),
                old.get(path, ""),
                new.get(path, ""),
            )
            for path in _differing(old, new)
        )

    def _held(self, state: SandboxCheckpoint) -> Manifest:
        if not state.root:
            return {}
        found = self._manifest(state.root)
        return decoded(self.place.packs.get(state.root)) if found is None else found

    def ignored(self, changes: tuple[Change, ...], state: SandboxCheckpoint) -> frozenset[bytes]:
        return frozenset()

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes], target: str) -> None:
        """One line for each table and sequence: rows are not written out."""
        held = self._held(state)
        for path in paths:
            if (found := held.get(path.decode())) is not None:
                fsio.write_new(f"{target}/{path.decode().replace('/', '_')}", f"{found}\n".encode())

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
        """All of it or a conflict: rows of two clones are not merged."""
        if ours.root in (base.root, theirs.root):
            return Merged(state=theirs)
        start, wanted, now = (self._held(state) for state in (base, ours, theirs))
        conflicts = tuple(
            Conflict(
                resource=self.place.resource.name,
                path=path,
                base=start.get(path, ABSENT),
                ours=wanted.get(path, ABSENT),
                theirs=now.get(path, ABSENT),
                reason="the database was changed since the child plan's clone was made of it",
            )
            for path in _differing(start, now)
        )
        clone = self._clone_of(ours.root)
        batch.before_seal.append(lambda: self._adopt(str(ours.metadata["clone"]), clone))
        state = msgspec.structs.replace(
            ours,
            resource_id=theirs.resource_id,
            added_bytes=0,
            metadata={**ours.metadata, "clone": clone},
        )
        files = tuple(_differing(start, wanted))
        return Merged(state=state, files=files, conflicts=conflicts)

    def _adopt(self, theirs: str, mine: str) -> None:
        """Have a child plan's state as one of ours."""
        fresh = self._named("new")
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            fsio.point("clone")
            self._make(db, fresh, theirs, "checkpoint")
            self._put_away(db, fresh, mine)

    # rollback

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        if current.state_hash == target.state_hash:
            return {"oid": None}
        if not target.root:
            return {"oid": None, "absent": True}
        self.place.packs.get(target.root)
        name = self._named("next")
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            # Of another plan, if what that one applied is being reverted.
            kept = str(target.metadata["clone"])
            if server.oid_of(db, kept) is None:
                raise ContentDamaged(
                    f"the clone {kept!r} of this state is no longer on {self._server.shown}",
                    "roll back to another checkpoint: agents plan checkpoints",
                )
            fsio.point("clone")
            oid = self._make(db, name, kept, "sandbox")
            if self._read(name) != target.root:
                server.drop(db, name)
                raise ContentDamaged(f"the clone {kept!r} was changed", "agents doctor")
        return {"oid": oid}

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        if staged["oid"] is None and not staged.get("absent"):
            return
        gone = self._named("gone")
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            if staged["oid"] != server.oid_of(db, self._work):
                server.drop(db, gone)
                server.end_sessions(db, self._work)
                server.end_sessions(db, self._named("next"))
                fsio.point("swap")
                with db.transaction():
                    if server.oid_of(db, self._work) is not None:
                        server.rename(db, self._work, gone)
                    if staged["oid"] is not None:
                        server.rename(db, self._named("next"), self._work)
                fsio.point("swapped")
            server.drop(db, gone)

    # making it real

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        name = self.place.resource.name
        base, wanted = self._held(origin), self._held(result)
        files = tuple(path for path in _differing(base, wanted))
        if not files:
            return Proposal(resource=name, mode=SWAP, files=())
        now_root = self._read(self._target)
        now = self._manifests[now_root]
        if now == wanted:
            return Proposal(resource=name, mode=SWAP, files=())
        conflicts = tuple(
            Conflict(
                resource=name,
                path=path,
                base=base.get(path, ABSENT),
                ours=wanted.get(path, ABSENT),
                theirs=now.get(path, ABSENT),
                reason="the database was changed since it was cloned",
            )
            for path in _differing(base, now)
        )
        work = {"wanted": result.root.hex(), "before": now_root.hex()}
        return Proposal(resource=name, mode=SWAP, files=files, conflicts=conflicts, work=work)

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0}
        wanted = bytes.fromhex(proposal.work["wanted"])
        incoming, kept = self._named("apply"), self._clone_of(wanted)
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            self._require_unused(db)
            target = server.oid_of(db, self._target)
            template = kept if server.oid_of(db, kept) is not None else self._work
            fsio.point("clone")
            oid = self._make(db, incoming, template, "result")
            copy_properties(db, self._target, incoming)
        if self._read(incoming) != wanted:
            raise SandboxError(f"the clone {template!r} does not hold what was to be applied")
        return {
            "files": len(proposal.files),
            "target": target,
            "incoming": oid,
            "gid": f"agents-{self.place.resource.resource_id}",
            **proposal.work,
        }

    def _require_unused(self, db: "Connection[Any]") -> None:
        if who := server.users_of(db, self._target):
            raise ApplyRefused(
                f"database {self._target!r} is in use: {'; '.join(who[:5])}",
                "a database can only be swapped while nobody is connected to it:"
                " end these connections, then apply again",
            )

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            if server.prepared(db, staged["gid"]):
                fsio.point("commit prepared")
                server.end_prepared(db, staged["gid"], commit=True)
            if not self._is_in(db, staged):
                self._swap_in(db, staged, "COMMIT")

    def prepare_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            if not server.prepared(db, staged["gid"]) and not self._is_in(db, staged):
                self._swap_in(db, staged, f"PREPARE TRANSACTION '{staged['gid']}'")

    def is_applied(self, staged: dict[str, Any]) -> bool:
        if not staged["files"]:
            return False
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            return server.oid_of(db, self._target) == staged["incoming"]

    def _is_in(self, db: "Connection[Any]", staged: dict[str, Any]) -> bool:
        found = server.oid_of(db, self._target)
        if found not in (staged["target"], staged["incoming"]):
            raise ApplyRefused(
                f"database {self._target!r} was replaced by another one", "apply again"
            )
        return found == staged["incoming"]

    def _swap_in(self, db: "Connection[Any]", staged: dict[str, Any], end: str) -> None:
        """Swap if the target holds what it held, and nobody came between looking and swapping."""
        before = bytes.fromhex(staged["before"])
        for _ in range(TRIES):
            self._require_unused(db)
            start = server.moment(db, self._target)
            self._require_unmoved(before)
            if start is not None and self._swapped(db, start, end):
                return
        raise ApplyRefused(
            f"somebody connects to database {self._target!r} again and again",
            "stop what uses it, then apply again",
        )

    def _require_unmoved(self, before: bytes) -> None:
        now = self._read(self._target)
        if now != before:
            moved = _differing(self._manifests[now], self._manifest(before) or {})
            raise ApplyRefused(
                f"database {self._target!r} changed while it was being applied:"
                f" {', '.join(moved[:5])}",
                "apply again",
            )

    def _swapped(self, db: "Connection[Any]", start: Moment, end: str) -> bool:
        """Inside the transaction nobody can connect, so the counters say if somebody had."""
        aside, incoming = self._named("aside"), self._named("apply")
        server.moment_when_quiet(db, self._target)
        db.execute(b"BEGIN")
        try:
            server.swap(db, self._target, aside, incoming)
            db.execute(b"SELECT pg_stat_clear_snapshot()")
            now = server.moment(db, aside)
            alone = now == start._replace(sessions=start.sessions + 1)
            if alone:
                fsio.point("commit")
            db.execute(end.encode() if alone else b"ROLLBACK")
        except ApplyRefused:
            db.execute(b"ROLLBACK")
            return False
        fsio.point("committed")
        return alone

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self._server.maintenance(self._purpose) as db:
            server.end_predecessors(db, self._purpose)
            if server.prepared(db, staged["gid"]):
                server.end_prepared(db, staged["gid"], commit=False)
            if not self._is_in(db, staged):
                return
            self._require_unused(db)
            self._require_unmoved(bytes.fromhex(staged["wanted"]))
            fsio.point("swap back")
            with db.transaction():
                server.swap(db, self._target, self._named("apply"), self._named("aside"))

    def discard_apply(self, staging: str) -> None:
        with self._server.maintenance(self._purpose) as db:
            server.drop(db, self._named("apply"))

    def finish_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        aside = self._named("aside")
        with self._server.maintenance(self._purpose) as db:
            if server.oid_of(db, aside) == staged["target"]:
                server.drop(db, aside)

    def applied(self, staged: dict[str, Any]) -> Applied:
        return Applied(resource=self.place.resource.name, files=staged["files"], mode=SWAP)

    # tools

    def tool_address(self) -> tuple[str, str]:
        secret = self._server.password
        return address.with_password(self._server.url(self._work), secret), secret

    def run_sql(self, script: str, params: Any, out: Any, limit: Any, read_only: bool) -> None:
        statements = list(split(script))
        require_local(statements)
        if params and len(statements) != 1:
            raise ToolFailed(f"params go with one statement, and the script has {len(statements)}")
        try:
            with self._server.connect(self._work) as db, limited(db, limit):
                if read_only:
                    db.execute(b"SET default_transaction_read_only = on")
                # Without params it is one message, and so one transaction unless it says otherwise.
                cursor = db.execute(script.encode(), params or None)
                tell_changed(out, show(cursor, out), silent=cursor.description is None)
                if db.info.transaction_status.name != "IDLE":
                    raise ToolFailed("the script begins a transaction and does not commit it")
        except SandboxError as error:
            raise ToolFailed(error.message, error.hint) from error


def _differing(old: Manifest, new: Manifest) -> list[str]:
    return [path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)]


def _action(path: str, old: Manifest, new: Manifest) -> Action:
    if path not in old:
        return Action.ADDED
    return Action.CHANGED if path in new else Action.REMOVED
