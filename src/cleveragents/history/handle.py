"""The part of a plan's Python API that only looks."""

from typing import TYPE_CHECKING, Any

from cleveragents.errors import NotFound
from cleveragents.execution.observed.handle import CallersPlan
from cleveragents.lookup import find_correction, find_group
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup
from cleveragents.model.plan import Plan

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cleveragents.history.diff import Comparison, Diff
    from cleveragents.history.opened import Opened
    from cleveragents.history.timeline import TimelineEntry
    from cleveragents.model.effect import Effect
    from cleveragents.model.journal import JournalEntry
    from cleveragents.model.tool import ToolCall


class PlanView(CallersPlan):
    """A plan and its past; `PlanHandle` has the verbs that change it."""

    @property
    def plan(self) -> Plan:
        """As the store has it now."""
        return self._ctx.store.plans.get(self.plan_id)

    def checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint that is kept, oldest first; those of one group follow each other."""
        return self._ctx.checkpoints.list_checkpoints(self.plan_id)

    def checkpoint_at(self, checkpoint_id: str) -> Checkpoint:
        """The checkpoint of one resource, by its id."""
        for row in self.checkpoints():
            if row.checkpoint_id == checkpoint_id:
                return row
        raise NotFound(
            f"plan {self.plan.name!r} has no checkpoint {checkpoint_id!r}",
            f"agents plan checkpoints {self.plan_id}",
        )

    def group(self, checkpoint: str) -> CheckpointGroup:
        """A checkpoint group by label, by `last`, or by the beginning or end of an id."""
        return find_group(self._ctx.store, self.plan, checkpoint)

    def timeline(self) -> "list[TimelineEntry]":
        """Its groups, oldest first, with what each changed and whether it leads to now."""
        from cleveragents.history.timeline import timeline

        return timeline(self._ctx, self.plan)

    def contents(self, checkpoint: str) -> dict[str, dict[str, int]]:
        """How much a checkpoint holds of each resource: files; tables and rows."""
        from cleveragents.history.timeline import contents_of

        return contents_of(self._ctx, self.plan, self.group(checkpoint))

    def open(self, checkpoint: str, folder: str | None = None) -> "Opened":
        """Write a checkpoint below `folder`, or into the store, as files to look at."""
        from cleveragents.history.opened import open_group

        return open_group(self._ctx, self.plan, self.group(checkpoint), folder)

    def diff(
        self,
        start: str | None = None,
        end: str | None = None,
        *,
        ignored: bool = False,
        on: tuple[str, ...] = (),
    ) -> "Diff":
        """What changed between two checkpoints; by default from the beginning until now."""
        with self.compare(start, end, ignored=ignored, on=on) as found:
            return found.diff()

    def compare(
        self,
        start: str | None = None,
        end: str | None = None,
        *,
        ignored: bool = False,
        on: tuple[str, ...] = (),
        correction: str | None = None,
    ) -> "AbstractContextManager[Comparison]":
        """The same to be read a few files at a time, while it is open.

        `on`: only these resources; `correction`: the attempt before it against the one after.
        """
        from cleveragents.history.diff import comparing

        store, plan = self._ctx.store, self.plan
        if correction is not None:
            row = find_correction(store, plan, correction)
            start, end = row.before_group_id, row.after_group_id
        first, second = (find_group(store, plan, text) if text else None for text in (start, end))
        return comparing(self._ctx, plan, first, second, ignored, on)

    def diff_of_correction(self, correction: str = "last", *, ignored: bool = False) -> "Diff":
        """The old attempt against the new one."""
        with self.compare(ignored=ignored, correction=correction) as found:
            return found.diff()

    def diff_of_failure(self) -> dict[str, Any] | None:
        """What the step that failed had changed."""
        from cleveragents.history.diff import diff_of_failure

        return diff_of_failure(self._ctx, self.plan)

    def effects(self) -> "list[Effect]":
        """What its calls did, or may have done, outside the sandboxes."""
        return self._ctx.store.effects.of_plan(self.plan_id)

    def tool_calls(self) -> "list[ToolCall]":
        """Every call, oldest first."""
        return self._ctx.store.calls.of_plan(self.plan_id)

    def log(self) -> "list[JournalEntry]":
        """Every operation, oldest first."""
        return self._ctx.store.journal.of_plan(self.plan_id)
