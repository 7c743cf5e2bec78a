"""Captures and restores the states of a plan's sandboxes; knows no database rows."""

import functools
import os
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from cleveragents import machine
from cleveragents.checkpoints.sandboxes import PlanSandboxes, open_sandboxes
from cleveragents.content import fsio, removal
from cleveragents.content.capture.watch import Reading
from cleveragents.content.packs import Batch, Packs
from cleveragents.content.safe_names import require_name
from cleveragents.errors import AgentsError, CheckpointFailed, SandboxError
from cleveragents.model.checkpoint import SandboxCheckpoint
from cleveragents.model.plan import Plan
from cleveragents.model.resource import Action, Change
from cleveragents.model.settings import Settings
from cleveragents.sandbox.marks import note_version
from cleveragents.sandbox.protocol import InPlace, LastsLater, Sandbox
from cleveragents.store import Lease, Store

States = dict[str, SandboxCheckpoint]
"""Resource id -> state."""


def _spot(staging: str, rid: str, present: Collection[str]) -> str:
    """The staging folder of one of several resources; a single one needs none of its own."""
    return staging if len(present) == 1 else f"{staging}/{rid}"


def _untold(_resource: str, _done: int, _of: int) -> None: ...


class Staged(msgspec.Struct, frozen=True):
    """A prepared switch."""

    directory: str
    resources: dict[str, dict[str, Any]]
    changes: tuple[Change, ...]


