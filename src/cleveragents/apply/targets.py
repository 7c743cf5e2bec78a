"""The targets of an apply: locked by one process, switched in an order that can be undone."""

import fcntl
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from blake3 import blake3

from cleveragents.checkpoints.sandboxes import PlanSandboxes
from cleveragents.content import fsio
from cleveragents.context import Context
from cleveragents.errors import ApplyRefused, NotAllowed
from cleveragents.lease import host_name
from cleveragents.model.plan import Plan
from cleveragents.sandbox.protocol import CommitsLast, Prepares, Proposal
from cleveragents.sandbox.registry import traits_of

PATIENCE, PAUSE = 60.0, 0.05
"""Seconds: how long an apply waits for a lock on a target, and between two tries."""


@contextmanager
def alone_on_targets(ctx: Context, plan: Plan) -> Generator[None]:
    """One apply at a time on each target, whichever plan it is for, and of whichever store."""
    fsio.make_private_dir(f"{ctx.settings.home}/locks")
    resources = ctx.store.resources.of_plan(plan.plan_id)
    with ExitStack() as stack:
        for path in sorted({r.path for r in resources}):
            name = blake3(path.encode()).hexdigest()[:24]
            stack.enter_context(fsio.locked(f"{ctx.settings.home}/locks/{name}"))
        here = (r.path for r in resources if not traits_of(r.kind).has_address)
        _lock_folders(ctx, here, stack)
        yield


def _lock_folders(ctx: Context, paths: Iterable[str], stack: ExitStack) -> None:
    """Lock the folders themselves, or those of the files: other stores see that, and no file stays.

    Each inode once, since a second descriptor would wait for the first, and in one order.
    """
    folders: dict[tuple[int, int], tuple[int, str]] = {}
    for path in paths:
        try:
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # the comparison says what is wrong with it
        stack.callback(os.close, fd)
        found = os.fstat(fd)
        folders.setdefault((found.st_dev, found.st_ino), (fd, folder))
    for _, (fd, folder) in sorted(folders.items()):
        _lock(ctx, fd, folder)


def _lock(ctx: Context, fd: int, folder: str) -> None:
    """Wait for another store's apply; any other program may hold its lock for ever."""
    start, is_told = time.monotonic(), False
    while (waited := time.monotonic() - start) < PATIENCE:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited > 1 and not is_told:
                is_told = True
                message = f"waiting: another program has locked {folder}"
                ctx.talk.tell("warning", {"message": message})
            time.sleep(PAUSE)
        except OSError:
            return  # NFS locks no directory
        else:
            return
    raise ApplyRefused(
        f"another program has locked {folder}; no target was changed",
        "wait for it, or end it; then apply again",
    )


def require_own_targets(ctx: Context, plan: Plan) -> None:
    """Refuse a child plan: its work on the parent's resources is applied with the parent."""
    resources = ctx.store.resources.of_plan(plan.plan_id)
    if plan.parent_plan_id is not None and all(item.source for item in resources):
        raise NotAllowed(
            f"plan {plan.name!r} is a child plan: its work is part of its parent's",
            f"agents plan apply {plan.parent_plan_id}",
        )


def require_targets_here(ctx: Context, plan: Plan) -> None:
    """Refuse if targets are on another machine, even if the plan continued here."""
    for path, made_on in _away(ctx, plan):
        raise ApplyRefused(
            f"{path} is not on this machine",
            f"on {made_on}: agents plan apply {plan.plan_id}, or agents worker",
        )


def targets_elsewhere(ctx: Context, plan: Plan) -> str:
    """The name of the other machine with the targets; empty if they are here."""
    return next((made_on for _, made_on in _away(ctx, plan) if made_on != host_name()), "")


def _away(ctx: Context, plan: Plan) -> Iterator[tuple[str, str]]:
    """Path and machine of each target that is not here."""
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    for rid, record in sandboxes.records.items():
        resource, made_on = sandboxes.resources[rid], record.origin.get("made_on")
        is_far = traits_of(resource.kind).has_address or resource.source
        if made_on and not is_far and not os.path.lexists(resource.path):
            yield resource.path, made_on


def in_order(
    sandboxes: PlanSandboxes, proposals: tuple[Proposal, ...]
) -> list[tuple[str, Proposal]]:
    """Proposals by resource id, in the order of switching; undo goes from the end."""
    by_name = {s.place.resource.name: rid for rid, s in sandboxes.opened.items()}
    found = [(by_name[proposal.resource], proposal) for proposal in proposals]
    return sorted(found, key=lambda item: isinstance(sandboxes[item[0]], CommitsLast))


def switch_all(sandboxes: PlanSandboxes, staged: dict[str, Any]) -> None:
    """Switch what can be undone first; of several commits elsewhere, each is prepared before."""
    last = _committing(sandboxes, staged)
    for rid, one in staged.items():
        if rid not in last:
            sandboxes[rid].switch_apply(one)
    if len(last) > 1:
        for rid, sandbox in last.items():
            if isinstance(sandbox, Prepares):
                sandbox.prepare_apply(staged[rid])
    commit_rest(sandboxes, staged)


def _committing(sandboxes: PlanSandboxes, staged: dict[str, Any]) -> dict[str, CommitsLast]:
    """The commits elsewhere, the one that cannot be prepared first: it may fail alone."""
    opened = {rid: sandboxes[rid] for rid, one in staged.items() if one.get("files")}
    found = [(rid, one) for rid, one in opened.items() if isinstance(one, CommitsLast)]
    return dict(sorted(found, key=lambda item: isinstance(item[1], Prepares)))


def is_committed(sandboxes: PlanSandboxes, staged: dict[str, Any]) -> bool:
    """Whether a commit that cannot be undone happened: then all before it did."""
    last = _committing(sandboxes, staged)
    return any(sandbox.is_applied(staged[rid]) for rid, sandbox in last.items())


def commit_rest(sandboxes: PlanSandboxes, staged: dict[str, Any]) -> None:
    for rid in _committing(sandboxes, staged):
        sandboxes[rid].switch_apply(staged[rid])
