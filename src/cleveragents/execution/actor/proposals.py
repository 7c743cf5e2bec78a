"""Checks an actor's proposals as strictly as a plan file."""

import os
from collections.abc import Collection

import msgspec

from cleveragents.actors.protocol import StepProposal, SubplanProposal
from cleveragents.context import Context
from cleveragents.errors import UsageError
from cleveragents.execution.preflight import impossible
from cleveragents.execution.use import read_child
from cleveragents.lease import LeasedPlan
from cleveragents.model.plan_spec import PlanSpec, StepSpec, SubplanSpec
from cleveragents.model.triggers import nearest
from cleveragents.planfile import parse_steps
from cleveragents.sandbox.registry import kinds
from cleveragents.tools import check_inputs, resolve_tool


def checked_step(
    asked: StepProposal, plan: PlanSpec, step_id: str, known: Collection[str]
) -> StepSpec:
    """The proposed step, under this id; `known`: the plan's steps."""
    if (asked.tool is None) == (asked.run is None):
        raise UsageError("a step has either 'tool' or 'run'")
    if asked.run is not None and asked.inputs:
        raise UsageError("'with' is for a 'tool' only")
    name, inputs = asked.tool or "", asked.inputs
    if asked.run is not None:
        is_text = isinstance(asked.run, str)
        name = "shell" if is_text else "run"
        inputs = {"command": asked.run} if is_text else {"argv": list(asked.run)}
    tool = resolve_tool(name, plan.tools)
    if problems := check_inputs(tool, inputs):
        raise UsageError("; ".join(problems))
    for need in asked.needs:
        if need not in known:
            raise UsageError(f"unknown step {need!r} in 'needs'{nearest(need, known)}")
    spec = StepSpec(
        id=step_id,
        tool=name,
        on=_resource(asked.on, plan),
        inputs=inputs,
        needs=asked.needs,
        checkpoint=asked.checkpoint,
        timeout=asked.timeout,
        on_failure=asked.on_failure,
        retries=asked.retries,
    )
    _require_possible(plan, (spec,))
    return spec


def checked_child(ctx: Context, leased: LeasedPlan, asked: SubplanProposal) -> SubplanSpec:
    """The proposed child plan, read from its file or its steps."""
    plan, spec = leased.plan, leased.spec
    if (asked.file is None) is (not asked.steps):
        raise UsageError("a subplan has either 'file' or 'steps'")
    if asked.file is not None:
        read = read_child(ctx, plan, os.path.join(plan.plan_dir, asked.file))
        return SubplanSpec(file=read.path, plan=read.spec)
    text = msgspec.json.encode({"steps": asked.steps}).decode()
    steps = parse_steps(text, "the child plan", plan.plan_dir, spec, kinds())
    _require_possible(spec, steps)
    return SubplanSpec(steps=steps)


def _require_possible(plan: PlanSpec, steps: tuple[StepSpec, ...]) -> None:
    """The checks that preflight makes on steps of a plan file."""
    if problems := impossible(msgspec.structs.replace(plan, steps=steps)):
        raise UsageError("; ".join(problems))


def _resource(name: str | None, plan: PlanSpec) -> str:
    known = [resource.name for resource in plan.resources]
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise UsageError(f"'on' is missing, name one of: {', '.join(known)}")
    if name not in known:
        raise UsageError(f"unknown resource {name!r}{nearest(name, known)}")
    return name
