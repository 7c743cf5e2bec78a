"""The checkpoint groups of plans: reading, writing and pruning them."""

from collections.abc import Callable, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from cleveragents import codec
from cleveragents.checkpoints.manager import CheckpointManager, States
from cleveragents.checkpoints.prune import note_clock, policy_of, verdicts_on
from cleveragents.content.packs import Batch
from cleveragents.errors import CheckpointFailed, ContentDamaged, SandboxError
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import (
    Checkpoint,
    CheckpointGroup,
    CheckpointType,
    SandboxCheckpoint,
)
from cleveragents.model.plan import Plan, Step
from cleveragents.model.resource import SandboxRecord, SandboxState
from cleveragents.model.retention import Verdict
from cleveragents.model.settings import Settings
from cleveragents.model.units import plural
from cleveragents.sandbox.protocol import KeepsElsewhere
from cleveragents.store import Store
from cleveragents.store.clock import Clock, read_clocks, utc_now

if TYPE_CHECKING:
    from cleveragents.checkpoints.uploads import Uploads

T = TypeVar("T")
MANY = 10_000
"""Snapshots that are remembered."""


class Collected(CheckpointFailed):
    """Content found in the store was garbage-collected before it could be reused."""


class About(NamedTuple):
    """Why a group is made."""

    trigger: CheckpointType
    reason: str
    decision_id: str | None = None
    step: Step | None = None
    label: str | None = None


