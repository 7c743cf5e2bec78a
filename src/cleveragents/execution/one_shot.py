"""`agents run -- CMD`: a plan of one step over the current directory."""

import os

from cleveragents.errors import SandboxError, UsageError
from cleveragents.model.plan_spec import PlanSpec, ResourceSpec, StepSpec
from cleveragents.sandbox.git import command
from cleveragents.tools.confinement.mounts import is_inside


def one_step_plan(path: str, argv: tuple[str, ...], name: str | None) -> PlanSpec:
    where = os.path.realpath(path)
    for text in (where, *argv):
        _require_utf8(text)
    if not os.path.isdir(where):
        raise UsageError(f"no such directory: {path}", "agents run --on PATH -- CMD")
    top, kind = _around(where)
    resource = ResourceSpec(name="work", kind=kind, path=top)
    folder = os.path.relpath(_standing(where), top)
    _require_utf8(folder)
    inputs = {"argv": list(argv)} if folder == "." else {"argv": list(argv), "cwd": folder}
    step = StepSpec(id="run", tool="run", on="work", inputs=inputs)
    return PlanSpec(
        name=name or os.path.basename(argv[0]) or "run", resources=(resource,), steps=(step,)
    )


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


def _around(where: str) -> tuple[str, str]:
    """The repository one stands in, or the directory itself."""
    try:
        shown = command.run("-c", "safe.directory=*", "rev-parse", "--show-toplevel", cwd=where)
    except SandboxError:
        return where, "fs-directory"
    top = os.path.realpath(os.fsdecode(shown).rstrip("\n"))
    return top, "git-checkout"
