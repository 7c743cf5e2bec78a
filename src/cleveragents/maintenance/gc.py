"""Free what no plan refers to: condemn, check again, delete; never by the clock alone."""

import os
from datetime import datetime, timedelta

import msgspec

from cleveragents import codec
from cleveragents.apply import database_backups
from cleveragents.checkpoints.sandboxes import is_elsewhere
from cleveragents.content import trees
from cleveragents.content.keys import (
    BLOB,
    CHUNKS,
    TREE,
)
from cleveragents.content.pack_file import (
    Location,
    compressed,
)
from cleveragents.context import Context
from cleveragents.errors import DiskFull, PlanBusy
from cleveragents.lease import hold
from cleveragents.sandbox.protocol import KeepsElsewhere
from cleveragents.store.clock import Clock, jump_between, read_clocks, utc_now

MOSTLY_DEAD = 0.5
"""A pack with more than this part unused is rewritten."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What gc found and freed."""

    live: int
    condemned: int
    removed: int
    freed_bytes: int
    packs_rewritten: int
    waiting: int
    dry_run: bool
    plans_swept: int = 0
    """Deleted plans whose content was still in the bucket."""
    put_back: int = 0
    """Segments that the bucket had lost and this machine had."""


def roots_of(ctx: Context) -> list[tuple[str, bytes]]:
    """(plan id, key) of every state that must stay: checkpoints and what sandboxes began with.

    Without a bucket, what another home has is that home's.
    """
    sandboxes = ctx.store.resources.all_sandboxes()
    home = "" if ctx.settings.content_url else ctx.store.home_id
    theirs = {record.plan_id for record in sandboxes if is_elsewhere(record, home)}
    roots = [(plan, root) for plan, _, root in ctx.store.checkpoints.roots() if root]
    for record in sandboxes:
        state = record.origin.get("state")
        if state:
            roots.append((record.plan_id, codec.convert(state["root"], bytes)))
        if base := record.origin.get("base_pack"):
            roots.append((record.plan_id, bytes.fromhex(base)))
    return [(plan, root) for plan, root in roots if plan not in theirs]


def live_keys(ctx: Context, bucket_has: bool = True) -> set[bytes]:
    """Every key that must stay; `bucket_has`: what was brought to the bucket is there."""
    roots = roots_of(ctx)
    every = [root for _, root in roots]
    if not ctx.settings.content_url:
        return reachable(ctx, every)
    from cleveragents.maintenance.bucket import needed_here, read_here

    return reachable(ctx, needed_here(ctx, roots) if bucket_has else every, read_here(ctx))


def reachable(ctx: Context, roots: list[bytes], read: trees.Reader | None = None) -> set[bytes]:
    read = read or ctx.manager.packs.get
    load = trees.reading(read)
    seen: set[bytes] = set()
    for root in roots:
        if root[:1] == TREE:
            for _ in trees.keys_in(load, root, seen):
                pass
        else:
            seen.add(root)
    for key in [key for key in seen if key[:1] == CHUNKS]:
        digests = read(key)
        seen.update(BLOB + digests[n : n + 32] for n in range(0, len(digests), 32))
    return seen


def follow_clock(ctx: Context) -> None:
    """If the clock was set since the last look, what is condemned waits as long as it would have.

    After a restart only a time that lies ahead is known to be wrong: it would wait for ever.
    """
    clock = read_clocks(ctx.now(), is_given=ctx.now is not utc_now)
    noted = ctx.store.noted("gc_clock")
    last = codec.from_json(noted, Clock) if noted else None
    jump = jump_between(last, clock)
    with ctx.store.content_transaction():
        rows = ctx.store.objects.condemned()
        if jump is not None:
            ctx.store.objects.condemn_since((key, _moved(at, jump)) for key, at in rows)
        else:
            ctx.store.objects.condemn_since((key, clock.at) for key, at in rows if at > clock.at)
        ctx.store.note("gc_clock", msgspec.json.encode(clock).decode())


def _moved(at: str, by: timedelta) -> str:
    return (datetime.fromisoformat(at) + by).isoformat(timespec="microseconds")


def collect(ctx: Context, grace: float, dry_run: bool = False) -> Collected:
    if not ctx.settings.content_url:
        return _collect(ctx, grace, dry_run, bucket_has=False)
    from cleveragents.maintenance.bucket import put_back, sweep

    back = put_back(ctx, dry_run)  # before anything goes because the bucket has it
    done = _collect(ctx, grace, dry_run, bucket_has=back is not None)
    return msgspec.structs.replace(done, put_back=back or 0, plans_swept=sweep(ctx, dry_run))


