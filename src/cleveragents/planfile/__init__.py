"""Reading a plan file: text to a `PlanSpec`, or one error that names everything wrong with it.

The sections with rules of their own are next door: `resources`, `steps`; `node` reads
one mapping, `planyaml` the YAML.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from cleveragents.errors import ConfigError, UsageError
from cleveragents.model.plan import OnFailure
from cleveragents.model.plan_spec import (
    LONGEST_NAME,
    ActorSpec,
    ApplyAs,
    ApplySpec,
    KeepSpec,
    PlanSpec,
    PolicySpec,
    ResourceSpec,
    StepSpec,
    ValidateSpec,
)
from cleveragents.model.settings import BY_NAME, MODEL_NAME
from cleveragents.model.tool import DEFAULT_TIMEOUT, ToolSpec
from cleveragents.model.triggers import parse_triggers
from cleveragents.model.units import parse_bytes, parse_duration
from cleveragents.planfile.node import Fields, Node, Problems, kind_of
from cleveragents.planfile.resources import DEFAULT_KINDS, ResourceReader
from cleveragents.planfile.steps import SUBPLAN, StepReader
from cleveragents.tools.builtin import BUILTINS

__all__ = ["DEFAULT_KINDS", "parse_plan", "parse_steps", "read_plan_file"]

MAX_BYTES = 16_000_000
TOOL_KEYS = tuple(key for key in ToolSpec.__struct_fields__ if key != "builtin")
CONFINE = BY_NAME["sandbox.confine"].choices
CHECKPOINT_SCOPES = ("plan", "resource")
ACTORS = ("steps", "python", "command", "model")

MODEL_KEYS = ("goal", "max_steps", "max_tokens")
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def read_plan_file(
    path: str,
    kinds: Mapping[str, tuple[str, ...]] = DEFAULT_KINDS,
    above: "Above | None" = None,
) -> tuple[PlanSpec, str]:
    """The plan and the text it was read from; `above` for the file of a child plan."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"no such plan file: {path}", "agents plan new") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read plan file {path!r}: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise Problems(path).stop(1, f"larger than {MAX_BYTES:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Problems(path).stop(line, "not UTF-8", "save the file as UTF-8") from None
    return parse_plan(text, path, os.path.dirname(os.path.abspath(path)), kinds, above=above), text


def parse_plan(
    text: str,
    source: str,
    base_dir: str,
    kinds: Mapping[str, tuple[str, ...]] = DEFAULT_KINDS,
    environ: Mapping[str, str] = os.environ,
    above: "Above | None" = None,
) -> PlanSpec:
    """The plan in `text`; `source` is the file's name in errors, `base_dir` its folder."""
    from cleveragents.planfile.reading import read_yaml

    problems = Problems(source)
    root = read_yaml(text, problems)
    if not isinstance(root.value, dict):
        raise problems.stop(root.line, f"a plan is a mapping, not {kind_of(root)}")
    fields = Fields(root, "the plan", PlanSpec.__struct_fields__, problems)
    resources = _resources(fields, ResourceReader(base_dir, kinds, environ, problems), above)
    tools = {name: _tool(name, node, problems) for name, node in fields.named("tools").items()}
    files = (*(above.files if above else ()), os.path.abspath(source))

    def read_child(file: str) -> PlanSpec:
        if file in files:
            raise UsageError(f"{file} is its own child plan")
        return read_plan_file(file, kinds, Above(resources, files))[0]

    steps = StepReader(base_dir, tools, [each.name for each in resources], problems, read_child)
    actor = _actor(fields)
    plan = PlanSpec(
        name=_name(fields),
        description=fields.text("description", empty=True),
        resources=resources,
        tools=tools,
        policy=_policy(fields),
        steps=_steps(fields, steps, actor),
        validate=tuple(_validation(node, steps) for node in fields.listed("validate")),
        apply=_apply(fields),
        actor=actor,
    )
    problems.raise_if_any(plan)
    return plan


def _name(fields: Fields) -> str:
    fields.require("name")
    name = fields.text("name")
    if len(name) > LONGEST_NAME:
        fields.bad("name", f"'name' has {len(name)} characters, at most {LONGEST_NAME} are allowed")
    return name


def parse_steps(
    text: str,
    source: str,
    base_dir: str,
    parent: PlanSpec,
    kinds: Mapping[str, tuple[str, ...]] = DEFAULT_KINDS,
) -> tuple[StepSpec, ...]:
    """The steps in `text`, a mapping of nothing else, for a child plan of `parent`."""
    from cleveragents.planfile.reading import read_yaml

    problems = Problems(source)
    fields = Fields(read_yaml(text, problems), source, ("steps",), problems)

    def read_file(file: str) -> PlanSpec:
        return read_plan_file(file, kinds, Above(parent.resources, ()))[0]

    names = [each.name for each in parent.resources]
    reader = StepReader(base_dir, parent.tools, names, problems, read_file)
    steps = reader.read(fields.listed("steps"))
    problems.raise_if_any(None)
    return steps


class Above(NamedTuple):
    """What a child plan's file is read with: the parent's resources, and the files on the way."""

    resources: tuple[ResourceSpec, ...]
    files: tuple[str, ...]


def _resources(
    fields: Fields, reader: ResourceReader, above: Above | None
) -> tuple[ResourceSpec, ...]:
    """A child plan has its parent's under their names, all of them if it names none."""
    if above is not None and "resources" not in fields:
        return above.resources
    named = fields.named("resources")
    if fields.require("resources") and not named:
        fields.bad("resources", "at least one resource is needed")
    inherited = {item.name: item for item in above.resources} if above else {}
    for name, item in inherited.items():
        given = named[name].value if name in named else None
        kind = given.get("kind") if isinstance(given, dict) else None
        if kind is not None and kind.text != item.kind:
            text = f"resource {name!r} is the parent plan's, and that is a {item.kind}"
            fields.problems.add(kind.line, text, key="kind")
    own = {name: node for name, node in named.items() if name not in inherited}
    read = {item.name: item for item in reader.read(own)}
    return tuple(inherited.get(name) or read[name] for name in named if name in inherited | read)


def _steps(fields: Fields, reader: StepReader, actor: ActorSpec) -> tuple[StepSpec, ...]:
    nodes = fields.listed("steps")
    if actor.kind == "steps" and fields.require("steps") and not nodes:
        fields.bad("steps", "at least one step is needed")
    return reader.read(nodes)


def _tool(name: str, node: Node, problems: Problems) -> ToolSpec:
    fields = Fields(node, f"tool {name!r}", TOOL_KEYS, problems)
    _check_tool_name(name, fields)
    fields.one_of("run", "python", "sql")
    read_only = fields.flag("read_only", False)
    if read_only and fields.flag("writes", False):
        fields.bad("writes", "'writes: true' contradicts 'read_only: true'")
    if "compensate" in fields and not fields.words("side_effects"):
        fields.bad("compensate", "'compensate' needs 'side_effects' that it undoes")
    return ToolSpec(
        name=name,
        description=fields.text("description", empty=True),
        run=fields.command("run"),
        python=fields.target("python"),
        sql=fields.text("sql") or None,
        writes=fields.flag("writes", True) and not read_only,
        read_only=read_only,
        checkpointable=fields.flag("checkpointable", True) if "checkpointable" in fields else None,
        checkpoint_scope=fields.choice("checkpoint_scope", CHECKPOINT_SCOPES),
        write_scope=fields.words("write_scope"),
        side_effects=fields.words("side_effects"),
        compensate=fields.command("compensate"),
        idempotent=fields.flag("idempotent", False),
        unsafe=fields.flag("unsafe", False),
        timeout=fields.seconds("timeout") or DEFAULT_TIMEOUT,
        network=fields.flag("network", True),
        env=_environment(fields),
    )


def _check_tool_name(name: str, fields: Fields) -> None:
    if name in BUILTINS or name == SUBPLAN:
        fields.bad("", "a built-in tool has this name, choose another")
    if not _TOOL_NAME.fullmatch(name):
        fields.bad("", "a name starts with a letter and has only letters, digits, '_', '.', '-'")
    if fields.word("name") not in {None, name}:
        fields.bad("name", f"'name' says {fields.word('name')!r}")


def _environment(fields: Fields) -> dict[str, str]:
    named = fields.named("env")
    for name, node in named.items():
        if not node.is_scalar:
            text = f"{fields.where}: {name!r} in 'env' has to be text, not {kind_of(node)}"
            fields.problems.add(node.line, text, key="env")
    return {name: node.text for name, node in named.items()}


def _policy(plan: Fields) -> PolicySpec:
    fields = plan.part("policy", "the policy", PolicySpec.__struct_fields__)
    if fields is None:
        return PolicySpec()
    default = PolicySpec()
    return PolicySpec(
        on_failure=OnFailure(fields.choice("on_failure", OnFailure) or default.on_failure),
        max_retries_per_step=fields.integer("max_retries_per_step", 0),
        require_checkpoints=fields.flag("require_checkpoints", default.require_checkpoints),
        rollback_enabled=fields.flag("rollback_enabled", default.rollback_enabled),
        max_checkpoints_per_plan=fields.integer("max_checkpoints_per_plan", 1),
        auto_create_on=_triggers(fields),
        keep=_keep(fields),
        max_parallel=fields.integer("max_parallel", 1) or default.max_parallel,
        fail_fast=fields.flag("fail_fast", default.fail_fast),
        allow_unsafe=fields.flag("allow_unsafe", default.allow_unsafe),
        confine=fields.choice("confine", CONFINE),
    )


def _triggers(fields: Fields) -> tuple[str, ...] | None:
    key = "auto_create_on"
    if key not in fields:
        return None
    found: list[str] = []
    for name in fields.words(key):
        for part in name.split(","):
            try:
                found += [str(trigger) for trigger in parse_triggers(part)]
            except ConfigError as error:
                fields.bad(key, error.message, error.hint)
    return tuple(dict.fromkeys(found))


def _keep(policy: Fields) -> KeepSpec:
    fields = policy.part("keep", "'keep' of the policy", KeepSpec.__struct_fields__)
    if fields is None:
        return KeepSpec()
    within = fields.word("within", "a time such as '24h'")
    size = fields.word("bytes", "a size such as '500MB'")
    try:
        parse_duration(within or 0)
    except ValueError as error:
        fields.bad("within", f"'within': {error}")
    try:
        limit = None if size is None else parse_bytes(size)
    except ValueError as error:
        fields.bad("bytes", f"'bytes': {error}")
        limit = None
    return KeepSpec(last=fields.integer("last", 1), within=within, bytes=limit)


def _validation(node: Node, steps: StepReader) -> ValidateSpec:
    fields = Fields(node, "a validation", ValidateSpec.__struct_fields__, steps.problems)
    fields.require("run")
    return ValidateSpec(
        run=fields.command("run") or "",
        on=steps.resource(fields),
        timeout=fields.seconds("timeout"),
    )


def _apply(plan: Fields) -> ApplySpec:
    fields = plan.part("apply", "'apply'", ("as", "message", "ignored"))
    if fields is None:
        return ApplySpec()
    chosen = fields.choice("as", ApplyAs)
    return ApplySpec(
        as_=ApplyAs(chosen) if chosen else None,
        message=fields.text("message", empty=True) or None,
        ignored=fields.flag("ignored", False),
    )


def _actor(plan: Fields) -> ActorSpec:
    keys = ("kind", *ACTORS[1:], *MODEL_KEYS)
    fields = plan.part("actor", "the actor", keys)
    default = ActorSpec()
    if fields is None:
        return default
    given = [key for key in ACTORS if key in fields]
    kind = fields.choice("kind", ACTORS) or (given[0] if given else "steps")
    for key in keys[1:]:
        if key in fields and key != kind and not (key in MODEL_KEYS and kind == "model"):
            fields.bad(key, f"{key!r} does not go with an actor of kind {kind!r}")
    if kind != "steps":
        fields.require(kind)
    if kind == "model":
        fields.require("goal")
    return ActorSpec(
        kind=kind,
        target=fields.target("python"),
        command=fields.argv("command") or (),
        model=_model(fields),
        goal=fields.text("goal"),
        max_steps=fields.integer("max_steps", 1) or default.max_steps,
        max_tokens=fields.integer("max_tokens", 1) or default.max_tokens,
    )


def _model(fields: Fields) -> str:
    text = fields.text("model")
    if text and not MODEL_NAME.fullmatch(text):
        example = "anthropic:claude-sonnet-4-5"
        fields.bad("model", f"'model' has to be 'provider:name' such as {example!r}, not {text!r}")
    return text
