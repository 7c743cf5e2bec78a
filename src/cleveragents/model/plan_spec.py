"""The plan file as frozen values, after it was read and found right. See `planfile` for reading."""

from enum import StrEnum
from typing import Any

import msgspec

from cleveragents.model.plan import OnFailure
from cleveragents.model.resource import Carry
from cleveragents.model.tool import ToolSpec


class ApplyAs(StrEnum):
    COMMIT = "commit"
    CHANGES = "changes"
    BRANCH = "branch"


class ResourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    path: str = ""
    """Absolute and resolved for kinds that are files; empty for what has a url."""
    url: str = ""
    """As it is stored: without secrets, and of a git repository with the branch."""
    branch: str = ""
    strategy: str | None = None
    carry: Carry = Carry.ALL
    exclude: tuple[str, ...] = ()
    require_sandbox: bool = True


class DecisionSpec(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    chosen: str
    alternatives: tuple[str, ...] = ()
    rationale: str = ""
    confidence: float | None = None
    parent: str | None = None
    influences: tuple[str, ...] = ()


class SubplanSpec(msgspec.Struct, frozen=True, kw_only=True):
    file: str | None = None
    steps: tuple["StepSpec", ...] = ()
    group: str | None = None
    needs: tuple[str, ...] = ()
    plan: "PlanSpec | None" = None
    """The plan in `file`, read when the parent's was."""


class StepSpec(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tool: str
    """A declared tool or a built-in; the short form `run:` has `shell` (string) or `run` (argv)."""
    on: str | None = None
    inputs: dict[str, Any] = {}
    """The step's `with`; for the short form {"command": text} or {"argv": [...]}."""
    decision: DecisionSpec | str | None = None
    needs: tuple[str, ...] = ()
    checkpoint: str | None = None
    timeout: float | None = None
    on_failure: OnFailure | None = None
    retries: int | None = None
    subplan: SubplanSpec | None = None


class KeepSpec(msgspec.Struct, frozen=True, kw_only=True):
    last: int | None = None
    within: str | None = None
    bytes: int | None = None


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    on_failure: OnFailure = OnFailure.ROLLBACK_STEP
    max_retries_per_step: int | None = None
    require_checkpoints: bool = True
    rollback_enabled: bool = True
    max_checkpoints_per_plan: int | None = None
    auto_create_on: tuple[str, ...] | None = None
    """Canonical trigger names; None = the setting decides."""
    keep: KeepSpec = KeepSpec()
    max_parallel: int = 4
    fail_fast: bool = True
    allow_unsafe: bool = False
    confine: str | None = None


class ValidateSpec(msgspec.Struct, frozen=True, kw_only=True):
    run: tuple[str, ...] | str
    on: str | None = None
    timeout: float | None = None


class ApplySpec(msgspec.Struct, frozen=True, kw_only=True):
    as_: ApplyAs | None = None
    message: str | None = None
    ignored: bool = False


OBSERVED = "observed"
"""The kind of an agent that does its work itself and says so before and after."""


class ActorSpec(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = "steps"
    target: str | None = None
    command: tuple[str, ...] = ()
    model: str = ""
    """`provider:name`."""
    goal: str = ""
    max_steps: int = 50
    """What a model may do before somebody says `resume`; and how many tokens it may cost."""
    max_tokens: int = 500_000


LONGEST_NAME = 200


class PlanSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """At most `LONGEST_NAME` characters."""
    description: str = ""
    resources: tuple[ResourceSpec, ...]
    tools: dict[str, ToolSpec] = {}
    policy: PolicySpec = PolicySpec()
    steps: tuple[StepSpec, ...]
    """In the order they run: the file's order, moved only where `needs` asks for it."""
    validate: tuple[ValidateSpec, ...] = ()
    apply: ApplySpec = ApplySpec()
    actor: ActorSpec = ActorSpec()
