"""Refuses a plan before anything starts, naming all problems at once."""

import os
from tempfile import TemporaryFile

import msgspec

from cleveragents import machine
from cleveragents.actors import CALLER, KINDS, OBSERVED, STEPS
from cleveragents.content.reserve import Reserve
from cleveragents.content.scope import Scope
from cleveragents.context import Context
from cleveragents.errors import AgentsError, DiskFull, NotAllowed, PlanFileError, UsageError
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec
from cleveragents.model.resource import IN_PLACE, Carry
from cleveragents.model.settings import confine_in_force
from cleveragents.sandbox.registry import (
    has_copy,
    is_captured,
    kinds,
    problems_of_kinds,
    traits_of,
)
from cleveragents.sandbox.wide import require_not_too_wide
from cleveragents.tools import BUILTINS, resolve_tool
from cleveragents.tools.builtin import runs_process
from cleveragents.tools.confinement.confine import (
    BWRAP,
    INSTALL,
    LANDLOCK,
    OFF,
    Bounds,
    can_cut_network,
    mechanism,
    why_not,
)
from cleveragents.tools.confinement.mounts import is_inside, mounted_at_own_paths

LEAST_FREE = 4 << 20
"""Bytes, apart from the reserve, without which nothing is begun."""
TURNED_OFF = "the plan file turns confinement off: its tools can write wherever you can"


def preflight(ctx: Context, spec: PlanSpec, source: str, folder: str = ".") -> None:
    """Refuse a plan with problems; `folder`: the plan file's, where its actor would start."""
    problems = problems_with(ctx, spec, source, folder)
    places = _places(ctx)
    if places and len(places) == len(problems):
        raise places[0]  # not the plan's fault but the machine's
    refused = refused_confinement(ctx, spec)
    if problems:
        problems += [f"{source}: {refused.message}"] if refused else []
        raise PlanFileError(tuple(problems), "correct that and run the same command again")
    if refused:
        raise refused
    for text in foreign_paths(ctx, spec):
        ctx.talk.tell("warning", {"message": text})


def with_other_problems(ctx: Context, error: PlanFileError, source: str) -> PlanFileError:
    """The error of a partly unreadable plan file, with the other problems found."""
    if not isinstance(error.spec, PlanSpec):
        return error
    # A resource with a wrong entry is not checked further.
    wrong = {
        f"{source}: resource {item.name!r}:"
        for item in error.spec.resources
        if any(f" resource {item.name!r}:" in text for text in error.problems)
    }
    try:
        found = problems_with(ctx, error.spec, source, os.path.dirname(source) or ".")
    except UsageError:
        # A child plan calls an unknown tool: that is reported already.
        return error
    more = [text for text in found if not text.startswith(tuple(wrong))]
    return PlanFileError((*error.problems, *more), error.hint)


def problems_with(ctx: Context, spec: PlanSpec, source: str, folder: str) -> list[str]:
    """Everything that keeps the plan from running, except confinement."""
    problems = [
        f"{source}: resource {item.name!r}: {text}"
        for item in spec.resources
        for text in _resource(ctx, item)
    ]
    if spec.resources and not any(is_captured(item) for item in spec.resources):
        names = ", ".join(repr(item.name) for item in spec.resources)
        problems.append(f"{source}: no resource has a sandbox: {names}; a plan needs one that has")
    problems += [f"{source}: {text}" for text in _children(spec)]
    problems += [f"{source}: {text}" for text in _actor(spec, folder)]
    problems += [
        f"{source}: tool {tool.name!r} is unsafe"
        for tool in spec.tools.values()
        if tool.unsafe and not spec.policy.allow_unsafe
    ]
    problems += [f"{source}: {text}" for text in (*impossible(spec), *map(str, _places(ctx)))]
    problems += [f"{source}: {text}" for text in _of_kinds(spec, frozenset())]
    problems += [f"{source}: {text}" for text in in_place_problems(spec)]
    return problems


def in_place_problems(spec: PlanSpec) -> list[str]:
    """Problems of resources in place, which have no copy (pure)."""
    in_place = {item.name for item in spec.resources if item.strategy == IN_PLACE}
    found = [
        f"step {step.id!r}: a child plan needs a copy, and {', '.join(sorted(in_place))} is worked"
        " on in place"
        for step in spec.steps
        if step.subplan is not None and in_place
    ]
    for outer in spec.resources:
        for inner in spec.resources:
            if is_inside(inner.path, outer.path) and inner is not outer and outer.path:
                mixed = {outer.name, inner.name} & in_place
                if len(mixed) == 1:
                    found.append(
                        f"resource {inner.name!r} lies in {outer.name!r}: either both are worked"
                        " on in place or neither"
                    )
    return found


