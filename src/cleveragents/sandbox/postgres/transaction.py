"""`transaction_rollback` of a PostgreSQL database: a journal of statements, and no copy.

Each call replays the journal on the target in a transaction, runs its own statements after it, and
rolls everything back. The journal is the state; apply runs it once and commits.
"""

import os
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from cleveragents.content import fsio, removal
from cleveragents.content.keys import (
    BLOB,
)
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import ApplyRefused, CheckpointFailed, SandboxError, ToolFailed
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Action, Change
from cleveragents.model.units import plural
from cleveragents.sandbox.postgres import address, server
from cleveragents.sandbox.postgres.journal import (
    Entry,
    ReplayDiffers,
    as_script,
    read_entries,
    replay,
    run_after,
)
from cleveragents.sandbox.postgres.script import (
    beginning,
    limited,
    require_local,
    require_no_control,
    split,
)
from cleveragents.sandbox.postgres.server import Server
from cleveragents.sandbox.protocol import (
    STATEMENTS,
    Applied,
    ApplyOptions,
    CheckpointCost,
    Conflict,
    Making,
    Place,
    Proposal,
)
from cleveragents.sandbox.whole_state import WholeState

if TYPE_CHECKING:
    from psycopg import Connection

JOURNAL = "journal.json"
SHOWN = "statements.sql"
NOT_CAPTURED = (
    "sequences: each replay advances them on the target itself",
    "what a statement does outside of its transaction: dblink, foreign tables, files, mail",
    "roles, tablespaces and everything else that belongs to the server",
)


