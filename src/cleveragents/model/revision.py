"""What a changed plan file changes. Pure: compares the plan as it was understood both times."""

from collections.abc import Callable

import msgspec

from cleveragents.errors import NotAllowed
from cleveragents.model.plan_spec import PlanSpec, StepSpec
from cleveragents.model.tool import ToolSpec


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of steps, in the order of the file they are in."""

    changed: tuple[str, ...]
    """In both files, and not the same, nor is the tool they call."""
    removed: tuple[str, ...]
    added: tuple[str, ...]


def revised(old: PlanSpec, new: PlanSpec, resolve: Callable[..., ToolSpec]) -> Revision:
    """`resolve(name, tools)` finds a tool by its name."""
    if _targets(old) != _targets(new):
        raise NotAllowed(
            "the changed plan file names other resources than the plan was made with",
            "register it as a new plan: agents plan use FILE",
        )
    if old.actor != new.actor:
        raise NotAllowed(
            "the changed plan file has another actor than the plan was made with",
            "register it as a new plan: agents plan use FILE",
        )
    before = {step.id: step for step in old.steps}
    after = {step.id: step for step in new.steps}

    def same(step: StepSpec) -> bool:
        if step != before[step.id]:
            return False
        if step.subplan is not None:
            return True
        return resolve(step.tool, old.tools) == resolve(step.tool, new.tools)

    return Revision(
        changed=tuple(s.id for s in new.steps if s.id in before and not same(s)),
        removed=tuple(name for name in before if name not in after),
        added=tuple(name for name in after if name not in before),
    )


def _targets(spec: PlanSpec) -> list[tuple[str, str, str]]:
    return sorted((item.name, item.kind, item.path or item.url) for item in spec.resources)
