"""Lists everything wrong with a plan file, with line and key; stores nothing."""

import os

import msgspec

from cleveragents.context import Context
from cleveragents.errors import PlanFileError, Problem
from cleveragents.execution.preflight import (
    foreign_paths,
    problems_with,
    refused_confinement,
    with_other_problems,
)
from cleveragents.planfile import read_plan_file
from cleveragents.planfile.node import Node, Problems
from cleveragents.sandbox.registry import kinds


class Linted(msgspec.Struct, frozen=True):
    """Errors that keep a plan file from running, and warnings."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def lint(ctx: Context, file: str) -> Linted:
    """All reasons why `plan run` would refuse the file."""
    try:
        spec, _ = read_plan_file(file, kinds())
    except PlanFileError as error:
        more = [
            one
            for one in with_other_problems(ctx, error, file).problems
            if one not in error.problems
        ]
        found = [*error.found, *(_located(file, more) if more else ())]
        return Linted(tuple(sorted(found, key=lambda one: one.line)))
    found = problems_with(ctx, spec, file, os.path.dirname(os.path.abspath(file)))
    if (refused := refused_confinement(ctx, spec)) is not None:
        found.append(f"{file}: {refused.message}")
    if found:
        return Linted(tuple(_located(file, found)))
    return Linted(warnings=tuple(foreign_paths(ctx, spec)))


def _located(file: str, texts: list[str]) -> list[Problem]:
    """Preflight's texts, located in the file by the thing they start with."""
    places = _places(file)
    found: list[Problem] = []
    for text in texts:
        message = text.removeprefix(f"{file}: ")
        about = next((name for name in places if message.startswith(name)), "")
        found.append(Problem(file, places.get(about, 1), "", message))
    return sorted(found, key=lambda one: one.line)


def _places(file: str) -> dict[str, int]:
    """`step 'build'` -> its line; also for resources, tools and the actor."""
    from cleveragents.planfile.reading import read_yaml

    with open(file, encoding="utf-8-sig") as opened:
        root = read_yaml(opened.read(), Problems(file)).value
    assert isinstance(root, dict)  # it was parsed as a plan before
    found: dict[str, int] = {}
    for section, noun in (("resources", "resource"), ("tools", "tool")):
        named = root[section].value if section in root else {}
        for name, node in named.items() if isinstance(named, dict) else ():
            found[f"{noun} {name!r}"] = node.line
    steps = root["steps"].value if "steps" in root else ()
    for number, node in enumerate(steps if isinstance(steps, tuple) else (), start=1):
        found[f"step {_id_of(node, number)!r}"] = node.line
    for key, about in (("actor", ("the actor", "actor", "'steps'")), ("steps", ("group",))):
        found |= {name: root[key].line for name in about if key in root}
    return found


def _id_of(node: Node, number: int) -> str:
    given = node.value.get("id") if isinstance(node.value, dict) else None
    return given.text if given else f"step-{number}"
