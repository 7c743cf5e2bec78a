"""What an actor and the executor say to each other; on a pipe, one JSON object per line.

An actor proposes and never acts: a decision is recorded before it is acted on, a step is run for
it in the sandbox, and `state` is its own memory, kept with each group and handed back in `start`.
"""

from typing import Annotated, Any, Protocol

import msgspec

from cleveragents.model.plan import OnFailure

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=200)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class StepDone(msgspec.Struct, frozen=True, kw_only=True, rename={"inputs": "with"}):
    """A done step, in the start message of an actor that starts again."""

    id: str
    tool: str
    on: str | None
    inputs: dict[str, Any]
    ok: bool = True
    output: str


class Start(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="start"):
    plan: dict[str, Any]
    guidance: tuple[str, ...]
    done: tuple[StepDone, ...]
    state: Any


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="result"):
    """How a step ended. After a failure `undone` says whether what it did was rolled back."""

    step: str
    ok: bool
    output: str
    error: str | None = None
    undone: bool = False


class _Proposal(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    pass


class DecisionProposal(_Proposal, frozen=True, tag="decision"):
    question: str
    chosen: str = ""
    id: Name | None = None
    """What the actor calls it; for `decision`, `parent` and `influences` of what it asks later."""
    alternatives: tuple[str, ...] = ()
    rationale: str = ""
    confidence: Fraction | None = None
    parent: str | None = None
    influences: tuple[str, ...] = ()


class StepProposal(_Proposal, frozen=True, tag="step", rename={"inputs": "with"}):
    """A step as in a plan file; `decision` names one asked before, or an earlier step's."""

    tool: str | None = None
    run: str | tuple[str, ...] | None = None
    id: Name | None = None
    on: str | None = None
    inputs: dict[str, Any] = {}
    decision: str | None = None
    needs: tuple[str, ...] = ()
    checkpoint: str | None = None
    timeout: Seconds | None = None
    on_failure: OnFailure | None = None
    retries: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SubplanProposal(_Proposal, frozen=True, tag="subplan"):
    """A child plan: a plan file, or steps as in one; it ends before the next message is read."""

    id: Name | None = None
    file: str | None = None
    steps: tuple[dict[str, Any], ...] = ()
    decision: str | None = None


class RevertProposal(_Proposal, frozen=True, tag="revert"):
    """Back to strategize: everything is rolled back, and the actor starts over with the reason."""

    reason: str


class StateKept(_Proposal, frozen=True, tag="state"):
    state: Any


class Finished(_Proposal, frozen=True, tag="done"):
    pass


Answer = DecisionProposal | StepProposal | SubplanProposal | RevertProposal | StateKept | Finished


class Actor(Protocol):
    """Proposes decisions and steps. It is begun once; `tell` follows every step it asked for.

    Whatever goes wrong with it is an `ActorFailed`: it ended too early, said what cannot be
    understood, or did not answer in time.
    """

    def begin(self, start: Start) -> None: ...

    def ask(self) -> Answer:
        """What it proposes next."""
        ...

    def tell(self, outcome: Outcome) -> None: ...

    @property
    def where(self) -> str:
        """Where the last proposal came from, for errors."""
        ...


class Channel(Protocol):
    """A process at the other end of two pipes."""

    def send(self, line: bytes) -> None:
        """Give it a line; one that is gone gets none, and `receive` tells why."""
        ...

    def receive(self) -> bytes:
        """Its next line that is not blank; raises ActorFailed when none comes."""
        ...
