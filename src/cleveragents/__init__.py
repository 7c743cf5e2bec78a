"""Run an agent's plan in sandboxes; checkpoint, roll back, resume and apply it as a whole."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cleveragents.checkpoints.manager import CheckpointManager
    from cleveragents.checkpoints.service import CheckpointService
    from cleveragents.errors import AgentsError, ToolFailed
    from cleveragents.execution.caller_executor import OpenDecision
    from cleveragents.execution.executor import PlanExecutor
    from cleveragents.model.checkpoint import (
        Checkpoint,
        CheckpointGroup,
        RollbackResult,
        SandboxCheckpoint,
    )
    from cleveragents.model.retention import CheckpointRetentionPolicy
    from cleveragents.model.tool import ToolResult
    from cleveragents.plan_handle import PlanHandle
    from cleveragents.store import CheckpointRepository
    from cleveragents.workspace import Workspace, open_workspace

__all__ = [
    "AgentsError",
    "Checkpoint",
    "CheckpointGroup",
    "CheckpointManager",
    "CheckpointRepository",
    "CheckpointRetentionPolicy",
    "CheckpointService",
    "OpenDecision",
    "PlanExecutor",
    "PlanHandle",
    "RollbackResult",
    "SandboxCheckpoint",
    "ToolFailed",
    "ToolResult",
    "Workspace",
    "open_workspace",
]

_HOME = {
    "AgentsError": "errors",
    "Checkpoint": "model.checkpoint",
    "CheckpointGroup": "model.checkpoint",
    "CheckpointManager": "checkpoints.manager",
    "CheckpointRepository": "store",
    "CheckpointRetentionPolicy": "model.retention",
    "CheckpointService": "checkpoints.service",
    "OpenDecision": "execution.caller_executor",
    "PlanExecutor": "execution.executor",
    "PlanHandle": "plan_handle",
    "RollbackResult": "model.checkpoint",
    "SandboxCheckpoint": "model.checkpoint",
    "ToolFailed": "errors",
    "ToolResult": "model.tool",
    "Workspace": "workspace",
    "open_workspace": "workspace",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that commands start quickly."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """What a REPL offers: the public names, also those that were not used yet."""
    return [*__all__, "__version__"]