class Groups:
    """The groups of a store, cached by this process."""

    def __init__(
        self,
        store: Store,
        manager: CheckpointManager,
        settings: Settings,
        now: Callable[[], str],
        warn: Callable[[str], None] = lambda _message: None,
        uploads: "Uploads | None" = None,
    ) -> None:
        self.store = store
        self.manager = manager
        self.settings = settings
        self.now = now
        self.warn = warn
        self.uploads = uploads
        """What brings groups to the bucket; None: there is none."""
        self._newest: dict[str, CheckpointGroup] = {}
        """Plan -> the group that this process itself made last."""
        self._snapshots: dict[str, SandboxCheckpoint] = {}
        """Checkpoint -> what it holds; such rows never change."""

    def head(self, leased: LeasedPlan) -> CheckpointGroup | None:
        group_id = leased.plan.head_group_id
        newest = self._newest.get(leased.plan.plan_id)
        if newest is not None and newest.group_id == group_id:
            return newest
        return self.store.checkpoints.group(group_id) if group_id else None

    def remember_newest(
        self, plan_id: str, group: CheckpointGroup | None, *, is_new: bool = True
    ) -> None:
        """Cache after a commit; None before one, which may fail. `is_new`: upload it."""
        if group is None:
            self._newest.pop(plan_id, None)
        else:
            self._newest[plan_id] = group
            if self.uploads is not None and is_new:
                self.uploads.begin(plan_id)

    def require_bucket(self) -> None:
        """Refuse a bucket that loses content, before work on a plan."""
        if self.uploads is not None:
            self.uploads.require_usable(self.store, self.manager.packs)

    def wait_until_uploaded(self, plan_id: str) -> None:
        """Wait before an outside effect: another machine must not have to repeat it."""
        if self.uploads is not None:
            self.uploads.wait_for(plan_id)

    def finish_uploads(self, plan_id: str, tell: Callable[[], None]) -> None:
        """Wait before releasing a plan, until other machines can see all of it."""
        if self.uploads is not None and self.store.is_shared:
            self.uploads.finish_uploads(plan_id, tell)

    def states(self, group: CheckpointGroup) -> States:
        """Resource id -> its state in this group."""
        if not all(checkpoint in self._snapshots for checkpoint in group.members.values()):
            if len(self._snapshots) > MANY:
                self._snapshots.clear()
            for row in self.store.checkpoints.of_members(group).values():
                self._snapshots[row.checkpoint_id] = row.snapshot
        return {rid: self._snapshots[row] for rid, row in group.members.items()}

    def look(self, plan_id: str, use: Callable[[States], T], *, but_in_place: bool = False) -> T:
        """The result of `use` on the current states, of which nothing is stored."""
        with self.manager.packs.preview() as batch:
            look = self.manager.create_checkpoint
            return use(look(plan_id, batch, {}, strict=False, but_in_place=but_in_place))

    def is_at(self, plan_id: str, group_id: str, *, but_in_place: bool = False) -> bool:
        """Whether every sandbox has the state of a group, optionally without those in place."""
        wanted = self.states(self.store.checkpoints.group(group_id))
        left_out = self.manager.sandboxes(plan_id).in_place if but_in_place else ()
        wanted = {rid: state for rid, state in wanted.items() if rid not in left_out}
        return self.look(
            plan_id,
            lambda now: all(now[r].state_hash == s.state_hash for r, s in wanted.items()),
            but_in_place=but_in_place,
        )

    def initial_states(self, plan_id: str) -> States:
        """The states that the sandboxes started with; empty before they are made."""
        if origins := self.origins(plan_id):
            return origins
        groups = self.store.checkpoints.groups(plan_id)
        return self.states(groups[0]) if groups else {}

    def origins(self, plan_id: str) -> States:
        records = self.manager.sandboxes(plan_id).records
        return {
            rid: codec.convert(record.origin["state"], SandboxCheckpoint)
            for rid, record in records.items()
            if "state" in record.origin
        }

    def require_readable(self, group: CheckpointGroup) -> None:
        """Refuse, before anything changes, a group whose manifests are missing."""
        self.manager.sandboxes(group.plan_id).require_not_only_elsewhere()
        for row in self.store.checkpoints.of_members(group).values():
            if row.root_key and not self.manager.packs.has(row.root_key):
                raise ContentDamaged(
                    f"checkpoint {row.checkpoint_id} has lost its content", "agents check"
                )

    def keep_states(self, leased: LeasedPlan, previous: States) -> States:
        """Store the current states' content, without a group."""
        with self.manager.packs.batch() as batch:
            now = self.manager.create_checkpoint(leased.plan.plan_id, batch, previous)
            batch.seal()
            with leased.transaction():
                self.keep_content(batch)
        return now

    def keep_borrowed(self, leased: LeasedPlan, again: bool = False) -> None:
        """Before removing sandboxes: hold or store everything that a kept group needs.

        `again`: also for removed sandboxes.
        """
        plan_id = leased.plan.plan_id
        sandboxes = self.manager.sandboxes(plan_id)
        roots: dict[str, list[bytes]] = {}
        for group in self.store.checkpoints.groups(plan_id):
            for rid, state in self.states(group).items():
                roots.setdefault(rid, []).append(state.root)
        with self.manager.packs.batch() as batch:
            for rid, found in roots.items():
                record = sandboxes.records[rid]
                if record.state is SandboxState.READY or again:
                    sandboxes[rid].keep_borrowed(list(dict.fromkeys(found)), batch)
            batch.seal()
            with leased.transaction():
                self.keep_content(batch)

    def keep_origins(self, leased: LeasedPlan) -> None:
        """For a plan without groups: record in each sandbox's row its initial state."""
        self.manager.sync(leased.plan.plan_id)
        for rid, state in self.keep_states(leased, {}).items():
            record = self.manager.sandboxes(leased.plan.plan_id).records[rid]
            origin = {**record.origin, "state": msgspec.to_builtins(state)}
            with leased.transaction():
                self.store.resources.put_sandbox(msgspec.structs.replace(record, origin=origin))
        self.manager.forget(leased.plan.plan_id)

    def keep_content(self, batch: Batch) -> None:
        self.store.objects.add(batch.located.items())
        missing = self.store.objects.reuse(batch.reused)
        # Content that is in no pack of this machine may be in the bucket.
        if missing and (missing := [k for k in missing if not self.manager.packs.index.has(k)]):
            raise Collected(
                f"{plural(len(missing), 'piece')} of content needed again had been collected",
                "run the command again",
            )

    def add(
        self,
        leased: LeasedPlan,
        group_id: str,
        head: CheckpointGroup | None,
        rows: States,
        ids: dict[str, str],
        about: About,
        actor_state: Any,
    ) -> CheckpointGroup:
        """Write a group that follows `head`; `rows` are the resources that changed since."""
        plan, now = leased.plan, self.now()
        records = self.manager.sandboxes(plan.plan_id).records
        group = CheckpointGroup(
            group_id=group_id,
            plan_id=plan.plan_id,
            decision_id=about.decision_id,
            checkpoint_type=about.trigger,
            triggers=(str(about.trigger),),
            label=about.label,
            step_index=about.step.index if about.step else plan.last_completed_step,
            version=plan.version,
            view_mark=plan.view_mark,
            members={**(head.members if head else {}), **ids},
            actor_state=actor_state,
            children=self.store.plans.child_moments(plan.plan_id),
            created_at=now,
        )
        made = [
            _row(group, ids[rid], records[rid], state, about, plan) for rid, state in rows.items()
        ]
        self.store.checkpoints.add(group, made)
        self._snapshots.update((row.checkpoint_id, row.snapshot) for row in made)
        return group

    def prune(
        self, leased: LeasedPlan, before: CheckpointGroup | None, spared: str | None = None
    ) -> list[str]:
        """Prune to the limit; the group that was newest so far may be needed for a rollback."""
        policy = policy_of(leased.spec.policy, self.settings)
        if policy.keep_within and (newest := leased.plan.head_group_id) is not None:
            note_clock(self.store, newest, self._clock())
        if (
            policy.max_bytes is None
            and self.store.checkpoints.count_held(leased.plan.plan_id) <= policy.max_checkpoints
        ):
            return []
        safe = {spared, before.group_id if before else None}
        verdicts = self.verdicts(leased, safe)
        gone = self.drop(leased, verdicts)
        self.store.checkpoints.note_count(leased.plan.plan_id, len(verdicts) - len(gone))
        return gone

    def verdicts(
        self, leased: LeasedPlan, safe: Set[str | None] = frozenset()
    ) -> tuple[Verdict, ...]:
        """Retention's verdict on each group; those in `safe` stay, others are dropped instead."""
        policy = policy_of(leased.spec.policy, self.settings)
        return verdicts_on(self.store, leased.plan, policy, self._clock(), safe)

    def _clock(self) -> Clock:
        return read_clocks(self.now(), is_given=self.now is not utc_now)

    def drop(self, leased: LeasedPlan, verdicts: tuple[Verdict, ...]) -> list[str]:
        gone = [item.group_id for item in verdicts if not item.keep]
        if gone:
            self.manager.delete_checkpoint(leased.plan.plan_id, gone, self.now())
        return gone

    def release_dropped(self, plan_id: str) -> None:
        """Release states that kinds keep outside the store and no kept group needs.

        Those that cannot be reached now are released by the next call.
        """
        sandboxes = self.manager.sandboxes(plan_id)
        elsewhere = [
            (rid, sandbox)
            for rid, sandbox in sandboxes.opened.items()
            if isinstance(sandbox, KeepsElsewhere)
        ]
        if not elsewhere:
            return
        if any(not intent.is_done for intent in self.store.intents.of_plan(plan_id)):
            return  # it may need something that looks left over
        for rid, sandbox in elsewhere:
            record = sandboxes.records.get(rid)
            if record is None:
                continue
            if record.state is SandboxState.READY:
                roots = self.store.checkpoints.roots_of(rid)
                began = self.origins(plan_id).get(rid)
                with suppress(SandboxError):
                    sandbox.keep_only(frozenset(roots + ([began.root] if began else [])))


def _row(
    group: CheckpointGroup,
    checkpoint_id: str,
    record: SandboxRecord,
    state: SandboxCheckpoint,
    about: About,
    plan: Plan,
) -> Checkpoint:
    step = about.step
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        group_id=group.group_id,
        plan_id=group.plan_id,
        resource_id=record.resource_id,
        sandbox_ref=record.sandbox_id,
        decision_id=about.decision_id,
        checkpoint_type=about.trigger,
        step_index=group.step_index,
        state_hash=state.state_hash,
        label=about.label,
        filesystem_path=record.path,
        size_bytes=state.added_bytes,
        created_at=group.created_at,
        metadata_json={
            "reason": about.reason,
            "source_tool": step.tool if step else None,
            "phase": str(plan.phase),
            "step": step.step_id if step else None,
            **state.metadata,
            "snapshot": state.metadata,
        },
        root_key=state.root,
    )