def _of_kinds(spec: PlanSpec, known: frozenset[str]) -> list[str]:
    """Problems that kinds find, also in child plans with their own resources."""
    own = tuple(item for item in spec.resources if item.name not in known)
    problems = problems_of_kinds(spec, own)
    known |= {item.name for item in spec.resources}
    for step in spec.steps:
        if step.subplan is not None and step.subplan.plan is not None:
            below = _of_kinds(step.subplan.plan, known)
            problems += [f"step {step.id!r}: {text}" for text in below]
    return problems


def impossible(spec: PlanSpec) -> list[str]:
    """Steps that cannot work: impossible checkpoints, SQL without a database."""
    required = spec.policy.require_checkpoints and spec.policy.rollback_enabled
    bare = {item.name for item in spec.resources if not is_captured(item)}
    folders = {i.name: i.kind for i in spec.resources if traits_of(i.kind).is_directory}
    found: list[str] = []
    for step in spec.steps:
        if step.subplan is not None:
            below = step.subplan.plan or msgspec.structs.replace(spec, steps=step.subplan.steps)
            found += [f"step {step.id!r}: {text}" for text in impossible(below)]
        if step.subplan is None and step.on in folders and _is_sql(step.tool, spec):
            found.append(
                f"step {step.id!r}: tool {step.tool!r} runs SQL, and resource {step.on!r} is no"
                f" database but a {folders[step.on]}"
            )
        tool = spec.tools.get(step.tool)
        if tool is None:
            continue
        if required and tool.writes and tool.checkpointable is False:
            found.append(
                f"step {step.id!r}: checkpoints are required, and tool {tool.name!r} writes and"
                " says checkpointable: false"
                " (policy: {require_checkpoints: false} runs it anyway)"
            )
        if tool.checkpointable and step.on in bare:
            found.append(
                f"step {step.id!r}: tool {tool.name!r} says checkpointable: true,"
                f" and resource {step.on!r} has no sandbox"
            )
    return found


def _is_sql(name: str, spec: PlanSpec) -> bool:
    # An unknown tool is the plan file's problem, and must not hide others.
    tool = {**BUILTINS, **spec.tools}.get(name)
    return tool is not None and (tool.sql is not None or tool.builtin == "sql")


def _places(ctx: Context) -> list[AgentsError]:
    """Problems of the places of store and sandboxes."""
    found: list[AgentsError] = []
    for what, path in (("store", ctx.settings.home), ("sandboxes", ctx.settings.sandboxes)):
        there = _nearest_there(path)
        try:
            with TemporaryFile(dir=there):
                free = _room(ctx.settings.home, there)
        except OSError as error:
            found.append(machine.of_os(error, f"the {what} cannot be written at {path}"))
        else:
            if free < LEAST_FREE:
                text = f"the disk of the {what} is full: {path}"
                found.append(DiskFull(text, machine.MAKE_ROOM))
    return found


def _room(home: str, there: str) -> int:
    """Free bytes; on the store's disk without its reserve."""
    if os.path.isdir(home) and os.stat(home).st_dev == os.stat(there).st_dev:
        return Reserve(home).room()
    return machine.free_bytes(there)


def _nearest_there(path: str) -> str:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _children(spec: PlanSpec) -> list[str]:
    """Refuse parallel child plans that write the same database."""
    databases = {i.name for i in spec.resources if not traits_of(i.kind).is_directory}
    writers: dict[tuple[str, str], list[str]] = {}
    for step in spec.steps:
        if step.subplan is not None and step.subplan.group is not None:
            below = step.subplan.plan or msgspec.structs.replace(spec, steps=step.subplan.steps)
            for name in _written(below) & databases:
                writers.setdefault((step.subplan.group, name), []).append(step.id)
    problems = [
        f"group {group!r}: the database {name!r} is written by several child plans"
        f" that run side by side: {', '.join(steps)}"
        for (group, name), steps in writers.items()
        if len(steps) > 1
    ]
    for step in spec.steps:
        if step.subplan is not None and step.subplan.plan is not None:
            problems += [f"step {step.id!r}: {text}" for text in _children(step.subplan.plan)]
    return problems


def _written(spec: PlanSpec) -> set[str]:
    """The resources that a plan's steps, child plans included, write."""
    found: set[str] = set()
    for step in spec.steps:
        if step.subplan is not None:
            found |= _written(
                step.subplan.plan or msgspec.structs.replace(spec, steps=step.subplan.steps)
            )
        elif step.on is not None and resolve_tool(step.tool, spec.tools).writes:
            found.add(step.on)
    return found


def _actor(spec: PlanSpec, folder: str) -> list[str]:
    kind = spec.actor.kind
    if kind in (STEPS, CALLER, OBSERVED):
        below = [(s.id, s.subplan.plan, s.subplan.file) for s in spec.steps if s.subplan]
        return [
            f"step {step_id!r}: {text}"
            for step_id, plan, file in below
            if plan is not None and file is not None
            for text in _actor(plan, os.path.dirname(file))
        ]
    if kind not in KINDS:
        return [f"actor kind {kind!r} is not available yet"]
    is_named = bool(spec.actor.command or spec.actor.target or spec.actor.model)  # else it is said
    problem = KINDS[kind].problem_with(spec.actor, folder) if is_named else None
    given = [f"'steps' do not go with an actor of kind {kind!r}: it asks for its own"]
    return ([f"the actor: {problem}"] if problem else []) + (given if spec.steps else [])


