"""An actor that is a Python callable, in a process of its own: we never import it here."""

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

from cleveragents.actors import pyactor
from cleveragents.model.plan_spec import ActorSpec


def argv_of(spec: ActorSpec) -> Sequence[str]:
    # Without -B and -P it would write `__pycache__` and import what lies beside pyactor.
    return sys.executable, "-B", "-P", pyactor.__file__, spec.target or ""


def problem_with(spec: ActorSpec, folder: str) -> str | None:
    """Why its module would not be found; looks at paths, imports nothing."""
    name = (spec.target or "").partition(":")[0]
    places: Sequence[str] | None = [folder, *sys.path]
    whole = ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        found = PathFinder.find_spec(whole, places)
        if found is None:
            return f"no module {whole!r} in {folder} or where Python looks"
        places = found.submodule_search_locations or []
    return None
