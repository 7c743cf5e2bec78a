"""The collaborators of all verbs: built once, in `open_workspace`, and passed to each."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from cleveragents import machine
from cleveragents.checkpoints.manager import CheckpointManager
from cleveragents.checkpoints.service import CheckpointService
from cleveragents.content import fsio, removal
from cleveragents.errors import CarryLimit
from cleveragents.lease import LeasedPlan
from cleveragents.model.ids import new_id
from cleveragents.model.settings import Settings
from cleveragents.model.tool import Attach, ToolResult
from cleveragents.store import Store
from cleveragents.store.clock import utc_now


def refuse_large(problem: str, hint: str) -> None:
    raise CarryLimit(problem, hint)


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """A verb's channel to its caller: progress, warnings, and questions above a limit."""

    tell: Callable[[str, dict[str, Any]], None] = lambda _event, _data: None
    confirm: Callable[[str, str], None] = refuse_large
    idle: Callable[[], None] = lambda: None
    """Called again and again while a tool's process runs."""
    attach: Attach = Attach.NOTHING
    """What of the caller's own the tools have."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    store: Store
    manager: CheckpointManager
    checkpoints: CheckpointService
    talk: Talk
    another: Callable[[], AbstractContextManager["Context"]]
    """A context of its own on the same store, for another thread."""
    execute: Callable[["Context", str], None]
    """Run a plan to its end: what `agents plan execute` does."""
    execute_child: Callable[["Context", str], None]
    """The same for a child plan beside others, which somebody else may run."""
    reconcile: Callable[["Context", LeasedPlan], None]
    """Restore what another boot left in a plan's sandboxes."""
    take_over: Callable[["Context", str], None]
    """Finish what a machine that is gone left in a plan."""
    settle: Callable[["Context", LeasedPlan, str], None]
    """End what an agent that is gone left open, or refuse while it works; told the verb."""
    internal_tools: Mapping[str, Callable[..., ToolResult]]
    """Tools of steps that only our own plans have; called with the context and the leased plan."""
    now: Callable[[], str] = utc_now
    stop: Callable[[], None] = lambda: None
    """Asked again and again while a plan runs; raises if it has to stop."""

    @property
    def staging(self) -> str:
        return f"{self.settings.home}/staging"

    @contextmanager
    def scratch(self) -> Generator[str]:
        """A temporary folder for the block; outside the store if that cannot be written."""
        if self.store.read_only:
            import tempfile

            with tempfile.TemporaryDirectory(prefix="cleveragents-") as folder:
                yield folder
            return
        folder = f"{self.staging}/cleveragents-{new_id()}"
        fsio.make_private_dir(folder)
        try:
            yield folder
        except OSError as error:
            if error.errno in machine.FULL:
                raise machine.of_os(error, folder) from error
            raise
        finally:
            removal.remove_tree(folder)
