"""Who proposes decisions and steps: see `protocol`.

The fixed list of a plan file needs nobody to talk to: its steps are rows of the store from the
beginning, and the executor runs them in order. A kind here is a module that says what to start.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cleveragents.actors import command, model, python
from cleveragents.model.plan_spec import OBSERVED, ActorSpec

__all__ = ["CALLER", "KINDS", "MODEL", "OBSERVED", "STEPS", "Kind", "private_variables"]

STEPS, CALLER = "steps", "caller"
"""The plan file's own list; a Python program that holds the plan open (`Workspace.plan`)."""
MODEL = "model"
"""Makes mistakes: it is told of a step that cannot be asked for, where a program is ended."""


class Kind(Protocol):
    def argv_of(self, spec: ActorSpec) -> Sequence[str]: ...

    def problem_with(self, spec: ActorSpec, folder: str) -> str | None: ...


KINDS: dict[str, Kind] = {"command": command, "python": python, MODEL: model}


def private_variables(
    spec: ActorSpec, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What of the environment only the actor is given, and what of that it must not repeat."""
    if spec.kind != MODEL:
        return {}, ()
    found = model.variables_of(spec, environ)
    return found, model.secrets_of(found)
