"""Coordinated checkpoints: content through the manager, rows through the repository, one commit.

`CheckpointService` is what the rest of the program talks to; it alone brings sandboxes, content
and rows together with the plan's own view.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from cleveragents import codec
from cleveragents.checkpoints.manager import CheckpointManager, Staged, States
from cleveragents.checkpoints.prune import policy_of, verdicts_on
from cleveragents.checkpoints.restoration import Restoration, commit_restoration
from cleveragents.content import removal
from cleveragents.content.packs import Batch
from cleveragents.content.reserve import SIZE
from cleveragents.errors import CheckpointFailed, ContentDamaged, DiskFull, SandboxError
from cleveragents.lease import (
    LeasedPlan,
    hold,
)
from cleveragents.model.checkpoint import (
    Checkpoint,
    CheckpointGroup,
    CheckpointType,
    SandboxCheckpoint,
)
from cleveragents.model.decision import Decision
from cleveragents.model.ids import new_id
from cleveragents.model.plan import Step
from cleveragents.model.resource import Change, SandboxState
from cleveragents.model.retention import Verdict
from cleveragents.model.settings import Settings
from cleveragents.model.triggers import fires
from cleveragents.model.units import plural
from cleveragents.sandbox.protocol import KeepsElsewhere
from cleveragents.store import Intent, Store

T = TypeVar("T")
_LENIENT = frozenset({CheckpointType.PRE_ROLLBACK, CheckpointType.ON_ERROR})
"""These keep a state to roll back from, also one that a tool broke."""
MANY = 10_000
"""Snapshots that are remembered."""


def _nothing() -> None: ...


class Collected(CheckpointFailed):
    """Content that was found in the store was collected before it could be used again."""


class About(NamedTuple):
    """Why a group is made."""

    trigger: CheckpointType
    reason: str
    decision_id: str | None = None
    step: Step | None = None
    label: str | None = None


class CheckpointService:
    """The one way in to checkpoints."""

    def __init__(
        self,
        store: Store,
        manager: CheckpointManager,
        settings: Settings,
        now: Callable[[], str],
        warn: Callable[[str], None] = lambda _message: None,
    ) -> None:
        self._store = store
        self._manager = manager
        self._settings = settings
        self._now = now
        self._warn = warn
        self._newest: dict[str, CheckpointGroup] = {}
        """Plan -> the group that this process itself made last."""
        self._snapshots: dict[str, SandboxCheckpoint] = {}
        """Checkpoint -> what it holds; such rows never change."""

    def auto_create_if_configured(
        self,
        trigger: CheckpointType,
        leased: LeasedPlan,
        *,
        steps: tuple[Step, ...] = (),
        decisions: tuple[Decision, ...] = (),
        view_changed: bool = False,
        decision_id: str | None = None,
        step: Step | None = None,
        also: Callable[[States, States], None] | None = None,
        **fields: Any,
    ) -> CheckpointGroup | None:
        """Make the group of a trigger if it is configured; commit the plan's changes either way."""
        if not self.is_configured(trigger, leased):
            if not (steps or decisions or view_changed or also or fields):
                return None
            if not leased.plan.rollback_enabled and any(step.done for step in steps):
                # No group holds what the step did: only the sandbox's own files can last.
                self._manager.sync(leased.plan.plan_id)
            with leased.transaction():
                if also is not None:
                    also({}, {})
                leased.write(steps=steps, decisions=decisions, view_changed=view_changed, **fields)
            return None
        return self.create_checkpoint(
            trigger,
            leased,
            steps=steps,
            decisions=decisions,
            view_changed=view_changed,
            decision_id=decision_id,
            step=step,
            also=also,
            **fields,
        )

    def is_configured(self, trigger: CheckpointType, leased: LeasedPlan) -> bool:
        return leased.plan.rollback_enabled and fires(trigger, self.triggers(leased))

    def triggers(self, leased: LeasedPlan) -> tuple[str, ...]:
        own = leased.spec.policy.auto_create_on
        return self._settings.auto_create_on if own is None else own

    def create_checkpoint(
        self,
        trigger: CheckpointType,
        leased: LeasedPlan,
        *,
        steps: tuple[Step, ...] = (),
        decisions: tuple[Decision, ...] = (),
        view_changed: bool = False,
        decision_id: str | None = None,
        step: Step | None = None,
        label: str | None = None,
        reason: str | Callable[[States, States], str] = "",
        force: bool = False,
        prepare: Callable[[States], None] | None = None,
        also: Callable[[States, States], None] | None = None,
        ending: Callable[[States, States], None] | None = None,
        **fields: Any,
    ) -> CheckpointGroup:
        """Capture everything, then write group, rows and the plan's changes in one commit.

        `prepare(now)` runs before that commit and may fail without a trace; `also(before, now)`
        runs inside it, with the states of the last group and of now; so does `ending`, when the
        group is written and the plan has moved on.
        Where neither a resource nor the view changed, the last group gets the trigger's name.
        """

        strict = trigger not in _LENIENT
        if strict and leased.plan.head_group_id is not None:
            self._manager.require_seen(leased.plan.plan_id)

        def attempt() -> CheckpointGroup:
            head = self.head(leased)
            before = self.states(head) if head else {}
            dropped: list[str] = []
            with self._manager.packs.batch(urgent=not strict) as batch:
                after = self._manager.create_checkpoint(leased.plan.plan_id, batch, before, strict)
                changed = {
                    rid: state
                    for rid, state in after.items()
                    if rid not in before or before[rid].state_hash != state.state_hash
                }
                same_view = head is not None and head.view_mark == leased.plan.view_mark
                same = not changed and same_view and not (view_changed or force or label)
                writes = bool(steps or decisions or fields)
                if same and head and trigger in head.triggers and not (writes or prepare or also):
                    return head
                # What is left behind at once need not be kept twice: only times can differ.
                kept = not (same and prepare)
                wait = batch.begin_seal() if kept else _nothing
                if prepare is not None:
                    prepare(after)
                with leased.transaction():
                    if kept:
                        self._keep_content(batch)
                    if also is not None:
                        also(before, after)
                    self._newest.pop(leased.plan.plan_id, None)
                    if same and head is not None:
                        group = self._store.checkpoints.add_trigger(head, trigger)
                        if writes:
                            leased.write(steps=steps, decisions=decisions, **fields)
                    else:
                        rows = changed or self._unchanged_row(leased, after, step)
                        ids = {rid: new_id() for rid in rows}
                        group_id = new_id()
                        leased.write(
                            steps=steps,
                            decisions=decisions,
                            view_changed=view_changed,
                            head_group_id=group_id,
                            last_checkpoint_id=next(iter(ids.values())),
                            **fields,
                        )
                        why = reason if isinstance(reason, str) else reason(before, after)
                        about = About(trigger, why or str(trigger), decision_id, step, label)
                        state = leased.plan.actor_state
                        group = self._add(leased, group_id, head, rows, ids, about, state)
                        dropped = self._prune(leased, head)
                    if ending is not None:
                        ending(before, after)
                    wait()
            self._newest[leased.plan.plan_id] = group
            for learned in batch.after_commit if kept else ():
                learned()
            if dropped:
                self.release_dropped(leased.plan.plan_id)
            return group

        try:
            return attempt()
        except Collected:
            # A collection took content that was just found in the store: look once more.
            self._manager.doubt(leased.plan.plan_id)
            return attempt()

    def look(self, plan_id: str, use: Callable[[States], T]) -> T:
        """What `use` makes of the states as they are now; nothing of them is kept."""
        with self._manager.packs.looking() as batch:
            return use(self._manager.create_checkpoint(plan_id, batch, {}, strict=False))

    def keep_states(self, leased: LeasedPlan, previous: States) -> States:
        """The states as they are now, their content kept, without a group."""
        with self._manager.packs.batch() as batch:
            now = self._manager.create_checkpoint(leased.plan.plan_id, batch, previous)
            batch.seal()
            with leased.transaction():
                self._keep_content(batch)
        return now

    def keep_borrowed(self, leased: LeasedPlan) -> None:
        """Before sandboxes go: everything that a kept group needs comes into the store."""
        plan_id = leased.plan.plan_id
        sandboxes = self._manager.sandboxes(plan_id)
        roots: dict[str, list[bytes]] = {}
        for group in self._store.checkpoints.groups(plan_id):
            for rid, state in self.states(group).items():
                roots.setdefault(rid, []).append(state.root)
        with self._manager.packs.batch() as batch:
            for rid, found in roots.items():
                record = sandboxes.records[rid]
                if record.state is SandboxState.READY:
                    sandboxes[rid].keep_borrowed(list(dict.fromkeys(found)), batch)
            batch.seal()
            with leased.transaction():
                self._keep_content(batch)

    def keep_origins(self, leased: LeasedPlan) -> None:
        """For a plan without groups: note in each sandbox's row what it was made with."""
        self._manager.sync(leased.plan.plan_id)
        for rid, state in self.keep_states(leased, {}).items():
            record = self._manager.sandboxes(leased.plan.plan_id).records[rid]
            origin = {**record.origin, "state": msgspec.to_builtins(state)}
            with leased.transaction():
                self._store.resources.put_sandbox(msgspec.structs.replace(record, origin=origin))
        self._manager.forget(leased.plan.plan_id)

    def began_with(self, plan_id: str) -> States:
        """The states the sandboxes were made with; empty before they are."""
        if origins := self.origins(plan_id):
            return origins
        groups = self._store.checkpoints.groups(plan_id)
        return self.states(groups[0]) if groups else {}

    def origins(self, plan_id: str) -> States:
        records = self._manager.sandboxes(plan_id).records
        return {
            rid: codec.convert(record.origin["state"], SandboxCheckpoint)
            for rid, record in records.items()
            if "state" in record.origin
        }

    def _keep_content(self, batch: Batch) -> None:
        self._store.objects.add(batch.located.items())
        if missing := self._store.objects.reuse(batch.reused):
            raise Collected(
                f"{plural(len(missing), 'piece')} of content needed again had been collected",
                "run the command again",
            )

    def _unchanged_row(self, leased: LeasedPlan, after: States, step: Step | None) -> States:
        """Only the view changed: one row, of the step's resource, that adds no content."""
        resources = self._manager.sandboxes(leased.plan.plan_id).resources
        wanted = [rid for rid in after if step and resources[rid].name == step.resource]
        if not after:
            raise CheckpointFailed("the plan has no resource that can be checkpointed")
        rid = (wanted or list(after))[0]
        return {rid: msgspec.structs.replace(after[rid], added_bytes=0)}

    def _add(
        self,
        leased: LeasedPlan,
        group_id: str,
        head: CheckpointGroup | None,
        rows: States,
        ids: dict[str, str],
        about: About,
        actor_state: Any,
    ) -> CheckpointGroup:
        plan, now, step = leased.plan, self._now(), about.step
        records = self._manager.sandboxes(plan.plan_id).records
        step_index = step.index if step else plan.last_completed_step
        made = [
            Checkpoint(
                checkpoint_id=ids[rid],
                group_id=group_id,
                plan_id=plan.plan_id,
                resource_id=rid,
                sandbox_ref=records[rid].sandbox_id,
                decision_id=about.decision_id,
                checkpoint_type=about.trigger,
                step_index=step_index,
                state_hash=state.state_hash,
                label=about.label,
                filesystem_path=records[rid].path,
                size_bytes=state.added_bytes,
                created_at=now,
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
            for rid, state in rows.items()
        ]
        group = CheckpointGroup(
            group_id=group_id,
            plan_id=plan.plan_id,
            decision_id=about.decision_id,
            checkpoint_type=about.trigger,
            triggers=(str(about.trigger),),
            label=about.label,
            step_index=step_index,
            version=plan.version,
            view_mark=plan.view_mark,
            members={
                **(head.members if head else {}),
                **{item.resource_id: item.checkpoint_id for item in made},
            },
            actor_state=actor_state,
            children=self._store.plans.child_moments(plan.plan_id),
            created_at=now,
        )
        self._store.checkpoints.add(group, made)
        self._snapshots.update((row.checkpoint_id, row.snapshot) for row in made)
        return group

    def head(self, leased: LeasedPlan) -> CheckpointGroup | None:
        group_id = leased.plan.head_group_id
        newest = self._newest.get(leased.plan.plan_id)
        if newest is not None and newest.group_id == group_id:
            return newest
        return self._store.checkpoints.group(group_id) if group_id else None

    def states(self, group: CheckpointGroup) -> States:
        """Resource id -> its state in this group."""
        if not all(checkpoint in self._snapshots for checkpoint in group.members.values()):
            if len(self._snapshots) > MANY:
                self._snapshots.clear()
            for row in self._store.checkpoints.of_members(group).values():
                self._snapshots[row.checkpoint_id] = row.snapshot
        return {rid: self._snapshots[row] for rid, row in group.members.items()}

    def rollback_to_checkpoint(
        self,
        leased: LeasedPlan,
        restoration: Restoration,
        *,
        label: str | None = None,
        reason: str = "before the rollback",
        lossy: bool = False,
    ) -> tuple[Change, ...]:
        """Bring every sandbox and the plan's view back to a group, all or nothing, verified.

        `lossy`: where there is no room to keep what the sandboxes hold now, it is given up.

        Everything that could fail happens before the intent is committed: capturing, reading the
        target's content, staging it. After that the way is forward only: `finish_rollback` goes
        the rest of it if this process dies.
        """
        plan_id, intent_id = leased.plan.plan_id, new_id()
        group = self._store.checkpoints.group(restoration.group_id)
        targets = self.states(group)
        staging = self._manager.staging(plan_id, intent_id)
        intent = Intent(
            intent_id=intent_id,
            plan_id=plan_id,
            kind="restore",
            state="staged",
            body=msgspec.to_builtins(restoration),
            created_at=self._now(),
        )
        staged: list[Staged] = []
        self._store.reserve.give_back_below(SIZE)
        try:
            self._keep_before(
                leased,
                reason,
                lambda now: staged.append(self._manager.stage(plan_id, now, targets, staging)),
                lambda: self._store.intents.replace(intent),
                lossy,
                label,
            )
        except BaseException:
            removal.remove_tree(staging)
            raise
        self._switch(leased, staged[-1], restoration, group, targets, intent_id)
        return staged[-1].changes

    def _keep_before(
        self,
        leased: LeasedPlan,
        reason: str,
        prepare: Callable[[States], None],
        note: Callable[[], None],
        lossy: bool,
        label: str | None = None,
    ) -> None:
        """Keep what is there in a `pre_rollback` group; `note` is part of its commit."""
        try:
            self.create_checkpoint(
                CheckpointType.PRE_ROLLBACK,
                leased,
                label=label,
                reason=reason,
                prepare=prepare,
                also=lambda _before, _now: note(),
            )
            return
        except DiskFull as error:
            if not lossy:
                raise DiskFull(
                    f"the state of the sandboxes cannot be kept before the rollback: {error}",
                    "free some space, or discard it: the same command with --accept-loss",
                ) from error
        with self._manager.packs.looking() as batch:
            prepare(self._manager.create_checkpoint(leased.plan.plan_id, batch, {}, strict=False))
            with leased.transaction():
                note()
        self._warn("the disk is full: changes in the sandboxes since the last group were not kept")

    def restore_made(
        self,
        leased: LeasedPlan,
        about: About,
        make: Callable[[States, Batch], States],
        todo: Restoration,
        also: Callable[[CheckpointGroup], None] = lambda _now: None,
    ) -> tuple[Change, ...]:
        """Bring the sandboxes to a state that nobody had yet, made from the one they have.

        `make` gets the states now and may raise, with nothing changed; what it returns becomes
        the group `todo.group_id`. `also(now)` runs in the commit of that group and of the intent,
        with the group that keeps what was there; the way from then on is that of a rollback.
        """
        plan_id, intent_id = leased.plan.plan_id, new_id()
        kept = self._kept_now(leased, about)
        now = self.states(kept)
        staging = self._manager.staging(plan_id, intent_id)
        todo = msgspec.structs.replace(todo, made=True, came_from=kept.group_id)
        intent = Intent(
            intent_id=intent_id,
            plan_id=plan_id,
            kind="restore",
            state="staged",
            body=msgspec.to_builtins(todo),
            created_at=self._now(),
        )
        try:
            with self._manager.packs.batch() as batch:
                targets = make(now, batch)
                batch.seal()
                staged = self._manager.stage(plan_id, now, targets, staging)
                changed = {
                    rid: state
                    for rid, state in targets.items()
                    if now[rid].state_hash != state.state_hash
                }
                rows = changed or self._unchanged_row(leased, now, about.step)
                first = next(iter(rows))
                rows[first] = msgspec.structs.replace(rows[first], added_bytes=batch.added_bytes)
                with leased.transaction():
                    self._keep_content(batch)
                    ids = {rid: new_id() for rid in rows}
                    state = todo.plan.get("actor_state", leased.plan.actor_state)
                    group = self._add(leased, todo.group_id, kept, rows, ids, about, state)
                    also(kept)
                    self._store.intents.replace(intent)
        except BaseException:
            removal.remove_tree(staging)
            raise
        self._switch(leased, staged, todo, group, targets, intent_id)
        return staged.changes

    def _kept_now(self, leased: LeasedPlan, about: About) -> CheckpointGroup:
        """The group that holds what the sandboxes have now; made if there is none."""
        head = self.head(leased)
        if head is not None:
            same = self._is_at(leased.plan.plan_id, head.group_id)
            if same and head.view_mark == leased.plan.view_mark:
                return head
        reason = f"before: {about.reason}"
        return self.create_checkpoint(CheckpointType.PRE_ROLLBACK, leased, reason=reason)

    def finish_rollback(self, leased: LeasedPlan, intent: Intent) -> None:
        """Go the rest of the way after a crash: look at what is there, stage and switch again."""
        plan_id = leased.plan.plan_id
        restoration = codec.convert(intent.body, Restoration)
        # What is there now may be half of each: it is kept, but undo goes to what was whole.
        came_from = restoration.came_from or leased.plan.head_group_id
        restoration = msgspec.structs.replace(restoration, came_from=came_from)
        intent = msgspec.structs.replace(intent, body=msgspec.to_builtins(restoration))
        group = self._store.checkpoints.group(restoration.group_id)
        targets = self.states(group)
        staging = self._manager.staging(plan_id, intent.intent_id)
        removal.remove_tree(staging)
        self._store.reserve.give_back_below(SIZE)
        staged: list[Staged] = []
        self._keep_before(
            leased,
            "found after an interrupted rollback",
            lambda now: staged.append(self._manager.stage(plan_id, now, targets, staging)),
            lambda: self._store.intents.put(intent),
            lossy=True,
        )
        self._switch(leased, staged[-1], restoration, group, targets, intent.intent_id)

    def confirm_rollback(self, leased: LeasedPlan, intent: Intent) -> bool:
        """A committed rollback whose end nobody saw: verified by reading, or done again.

        True if it was done again. That a sync succeeds now proves nothing: if one failed before,
        the kernel may have dropped the pages that it could not write.
        """
        plan, noted = leased.plan, intent.body
        if plan.version == noted["version"]:
            if leased.lease.boot_id == noted["boot_id"]:
                self._manager.sync(plan.plan_id)
            self._manager.distrust(plan.plan_id)
            if not self._is_at(plan.plan_id, noted["group_id"]):
                todo = Restoration(group_id=noted["group_id"], plan={})
                why = "found instead of a rollback"
                self.rollback_to_checkpoint(leased, todo, reason=why, lossy=True)
                leased.finish_background()
                return True
        with leased.transaction():
            self._store.intents.remove(intent.intent_id)
        return False

    def _is_at(self, plan_id: str, group_id: str) -> bool:
        """Whether every sandbox has the state of a group."""
        wanted = self.states(self._store.checkpoints.group(group_id))
        return self.look(
            plan_id, lambda now: all(now[r].state_hash == s.state_hash for r, s in wanted.items())
        )

    def _switch(
        self,
        leased: LeasedPlan,
        staged: Staged,
        restoration: Restoration,
        group: CheckpointGroup,
        targets: States,
        intent_id: str,
    ) -> None:
        plan_id = leased.plan.plan_id
        self._manager.rollback_to(plan_id, staged, targets)
        for child_id, todo in restoration.children.items():
            self._restore_child(child_id, todo)
        self._newest.pop(plan_id, None)
        commit_restoration(self._store, leased, restoration, group, intent_id)
        if not restoration.made:
            self._newest[plan_id] = group
        leased.run_in_background(intent_id, self._manager.making_last(plan_id, staged))

    def _restore_child(self, plan_id: str, todo: Restoration) -> None:
        """A child plan is rolled back with its parent; repeatable after a crash."""
        with hold(self._store, plan_id, "rollback of the parent plan", self._now) as lease:
            leased = LeasedPlan(self._store, self._store.plans.get(plan_id), lease, self._now)
            self.rollback_to_checkpoint(leased, todo, lossy=True)
            leased.finish_background()

    def list_checkpoints(self, plan_id: str) -> list[Checkpoint]:
        return self._store.checkpoints.of_plan(plan_id)

    def get_checkpoint(self, checkpoint_id: str) -> Checkpoint:
        return self._store.checkpoints.checkpoint(checkpoint_id)

    def diff(self, plan_id: str, before: States, after: States) -> tuple[Change, ...]:
        return self._manager.changes(plan_id, before, after)

    def require_readable(self, group: CheckpointGroup) -> None:
        """The manifests of a group are in the store; else a clear error before anything moves."""
        for row in self._store.checkpoints.of_members(group).values():
            if row.root_key and not self._manager.packs.has(row.root_key):
                raise ContentDamaged(
                    f"checkpoint {row.checkpoint_id} has lost its content", "agents check"
                )

    def _prune(self, leased: LeasedPlan, before: CheckpointGroup | None) -> list[str]:
        """Keep to the limit; the group that was newest until now may be needed for a rollback."""
        policy = policy_of(leased.spec.policy, self._settings)
        if (
            policy.max_bytes is None
            and self._store.checkpoints.count(leased.plan.plan_id) <= policy.max_checkpoints
        ):
            return []
        verdicts = self.verdicts(leased)
        safe = before.group_id if before else None
        return self.drop(leased, tuple(v for v in verdicts if v.group_id != safe))

    def verdicts(self, leased: LeasedPlan) -> tuple[Verdict, ...]:
        """What retention says of each group."""
        policy = policy_of(leased.spec.policy, self._settings)
        return verdicts_on(self._store, leased.plan, policy, self._now())

    def drop(self, leased: LeasedPlan, verdicts: tuple[Verdict, ...]) -> list[str]:
        gone = [item.group_id for item in verdicts if not item.keep]
        if gone:
            self._manager.delete_checkpoint(leased.plan.plan_id, gone, self._now())
        return gone

    def release_dropped(self, plan_id: str) -> None:
        """What kinds keep outside of the store goes when no kept group needs it any more.

        What cannot be reached now is released by the next call.
        """
        if any(i.plan_id == plan_id and not i.is_done for i in self._store.intents.all()):
            return  # it may stand on something that looks left over
        sandboxes = self._manager.sandboxes(plan_id)
        for rid, sandbox in sandboxes.opened.items():
            record = sandboxes.records.get(rid)
            if not isinstance(sandbox, KeepsElsewhere) or record is None:
                continue
            if record.state is SandboxState.READY:
                roots = self._store.checkpoints.roots_of(rid)
                began = self.origins(plan_id).get(rid)
                with suppress(SandboxError):
                    sandbox.keep_only(frozenset(roots + ([began.root] if began else [])))

    def prune_checkpoints(self, leased: LeasedPlan) -> tuple[Verdict, ...]:
        """Prune now; returns the verdict on every group there was."""
        verdicts = self.verdicts(leased)
        with leased.transaction():
            self.drop(leased, verdicts)
        self.release_dropped(leased.plan.plan_id)
        return verdicts
