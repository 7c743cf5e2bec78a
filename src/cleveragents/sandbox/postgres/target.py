"""Apply to a PostgreSQL database: a clone is made beside it, and two names are swapped.

In one transaction, and only while nobody is connected; object ids tell afterwards what happened.
"""

from typing import TYPE_CHECKING, Any

from cleveragents.content import fsio
from cleveragents.content.packs import (
    Batch,
)
from cleveragents.errors import (
    ApplyRefused,
    SandboxError,
)
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.sandbox.postgres import server
from cleveragents.sandbox.postgres.digest import advanced_sequences, set_sequences
from cleveragents.sandbox.postgres.properties import copy_properties
from cleveragents.sandbox.postgres.server import Moment
from cleveragents.sandbox.postgres.states import CloneStates, differing
from cleveragents.sandbox.protocol import (
    SWAP,
    Applied,
    ApplyOptions,
    Conflict,
    Proposal,
)
from cleveragents.sandbox.whole_state import ABSENT

if TYPE_CHECKING:
    from psycopg import Connection

TRIES = 3


class CloneTarget(CloneStates):
    """The user's own database."""

    def compare(
        self,
        origin: SandboxCheckpoint,
        result: SandboxCheckpoint,
        options: ApplyOptions,
        batch: Batch,
    ) -> Proposal:
        name = self.place.resource.name
        base, wanted = self.held(origin), self.held(result)
        files = tuple(path for path in differing(base, wanted))
        if not files:
            return Proposal(resource=name, mode=SWAP, files=())
        now_root = self.read(self.target)
        now = self.manifests[now_root]
        # Sequence values that others took meanwhile stay taken.
        further = {
            path: now[path]
            for path in advanced_sequences(wanted, now) & advanced_sequences(base, now)
        }
        if now == {**wanted, **further}:
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
            for path in differing(base, now)
            if path not in advanced_sequences(base, now)
        )
        work = {"wanted": result.root.hex(), "before": now_root.hex(), "sequences": further}
        return Proposal(resource=name, mode=SWAP, files=files, conflicts=conflicts, work=work)

    def stage_apply(self, proposal: Proposal, options: ApplyOptions) -> dict[str, Any]:
        if not proposal.files:
            return {"files": 0}
        wanted = bytes.fromhex(proposal.work["wanted"])
        incoming, kept = self.named("apply"), self.clone_of(wanted)
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            self._require_unused(db)
            target = server.oid_of(db, self.target)
            template = kept if server.oid_of(db, kept) is not None else self.work
            fsio.point("clone")
            oid = self.make(db, incoming, template, "result")
            copy_properties(db, self.target, incoming)
        if self.read(incoming) != wanted:
            raise SandboxError(f"the clone {template!r} does not hold what was to be applied")
        if further := proposal.work["sequences"]:
            with self.server.connect(incoming) as db, db.transaction():
                set_sequences(db, further)
            wanted = self.read(incoming)
        return {
            "files": len(proposal.files),
            "target": target,
            "incoming": oid,
            "gid": f"agents-{self.place.resource.resource_id}",
            **proposal.work,
            "wanted": wanted.hex(),
        }

    def _require_unused(self, db: "Connection[Any]") -> None:
        if who := server.others_on(db, self.target):
            raise ApplyRefused(
                f"database {self.target!r} is in use: {'; '.join(who[:5])}",
                "a database can only be swapped while nobody is connected to it:"
                " end these connections, then apply again",
            )

    def switch_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            if server.prepared(db, staged["gid"]):
                fsio.point("commit prepared")
                server.end_prepared(db, staged["gid"], commit=True)
            if not self._is_in(db, staged):
                self._swap_in(db, staged, "COMMIT")

    def prepare_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            if not server.prepared(db, staged["gid"]) and not self._is_in(db, staged):
                self._swap_in(db, staged, f"PREPARE TRANSACTION '{staged['gid']}'")

    def is_applied(self, staged: dict[str, Any]) -> bool:
        if not staged["files"]:
            return False
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            return server.oid_of(db, self.target) == staged["incoming"]

    def _is_in(self, db: "Connection[Any]", staged: dict[str, Any]) -> bool:
        found = server.oid_of(db, self.target)
        if found not in (staged["target"], staged["incoming"]):
            raise ApplyRefused(
                f"database {self.target!r} was replaced by another one", "apply again"
            )
        return found == staged["incoming"]

    def _swap_in(self, db: "Connection[Any]", staged: dict[str, Any], end: str) -> None:
        """Swap if the target is unchanged and nobody connected between the check and the swap."""
        before = bytes.fromhex(staged["before"])
        for _ in range(TRIES):
            self._require_unused(db)
            start = server.moment(db, self.target)
            self._require_unchanged(before)
            if start is not None and self._swapped(db, start, end):
                return
        raise ApplyRefused(
            f"somebody connects to database {self.target!r} again and again",
            "stop what uses it, then apply again",
        )

    def _require_unchanged(self, before: bytes) -> None:
        now = self.read(self.target)
        if now != before:
            moved = differing(self.manifests[now], self.manifest(before) or {})
            raise ApplyRefused(
                f"database {self.target!r} changed while it was being applied:"
                f" {', '.join(moved[:5])}",
                "apply again",
            )

    def _swapped(self, db: "Connection[Any]", start: Moment, end: str) -> bool:
        """Check the counters inside the transaction, where nobody can connect."""
        aside, incoming = self.named("aside"), self.named("apply")
        server.moment_when_idle(db, self.target)
        db.execute(b"BEGIN")
        try:
            server.swap(db, self.target, aside, incoming)
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
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            if server.prepared(db, staged["gid"]):
                server.end_prepared(db, staged["gid"], commit=False)
            if not self._is_in(db, staged):
                return
            self._require_unused(db)
            self._require_unchanged(bytes.fromhex(staged["wanted"]))
            fsio.point("swap back")
            with db.transaction():
                server.swap(db, self.target, self.named("apply"), self.named("aside"))

    def discard_apply(self, staging: str) -> None:
        with self.server.maintenance(self.purpose) as db:
            server.drop(db, self.named("apply"))

    def finish_apply(self, staged: dict[str, Any]) -> None:
        if not staged["files"]:
            return
        aside = self.named("aside")
        with self.server.maintenance(self.purpose) as db:
            if server.oid_of(db, aside) == staged["target"]:
                server.drop(db, aside)

    def applied(self, staged: dict[str, Any]) -> Applied:
        return Applied(resource=self.place.resource.name, files=staged["files"], mode=SWAP)