def _collect(ctx: Context, grace: float, dry_run: bool, *, bucket_has: bool) -> Collected:
    ctx.manager.packs.release_pack()
    if not dry_run:
        follow_clock(ctx)
    live = live_keys(ctx, bucket_has)
    now = ctx.now()
    known = list(ctx.store.objects.all())
    dead = [key for key, _, condemned in known if key not in live and condemned is None]
    saved = [key for key, _, condemned in known if key in live and condemned is not None]
    before = _moved(now, -timedelta(seconds=grace))
    due = [key for key, _, at in known if key not in live and (at or now) <= before]
    if dry_run:
        freed = sum(place.length for key, place, _ in known if key in set(due))
        return _collected(live, dead, due, known, freed, 0, dry_run=True)
    # Condemned in a commit of its own: a checkpoint that relies on such content from now on
    # sees that and pardons it, before anything is taken out of the index.
    with ctx.store.content_transaction():
        ctx.store.objects.pardon(saved)
        ctx.store.objects.condemn(dead, now)
    release_dropped_everywhere(ctx)
    database_backups.finish(ctx)
    removed = _remove(ctx, before, bucket_has)
    freed, rewritten = _compact(ctx)
    ctx.store.compact()
    return _collected(live, dead, removed, known, freed, rewritten, dry_run=False)


def release_dropped_everywhere(ctx: Context) -> None:
    """What kinds keep outside of the store and no group needs; never in a running plan's way."""
    for plan_id in ctx.store.plans.ids():
        opened = ctx.manager.sandboxes(plan_id).opened.values()
        if not any(isinstance(one, KeepsElsewhere) for one in opened):
            continue
        try:
            with hold(ctx.store, plan_id, "gc", ctx.now):
                ctx.checkpoints.release_dropped(plan_id)
        except PlanBusy:
            continue


def _collected(
    live: set[bytes],
    dead: list[bytes],
    removed: list[bytes],
    known: list[tuple[bytes, Location, str | None]],
    freed: int,
    rewritten: int,
    dry_run: bool,
) -> Collected:
    unused = sum(key not in live for key, _, _ in known)
    return Collected(
        live=len(known) - unused,
        condemned=len(dead),
        removed=len(removed),
        freed_bytes=freed,
        packs_rewritten=rewritten,
        waiting=unused - len(removed),
        dry_run=dry_run,
    )


def _remove(ctx: Context, before: str, bucket_has: bool) -> list[bytes]:
    """Take out of the index what is still condemned and still unused, in one transaction.

    A checkpoint that wants such content again takes it off the list in its own commit, so
    looking again inside ours decides the race.
    """
    with ctx.store.content_transaction(exclusive=True):
        live = live_keys(ctx, bucket_has)
        gone = [
            key
            for key, _, at in ctx.store.objects.all()
            if at is not None and at <= before and key not in live
        ]
        ctx.store.objects.forget(gone)
    return gone


def _compact(ctx: Context) -> tuple[int, int]:
    """Drop packs without content in use, rewrite those that are mostly unused."""
    packs, rewritten = ctx.manager.packs, 0
    before = packs.size()
    used = ctx.store.objects.packs()
    packs.remove_unnamed()
    sizes = {name: os.stat(f"{packs.directory}/{name}").st_size for name in packs.names()}
    wasteful = {
        name
        for name, size in sizes.items()
        if size - used.get(name, 0) > size * MOSTLY_DEAD or not used.get(name, 0)
    }
    # Those that only give room come first: a full disk has none for copies.
    for name in sorted(wasteful, key=lambda name: (used.get(name, 0), name)):
        lock = packs.try_lock(name)
        if lock is None:
            continue
        try:
            # Somebody may have written to it until we had the lock.
            wanted = ctx.store.objects.packs().get(name, 0)
            if wanted:
                try:
                    _move_out(ctx, name, wasteful)
                except DiskFull:
                    continue  # others may give room; this one waits for the next collection
                rewritten += 1
            # The index first: a pack without rows is rubbish, rows without a pack are damage.
            with ctx.store.content_transaction():
                ctx.store.objects.forget_pack(name)
            packs.drop(name)
        finally:
            os.close(lock)
    return before - packs.size(), rewritten


def _move_out(ctx: Context, name: str, wasteful: set[str]) -> None:
    """Copy what is in use into another pack, durably, before the index points there.

    Never into one that is wasteful too: with the copies in it, it would count as well used.
    """
    packs = ctx.manager.packs
    kept = [(k, place) for k, place, _ in ctx.store.objects.all() if place.pack == name]
    records = [compressed(key, packs.read(key, place)) for key, place in kept]
    moved = packs.append(records, urgent=True, avoid=wasteful)
    packs.sync()
    with ctx.store.content_transaction():
        ctx.store.objects.move(moved)
