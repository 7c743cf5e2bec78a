"""A plan's sandboxes and content with a bucket; imported only then."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from cleveragents.checkpoints.manager import CheckpointManager, States
from cleveragents.checkpoints.sandboxes import PlanSandboxes
from cleveragents.checkpoints.uploads import Desk
from cleveragents.content.bucket.address import Bucket
from cleveragents.content.bucket.backed import BackedIndex, BackedPacks, RemoteIndex
from cleveragents.content.bucket.cipher import cipher_from
from cleveragents.content.bucket.home import home_id
from cleveragents.content.bucket.segments import SegmentCache
from cleveragents.content.packs import Batch
from cleveragents.errors import SandboxMissing
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.plan import Plan
from cleveragents.model.settings import Settings
from cleveragents.store import Store, open_store


class BackedManager(CheckpointManager):
    """The manager with a bucket; only segments of the plan in use are certain to stay."""

    def __init__(
        self,
        store: Store,
        packs: BackedPacks,
        settings: Settings,
        tell: Callable[[str, int, int], None] = lambda _resource, _done, _of: None,
    ) -> None:
        super().__init__(store, packs, settings, tell)
        self._index = packs.index
        self._home_id = home_id(settings.home, make=not store.read_only)
        self._roots: dict[str, str] = {}

    def sandboxes(self, plan_id: str) -> PlanSandboxes:
        if plan_id not in self._roots:
            self._roots[plan_id] = self._store.segments.root_of(plan_id)
        self._index.root = self._roots[plan_id]
        found = super().sandboxes(plan_id)
        found.home_id, found.in_bucket = self._home_id, True
        return found

    def create_checkpoint(
        self,
        plan_id: str,
        batch: Batch,
        previous: States,
        strict: bool = True,
        but_in_place: bool = False,
    ) -> States:
        """Capture; of sandboxes on another machine only states in the bucket are visible here."""
        if not self.sandboxes(plan_id).elsewhere:
            return super().create_checkpoint(plan_id, batch, previous, strict, but_in_place)
        group = newest_uploaded(self._store, self._store.plans.get(plan_id))
        if group is None:
            raise SandboxMissing(
                f"the sandboxes of plan {plan_id} are on another machine",
                f"agents plan resume {plan_id} continues it here",
            )
        rows = self._store.checkpoints.of_members(group)
        return {rid: row.snapshot for rid, row in rows.items()}

    def head_of(self, plan: Plan) -> str | None:
        if self.sandboxes(plan.plan_id).elsewhere:
            group = newest_uploaded(self._store, plan)
            return group.group_id if group else None
        return super().head_of(plan)


def newest_uploaded(store: Store, plan: Plan) -> CheckpointGroup | None:
    """The plan's newest group that is in the bucket."""
    there = store.segments.there(plan.plan_id)
    if plan.head_group_id is None or plan.head_group_id in there:
        return store.checkpoints.group(plan.head_group_id) if plan.head_group_id else None
    head = store.checkpoints.number(plan.head_group_id)
    for group in reversed(store.checkpoints.groups(plan.plan_id)):
        if group.group_id in there and store.checkpoints.number(group.group_id) < head:
            return group
    return None


def backed_packs(settings: Settings, store: Store) -> BackedPacks:
    bucket = Bucket(settings.content_url, cipher_from(settings.content_key_from))
    return BackedPacks(
        f"{settings.home}/content",
        BackedIndex(store.objects, RemoteIndex(store.segments.after)),
        SegmentCache(bucket, f"{settings.home}/cache/segments", settings.content_cache),
        settings.content_budget,
        store.reserve,
        store.read_only,
    )


@contextmanager
def open_desk(settings: Settings) -> Generator[Desk]:
    """A store and its content for the thread that uploads."""
    store = open_store(settings.home, settings.store_url, settings.lease, lasts=False)
    try:
        packs = backed_packs(settings, store)
        try:
            yield Desk(store=store, packs=packs, home_id=home_id(settings.home))
        finally:
            packs.close()
    finally:
        store.close()
