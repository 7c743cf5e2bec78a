"""What a machine has to have to run a plan: programs and environment variables (pure)."""

import os
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from cleveragents.model.plan_spec import PlanSpec
from cleveragents.model.resource import Resource
from cleveragents.sandbox.postgres.address import VARIABLE


def missing(
    spec: PlanSpec,
    resources: list[Resource],
    environ: Mapping[str, str],
    which: Callable[[str], str | None],
) -> list[str]:
    """The missing programs and variables, in words."""
    programs = {name for name in _programs(spec) if os.path.basename(name) == name}
    variables = {name for item in resources for name in _variables(item.path)}
    return [
        *(f"{name} is not installed" for name in sorted(programs) if which(name) is None),
        *(f"{name} is not set" for name in sorted(variables - environ.keys())),
    ]


def _programs(spec: PlanSpec) -> list[str]:
    """Of commands that are lists; a shell's own words say nothing."""
    found = [
        tool.run[0] for tool in spec.tools.values() if isinstance(tool.run, tuple) and tool.run
    ]
    found += [check.run[0] for check in spec.validate if isinstance(check.run, tuple)]
    found += spec.actor.command[:1]
    for step in spec.steps:
        found += step.inputs.get("argv", ())[:1] if step.tool == "run" else ()
        if step.subplan is not None and step.subplan.plan is not None:
            found += _programs(step.subplan.plan)
    return found


def _variables(path: str) -> list[str]:
    """Those that the text of the plan file names in a URL, which is kept behind the `#`."""
    _, sign, written = path.rpartition("#")
    named = VARIABLE.finditer(unquote(written)) if sign else ()
    return [found[2] or found[3] for found in named if not found[1]]
