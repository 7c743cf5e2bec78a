"""`agents run -- AGENT`: an agent in sandboxes at its own paths, followed call by call.

Its hooks are set for this run only. The sidecar is a thread of this process, on a socket in a
folder that the sandbox can see, removed with the run.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

import msgspec

from cleveragents.actors import OBSERVED
from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.errors import NotAllowed
from cleveragents.execution.observed.plan import ObservedPlan
from cleveragents.execution.tool_call import call_context
from cleveragents.integrations import client
from cleveragents.integrations.agent import Launch, agent_named
from cleveragents.integrations.hook import folder_of, hook_words
from cleveragents.integrations.observer import Observer
from cleveragents.integrations.session import MAIN, is_in_place, session_spec
from cleveragents.integrations.sidecar import Sidecar, kept, locked, record_left_sessions
from cleveragents.maintenance.sidecars import FOLDER, RUN_FOLDER, runs, sweep
from cleveragents.model.conversation import Anchor
from cleveragents.model.lifecycle import require_not_final
from cleveragents.model.plan import Plan
from cleveragents.model.settings import Settings
from cleveragents.model.tool import Attach, ToolResult
from cleveragents.plan_handle import PlanHandle
from cleveragents.tools import resolve_tool
from cleveragents.tools.runner import CallContext, run_tool
from cleveragents.workspace import Workspace, open_workspace

RUN_STEP = "@agent"
"""In place of a step's id; no step can be called so."""


class Ran(NamedTuple):
    """The result of an agent's run."""

    plan: PlanHandle
    result: ToolResult
    heard: bool
    """Whether its hooks called us at all."""
    state: tuple[str, ...]
    """Folders of its own that it could write; they are not rolled back."""


class AgentRequest(NamedTuple):
    """What was typed: the agent's command line, where, and its extra resources and variables."""

    argv: tuple[str, ...]
    path: str = "."
    name: str | None = None
    resources: Mapping[str, str] = {}
    variables: tuple[str, ...] = ()
    """Names of variables that it needs beside those that its adapter knows."""
    attach: Attach = Attach.ALL
    plan: PlanHandle | None = None
    """Continue this one, in the sandboxes that it has."""


def run_agent(ws: Workspace, agent: str, request: AgentRequest) -> Ran:
    """Run the agent with our hooks until it ends; its work is a plan, not yet applied."""
    plan = request.plan or _new_plan(ws, agent, request)
    require_sandboxed(plan.plan)
    top = plan.plan.plan_dir
    with private_folder(ws.ctx.settings.home, plan.plan_id) as private:
        hook = (*hook_words(ws.ctx.settings, agent, private), "--no-start")
        launch = agent_named(agent).launch(request.argv, hook, private)
        launch = msgspec.structs.replace(launch, pass_env=launch.pass_env + request.variables)
        call = _call(ws.ctx, plan.plan_id, launch, private, request.attach)
        with _followed(ws.ctx, plan.plan_id, private) as sidecar:
            tool = resolve_tool("run", {})
            result = run_tool(tool, _inputs(launch.argv, top, request.path), call)
    return Ran(plan, result, sidecar.heard, launch.state)


def _new_plan(ws: Workspace, agent: str, request: AgentRequest) -> PlanHandle:
    extra = {**ws.ctx.settings.session_resources, **request.resources}
    spec = session_spec(agent, request.path, None, extra)
    spec = msgspec.structs.replace(spec, name=request.name or spec.name)
    return ws.use_spec(spec, source="agents run", folder=spec.resources[0].path)


def require_sandboxed(plan: Plan) -> None:
    """Refuse a plan whose sandboxes an agent cannot run in."""
    require_not_final(plan, "continued")
    if plan.spec["actor"]["kind"] != OBSERVED:
        raise NotAllowed(
            f"plan {plan.name!r} follows no agent", f"agents plan resume {plan.plan_id}"
        )
    if is_in_place(plan):
        raise NotAllowed(
            f"plan {plan.name!r} works in place: it has no sandboxes",
            f"agents plan resume {plan.plan_id}",
        )


@contextmanager
def private_folder(home: str, plan_id: str) -> Generator[str]:
    """A folder for the run's socket and settings, removed when it ends.

    A lock in the store names it, so that the next command cleans up after a killed run.
    """
    folder = tempfile.mkdtemp(prefix=RUN_FOLDER)
    fsio.make_private_dir(f"{home}/{FOLDER}")
    note = f"{home}/{FOLDER}/{os.path.basename(folder)}.lock"
    lock = locked(note)
    try:
        if lock is not None:
            os.write(lock, os.fsencode(f"{folder}\n{plan_id}"))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.unlink(note)
            os.close(lock)


def _call(ctx: Context, plan_id: str, launch: Launch, private: str, attach: Attach) -> CallContext:
    """The call: sandboxes with their first group, and what the agent may see and write."""
    for folder in launch.state:
        if not os.path.splitext(folder)[1]:
            os.makedirs(folder, mode=0o700, exist_ok=True)
    with ObservedPlan(ctx, plan_id).taken("run") as executor:
        made = call_context(ctx, executor.leased, RUN_STEP, MAIN)
    ctx.manager.forget(plan_id)
    writable = (*made.bounds.writable, *launch.state, private)
    return msgspec.structs.replace(
        made,
        attach=attach,
        meanwhile=ctx.stop,
        private={**passed_on(os.environ, launch.pass_env), **launch.env},
        bounds=msgspec.structs.replace(made.bounds, writable=writable),
    )


def passed_on(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The person's variables that the agent needs; only its process gets them."""
    wanted = tuple(patterns)
    return {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in wanted)
    }


def _inputs(argv: Sequence[str], top: str, path: str) -> dict[str, object]:
    folder = os.path.relpath(os.path.realpath(path), top)
    inputs: dict[str, object] = {"argv": list(argv)}
    return inputs if folder == "." else {**inputs, "cwd": folder}


@contextmanager
def _observing(settings: Settings, plan_id: str) -> Generator[Observer]:
    """An observer that puts all sessions of the run into this plan."""

    def own_plan(own: Context, _anchor: Anchor, _cwd: str) -> Plan:
        return own.store.plans.get(plan_id)

    def is_own(plan: Plan) -> bool:
        return plan.plan_id == plan_id

    with open_workspace(settings=settings, recover=False) as ws:
        observer = Observer(ws.ctx, own_plan, is_own)
        try:
            yield observer
        finally:
            observer.close()
            with ObservedPlan(ws.ctx, plan_id, wait=10).taken("run") as executor:
                executor.quiet(None)


def _sidecar(settings: Settings, plan_id: str, private: str) -> Sidecar:
    opened = partial(_observing, settings, plan_id)
    return Sidecar(private, client.ONLY, opened, settings.hook_budget, stays=True)


@contextmanager
def _followed(ctx: Context, plan_id: str, private: str) -> Generator[Sidecar]:
    """Run the sidecar in a thread; at the end of the block open calls are ended."""
    sidecar = _sidecar(ctx.settings, plan_id, private)
    sidecar.listen()
    thread = threading.Thread(target=sidecar.serve, daemon=True)
    thread.start()
    try:
        yield sidecar
    finally:
        sidecar.end()
        thread.join()


def record_left_events(settings: Settings) -> None:
    """Record events that hooks left in files, before a command reads anything."""
    record_left_sessions(settings)
    for private, plan_id in runs(folder_of(settings)):
        if kept(private, client.ONLY):
            _sidecar(settings, plan_id, private).record_left_events()
    sweep(folder_of(settings))
