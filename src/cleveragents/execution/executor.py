"""Run a plan's steps in its sandboxes, with a checkpoint group at every decision."""

import msgspec

from cleveragents.checkpoints.create import CheckpointRequest
from cleveragents.errors import AgentsError
from cleveragents.execution.preflight import confinement_warnings
from cleveragents.execution.sandboxes import make_sandboxes
from cleveragents.execution.steps.children import ChildStepExecutor
from cleveragents.execution.tool_call import (
    bounds_of,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.model.decision import Decision, DecisionKind
from cleveragents.model.ids import new_id
from cleveragents.model.journal import Ending, EntryState, JournalEntry, Operation
from cleveragents.model.plan import Failure, Phase, State, StepState
from cleveragents.model.units import plural
from cleveragents.tools.runner import end_leftovers, remove_temporary


class PlanExecutor(ChildStepExecutor):
    """Executes one plan that this process has leased."""

    def strategize(self) -> None:
        """Record the root decision; touches no resource."""
        leased = self._leased
        if leased.plan.phase is not Phase.STRATEGIZE:
            return
        leased.commit(state=State.PROCESSING)
        if self._root_decision() is None:
            self._record_root()
        leased.commit(state=State.COMPLETE)
        leased.commit(phase=Phase.EXECUTE, state=State.QUEUED)

    def _record_root(self) -> None:
        leased = self._leased
        root = Decision(
            decision_id=new_id(),
            plan_id=leased.plan.plan_id,
            kind=DecisionKind.ROOT,
            question=leased.plan.name,
            chosen=self._strategy(),
            rationale=leased.spec.description,
            phase=Phase.STRATEGIZE,
            attempt=leased.plan.attempt,
            created_at=self._ctx.now(),
        )
        leased.commit(decisions=(root,), view_changed=True)

    def _strategy(self) -> str:
        return plural(len(self._steps), "step")

    def prepare(self) -> None:
        """Make the sandboxes, and the group from before the first write."""
        leased = self._leased
        make_sandboxes(self._ctx, leased)
        self._ctx.manager.follow(leased.plan.plan_id)
        end_leftovers(leased.plan.plan_id)
        opened = self._ctx.manager.sandboxes(leased.plan.plan_id).opened.values()
        remove_temporary(
            f"{self._ctx.settings.sandboxes}/{leased.plan.plan_id}",
            [sandbox.place.ours for sandbox in opened],
        )
        confine = self._ctx.settings.confine
        for text in confinement_warnings(leased.spec, bounds_of(self._ctx, leased), confine):
            self._ctx.talk.tell("warning", {"message": text})
        if not leased.plan.rollback_enabled and not self._ctx.checkpoints.origins(
            leased.plan.plan_id
        ):
            self._ctx.checkpoints.keep_origins(leased)
        self._ctx.checkpoints.auto_create_if_configured(CheckpointType.PRE_EXECUTE, leased)

    def execute(self, operation: Operation, entry: JournalEntry | None = None) -> None:
        """Run every undone step. A failure leaves the plan errored and resumable.

        `entry`: an earlier operation that ends with this.
        """
        leased = self._leased
        entry = entry or leased.opened(operation)
        with leased.transaction():
            self._ctx.store.journal.put(entry)
            leased.write(phase=Phase.EXECUTE, state=State.PROCESSING, error=None)
        try:
            if self._work():
                self._complete(entry)
            else:
                self._close(entry, Ending.FAILED)
        except KeyboardInterrupt:
            self._interrupted(entry)
            raise
        except AgentsError as error:
            self._stop(type(error).__name__, error.message, entry, error.hint)
            raise

    def _work(self) -> bool:
        """Do all work; False if it failed and the plan stopped."""
        for number in range(len(self._steps)):
            self._ctx.stop()
            if not self._steps[number].done and not self._run(number):
                return False
        return True

    def _complete(self, entry: JournalEntry) -> None:
        leased = self._leased
        self._ctx.checkpoints.auto_create_if_configured(
            CheckpointType.POST_EXECUTE,
            leased,
            CheckpointRequest(plan={"state": State.COMPLETE}),
        )
        self._close(entry)

    def _close(self, entry: JournalEntry, ending: Ending = Ending.DONE) -> None:
        plan, store = self._leased.plan, self._ctx.store
        with self._leased.transaction():
            store.journal.put(self._leased.closed(entry, outcome=str(ending)))
            store.corrections.end(plan, self._ctx.now())

    def _stop(self, kind: str, message: str, entry: JournalEntry, hint: str = "") -> None:
        leased = self._leased
        hint = hint or f"agents plan resume {leased.plan.plan_id}"
        ended = leased.closed(entry, outcome=str(Ending.FAILED))
        self._end(Failure(kind, message, hint), ended)

    def _interrupted(self, entry: JournalEntry) -> None:
        """Stopped by the user. The step's changes stay until a resume undoes them."""
        leased = self._leased
        failure = Failure(
            "Interrupted",
            "interrupted by the user",
            f"agents plan resume {leased.plan.plan_id}",
            next((s.step_id for s in self._steps if s.state is StepState.PROCESSING), None),
        )
        self._end(failure, leased.closed(entry, EntryState.INTERRUPTED))
        done = sum(step.done for step in self._steps)
        told = {"plan_id": leased.plan.plan_id, "step": failure.step, "done": done}
        self._ctx.talk.tell("interrupted", {**told, "of": len(self._steps)})

    def _end(self, failure: Failure, entry: JournalEntry) -> None:
        leased, store = self._leased, self._ctx.store
        with leased.transaction():
            leased.write(state=State.ERRORED, error=failure)
            store.journal.put(msgspec.structs.replace(entry, after=leased.moment()))
            store.calls.interrupt(leased.plan.plan_id, self._ctx.now())
