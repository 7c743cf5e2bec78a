"""The part of a plan's Python API for programs that perform or propose its steps themselves."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cleveragents.context import Context
from cleveragents.model.plan_spec import OBSERVED

if TYPE_CHECKING:
    from cleveragents.execution.caller_executor import OpenDecision
    from cleveragents.execution.observed.plan import ObservedPlan, ObservedStep


class CallersPlan:
    """A plan that the caller works on; `PlanHandle` has the other verbs."""

    def __init__(self, ctx: Context, plan_id: str) -> None:
        self._ctx = ctx
        self.plan_id = plan_id
        self._observed: ObservedPlan | None = None

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

    @contextmanager
    def step(
        self,
        tool: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        on: str | None = None,
        writes: bool = True,
        outside: bool = False,
    ) -> Generator["ObservedStep"]:
        """Note what the block does in the sandboxes, or in place, as one step of the plan.

        For a plan made by `Workspace.plan` and for observed ones. An exception makes it a step
        that failed and goes on; nothing is rolled back. `writes=False`: it changes no file;
        `outside=True`: it may act on the world outside, which is listed as not known. Blocks may
        overlap: what they write together is kept with the last of them.
        """
        from cleveragents.execution.observed.executor import CallRequest
        from cleveragents.execution.observed.plan import observed_step

        given = dict(inputs or {})
        request = CallRequest(
            key="", tool=tool, inputs=given, on=on, writes=writes, outside=outside
        )
        with observed_step(self._followed(), request) as step:
            yield step

    def prompt(self, text: str, state: Any = None) -> str:
        """A decision that the steps from now on depend on; `undo` takes it back with all of them.

        `state`: the program's own memory as of before it, as JSON. Returns the decision's id.
        """
        observed = self._followed()
        with observed.taken("prompt") as executor:
            return executor.prompt(text, state).decision_id

    def record_decision(
        self,
        question: str,
        chosen: str,
        *,
        alternatives: Sequence[str] = (),
        rationale: str = "",
        confidence: float | None = None,
    ) -> str:
        """A decision with a group and no steps; returns its id."""
        from cleveragents.actors.protocol import DecisionProposal

        asked = DecisionProposal(
            question=question,
            chosen=chosen,
            alternatives=tuple(alternatives),
            rationale=rationale,
            confidence=confidence,
        )
        with self._followed().taken("record decision") as executor:
            return executor.decide(asked).decision_id

    def here(self, state: Any = None) -> str:
        """The id of the group that holds the files as they are now; made if there is none.

        `state`: the program's own memory as of now. While a step is open: the group before it.
        """
        with self._followed().taken("here") as executor:
            if not executor.open_calls:
                executor.quiet(state)
            return executor.leased.plan.head_group_id or ""

    def _followed(self) -> "ObservedPlan":
        from cleveragents.execution.observed.plan import ObservedPlan

        if self._observed is None:
            self._observed = ObservedPlan(self._ctx, self.plan_id)
        return self._observed

    def complete(self) -> None:
        """Say that a plan made by `Workspace.plan` is done; `apply` says it too."""
        from cleveragents.execution import caller_executor
        from cleveragents.execution.observed import plan as observed

        kind = self._ctx.store.plans.get(self.plan_id).spec["actor"]["kind"]
        (observed if kind == OBSERVED else caller_executor).complete(self._ctx, self.plan_id)
