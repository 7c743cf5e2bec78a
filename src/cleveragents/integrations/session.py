"""The plan of a session, over the repository or directory that the agent works in."""

import os
from collections.abc import Mapping

from cleveragents.context import Context
from cleveragents.errors import NotAllowed
from cleveragents.model.conversation import Anchor
from cleveragents.model.plan import Plan
from cleveragents.model.plan_spec import OBSERVED, ActorSpec, PlanSpec, ResourceSpec
from cleveragents.model.resource import IN_PLACE
from cleveragents.sandbox.recognize import around, kind_at

MAIN = "work"
"""What the repository or directory is called in the plan."""


def session_plan(
    ctx: Context, anchor: Anchor, cwd: str, strategy: str | None, extra: Mapping[str, str]
) -> Plan:
    """A plan that follows a session; `extra`: name -> path of what else it covers."""
    from cleveragents.execution.preflight import preflight
    from cleveragents.execution.use import use_plan

    spec = session_spec(anchor.agent, cwd, strategy, extra)
    preflight(ctx, spec, f"session {anchor.session_id}", spec.resources[0].path)
    return use_plan(ctx, spec, source_path="", source_text="", plan_dir=spec.resources[0].path)


def session_spec(agent: str, cwd: str, strategy: str | None, extra: Mapping[str, str]) -> PlanSpec:
    top, kind = around(_folder(cwd))
    _require_narrow(top)
    resources = [ResourceSpec(name=MAIN, kind=kind, path=top, strategy=strategy)]
    resources += [_resource(name, path, top, strategy) for name, path in extra.items()]
    return PlanSpec(
        name=agent,
        description=f"a session of {agent} in {top}",
        resources=tuple(resources),
        steps=(),
        actor=ActorSpec(kind=OBSERVED, target=agent),
    )


def is_in_place(plan: Plan) -> bool:
    """Whether the plan's agent works in place."""
    return plan.spec["resources"][0].get("strategy") == IN_PLACE


def _folder(cwd: str) -> str:
    where = os.path.realpath(cwd)
    if not os.path.isdir(where):
        raise NotAllowed(f"the agent works in {cwd}, which is not a directory")
    return where


def _require_narrow(top: str) -> None:
    home = os.path.realpath(os.path.expanduser("~"))
    if top in ("/", home):
        raise NotAllowed(
            f"{top} is too wide: nothing of this session is checkpointed",
            "start the agent in a project's folder",
        )


def _resource(name: str, path: str, top: str, strategy: str | None) -> ResourceSpec:
    where = os.path.realpath(os.path.join(top, os.path.expanduser(path)))
    if os.path.isdir(where):
        _require_narrow(where)
        return ResourceSpec(name=name, kind=kind_at(where), path=where, strategy=strategy)
    own = strategy if strategy == IN_PLACE else None
    return ResourceSpec(name=name, kind=kind_at(where), path=where, strategy=own)
