"""Who proposes decisions and steps: see `protocol`.

The fixed list of a plan file needs nobody to talk to: its steps are rows of the store from the
beginning, and the executor runs them in order. A kind here is a module that says what to start.
"""

from collections.abc import Sequence
from typing import Protocol

from cleveragents.actors import command, python
from cleveragents.model.plan_spec import ActorSpec

STEPS, CALLER = "steps", "caller"
"""The plan file's own list; and a Python program that holds the plan open (`Workspace.plan`)."""


class Kind(Protocol):
    def argv_of(self, spec: ActorSpec) -> Sequence[str]: ...

    def problem_with(self, spec: ActorSpec, folder: str) -> str | None: ...


KINDS: dict[str, Kind] = {"command": command, "python": python}