def refused_confinement(ctx: Context, spec: PlanSpec) -> NotAllowed | None:
    """Why tools may not run, if the required confinement is not available."""
    if not starts_processes(spec):
        return None
    try:
        mechanism(confine_in_force(ctx.settings.confine, spec.policy.confine))
    except NotAllowed as error:
        return error
    return None


def starts_processes(spec: PlanSpec) -> bool:
    """Whether the plan starts any process to confine."""
    return (
        bool(spec.validate)
        or spec.actor.kind != STEPS
        or any(
            step.subplan is not None or runs_process(resolve_tool(step.tool, spec.tools))
            for step in spec.steps
        )
    )


def confinement_warnings(spec: PlanSpec, bounds: Bounds, setting: str) -> list[str]:
    """Confinement that is not enforced here although the user did not turn it off."""
    if not starts_processes(spec) or setting == bounds.confine == OFF:
        return []
    how = mechanism(bounds.confine)
    warnings: list[str] = []
    if bounds.confine == OFF:
        warnings.append(f"{TURNED_OFF} (policy: {{confine: off}})")
    elif how == LANDLOCK and setting == "auto" and mechanism(setting) == BWRAP:
        warnings.append(
            "the plan file asks for landlock instead of bwrap: tools can read the store and ask"
            " whoever listens on a socket"
        )
    if how == OFF and bounds.confine != OFF:
        warnings.append(
            f"tools are not confined and can write wherever you can: {why_not()} ({INSTALL})"
        )
    if how == LANDLOCK and spec.actor.kind == OBSERVED:
        warnings += [
            f"without bwrap the agent sees {one.own} as {one.path}, and can write only there"
            f" ({INSTALL})"
            for one in bounds.stand_ins
            if one.is_copy
        ]
    cut_off = [tool.name for tool in spec.tools.values() if runs_process(tool) and not tool.network]
    if cut_off and not can_cut_network(how):
        names = ", ".join(cut_off)
        warnings.append(f"network: false cannot be enforced here, it is only noted: {names}")
    if how == BWRAP:
        aside = mounted_at_own_paths(bounds.stand_ins).elsewhere
        folders = [one for one in aside if one.is_folder]
        why = "it holds a link to an inner sandbox and cannot be mounted there"
        warnings += [text for one in folders for text in _naming(one.name, one.root, one.own, why)]
    return warnings


def foreign_paths(ctx: Context, spec: PlanSpec) -> list[str]:
    """Carried files that point into the user's tree where the sandbox is not mounted over it."""
    confine = confine_in_force(ctx.settings.confine, spec.policy.confine)
    if not starts_processes(spec) or mechanism(confine) == BWRAP:
        return []
    carried = [
        item
        for item in spec.resources
        if traits_of(item.kind).is_directory
        and item.carry is Carry.ALL
        and has_copy(item)
        and item.strategy != IN_PLACE
    ]
    return [
        text
        for item in carried
        for text in _naming(item.name, item.path, item.path, INSTALL, item.exclude)
    ]


def _naming(
    name: str, top: str, original: str, why: str, exclude: tuple[str, ...] = ()
) -> list[str]:
    from cleveragents.tools.carried import naming_files

    scope = Scope(tuple(os.fsencode(rule) for rule in exclude))
    return [
        f"resource {name!r}: {found} names {original}: tools that use it work with the original,"
        f" not with the sandbox ({why}; or recreate it in a step)"
        for found in naming_files(top, original, lambda rel: scope.excludes(os.fsencode(rel)))
    ]


def _resource(ctx: Context, item: ResourceSpec) -> list[str]:
    try:
        item.path.encode("utf-8")
    except UnicodeEncodeError:
        return ["its path is not UTF-8"]
    try:
        if item.kind not in kinds():
            return [f"kind {item.kind!r} is not available yet"]
        traits = traits_of(item.kind)
        if traits.require is not None:
            traits.require(item.path)
        if traits.is_directory and not traits.has_address:
            require_not_too_wide(
                item.path,
                ctx.settings.home,
                sandboxes=ctx.settings.sandboxes,
                told=() if item.strategy == IN_PLACE else ctx.settings.allow_wide,
            )
            if not os.path.isdir(item.path):
                return [f"not a directory: {item.path}"]
    except AgentsError as error:
        return [f"{error.message} ({error.hint})" if error.hint else error.message]
    except OSError as error:
        return [f"cannot open {item.path}: {error.strerror}"]
    return []
