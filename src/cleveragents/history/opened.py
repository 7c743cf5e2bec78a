"""Opens a checkpoint for reading: every resource as it was, as read-only files."""

import os
import stat

import msgspec

from cleveragents import machine
from cleveragents.content import fsio, removal
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, UsageError
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.plan import Plan

READ_ONLY = 0o500
"""What is left of a mode: what was closed to others is not opened to them here."""


class OpenedResource(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    path: str
    files: int
    """Files and links; a database is one."""
    state_hash: str


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint written out as files."""

    plan_id: str
    group_id: str
    folder: str
    resources: tuple[OpenedResource, ...]


def opened_home(home: str, plan_id: str) -> str:
    """Where checkpoints of a plan are opened if no folder is named."""
    return f"{home}/opened/{plan_id}"


def open_group(
    ctx: Context, plan: Plan, group: CheckpointGroup, folder: str | None = None
) -> Opened:
    """Write a group below `folder`, a directory for each resource; sandboxes are not read."""
    where = os.path.abspath(folder) if folder else _own_place(ctx, plan, group)
    _require_free(ctx, where)
    sandboxes = ctx.manager.sandboxes(plan.plan_id)
    states = ctx.checkpoints.states(group)
    found: list[OpenedResource] = []
    with machine.named(f"{where} cannot be written", UsageError):
        os.makedirs(where, exist_ok=True)
        for rid, state in states.items():
            name = sandboxes.resources[rid].name
            target = f"{where}/{name}"
            os.mkdir(target, 0o700)
            sandboxes[rid].export(state, None, target)
            files = _protect(os.fsencode(target))
            found.append(
                OpenedResource(resource=name, path=target, files=files, state_hash=state.state_hash)
            )
        os.chmod(where, READ_ONLY)
    return Opened(
        plan_id=plan.plan_id, group_id=group.group_id, folder=where, resources=tuple(found)
    )


def _own_place(ctx: Context, plan: Plan, group: CheckpointGroup) -> str:
    """A place in the store; an earlier one is replaced."""
    place = f"{opened_home(ctx.settings.home, plan.plan_id)}/{group.group_id}"
    removal.remove_tree(place)
    fsio.make_private_dir(os.path.dirname(place))
    return place


def _require_free(ctx: Context, where: str) -> None:
    sandboxes = os.path.realpath(ctx.settings.sandboxes)
    if os.path.realpath(where).startswith(f"{sandboxes}/"):
        raise NotAllowed(f"{where} is inside the folder of the sandboxes", "choose another folder")
    hint = "choose a folder that does not exist yet"
    # The folder becomes read-only: through a link that would be an unnamed one.
    if os.path.islink(where) or (os.path.lexists(where) and not os.path.isdir(where)):
        raise NotAllowed(f"{where} already exists and is not a folder", hint)
    if os.path.lexists(where) and os.listdir(where):
        raise NotAllowed(f"{where} is not empty", hint)


def _protect(top: bytes) -> int:
    """Make everything read-only; returns the number of files and links."""
    count = 0
    for _, folders, names, fd in os.fwalk(top, topdown=False):
        for name in (*folders, *names):
            mode = os.lstat(name, dir_fd=fd).st_mode
            count += not stat.S_ISDIR(mode)
            if stat.S_ISREG(mode):
                os.chmod(name, mode & READ_ONLY, dir_fd=fd)
        os.fchmod(fd, READ_ONLY)
    return count
