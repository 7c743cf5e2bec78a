"""The Python API of one plan, which every command calls; a verb is imported when it is used."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cleveragents.history.handle import PlanView
from cleveragents.lookup import find_decision, find_group
from cleveragents.model.checkpoint import CheckpointGroup, RollbackResult
from cleveragents.model.lifecycle import require_rollback
from cleveragents.model.plan import Plan, State

if TYPE_CHECKING:
    from cleveragents.execution.reconcile import Resumption
    from cleveragents.execution.use import PlanFile
    from cleveragents.history.affected import Outlook
    from cleveragents.history.export import ExportedBranch, Patch
    from cleveragents.history.owners import Choices
    from cleveragents.history.rollback import Remember
    from cleveragents.history.shell import Shell
    from cleveragents.history.undo import Undone
    from cleveragents.model.decision import Correction, Decision
    from cleveragents.model.effect import Effect
    from cleveragents.model.retention import Verdict
    from cleveragents.sandbox.protocol import Proposal


class PlanHandle(PlanView):
    """One plan, with the verbs of the command line."""

    @contextmanager
    def another(self) -> Generator["PlanHandle"]:
        """The same plan with a connection of its own, for another thread."""
        with self._ctx.another() as ctx:
            yield PlanHandle(ctx, self.plan_id)

    @property
    def sandboxes(self) -> dict[str, str]:
        """Name of each resource -> where the plan works on it."""
        return self._ctx.manager.sandboxes(self.plan_id).paths

    @property
    def actor_state(self) -> Any:
        """What its actor last asked to be kept, or had kept at the group of the rollback."""
        return self.plan.actor_state

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
        remember: "Remember | None" = None,
    ) -> "Correction":
        """Redo one decision and everything that depends on it."""
        from cleveragents.history import correct as correction
        from cleveragents.history.affected import Request

        request = Request(
            guidance=guidance,
            plan_file=self._read(plan_file),
            cascade=cascade,
            accept_loss=accept_loss,
            remember=remember,
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
        from cleveragents.history.affected import Request

        read = self._read(plan_file)
        request = Request(guidance=guidance, plan_file=read, cascade=cascade)
        return correction.preview(self._ctx, self._decision(decision), request)

    def append(self, decision: str, guidance: str, *, plan_file: str | None = None) -> "Correction":
        """Keep everything, and add the work of a plan file as a child plan."""
        from cleveragents.history import append as appending
        from cleveragents.history.affected import Request

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

    def rollback(
        self,
        checkpoint: str,
        *,
        accept_loss: bool = False,
        choices: "Choices | None" = None,
        remember: "Remember | None" = None,
    ) -> RollbackResult:
        """Bring every sandbox and the plan back to a checkpoint.

        `choices`: of resources in place, what becomes of paths that somebody else changed too.
        `remember` turns the actor's state at that checkpoint into what the plan keeps.
        """
        from cleveragents.history import rollback as rolling

        plan, group = self._to_roll_back(checkpoint)
        return rolling.rollback(
            self._ctx,
            plan,
            group,
            accept_loss=accept_loss,
            choices=choices or rolling.PLAIN,
            remember=remember,
        )

    def restore(self, checkpoint: str, *only: str) -> RollbackResult:
        """Put back just these resources or paths, and leave the plan as it is."""
        from cleveragents.history.restore_paths import restore_only

        return restore_only(self._ctx, *self._to_roll_back(checkpoint), only)

    def preview_rollback(
        self, checkpoint: str, *only: str, choices: "Choices | None" = None
    ) -> RollbackResult:
        """What `rollback`, or `restore` of just these, would do; changes nothing."""
        from cleveragents.history import restore_paths, rollback

        plan, group = self._to_roll_back(checkpoint)
        if only:
            return restore_paths.preview_only(self._ctx, plan, group, only)
        return rollback.preview(self._ctx, plan, group, choices or rollback.PLAIN)

    def _to_roll_back(self, checkpoint: str) -> tuple[Plan, CheckpointGroup]:
        plan = self.plan
        require_rollback(plan)
        return plan, find_group(self._ctx.store, plan, checkpoint)

    def shell(self, *argv: str, on: str | None = None) -> "Shell":
        """Run a shell in the sandbox of a resource; what it changes is one step.

        `Talk.attach` of `open_workspace` gives it this process's terminal.
        """
        from cleveragents.history.shell import work_in_shell

        return work_in_shell(self._ctx, self.plan_id, argv, on)

    def undo(self, *, accept_loss: bool = False, remember: "Remember | None" = None) -> "Undone":
        """Cancel the last operation as a whole."""
        from cleveragents.history import undo

        return undo.undo(self._ctx, self.plan, accept_loss=accept_loss, remember=remember)

    def redo(self, *, accept_loss: bool = False, remember: "Remember | None" = None) -> "Undone":
        """Do again what `undo` cancelled."""
        from cleveragents.history import undo

        return undo.redo(self._ctx, self.plan, accept_loss=accept_loss, remember=remember)

    def preview_undo(self, *, redo: bool = False) -> "Undone":
        """What `undo`, or `redo`, would do; changes nothing."""
        from cleveragents.history import undo

        return undo.preview(self._ctx, self.plan, redo)

    def retry_compensations(self) -> "tuple[Effect, ...]":
        """Run the compensations that failed once more."""
        from cleveragents.execution.compensation import retry_failed

        return retry_failed(self._ctx, self.plan)

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
        """Apply the work to its targets, all of them or none, exactly once.

        Where another machine that shares the store has them, a worker there does, and is waited
        for; without one the error names the machine and what to type there.
        """
        from cleveragents.apply import apply as applying
        from cleveragents.execution.caller_executor import completes_when_applied

        request = applying.Request(mode=mode, ignored=ignored, hooks=hooks)
        if host := self.machine_that_applies():
            from cleveragents.cluster.apply_there import apply_there

            return apply_there(self._ctx, self.plan, host, request)
        if completes_when_applied(self.plan):
            self.complete()
        return applying.apply(self._ctx, self.plan, request)

    def machine_that_applies(self) -> str:
        """The machine whose workers have to, because it has the targets; empty: it is this one.

        Raises `ApplyRefused` if it is one where nobody takes jobs.
        """
        if not self._ctx.store.is_shared or self.plan.result is not None:
            return ""
        from cleveragents.cluster.apply_there import worker_with_targets

        return worker_with_targets(self._ctx, self.plan)

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
