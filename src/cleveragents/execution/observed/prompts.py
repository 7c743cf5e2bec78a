"""Prompts as decisions and operations: what the steps of an observed plan depend on."""

from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.execution.executor import PlanExecutor
from cleveragents.model.decision import Decision, DecisionKind, DecisionState
from cleveragents.model.ids import new_id
from cleveragents.model.journal import EntryState, JournalEntry, Operation
from cleveragents.model.plan_spec import StepSpec

LARGEST_CHOSEN = 2000
SHOWN = 200
BESIDE = (Operation.CHECKPOINT, Operation.PRUNE)
"""What may happen in the middle of an operation without ending it."""
MOST_BESIDE = 20


def first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:SHOWN] if lines else ""


class PromptedExecutor(PlanExecutor):
    """Assigns calls to their prompt and sub-agent."""

    def close(self) -> None:
        """End the open operation at the plan's current group."""
        self._leased.end_operations()

    def _decision(self, question: str, parent: str | None, rationale: str = "") -> Decision:
        return Decision(
            decision_id=new_id(),
            plan_id=self._leased.plan.plan_id,
            kind=DecisionKind.ACTOR,
            question=question,
            chosen="",
            parent_id=parent,
            rationale=rationale,
            attempt=self._leased.plan.attempt,
            created_at=self._ctx.now(),
        )

    def _decision_for(self, parent_call: str) -> str | None:
        if parent_call:
            return self._below(parent_call).decision_id
        return self._current() or self._root_decision()

    def _below(self, parent: str, text: str = "") -> Decision:
        """A sub-agent's decision, below the prompt or call that it works for."""
        whose = f"sub-agent {parent}"
        known = self._ctx.store.plans.decisions(self._leased.plan.plan_id)
        for decision in known[::-1]:
            if decision.rationale == whose and decision.state is DecisionState.ACTIVE:
                return decision
        call = next((step for step in self._steps[::-1] if step.spec.get("call") == parent), None)
        above = call.decision_id if call is not None else self._current()
        inputs = codec.convert(call.spec, StepSpec).inputs if call is not None else {}
        said = text or str(inputs.get("description") or inputs.get("prompt") or "sub-agent")
        decision = self._decision(said, above or self._root_decision(), whose)
        self._leased.commit(decisions=(decision,), view_changed=True)
        return decision

    def _told_before(self, text: str, state: Any) -> Decision | None:
        """Whether this is a repeated prompt that got no answer the first time."""
        entry = self._entry()
        plan = self._leased.plan
        if entry is None or entry.state is not EntryState.OPEN or state != plan.actor_state:
            return None
        known = self._ctx.store.plans.decisions(plan.plan_id)
        return next(
            (
                item
                for item in known
                if item.decision_id == entry.detail.get("decision") and item.question == text
            ),
            None,
        )

    def _entry(self) -> JournalEntry | None:
        """The current operation: the newest, if nothing was undone since."""
        for entry in self._ctx.store.journal.last(self._leased.plan.plan_id, MOST_BESIDE)[::-1]:
            if entry.operation not in BESIDE:
                return entry if entry.operation is Operation.PROMPT else None
        return None

    def _current(self) -> str | None:
        entry = self._entry()
        return entry.detail.get("decision") if entry is not None else None

    def _continue_operation(self, anew: bool = False) -> None:
        """Reopen the prompt's operation if it was closed; `anew`: or start one without a prompt.

        The rest of the same commit is part of it, even if a recovery has ended it.
        """
        entry = self._entry()
        if entry is None and anew:
            entry = self._leased.opened(Operation.PROMPT, prompt="")
        elif entry is None or entry.state is EntryState.OPEN:
            return
        self._ctx.store.journal.put(
            msgspec.structs.replace(entry, state=EntryState.OPEN, ended_at=None)
        )

    def _answered(self, said: str) -> tuple[Decision, ...]:
        """The prompt's decision, with the agent's final answer."""
        current = self._current()
        if not said or current is None:
            return ()
        known = self._ctx.store.plans.decisions(self._leased.plan.plan_id)
        found = next((item for item in known if item.decision_id == current), None)
        chosen = said[:LARGEST_CHOSEN]
        if found is None or found.chosen == chosen:
            return ()
        return (msgspec.structs.replace(found, chosen=chosen),)
