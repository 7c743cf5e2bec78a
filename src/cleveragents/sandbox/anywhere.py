"""What works from a stored state alone, on a machine that does not have the user's resource."""

from typing import Any, Protocol, runtime_checkable

from cleveragents.model.checkpoint import SandboxCheckpoint

MACHINE_FILES = "machine_files"
"""In an origin: paths that differ from machine to machine, and are never captured."""


@runtime_checkable
class CreatesFromState(Protocol):
    """A kind whose private copy can be made from the store alone."""

    def create_at(self, state: SandboxCheckpoint, staging: str) -> dict[str, Any]:
        """Make the private copy hold that state; returns the origin as it is on this machine.

        `staging` is a directory beside it that may be used, and is removed afterwards.
        """
        ...


@runtime_checkable
class ReportsContents(Protocol):
    """A kind that can count what a state holds."""

    def contents(self, state: SandboxCheckpoint, scratch: str) -> dict[str, int]:
        """Plural of what is counted -> how many: files; tables and rows. `scratch` is empty."""
        ...
