"""`snapshot` of a PostgreSQL database: a private clone on the same server.

A state is a digest of the database (`postgres.digest`), kept in the content store, and a clone that
nobody can connect to. A rollback clones that clone and swaps two names in one transaction; apply
does the same with the user's own database. Object ids tell afterwards what happened.
"""

from typing import TYPE_CHECKING, Any

from cleveragents.content import fsio, removal
from cleveragents.errors import (
    ContentDamaged,
    SandboxError,
    ToolFailed,
)
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.resource import Resource
from cleveragents.model.units import show_bytes
from cleveragents.sandbox.postgres import address, clones, server
from cleveragents.sandbox.postgres.clones import working_name
from cleveragents.sandbox.postgres.preflight import problems_of
from cleveragents.sandbox.postgres.script import limited, require_local, show, split, tell_changed
from cleveragents.sandbox.postgres.target import CloneTarget
from cleveragents.sandbox.protocol import (
    CheckpointCost,
    Making,
)
from cleveragents.sandbox.traits import Traits

if TYPE_CHECKING:
    pass

NOT_CAPTURED = (
    "roles, tablespaces and everything else that belongs to the server",
    "other databases, also through foreign tables and dblink",
    "statistics of the planner (run ANALYZE), replication slots and subscriptions",
)


class PostgresSnapshot(CloneTarget):
    strategy = "snapshot"
    traits: Traits = Traits(has_address=True, server=clones, problems=problems_of)
    changed_meanwhile = "the database was changed since the child plan's clone was made of it"

    @staticmethod
    def path_in(root: str, resource: Resource) -> str:
        """Tools are given the address of the clone."""
        return address.with_database(resource.path, working_name(resource.resource_id))

    def create(self, making: Making) -> dict[str, Any]:
        return self._create(self.target, {"url": self.server.shown}, making)

    def create_from(self, source: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        parent = address.database_of(source)
        with self.server.maintenance(self.purpose) as db:
            server.end_sessions(db, parent)
        return self._create(parent, origin, making)

    def _create(self, template: str, origin: dict[str, Any], making: Making) -> dict[str, Any]:
        fsio.make_private_dir(self.place.root)
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            oid = self.make(db, self.work, template, "sandbox")
            size = server.one(db, "SELECT pg_database_size(%s::oid)", (oid,))[0]
        making.progress(self.place.resource.name, size)
        return origin

    def create_at(self, state: SandboxCheckpoint, staging: str) -> dict[str, Any]:
        """Work on the clone of that state, which the server has; anything after it is dropped."""
        fsio.make_private_dir(self.place.root)
        self.doubt()
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            server.end_sessions(db, self.work)
        self.switch(self.stage(self._absent(strict=False), state, staging), staging)
        return dict(self.place.origin)

    def remove(self) -> None:
        """Remove everything but an original that an apply has set aside and not yet released."""
        self._remove_others()

    def remove_but(self, kept: str) -> None:
        self._remove_others(kept)

    def _remove_others(self, *kept: str) -> None:
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            for found in server.databases(db, self.work):
                if found.name in kept:
                    server.mark(db, found.name, self._mark("state before the apply"))
                elif found.name != self.named("aside"):
                    fsio.point("drop")
                    server.drop(db, found.name)
        removal.remove_tree(self.place.root)

    def holding(self, state: SandboxCheckpoint) -> tuple[str, int] | None:
        name = str(state.metadata["clone"])
        with self.server.maintenance() as db:
            sizes = {found.name: found.size for found in server.databases(db, name)}
        return (name, sizes[name]) if name in sizes else None

    def keep_only(self, roots: frozenset[bytes]) -> None:
        kept = {self.work, self.named("aside"), *(self.clone_of(root) for root in roots if root)}
        with self.server.maintenance(self.purpose) as db:
            for found in server.databases(db, self.work):
                if found.name not in kept:
                    server.drop(db, found.name)

    # rollback

    def stage(
        self, current: SandboxCheckpoint, target: SandboxCheckpoint, staging: str
    ) -> dict[str, Any]:
        if current.state_hash == target.state_hash:
            return {"oid": None}
        if not target.root:
            return {"oid": None, "absent": True}
        self.place.packs.get(target.root)
        name = self.named("next")
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            # Another plan's, if its apply is being reverted.
            kept = str(target.metadata["clone"])
            if server.oid_of(db, kept) is None:
                raise ContentDamaged(
                    f"the clone {kept!r} of this state is no longer on {self.server.shown}",
                    "roll back to another checkpoint: agents plan checkpoints",
                )
            fsio.point("clone")
            oid = self.make(db, name, kept, "sandbox")
            if self.read(name) != target.root:
                server.drop(db, name)
                raise ContentDamaged(f"the clone {kept!r} was changed", "agents doctor")
        return {"oid": oid}

    def switch(self, staged: dict[str, Any], staging: str) -> None:
        if staged["oid"] is None and not staged.get("absent"):
            return
        gone = self.named("gone")
        with self.server.maintenance(self.purpose) as db:
            server.end_stale_sessions(db, self.purpose)
            if staged["oid"] != server.oid_of(db, self.work):
                server.drop(db, gone)
                server.end_sessions(db, self.work)
                server.end_sessions(db, self.named("next"))
                fsio.point("swap")
                with db.transaction():
                    if server.oid_of(db, self.work) is not None:
                        server.rename(db, self.work, gone)
                    if staged["oid"] is not None:
                        server.rename(db, self.named("next"), self.work)
                fsio.point("swapped")
            server.drop(db, gone)

    def cost(self, states: list[dict[str, Any]], is_removed: bool) -> CheckpointCost:
        held = [one for one in states if "clone" in one and not is_removed]
        sizes = {one["clone"]: one["database_bytes"] for one in held}
        total = sum(sizes.values())
        return CheckpointCost(
            clones=len(sizes),
            bytes=total,
            said=f"a checkpoint of a changed database is a whole clone on the server: {len(sizes)}"
            f" now, {show_bytes(total)}",
            not_captured=NOT_CAPTURED,
        )

    # tools

    def tool_address(self) -> tuple[str, str]:
        secret = self.server.password
        return address.with_password(self.server.url(self.work), secret), secret

    def run_sql(self, script: str, params: Any, out: Any, limit: Any, read_only: bool) -> None:
        statements = list(split(script))
        require_local(statements)
        if params and len(statements) != 1:
            raise ToolFailed(
                f"params are for a script of one statement, and this one has {len(statements)}"
            )
        try:
            with self.server.connect(self.work) as db, limited(db, limit):
                if read_only:
                    db.execute(b"SET default_transaction_read_only = on")
                # Without params it is one message: one transaction unless it says otherwise.
                cursor = db.execute(script.encode(), params or None)
                tell_changed(out, show(cursor, out), silent=cursor.description is None)
                if db.info.transaction_status.name != "IDLE":
                    raise ToolFailed("the script begins a transaction and does not commit it")
        except SandboxError as error:
            raise ToolFailed(error.message, error.hint) from error
