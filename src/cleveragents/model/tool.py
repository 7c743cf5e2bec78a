"""What a tool says of itself, and what one call of it gave."""

from enum import StrEnum
from typing import Any

import msgspec

DEFAULT_TIMEOUT = 600.0


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared tool; exactly one of `run`, `python`, `sql` says how it is called."""

    name: str
    description: str = ""
    run: tuple[str, ...] | str | None = None
    python: str | None = None
    sql: str | None = None
    builtin: str | None = None
    writes: bool = True
    read_only: bool = False
    checkpointable: bool | None = None
    checkpoint_scope: str | None = None
    """What it may change: `plan`, any resource; `resource`, only that of its step."""
    write_scope: tuple[str, ...] = ()
    """Paths and patterns in the step's resource; it may change nothing else. Empty: anything."""
    side_effects: tuple[str, ...] = ()
    compensate: tuple[str, ...] | str | None = None
    idempotent: bool = False
    unsafe: bool = False
    timeout: float = DEFAULT_TIMEOUT
    network: bool = True
    env: dict[str, str] = {}

    @property
    def is_checkpointed(self) -> bool:
        """Whether groups are made around it: as declared, else if it writes."""
        return self.writes if self.checkpointable is None else self.checkpointable


class Attach(StrEnum):
    """What of its caller's a tool's process has."""

    NOTHING = ""
    INPUT = "input"
    ALL = "all"
    """Also the output, which is kept anyway, and the terminal if there is one."""


class CallState(StrEnum):
    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; `output` is the bounded text that is kept."""

    ok: bool
    state: CallState
    output: str
    output_bytes: int
    exit_code: int | None = None
    error: str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `tool_calls`."""

    call_id: str
    plan_id: str
    step_id: str
    attempt: int
    tool: str
    inputs: dict[str, Any]
    state: CallState
    exit_code: int | None = None
    output: str = ""
    output_bytes: int = 0
    error: str | None = None
    started_at: str
    ended_at: str | None = None
    decision_id: str | None = None
    """The decision in force for the step when it was called."""
    group_id: str | None = None
    """The group from before the call."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did to one path, kept as long as the plan."""

    plan_id: str
    step_id: str
    call_id: str
    resource_id: str
    path: bytes
    before: str
    after: str
