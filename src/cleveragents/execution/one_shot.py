"""`agents run -- CMD` and `agents do GOAL`: a plan over the current directory, without a file."""

import os
import re

from cleveragents.actors import MODEL
from cleveragents.errors import UsageError
from cleveragents.model.plan_spec import ActorSpec, PlanSpec, ResourceSpec, StepSpec
from cleveragents.model.settings import MODEL_NAME
from cleveragents.sandbox.recognize import around
from cleveragents.tools.confinement.mounts import is_inside

LONGEST_GOAL = 40


def one_step_plan(path: str, argv: tuple[str, ...], name: str | None) -> PlanSpec:
    for text in argv:
        _require_utf8(text)
    where = _directory(path, "agents run --on PATH -- CMD")
    resource = _resource(where)
    folder = os.path.relpath(_standing(where), resource.path)
    _require_utf8(folder)
    inputs = {"argv": list(argv)} if folder == "." else {"argv": list(argv), "cwd": folder}
    step = StepSpec(id="run", tool="run", on="work", inputs=inputs)
    return PlanSpec(
        name=name or os.path.basename(argv[0]) or "run", resources=(resource,), steps=(step,)
    )


def model_actor(goal: str, model: str, max_steps: int | None, max_tokens: int | None) -> ActorSpec:
    if not model:
        raise UsageError(
            "no model is named",
            "--model anthropic:claude-sonnet-4-5, or agents config set actors.model PROVIDER:NAME",
        )
    if not MODEL_NAME.fullmatch(model):
        raise UsageError(f"not a model: {model!r}", "PROVIDER:NAME, such as openai:gpt-5")
    if not goal.strip():
        raise UsageError("the goal is empty", 'agents do "what is to be done"')
    default = ActorSpec()
    return ActorSpec(
        kind=MODEL,
        model=model,
        goal=goal,
        max_steps=max_steps or default.max_steps,
        max_tokens=max_tokens or default.max_tokens,
    )


def goal_plan(path: str, actor: ActorSpec, name: str | None) -> PlanSpec:
    """A plan that a model carries out."""
    _require_utf8(actor.goal)
    resource = _resource(_directory(path, "agents do GOAL --on PATH"))
    words = re.findall(r"[A-Za-z0-9]+", actor.goal.lower())
    called = name or "-".join(words)[:LONGEST_GOAL].strip("-") or "goal"
    return PlanSpec(name=called, resources=(resource,), steps=(), actor=actor)


def _directory(path: str, hint: str) -> str:
    where = os.path.realpath(path)
    _require_utf8(where)
    if not os.path.isdir(where):
        raise UsageError(f"no such directory: {path}", hint)
    return where


def _resource(where: str) -> ResourceSpec:
    top, kind = around(where)
    return ResourceSpec(name="work", kind=kind, path=top)


def _standing(where: str) -> str:
    """The folder to run in: the current one if it is inside `where`, else `where` itself."""
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return where
    return here if is_inside(here, where) else where


def _require_utf8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"not UTF-8: {text!r}", "put the command into a script file") from None