class CheckpointManager:
    """Captures and restores the sandboxes of a plan; keeps them open for the next capture."""

    def __init__(
        self,
        store: Store,
        packs: Packs,
        settings: Settings,
        tell: Callable[[str, int, int], None] = _untold,
    ) -> None:
        """`tell`: called with a resource's captured and total bytes, if that takes long."""
        self._store = store
        self._tell = tell
        self.packs = packs
        self.sandbox_home: str = settings.sandboxes
        self._cache = f"{settings.home}/cache"
        self._open: dict[str, PlanSandboxes] = {}
        self._epochs: dict[str, int] = {}
        """Plan -> the lease that this process had last."""
        store.on_taken.append(self._taken)

    def sandboxes(self, plan_id: str) -> PlanSandboxes:
        if plan_id not in self._open:
            resources = self._store.resources
            self._open[plan_id] = open_sandboxes(
                self.packs,
                resources.of_plan(plan_id),
                resources.sandboxes(plan_id),
                self.sandbox_home,
                self._cache,
                plan_id,
                self._store.identity,
            )
            self._open[plan_id].home_id = self._store.home_id
        return self._open[plan_id]

    def staging(self, plan_id: str, name: str) -> str:
        """Beside the plan's sandboxes: renames must not cross a file system."""
        require_name(os.fsencode(name), "the row of a restore")
        return f"{self.sandbox_home}/{plan_id}/.staging-{name}"

    def discard_staging(self, plan_id: str) -> None:
        """Remove what was prepared for restores that never began."""
        folder = f"{self.sandbox_home}/{plan_id}"
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                if name.startswith(".staging-"):
                    removal.remove_tree(f"{folder}/{name}")
        for sandbox in self.sandboxes(plan_id).opened.values():
            if isinstance(sandbox, InPlace):
                sandbox.discard_staged()

    def _taken(self, lease: Lease) -> None:
        """Reopen sandboxes: another process may have held the plan since."""
        if self._epochs.get(lease.plan_id) != lease.epoch - 1:
            self.forget(lease.plan_id)
        self._epochs[lease.plan_id] = lease.epoch

    def forget(self, plan_id: str) -> None:
        if (known := self._open.pop(plan_id, None)) is not None:
            known.close()

    def follow(self, plan_id: str) -> None:
        """This process will capture several times."""
        for sandbox in self.sandboxes(plan_id).capturable.values():
            sandbox.follow()

    def drain(self, plan_id: str) -> int:
        """Read the trackers' events; to be called often while a tool runs.

        A new number means new writes.
        """
        return sum(sandbox.drain() for sandbox in self.sandboxes(plan_id).opened.values())

    @contextmanager
    def unseen(self) -> Generator[None]:
        """Capture without progress: the terminal is in use by somebody else."""
        tell, self._tell = self._tell, _untold
        try:
            yield
        finally:
            self._tell = tell

    def doubt(self, plan_id: str) -> None:
        """Make the next capture look at everything."""
        for sandbox in self.sandboxes(plan_id).capturable.values():
            sandbox.doubt()

    def require_seen(self, plan_id: str) -> None:
        """After a reboot, refuse to capture before damage has been repaired."""
        if self.sandboxes(plan_id).from_another_boot():
            raise CheckpointFailed(
                "the machine was restarted and the sandbox was not compared with its group yet",
                f"run agents plan diff {plan_id}, then run the command again",
            )

    def note_version(self, plan: Plan) -> None:
        """Note beside the sandboxes what they have seen: a store may be put back."""
        if folder := self.sandboxes(plan.plan_id).folder:
            note_version(folder, plan.version)

    def is_put_back(self, plan: Plan) -> bool:
        """Whether the sandboxes have seen more than this store, put back from an older backup."""
        seen = self.sandboxes(plan.plan_id).version
        # Somebody else may have made a group since the plan was read.
        return seen > plan.version and seen > self._store.plans.get(plan.plan_id).version

    def create_checkpoint(
        self,
        plan_id: str,
        batch: Batch,
        previous: States,
        strict: bool = True,
        but_in_place: bool = False,
    ) -> States:
        """Capture every sandbox, or only those that are ours, with content in the batch."""
        current = self.sandboxes(plan_id)
        current.require_ours()
        found: States = {}
        for rid, sandbox in current.capturable.items():
            if but_in_place and rid in current.in_place:
                continue
            batch.watch = Reading(functools.partial(self._tell, sandbox.place.resource.name))
            with machine.named(f"sandbox {sandbox.place.root} cannot be read", CheckpointFailed):
                found[rid] = sandbox.capture(batch, previous.get(rid), strict)
        batch.watch = None
        return found

    def head_of(self, plan: Plan) -> str | None:
        """The newest group that is readable here."""
        return plan.head_group_id

    def switch_in_place(self, plan_id: str, staged: "Staged", undone: Callable[[], None]) -> None:
        """Switch resources in place, all or nothing: if one fails, the others are undone.

        `undone` is called when they are back; what can go neither on nor back is left as it is.
        """
        current, begun = self.sandboxes(plan_id), list[tuple[str, InPlace, dict[str, Any]]]()
        # Databases that may be locked come first: a file can always be exchanged back.
        in_place = sorted(current.in_place, key=lambda rid: os.path.isdir(current[rid].place.path))
        try:
            for rid in (rid for rid in in_place if rid in staged.resources):
                sandbox, one = current[rid], staged.resources[rid]
                staging = _spot(staged.directory, rid, staged.resources)
                assert isinstance(sandbox, InPlace)
                begun.append((sandbox.place.path, sandbox, one))
                with machine.named(f"{sandbox.place.path} cannot be changed", SandboxError):
                    sandbox.switch(one, staging)
        except BaseException:
            for path, sandbox, one in reversed(begun):
                with _half_done(path):
                    sandbox.undo_switch(one)
            undone()
            raise

    def rollback_to(self, plan_id: str, staged: "Staged", targets: States) -> None:
        """Switch every sandbox to its staged state, and compare it with its target by hash."""
        current = self.sandboxes(plan_id)
        for rid, one in staged.resources.items():
            sandbox, staging = current[rid], _spot(staged.directory, rid, staged.resources)
            if rid in current.in_place:
                continue
            with machine.named(f"sandbox {sandbox.place.root} cannot be changed", SandboxError):
                if isinstance(sandbox, LastsLater):
                    sandbox.switch_now(one, staging)
                else:
                    sandbox.switch(one, staging)
        with self.packs.preview() as batch:
            for rid, target in targets.items():
                found = current[rid].recapture(batch, staged.resources[rid])
                if not self._is_there(current[rid], found, target):
                    raise CheckpointFailed(
                        f"sandbox {current[rid].place.path} is not what its checkpoint says:"
                        f" {found.state_hash[:12]} instead of {target.state_hash[:12]}",
                        "something wrote to it in the meantime; run the command again",
                    )

    def sync_switched(self, plan_id: str, staged: "Staged") -> Callable[[], None]:
        """A function, for any thread, that syncs a switch and removes what it replaced."""
        current = self.sandboxes(plan_id)
        switched = [(current[rid], one) for rid, one in staged.resources.items()]

        def make_last() -> None:
            for sandbox, one in switched:
                if isinstance(sandbox, LastsLater):
                    sandbox.make_last(one)
                if isinstance(sandbox, InPlace):
                    sandbox.discard_staged()
            with suppress(OSError):  # it is done: what cannot be removed goes with the plan
                removal.remove_tree(staged.directory)

        return make_last

    def sync(self, plan_id: str) -> None:
        """Sync everything in the sandboxes."""
        for sandbox in self.sandboxes(plan_id).opened.values():
            if os.path.isdir(sandbox.place.root):
                with fsio.directory(sandbox.place.root) as fd:
                    fsio.sync_all(fd)

    def distrust(self, plan_id: str) -> None:
        """Make the next capture read every file, from disk if the kernel allows it."""
        for sandbox in self.sandboxes(plan_id).opened.values():
            if sandbox.place.cache is not None:
                fsio.unlink_if_there(sandbox.place.cache)
            if os.path.isdir(sandbox.place.root):
                fsio.drop_pages(sandbox.place.root)
        self.forget(plan_id)

    def _is_there(
        self, sandbox: Sandbox, found: SandboxCheckpoint, target: SandboxCheckpoint
    ) -> bool:
        """Whether a restore succeeded; folders with excluded files had to stay."""
        return found.state_hash == target.state_hash or all(
            change.action is Action.REMOVED and change.before.startswith("d:")
            for change in sandbox.changes(found, target)
        )

    def stage(self, plan_id: str, current: States, targets: States, staging: str) -> "Staged":
        """Stage the targets, verified; also returns what will change."""
        sandboxes = self.sandboxes(plan_id)
        removal.remove_tree(staging)
        staged: dict[str, dict[str, Any]] = {}
        changes: list[Change] = []
        for rid, target in targets.items():
            spot = _spot(staging, rid, targets)
            with machine.named(f"a restore cannot be prepared in {staging}", SandboxError):
                staged[rid] = sandboxes[rid].stage(current[rid], target, spot)
            changes += sandboxes[rid].changes(current[rid], target)
        return Staged(staging, staged, tuple(changes))

    def changes(self, plan_id: str, before: States, after: States) -> tuple[Change, ...]:
        """Resources in the order of the plan file."""
        sandboxes = self.sandboxes(plan_id)
        return tuple(
            change
            for rid in sandboxes.resources
            if rid in after and rid in before
            for change in sandboxes[rid].changes(before[rid], after[rid])
        )

    def list_checkpoints(self, plan_id: str) -> list[SandboxCheckpoint]:
        """What can be restored: the plan's checkpoints whose content is in the store."""
        rows = self._store.checkpoints.of_plan(plan_id)
        return [row.snapshot for row in rows if not row.root_key or self.packs.has(row.root_key)]

    def delete_checkpoint(self, plan_id: str, group_ids: list[str], now: str) -> None:
        """Delete groups; `gc` frees their content."""
        self._store.checkpoints.prune(plan_id, group_ids, now)

    def close(self) -> None:
        for plan_id in list(self._open):
            self.forget(plan_id)


@contextmanager
def _half_done(path: str) -> Generator[None]:
    """For what has to be brought back and cannot be."""
    try:
        yield
    except (AgentsError, OSError) as error:
        ours = machine.of_os(error) if isinstance(error, OSError) else error
        raise SandboxError(
            f"{path} cannot be put back either, the rollback is half done: {ours.message}",
            "fix that; the next command finishes the rollback: agents plan list",
        ) from error
