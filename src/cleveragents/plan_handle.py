"""The Python API of one plan, which every command calls; a verb is imported when it is used."""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cleveragents.context import Context
from cleveragents.lookup import find_correction, find_decision, find_group
from cleveragents.model.checkpoint import Checkpoint, CheckpointGroup, RollbackResult
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan, State

if TYPE_CHECKING:
    from cleveragents.execution.caller_executor import OpenDecision
    from cleveragents.execution.reconcile import Resumption
    from cleveragents.execution.use import PlanFile
    from cleveragents.history.correct import Outlook
    from cleveragents.history.diff import Diff
    from cleveragents.history.export import ExportedBranch, Patch
    from cleveragents.history.undo import Undone
    from cleveragents.model.decision import Correction, Decision
    from cleveragents.model.effect import Effect
    from cleveragents.model.journal import JournalEntry
    from cleveragents.model.retention import Verdict
    from cleveragents.model.tool import ToolCall
    from cleveragents.sandbox.protocol import Proposal


class PlanHandle:
    """One plan, with the verbs of the command line."""

    def __init__(self, ctx: Context, plan_id: str) -> None:
        self._ctx = ctx
        self.plan_id = plan_id

    @property
    def plan(self) -> Plan:
        """As the store has it now."""
        return self._ctx.store.plans.get(self.plan_id)

    @property
    def sandboxes(self) -> dict[str, str]:
        """Name of each resource -> where the plan works on it."""
        return self._ctx.manager.sandboxes(self.plan_id).paths

    @property
    def actor_state(self) -> Any:
        """What its actor last asked to be kept, or had kept at the group of the rollback."""
        return self.plan.actor_state

    @contextmanager
    def decision(
        self,
        question: str,
        chosen: str = "",
        *,
        alternatives: Sequence[str] = (),
        rationale: str = "",
        confidence: float | None = None,
        parent: str | None = None,
        influences: Sequence[str] = (),
        repeat: Collection[str] = (),
    ) -> Generator["OpenDecision"]:
        """Record a decision of a plan made by `Workspace.plan`, and hold the plan for its calls.

        `parent` and `influences` name earlier steps, whose decisions are meant. If an exception
        leaves the block, the plan is errored; the next decision continues there. `repeat` names
        steps that failed or died and may do outside the sandboxes what they may have done before.
        """
        from cleveragents.actors.protocol import DecisionProposal
        from cleveragents.execution.caller_executor import deciding

        asked = DecisionProposal(
            question=question,
            chosen=chosen,
            alternatives=tuple(alternatives),
            rationale=rationale,
            confidence=confidence,
            parent=parent,
            influences=tuple(influences),
        )
        with deciding(self._ctx, self.plan_id, asked, repeat) as opened:
            yield opened

    def complete(self) -> None:
        """Say that a plan made by `Workspace.plan` is done; `apply` says it too."""
        from cleveragents.execution.caller_executor import complete

        complete(self._ctx, self.plan_id)

    def execute(self, *, repeat: Collection[str] = (), verb: str = "plan execute") -> "Resumption":
        """Run what is not done yet; `verb`: what others are told who find the plan busy."""
        from cleveragents.execution.run import execute_plan

        return execute_plan(self._ctx, self.plan_id, verb=verb, repeat=repeat)

    def resume(
        self,
        *,
        discard_edits: bool = False,
        plan_file: "str | PlanFile | None" = None,
        repeat: Collection[str] = (),
        accept_loss: bool = False,
    ) -> "Resumption":
        """`repeat`: the steps that may do outside the sandboxes what they may have done before."""
        from cleveragents.history.revise import resume_with

        return resume_with(
            self._ctx,
            self.plan_id,
            self._read(plan_file),
            discard_edits=discard_edits,
            repeat=repeat,
            accept_loss=accept_loss,
        )

    def preview_resume(self, *, discard_edits: bool = False) -> "Resumption":
        """What `resume` would do; changes nothing."""
        from cleveragents.execution.run import preview_resume

        return preview_resume(self._ctx, self.plan, discard_edits)

    def in_doubt(self) -> "list[Effect]":
        """What `resume` would do outside the sandboxes although it may have happened before."""
        from cleveragents.checkpoints.effects import doubtful

        return doubtful(self._ctx.store, self.plan)

    def correct(
        self,
        decision: str,
        guidance: str,
        *,
        plan_file: "str | PlanFile | None" = None,
        cascade: bool = False,
        accept_loss: bool = False,
    ) -> "Correction":
        """Redo one decision and everything that depends on it."""
        from cleveragents.history import correct as correction

        request = correction.Request(
            guidance=guidance,
            plan_file=self._read(plan_file),
            cascade=cascade,
            accept_loss=accept_loss,
        )
        return correction.correct(self._ctx, self._decision(decision), request)

    def preview_correct(
        self,
        decision: str,
        guidance: str,
        *,
        plan_file: "str | PlanFile | None" = None,
        cascade: bool = False,
    ) -> "Outlook":
        """What `correct` would do; changes nothing."""
        from cleveragents.history import correct as correction

        read = self._read(plan_file)
        request = correction.Request(guidance=guidance, plan_file=read, cascade=cascade)
        return correction.preview(self._ctx, self._decision(decision), request)

    def append(self, decision: str, guidance: str, *, plan_file: str | None = None) -> "Correction":
        """Keep everything, and add the work of a plan file as a child plan."""
        from cleveragents.history import append as appending
        from cleveragents.history.correct import Request

        request = Request(guidance=guidance, plan_file=self._read_child(plan_file))
        return appending.append(self._ctx, self._decision(decision), request)

    def preview_append(self, plan_file: str | None = None) -> tuple[str, ...]:
        """The steps that `append` would run."""
        read = self._read_child(plan_file)
        return tuple(step.id for step in read.spec.steps) if read else ()

    def _decision(self, text: str) -> "Decision":
        return find_decision(self._ctx.store, text, self.plan_id)

    def _read(self, file: "str | PlanFile | None") -> "PlanFile | None":
        from cleveragents.execution.use import read_plan

        return read_plan(self._ctx, file) if isinstance(file, str) else file

    def _read_child(self, file: str | None) -> "PlanFile | None":
        from cleveragents.execution.use import read_child

        return read_child(self._ctx, self.plan, file) if file else None

    def checkpoints(self) -> list[Checkpoint]:
        return self._ctx.checkpoints.list_checkpoints(self.plan_id)

    def group(self, checkpoint: str) -> CheckpointGroup:
        """A checkpoint group by label, by `last`, or by the beginning or end of an id."""
        return find_group(self._ctx.store, self.plan, checkpoint)

    def checkpoint(self, label: str | None = None) -> CheckpointGroup:
        from cleveragents.history.checkpoints import create_manual

        return create_manual(self._ctx, self.plan, label)

    def pin(self, checkpoint: str) -> CheckpointGroup:
        """Keep a group from being pruned."""
        return self._pin(self.group(checkpoint), True)

    def unpin(self, checkpoint: str) -> CheckpointGroup:
        return self._pin(self.group(checkpoint), False)

    def _pin(self, group: CheckpointGroup, pinned: bool) -> CheckpointGroup:
        with self._ctx.store.transaction():
            self._ctx.store.checkpoints.pin(group.group_id, pinned)
        return group

    def delete_checkpoint(self, checkpoint: str) -> CheckpointGroup:
        """Drop one group; the first, the current and reachable ones stay."""
        from cleveragents.history.checkpoints import delete_group

        group = self.group(checkpoint)
        delete_group(self._ctx, self.plan, group)
        return group

    def prune(self) -> "tuple[Verdict, ...]":
        """Drop the groups that the retention rule gives up; says why for each."""
        from cleveragents.history.checkpoints import prune_plan

        return prune_plan(self._ctx, self.plan)

    def preview_prune(self) -> "tuple[Verdict, ...]":
        """What `prune` would drop; changes nothing."""
        from cleveragents.history.checkpoints import preview_prune

        return preview_prune(self._ctx, self.plan)

    def rollback(self, checkpoint: str, *, accept_loss: bool = False) -> RollbackResult:
        """Bring every sandbox and the plan back to a checkpoint."""
        from cleveragents.history import rollback as rolling

        plan, group = self._to_roll_back(checkpoint)
        return rolling.rollback(self._ctx, plan, group, accept_loss=accept_loss)

    def restore(self, checkpoint: str, *only: str) -> RollbackResult:
        """Put back just these resources or paths, and leave the plan as it is."""
        from cleveragents.history.restore_paths import restore_only

        return restore_only(self._ctx, *self._to_roll_back(checkpoint), only)

    def preview_rollback(self, checkpoint: str, *only: str) -> RollbackResult:
        """What `rollback`, or `restore` of just these, would do; changes nothing."""
        from cleveragents.history import restore_paths, rollback

        plan, group = self._to_roll_back(checkpoint)
        if only:
            return restore_paths.preview_only(self._ctx, plan, group, only)
        return rollback.preview(self._ctx, plan, group)

    def _to_roll_back(self, checkpoint: str) -> tuple[Plan, CheckpointGroup]:
        plan = self.plan
        require_rollback(plan)
        return plan, find_group(self._ctx.store, plan, checkpoint)

    def undo(self, *, accept_loss: bool = False) -> "Undone":
        """Cancel the last operation as a whole."""
        from cleveragents.history import undo

        return undo.undo(self._ctx, self.plan, accept_loss=accept_loss)

    def redo(self, *, accept_loss: bool = False) -> "Undone":
        """Do again what `undo` cancelled."""
        from cleveragents.history import undo

        return undo.redo(self._ctx, self.plan, accept_loss=accept_loss)

    def effects(self) -> "list[Effect]":
        """What its calls did, or may have done, outside the sandboxes."""
        return self._ctx.store.effects.of_plan(self.plan_id)

    def retry_compensations(self) -> "tuple[Effect, ...]":
        """Run the compensations that failed once more."""
        from cleveragents.execution.compensation import retry_failed

        return retry_failed(self._ctx, self.plan)

    def tool_calls(self) -> "list[ToolCall]":
        """Every call, oldest first."""
        return self._ctx.store.calls.of_plan(self.plan_id)

    def log(self) -> "list[JournalEntry]":
        """Every operation, oldest first."""
        return self._ctx.store.journal.of_plan(self.plan_id)

    def diff(
        self, start: str | None = None, end: str | None = None, *, ignored: bool = False
    ) -> "Diff":
        """What changed between two checkpoints; by default from the beginning until now."""
        from cleveragents.history.diff import diff_between

        plan = self.plan
        first, second = (
            find_group(self._ctx.store, plan, text) if text else None for text in (start, end)
        )
        return diff_between(self._ctx, plan, first, second, ignored)

    def diff_of_correction(self, correction: str = "last", *, ignored: bool = False) -> "Diff":
        """The old attempt against the new one."""
        row = find_correction(self._ctx.store, self.plan, correction)
        return self.diff(row.before_group_id, row.after_group_id, ignored=ignored)

    def diff_of_failure(self) -> dict[str, Any] | None:
        """What the step that failed had changed."""
        from cleveragents.history.diff import diff_of_failure

        return diff_of_failure(self._ctx, self.plan)

    def export_branch(
        self, branch: str, *, on: str | None = None, force: bool = False
    ) -> "ExportedBranch":
        """The checkpoints that led here as commits on a new branch of the repository."""
        from cleveragents.history.export import export_branch

        return export_branch(self._ctx, self.plan, branch, on=on, force=force)

    def export_patches(self, *, on: str | None = None) -> "tuple[Patch, ...]":
        """The same as patches, one for each group that changed something."""
        from cleveragents.history.export import export_patches

        return export_patches(self._ctx, self.plan, on=on)

    def write_patches(
        self, folder: str, *, on: str | None = None, force: bool = False
    ) -> "list[tuple[Patch, str]]":
        """The same as files in a folder; returns each with its path."""
        from cleveragents.history.export import write_patches

        patches = self.export_patches(on=on)
        return list(zip(patches, write_patches(patches, folder, force=force), strict=True))

    def apply(
        self, mode: str | None = None, *, ignored: bool = False, hooks: bool = False
    ) -> dict[str, Any]:
        """Apply the work to its targets, all of them or none, exactly once."""
        from cleveragents.apply import apply as applying
        from cleveragents.execution.caller_executor import completes_when_applied

        if completes_when_applied(self.plan):
            self.complete()
        request = applying.Request(mode=mode, ignored=ignored, hooks=hooks)
        return applying.apply(self._ctx, self.plan, request)

    def preview_apply(
        self, mode: str | None = None, *, ignored: bool = False, hooks: bool = False
    ) -> "tuple[Proposal, ...]":
        """What `apply` would do to each target; changes nothing."""
        from cleveragents.apply import apply as applying
        from cleveragents.execution.caller_executor import as_applied

        request = applying.Request(mode=mode, ignored=ignored, hooks=hooks)
        return applying.preview_apply(self._ctx, as_applied(self.plan), request)

    def revert_applied(self) -> "PlanHandle":
        """A new plan, executed, that reverts what this one applied."""
        from cleveragents.apply.revert import nothing_to_revert, spec_to_revert
        from cleveragents.execution.preflight import preflight
        from cleveragents.execution.use import use_plan

        ctx, plan = self._ctx, self.plan
        spec, _ = spec_to_revert(ctx, plan)
        preflight(ctx, spec, f"plan {plan.name}", plan.plan_dir)
        new = use_plan(ctx, spec, source_path="", source_text="", plan_dir=plan.plan_dir)
        made = PlanHandle(ctx, new.plan_id)
        made.execute()
        if made.plan.state is State.COMPLETE and not made.unapplied():
            made.delete(force=True)
            raise nothing_to_revert(plan)
        return made

    def preview_revert(self) -> tuple[str, ...]:
        """What `revert_applied` would leave alone, in words."""
        from cleveragents.apply.revert import spec_to_revert

        return spec_to_revert(self._ctx, self.plan)[1]

    def cancel(self) -> Plan:
        """End the plan without applying it."""
        from cleveragents.maintenance import delete as ending

        return ending.cancel(self._ctx, self.plan)

    def unapplied(self) -> int:
        """How many changes `delete` would lose."""
        from cleveragents.maintenance import delete as ending

        return ending.unapplied(self._ctx, self.plan)

    def delete(self, *, force: bool = False) -> int:
        """Remove the plan and all it holds; returns how many changes were never applied."""
        from cleveragents.maintenance import delete as ending

        return ending.delete(self._ctx, self.plan, force=force)
