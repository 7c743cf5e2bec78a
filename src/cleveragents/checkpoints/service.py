"""Coordinated checkpoints: content through the manager, rows through the repository, one commit.

The rest of the program uses `CheckpointService`; it alone combines sandboxes, content and rows with
the plan's own view.
"""

from collections.abc import Callable

from cleveragents.checkpoints import restore
from cleveragents.checkpoints.create import CheckpointRequest, create
from cleveragents.checkpoints.groups import About, Groups
from cleveragents.checkpoints.manager import States
from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content.packs import Batch
from cleveragents.lease import LeasedPlan
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup, CheckpointType
from cleveragents.model.resource import Change
from cleveragents.model.retention import Verdict
from cleveragents.model.triggers import fires
from cleveragents.store import Intent

PLAIN = CheckpointRequest()


class CheckpointService(Groups):
    """The one way in to checkpoints."""

    def auto_create_if_configured(
        self, trigger: CheckpointType, leased: LeasedPlan, request: CheckpointRequest = PLAIN
    ) -> CheckpointGroup | None:
        """Make the group of a trigger if it is configured; commit the plan's changes either way."""
        if self.is_configured(trigger, leased):
            return self.create_checkpoint(trigger, leased, request)
        if not (request.writes or request.view_changed or request.record):
            return None
        if not leased.plan.rollback_enabled and any(step.done for step in request.steps):
            # No group holds the step's changes: only the sandbox's own files can last.
            self.manager.sync(leased.plan.plan_id)
        with leased.transaction():
            leased.write(
                steps=request.steps,
                decisions=request.decisions,
                view_changed=request.view_changed,
                **request.plan,
            )
            if request.record is not None:
                request.record({}, {})
        return None

    def is_configured(self, trigger: CheckpointType, leased: LeasedPlan) -> bool:
        return leased.plan.rollback_enabled and fires(trigger, self.triggers(leased))

    def triggers(self, leased: LeasedPlan) -> tuple[str, ...]:
        own = leased.spec.policy.auto_create_on
        return self.settings.auto_create_on if own is None else own

    def create_checkpoint(
        self, trigger: CheckpointType, leased: LeasedPlan, request: CheckpointRequest = PLAIN
    ) -> CheckpointGroup:
        """Capture everything, then write group, rows and the plan's changes in one commit."""
        return create(self, trigger, leased, request)

    def rollback_to_checkpoint(
        self,
        leased: LeasedPlan,
        restoration: Restoration,
        *,
        label: str | None = None,
        reason: str = restore.REASON,
        lossy: bool = False,
    ) -> tuple[Change, ...]:
        """Roll every sandbox and the plan's view back to a group, all or nothing, verified.

        `lossy`: without room to keep the current state of the sandboxes, it is dropped.
        """
        return restore.roll_back(self, leased, restoration, label=label, reason=reason, lossy=lossy)

    def restore_made(
        self,
        leased: LeasedPlan,
        about: About,
        make: Callable[[States, Batch], States],
        todo: Restoration,
        also: Callable[[CheckpointGroup], None] = lambda _now: None,
        check: Callable[[States, Batch], None] | None = None,
        spared: str | None = None,
    ) -> tuple[Change, ...]:
        """Bring the sandboxes to a new state, made from the current one."""
        return restore.restore_made(self, leased, about, make, todo, also, check, spared)

    def finish_rollback(self, leased: LeasedPlan, intent: Intent) -> None:
        """Complete a rollback after a crash."""
        restore.finish(self, leased, intent)

    def confirm_rollback(self, leased: LeasedPlan, intent: Intent) -> bool:
        """Verify a committed rollback that may not be on disk; True if it was repeated."""
        return restore.confirm(self, leased, intent)

    def list_checkpoints(self, plan_id: str) -> list[Checkpoint]:
        return self.store.checkpoints.of_plan(plan_id)

    def get_checkpoint(self, checkpoint_id: str) -> Checkpoint:
        return self.store.checkpoints.checkpoint(checkpoint_id)

    def diff(self, plan_id: str, before: States, after: States) -> tuple[Change, ...]:
        return self.manager.changes(plan_id, before, after)

    def prune_checkpoints(self, leased: LeasedPlan) -> tuple[Verdict, ...]:
        """Prune now; returns the verdict on every group."""
        verdicts = self.verdicts(leased)
        with leased.transaction():
            self.drop(leased, verdicts)
        self.release_dropped(leased.plan.plan_id)
        return verdicts
