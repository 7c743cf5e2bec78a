"""Which plan holds how much of the content store, alone and together with others."""

import msgspec

from cleveragents.apply.database_backups import Held, kept
from cleveragents.context import Context
from cleveragents.maintenance.gc import reachable, roots_of


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    plan_id: str
    name: str
    bytes: int
    """Of everything the plan's checkpoints need."""
    alone: int
    """Of what no other plan needs: this is freed when the plan is deleted."""
    groups: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    packs: int
    """Bytes the packs take on disk."""
    unused: int
    """Bytes in them that no plan needs."""
    plans: tuple[Holding, ...]
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
        )
        for plan in ctx.store.plans.all()
    )
    unused = sum(size for key, size in sizes.items() if key not in counted)
    return Usage(
        packs=ctx.manager.packs.size(), unused=unused, plans=plans, databases=tuple(kept(ctx))
    )
