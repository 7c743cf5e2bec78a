"""Registers a plan file: a new plan with its resources and steps; nothing runs yet."""

import os
from typing import Any

import msgspec

from cleveragents import codec
from cleveragents.context import Context
from cleveragents.errors import PlanFileError, UsageError
from cleveragents.model.ids import new_id
from cleveragents.model.journal import EntryState, JournalEntry, Moment, Operation
from cleveragents.model.plan import Plan, Step
from cleveragents.model.plan_spec import LONGEST_NAME, PlanSpec, ResourceSpec, StepSpec
from cleveragents.model.resource import Resource
from cleveragents.sandbox.registry import ALIASES, kinds


class PlanFile(msgspec.Struct, frozen=True):
    """A valid plan file."""

    path: str
    text: str
    spec: PlanSpec


def read_plan(ctx: Context, file: str) -> PlanFile:
    """Read a plan file; an invalid one is refused, naming all problems."""
    from cleveragents.execution.preflight import preflight, with_other_problems
    from cleveragents.planfile import read_plan_file

    try:
        spec, text = read_plan_file(file, kinds())
    except PlanFileError as error:
        raise with_other_problems(ctx, error, file) from None
    path = os.path.abspath(file)
    preflight(ctx, spec, file, os.path.dirname(path))
    return PlanFile(path, text, spec)


def read_child(ctx: Context, parent: Plan, file: str) -> PlanFile:
    """The same for a child plan, which has its parent's resources."""
    from cleveragents.execution.preflight import preflight
    from cleveragents.planfile import Above, read_plan_file

    above = codec.convert(parent.spec, PlanSpec)
    spec, text = read_plan_file(file, kinds(), Above(above.resources, (parent.source_path,)))
    path = os.path.abspath(file)
    preflight(ctx, spec, file, os.path.dirname(path))
    return PlanFile(path, text, spec)


def use_plan(
    ctx: Context,
    spec: PlanSpec,
    *,
    source_path: str,
    source_text: str,
    plan_dir: str,
    parent: "Parent | None" = None,
) -> Plan:
    if len(spec.name) > LONGEST_NAME:
        raise UsageError(
            f"the plan's name has {len(spec.name)} characters, at most {LONGEST_NAME} are allowed",
            "choose a shorter one: --name NAME",
        )
    plan_id, now = new_id(), ctx.now()
    plan = Plan(
        plan_id=plan_id,
        name=spec.name,
        rollback_enabled=spec.policy.rollback_enabled,
        parent_plan_id=parent.plan_id if parent else None,
        parent_step_id=parent.step_id if parent else None,
        plan_dir=plan_dir,
        source_path=source_path,
        source_text=source_text,
        spec=msgspec.to_builtins(spec),
        created_at=now,
        updated_at=now,
    )
    inherited = {item.name: item for item in parent.resources} if parent else {}
    resources = nest(
        [
            _inherited(plan_id, inherited[item.name])
            if item.name in inherited
            else _resource(plan_id, item, ctx.settings.home)
            for item in spec.resources
        ]
    )
    entry = JournalEntry(
        entry_id=new_id(),
        plan_id=plan_id,
        operation=Operation.USE,
        state=EntryState.DONE,
        before=Moment(None, 0),
        after=Moment(None, 0),
        detail={"file": source_path},
        started_at=now,
        ended_at=now,
    )
    with ctx.store.transaction():
        ctx.store.plans.add(plan, [step_of(plan_id, n, s) for n, s in enumerate(spec.steps)])
        ctx.store.resources.add(resources)
        ctx.store.journal.put(entry)
    return plan


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The parent plan and step of a child plan."""

    plan_id: str
    step_id: str
    resources: tuple[Resource, ...]
    """The parent's resources, each with its own sandbox as `source`."""


def _inherited(plan_id: str, resource: Resource) -> Resource:
    """The parent's resource for a child; tools see it under the same path."""
    return msgspec.structs.replace(
        resource, resource_id=new_id(), plan_id=plan_id, outer="", place=""
    )


def step_of(plan_id: str, index: int, spec: StepSpec) -> Step:
    body: dict[str, Any] = msgspec.to_builtins(spec)
    return Step(
        plan_id=plan_id, step_id=spec.id, index=index, tool=spec.tool, resource=spec.on, spec=body
    )


def _resource(plan_id: str, spec: ResourceSpec, home: str) -> Resource:
    strategies = kinds().get(spec.kind, ())
    wanted = spec.strategy or (strategies[0] if strategies else "")
    strategy = ALIASES.get(wanted, wanted)
    if strategy not in strategies:
        raise PlanFileError(
            (f"resource {spec.name!r}: {spec.kind} has no strategy {wanted!r}",),
            f"available: {', '.join(strategies) or 'none'}",
        )
    return Resource(
        resource_id=new_id(),
        plan_id=plan_id,
        name=spec.name,
        kind=spec.kind,
        path=spec.path or spec.url,
        strategy=strategy,
        carry=spec.carry,
        exclude=(*spec.exclude, *_store_in(spec.path, home)),
        require_sandbox=spec.require_sandbox,
    )


def _store_in(path: str, home: str) -> tuple[str, ...]:
    """The store's path in the resource, if it is there: it must not store itself."""
    place = os.path.relpath(os.path.realpath(home), path or "/nowhere")
    return () if place.startswith("..") or not path else (place,)


def nest(resources: list[Resource]) -> list[Resource]:
    """Record for each resource the one it is directly inside of, and where."""
    found: list[Resource] = []
    for item in resources:
        around = [
            other
            for other in resources
            if other is not item and item.path.startswith(other.path.rstrip("/") + "/")
        ]
        nearest = max(around, key=lambda other: len(other.path), default=None)
        if nearest is not None:
            place = os.path.relpath(item.path, nearest.path)
            item = msgspec.structs.replace(item, outer=nearest.name, place=place)
        found.append(item)
    return found
