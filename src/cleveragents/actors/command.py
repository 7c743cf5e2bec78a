"""An actor that is a program: it is started in the plan's folder and speaks JSON lines."""

import os
import shutil
from collections.abc import Sequence

from cleveragents.model.plan_spec import ActorSpec


def argv_of(spec: ActorSpec) -> Sequence[str]:
    return spec.command


def problem_with(spec: ActorSpec, folder: str) -> str | None:
    """Why it could not be started from the plan's folder, if so."""
    program = spec.command[0]
    where = os.path.join(folder, program) if "/" in program else shutil.which(program)
    if where is None or not os.path.isfile(where):
        return f"no such command: {program}"
    return None if os.access(where, os.X_OK) else f"not executable: {program}"