class TransactionRollback(WholeState):
    strategy = "transaction_rollback"
    changed_meanwhile = "statements were added since the child plan's journal was begun"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._server = Server(place.resource.path)
        self._target = address.database_of(place.resource.path)
        self._purpose = f"agents {place.resource.resource_id}"

    @property
    def _file(self) -> str:
        return f"{self.place.root}/{JOURNAL}"

    def create(self, making: Making) -> dict[str, Any]:
        with self._server.connect(self._target):
            pass
        fsio.make_private_dir(self.place.root)
        fsio.write_new(self._file, msgspec.json.encode([]))
        return {"url": self._server.shown}

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.root)
        with open(f"{source}/{JOURNAL}", "rb") as journal:
            fsio.write_new(self._file, journal.read())
        return origin

    def create_at(self, state: SandboxCheckpoint, staging: str) -> dict[str, Any]:
        """Only the journal has to be written; the database is where it was."""
        fsio.make_private_dir(self.place.root)
        if state.root:
            fsio.write_new(self._file, self.place.packs.get(state.root))
        return dict(self.place.origin)

    # looking

    def capture(
        self, batch: Batch, previous: SandboxCheckpoint | None, strict: bool = True
    ) -> SandboxCheckpoint:
        before = batch.added_bytes
        try:
            with open(self._file, "rb") as file:
                data = file.read()
            entries = read_entries(data)
        except (OSError, msgspec.MsgspecError):
            if strict:
                raise CheckpointFailed(
                    f"the journal {self._file} was removed or damaged",
                    "roll back to restore it",
                ) from None
            data, entries = b"", []
        root = batch.put(BLOB, data) if data else b""
        return SandboxCheckpoint(
            resource_id=self.place.resource.resource_id,
            root=root,
            state_hash=blake3(root).hexdigest(),
            added_bytes=batch.added_bytes - before,
            metadata={"statements": len(entries)},
        )

    def changes(self, before: SandboxCheckpoint, after: SandboxCheckpoint) -> tuple[Change, ...]:
        if before.state_hash == after.state_hash:
            return ()
        old, new = (self.held(state)[SHOWN] for state in (before, after))
        name = self.place.resource.name
        return (Change(name, SHOWN.encode(), Action.CHANGED, old, new),)

    def held(self, state: SandboxCheckpoint) -> dict[str, str]:
        return {SHOWN: f"statements:{state.metadata.get('statements', 0)}"}

    def export(self, state: SandboxCheckpoint, paths: frozenset[bytes] | None, target: str) -> None:
        """Write the statements, with what each of them did."""
        fsio.write_new(f"{target}/{SHOWN}", as_script(self._entries_of(state)).encode())

    def _entries_of(self, state: SandboxCheckpoint) -> list[Entry]:
        if not state.root:
            return []
        if self.place.packs.has(state.root):
            return read_entries(self.place.packs.get(state.root))
        # Not in the store, for a state that was only looked at: then it is the file's content.
        with open(self._file, "rb") as file:
            return read_entries(file.read())

    # rollback

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        if current.state_hash == target.state_hash:
            return {"journal": False}
        fsio.make_private_dir(staging)
        data = self.place.packs.get(target.root) if target.root else b""
        fsio.write_new(f"{staging}/{JOURNAL}", data)
        return {"journal": True}

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        if staged["journal"] and os.path.exists(f"{staging}/{JOURNAL}"):
            fsio.point("rename")
            os.rename(f"{staging}/{JOURNAL}", self._file)
            fsio.sync_dir(self.place.root)

    # making it real

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        name = self.place.resource.name
        entries = self._entries_of(result)
        if not entries:
            return Proposal(resource=name, mode=STATEMENTS, files=())
        conflicts: tuple[Conflict, ...] = ()
        with self._server.connect(self._target, self._purpose) as db:
            db.execute(b"BEGIN")
            try:
                replay(db, entries)
            except ReplayDiffers as moved:
                conflict = Conflict(
                    resource=name,
                    path=f"statement {moved.number}",
                    base=plural(moved.entry.rows, "row"),
                    ours=beginning(moved.entry.statement),
                    theirs=moved.found,
                    reason="the statement does not do now what it did when the plan ran",
                )
                conflicts = (conflict,)
            db.execute(b"ROLLBACK")
        work = {"root": result.root.hex()}
        return Proposal(
            resource=name, mode=STATEMENTS, files=(SHOWN,), conflicts=conflicts, work=work
        )

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0}
        staging = f"{options.staging}/{self.place.resource.resource_id}"
        removal.remove_tree(staging)
        fsio.make_private_dir(staging)
        gid = f"agents-{self.place.resource.resource_id}"
        return {"files": 1, "staging": staging, "gid": gid, **proposal.work}

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self._server.connect(self._target, self._purpose) as db:
            server.end_stale_sessions(db, self._purpose)
            if server.prepared(db, staged["gid"]):
                fsio.point("commit prepared")
                server.end_prepared(db, staged["gid"], commit=True)
            if not _committed(db, staged):
                self._run_once(db, staged, "COMMIT")

    def prepare_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self._server.connect(self._target, self._purpose) as db:
            server.end_stale_sessions(db, self._purpose)
            if not server.prepared(db, staged["gid"]) and not _committed(db, staged):
                self._run_once(db, staged, f"PREPARE TRANSACTION '{staged['gid']}'")

    def is_applied(self, staged: dict[str, Any]) -> bool:
        if not staged["files"]:
            return False
        with self._server.connect(self._target, self._purpose) as db:
            server.end_stale_sessions(db, self._purpose)
            return not server.prepared(db, staged["gid"]) and _committed(db, staged)

    def _run_once(self, db: "Connection[Any]", staged: dict[str, Any], end: str) -> None:
        """Save the transaction's id before the commit: the server can tell its outcome later."""
        entries = read_entries(self.place.packs.get(bytes.fromhex(staged["root"])))
        db.execute(b"SET synchronous_commit = on")
        db.execute(b"BEGIN")
        try:
            replay(db, entries)
            xid = server.one(db, "SELECT pg_current_xact_id()::text")[0]
            _note_xid(staged["staging"], xid)
            fsio.point("commit")
            db.execute(end.encode())
        except ReplayDiffers as moved:
            db.execute(b"ROLLBACK")
            raise ApplyRefused(
                f"database {self._target!r} gives other answers than when the plan ran: {moved}",
                "nothing was changed; roll back and run the plan again",
            ) from moved
        fsio.point("committed")

    def undo_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self._server.connect(self._target, self._purpose) as db:
            server.end_stale_sessions(db, self._purpose)
            if server.prepared(db, staged["gid"]):
                server.end_prepared(db, staged["gid"], commit=False)
            if _committed(db, staged):
                raise SandboxError(
                    f"what was committed to database {self._target!r} cannot be undone"
                )

    def applied(self, staged: dict[str, Any]) -> Applied:
        name = self.place.resource.name
        return Applied(resource=name, files=staged["files"], mode=STATEMENTS)

    def remove(self) -> None:
        removal.remove_tree(self.place.root)

    def cost(self, states: list[dict[str, Any]], is_removed: bool) -> CheckpointCost:
        count = states[-1]["statements"] if states else 0
        return CheckpointCost(
            clones=0,
            bytes=0,
            said=f"each call runs {plural(count, 'statement')} again on the database itself, with"
            " the locks they take, and rolls them back",
            not_captured=NOT_CAPTURED,
        )

    # tools

    def tool_address(self) -> tuple[str, str]:
        return "", self._server.password

    def run_sql(self, script: str, params: Any, out: Any, limit: Any, read_only: bool) -> None:
        statements = list(split(script))
        require_local(statements)
        require_no_control(statements)
        if params and len(statements) != 1:
            raise ToolFailed(
                f"params are for a script of one statement, and this one has {len(statements)}"
            )
        with open(self._file, "rb") as file:
            entries = read_entries(file.read())
        try:
            with self._server.connect(self._target) as db, limited(db, limit):
                ran = run_after(db, entries, statements, params, out, read_only)
        except SandboxError as error:
            raise ToolFailed(error.message, error.hint) from error
        except ReplayDiffers as moved:
            raise ToolFailed(f"the target changed since the plan ran: {moved}") from moved
        if not read_only:
            self._write([*entries, *ran])

    def _write(self, entries: list[Entry]) -> None:
        fsio.unlink_if_there(f"{self._file}.new")
        fsio.write_new(f"{self._file}.new", msgspec.json.encode(entries))
        os.replace(f"{self._file}.new", self._file)


def _note_xid(staging: str, xid: str) -> None:
    """Write the transaction's id to disk, whole or not at all."""
    fsio.unlink_if_there(f"{staging}/xid.new")
    fsio.write_new(f"{staging}/xid.new", xid.encode())
    os.replace(f"{staging}/xid.new", f"{staging}/xid")
    fsio.sync_dir(staging)


def _committed(db: "Connection[Any]", staged: dict[str, Any]) -> bool:
    """Whether the transaction whose id was saved has committed; without an id there was none."""
    try:
        with open(f"{staged['staging']}/xid") as file:
            xid = file.read()
    except FileNotFoundError:
        return False
    state = server.one(db, "SELECT pg_xact_status(%s::xid8)", (xid,))[0]
    if state not in ("committed", "aborted"):
        raise SandboxError(
            f"transaction {xid} of an interrupted apply is {state or 'too old to be known'}",
            "check in the database whether its statements ran",
        )
    return state == "committed"
