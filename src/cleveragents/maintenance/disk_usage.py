"""Disk usage, per plan and per folder of the store."""

import os
import stat
from collections.abc import Iterable

import msgspec

from cleveragents.apply.database_backups import Held, kept
from cleveragents.context import Context
from cleveragents.maintenance.gc import reachable, roots_of
from cleveragents.sandbox.git.kept_objects import is_kept

Inode = tuple[int, int]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    name: str
    bytes: int
    """Of everything the plan's checkpoints need."""
    alone: int
    """Of what no other plan needs: this is freed when the plan is deleted."""
    groups: int
    sandbox: int
    """Of its private copies as they lie on disk."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of the things that a store is made of."""

    name: str
    path: str
    bytes: int
    """On disk, counted file by file: blocks that copies share count for each of them."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    packs: int
    """Bytes the packs take on disk."""
    unused: int
    """Bytes in them that no plan needs."""
    plans: tuple[Holding, ...]
    disk: tuple[Part, ...]
    databases: tuple[Held, ...] = ()
    """On their servers: the earlier states of databases, kept for `plan revert-applied`."""


def usage(ctx: Context) -> Usage:
    sizes = {key: place.length for key, place, _ in ctx.store.objects.all()}
    by_plan: dict[str, list[bytes]] = {}
    for plan_id, root in roots_of(ctx):
        by_plan.setdefault(plan_id, []).append(root)
    needed = {plan_id: reachable(ctx, roots) for plan_id, roots in by_plan.items()}
    counted: dict[bytes, int] = {}
    for keys in needed.values():
        for key in keys:
            counted[key] = counted.get(key, 0) + 1
    plans = tuple(
        Holding(
            plan_id=plan.plan_id,
            name=plan.name,
            bytes=sum(sizes.get(key, 0) for key in needed.get(plan.plan_id, ())),
            alone=sum(sizes.get(k, 0) for k in needed.get(plan.plan_id, ()) if counted[k] == 1),
            groups=ctx.store.checkpoints.count(plan.plan_id),
            sandbox=on_disk([f"{ctx.settings.sandboxes}/{plan.plan_id}"], set()),
        )
        for plan in ctx.store.plans.all()
    )
    unused = sum(size for key, size in sizes.items() if key not in counted)
    return Usage(
        packs=ctx.manager.packs.size(),
        unused=unused,
        plans=plans,
        disk=_parts(ctx.settings.home, ctx.settings.sandboxes),
        databases=tuple(kept(ctx)),
    )


def _parts(home: str, sandboxes: str) -> tuple[Part, ...]:
    """All that is in the home, and the sandboxes, which may lie elsewhere."""
    places = {
        "sandboxes": [sandboxes],
        "content": [f"{home}/content"],
        "cache": [f"{home}/cache"],
        "database": [f"{home}/store.db{end}" for end in ("", "-wal", "-shm")],
        "reserve": [f"{home}/reserve", f"{home}/reserve.files"],
        "other": [home],  # what was not counted before
    }
    seen = set[Inode]()
    return tuple(
        Part(name=name, path=paths[0], bytes=on_disk(paths, seen)) for name, paths in places.items()
    )


def on_disk(paths: Iterable[str], seen: set[Inode]) -> int:
    """Bytes that these files and folders take, without what was `seen` before, by any name.

    What a repository of the user's has as well costs nothing here. What cannot be read, or goes
    meanwhile, is not counted.
    """
    total, waiting = 0, list(paths)
    while waiting:
        path = waiting.pop()
        try:
            found = os.lstat(path)
            inode = (found.st_dev, found.st_ino)
            if inode not in seen and not (found.st_nlink > 1 and is_kept(path)):
                seen.add(inode)
                total += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    waiting += [f"{path}/{name}" for name in os.listdir(path)]
        except OSError:
            continue
    return total
