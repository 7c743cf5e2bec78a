"""Care of the bucket: whether it works, and leftovers of deleted plans."""

from collections.abc import Callable, Collection

from cleveragents.content import trees
from cleveragents.content.bucket.address import Bucket
from cleveragents.content.bucket.backed import BackedPacks
from cleveragents.content.bucket.cipher import cipher_from
from cleveragents.content.keys import TREE
from cleveragents.context import Context
from cleveragents.errors import AgentsError, BucketUnreachable
from cleveragents.model.settings import Settings


def examine(settings: Settings) -> str:
    """The bucket's state now; empty if there is none."""
    if not settings.content_url:
        return ""
    try:
        bucket = Bucket(settings.content_url, cipher_from(settings.content_key_from))
        bucket.probe()
    except AgentsError as error:
        return error.message
    how = "content is encrypted" if bucket.fingerprint else "content is not encrypted"
    return f"{bucket.url}: answers and keeps what it has; {how}"


def delete_plan(ctx: Context, root: str) -> None:
    """Remove a root plan's objects after its rows are gone; if that fails, `gc` does it."""
    packs = ctx.manager.packs
    if not isinstance(packs, BackedPacks):
        return
    packs.index.there.forget()
    try:
        _remove(packs, f"{ctx.store.identity.store_id}/{root}")
    except BucketUnreachable as error:
        said = f"its content is still in the bucket, until agents gc: {error.message}"
        ctx.talk.tell("warning", {"message": said})


def sweep(ctx: Context, dry_run: bool) -> int:
    """Remove what belongs to plans that the store no longer has; returns of how many."""
    packs = ctx.manager.packs
    if not isinstance(packs, BackedPacks):
        return 0
    own = ctx.store.identity.store_id
    try:
        # List the bucket first: a plan has its row before it has objects.
        there = packs.cache.bucket.folders(own)
        known = set(ctx.store.plans.ids())
        gone = [root for root in there if root not in known]
        for root in [] if dry_run else gone:
            _remove(packs, f"{own}/{root}")
    except BucketUnreachable as error:
        said = f"what deleted plans left in the bucket stays until the next gc: {error.message}"
        ctx.talk.tell("warning", {"message": said})
        return 0
    return len(gone)


def put_back(ctx: Context, dry_run: bool) -> int | None:
    """Write again what the bucket has lost and this machine has.

    Returns how many segments; None: the bucket does not say what it has.
    """
    packs, count = _backed(ctx), 0
    try:
        there = set(packs.cache.bucket.names(ctx.store.identity.store_id))
        lost = set(ctx.store.segments.names()) - there
        for _, name, entries in ctx.store.segments.after(None, 0) if lost else ():
            data = packs.segment(name, entries) if name in lost else None
            if data is None:
                continue
            count += 1
            if not dry_run:
                packs.cache.bucket.put_new(name, data)
    except BucketUnreachable as error:
        said = f"nothing is removed here because the bucket has it: {error.message}"
        ctx.talk.tell("warning", {"message": said})
        return None
    return count


def _remove(packs: BackedPacks, folder: str) -> None:
    bucket = packs.cache.bucket
    bucket.delete(bucket.names(folder))


def there(ctx: Context) -> Collection[bytes]:
    """Every key that is in the bucket."""
    return _backed(ctx).index.there.of(None)


def _backed(ctx: Context) -> BackedPacks:
    assert isinstance(ctx.manager.packs, BackedPacks)
    return ctx.manager.packs


def needed_here(ctx: Context, roots: list[tuple[str, bytes]]) -> list[bytes]:
    """Of all that plans need, what this machine has to keep: all of it, up to `content.cache`.

    Above that, what the bucket has goes; but for what the sandboxes here hold now.
    """
    if _backed(ctx).size() <= ctx.settings.content_cache:
        return [root for _, root in roots]
    store, kept = ctx.store, set[bytes]()
    for plan in store.plans.all():
        wanted = set(store.segments.pending(plan.plan_id))
        if plan.head_group_id is not None and not ctx.manager.sandboxes(plan.plan_id).elsewhere:
            wanted.add(plan.head_group_id)
        for group_id in wanted:
            members = store.checkpoints.of_members(store.checkpoints.group(group_id))
            kept.update(row.root_key for row in members.values())
    known = {row[2] for row in store.checkpoints.roots()}
    # Initial states of sandboxes are in no group, and so never in the bucket.
    return [root for _, root in roots if root in kept or root not in known]


def read_here(ctx: Context) -> Callable[[bytes], bytes]:
    """Content of this machine's packs. What is not there is in the bucket, with all below it."""
    packs = _backed(ctx)

    def read(key: bytes) -> bytes:
        if packs.index.here.has(key):
            return packs.get(key)
        return trees.Listing().data if key[:1] == TREE else b""

    return read
